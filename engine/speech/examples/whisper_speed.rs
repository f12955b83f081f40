//! Times transcription: `whisper_speed FOLDER stored|int8 THREADS BEAM LANGUAGE FILE` loads a Whisper folder and a file, says
//! `ready`, and for each line it then reads transcribes the file once and prints the seconds, a tab and the text. At
//! temperature 0, without falling back. `make bench-speech` runs it beside its peers.

#![allow(clippy::print_stdout, reason = "a command-line tool")]

use std::{
    error::Error,
    io::{Write, stdin, stdout},
    path::Path,
    time::Instant,
};

use linnet_models::WeightPrecision;
use linnet_speech::{AudioReader, NetworkOptions, TranscribeOptions, Transcriber, load_network};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, weights, threads, beam, language, file] = &arguments[..] else {
        return Err("usage: whisper_speed FOLDER stored|int8 THREADS BEAM LANGUAGE FILE".into());
    };
    let network = NetworkOptions {
        threads: Some(threads.parse()?),
        weights: match weights.as_str() {
            "stored" => WeightPrecision::Stored,
            "int8" => WeightPrecision::Int8,
            other => return Err(format!("weights are `stored` or `int8`, not `{other}`").into()),
        },
        ..NetworkOptions::default()
    };
    let options = TranscribeOptions {
        beam_size: beam.parse()?,
        languages: vec![language.clone()],
        temperatures: vec![0.0],
        ..TranscribeOptions::default()
    };
    let folder = Path::new(folder);
    let mut transcriber = Transcriber::new(load_network(folder, &network)?, folder)?;
    let samples = AudioReader::open(Path::new(file))?.read_to_end()?;
    println!("ready");
    stdout().flush()?;
    for line in stdin().lines() {
        line?;
        let start = Instant::now();
        let transcript = transcriber.transcribe(&samples, options.clone(), &mut ())?;
        println!("{:.6}\t{}", start.elapsed().as_secs_f64(), transcript.text());
        stdout().flush()?;
    }
    Ok(())
}
