//! How long the voice activity detector takes: `vad_speed FILE [rounds]` prints the seconds of each round, one a line, after
//! the seconds of audio. `tests/speech/bench_vad.py` sets them beside onnxruntime's.

use std::{hint::black_box, io::Write, path::Path, sync::Arc, time::Instant};

use linnet_speech::{AudioReader, SAMPLE_RATE, SileroVad, VAD_CHUNK, VadSession};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("vad_speed FILE [rounds]")?;
    let rounds: usize = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let samples = AudioReader::open(Path::new(&path))?.read_to_end()?;
    let mut session = VadSession::new(Arc::new(SileroVad::bundled()?));
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", samples.len() as f64 / SAMPLE_RATE as f64)?;
    for _ in 0..rounds {
        for piece in [VAD_CHUNK, samples.len()] {
            let mut probabilities = Vec::new();
            let begin = Instant::now();
            for piece in samples.chunks(piece) {
                session.push(piece, &mut probabilities)?;
            }
            session.finish(&mut probabilities)?;
            write!(out, "{} ", begin.elapsed().as_secs_f64())?;
            black_box(&probabilities);
        }
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}
