//! Transcribes audio files with a Whisper folder and says how long each took: `transcribe FOLDER [option=value ...] FILE...`
//!
//! Options: `beam=5`, `weights=int8`, `threads=2`, `rounds=5`, `language=en`, `words=1`, `exact=1`,
//! `fallback=0`. Prints a line of JSON for each file: seconds of each round and the text.

#![allow(clippy::print_stdout, reason = "a command-line tool")]

use std::{error::Error, path::Path, time::Instant};

use linnet_models::WeightPrecision;
use linnet_speech::{AudioReader, NetworkOptions, SAMPLE_RATE, TranscribeOptions, Transcriber, load_network};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: transcribe FOLDER [option=value ...] FILE...")?;
    let mut network = NetworkOptions::default();
    let mut options = TranscribeOptions::default();
    let mut rounds = 1;
    let mut files = Vec::new();
    for argument in arguments {
        match argument.split_once('=') {
            Some(("beam", size)) => options.beam_size = size.parse()?,
            Some(("threads", count)) => network.threads = Some(count.parse()?),
            Some(("rounds", count)) => rounds = count.parse()?,
            Some(("language", code)) => options.languages = vec![code.to_owned()],
            Some(("words", value)) => options.word_timestamps = value == "1",
            Some(("exact", value)) => network.exact = value == "1",
            Some(("fallback", "0")) => options.temperatures.truncate(1),
            Some(("weights", "int8")) => network.weights = WeightPrecision::Int8,
            _ => files.push(argument),
        }
    }
    let mut transcriber = Transcriber::new(load_network(Path::new(&folder), &network)?, Path::new(&folder))?;
    for file in files {
        let samples = AudioReader::open(Path::new(&file))?.read_to_end()?;
        let mut seconds = Vec::new();
        let mut transcript = None;
        for _ in 0..rounds {
            let start = Instant::now();
            transcript = Some(transcriber.transcribe(&samples, options.clone(), &mut ())?);
            seconds.push(start.elapsed().as_secs_f64());
        }
        let transcript = transcript.ok_or("rounds=0")?;
        let words: Vec<_> = transcript
            .segments
            .iter()
            .flat_map(|segment| &segment.words)
            .map(|word| serde_json::json!([word.word, word.start, word.end]))
            .collect();
        let line = serde_json::json!({
            "file": file,
            "audio": samples.len() as f64 / SAMPLE_RATE as f64,
            "seconds": seconds,
            "language": transcript.language,
            "text": transcript.text(),
            "words": words,
        });
        println!("{line}");
    }
    Ok(())
}
