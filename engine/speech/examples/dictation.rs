//! Dictates files in real time and says how long the end takes: `dictation FOLDER FILE...`
//!
//! The files are joined, pushed in pieces of 100 ms as a microphone would, and ended. Prints JSON: seconds from the end to the
//! final text, seconds that the last window takes alone, whether the text is that of the batch, how often text was
//! committed, and the text.

use std::{
    error::Error,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use linnet_speech::{
    AudioReader, DictationSession, NetworkOptions, Recognition, SAMPLE_RATE, SessionOptions, SileroVad, SpeechEngine,
    SpeechEngineOptions, SpeechError, SpeechPriority, TextOptions, TextStage, TranscribeOptions, Transcriber,
    WindowOptions, WorkFailure, load_network,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("usage: dictation FOLDER FILE...")?);
    let mut samples = Vec::new();
    for file in arguments {
        samples.extend(AudioReader::open(Path::new(&file))?.read_to_end()?);
    }
    let load = move || {
        let network = load_network(&folder, &NetworkOptions::default());
        let network = network.map_err(|error| SpeechError::Load(error.to_string()))?;
        let model = Transcriber::new(network, &folder).map_err(|error| SpeechError::Load(error.to_string()))?;
        Ok(Box::new(model) as Box<dyn linnet_speech::Recognizer>)
    };
    let engine = SpeechEngine::start("dictation", SpeechEngineOptions::default(), load)?;
    let options = SessionOptions {
        windows: WindowOptions::LIVE,
        transcribe: TranscribeOptions::default(),
        text: Arc::new(TextStage::new(&TextOptions::default())?),
        partials: true,
        ahead: true,
    };
    let vad = Arc::new(SileroVad::bundled()?);

    let mut batch = DictationSession::new(Arc::clone(&vad), options.clone());
    batch.push(&samples)?;
    batch.finish()?;
    let mut last_window = 0.0;
    while let Some(work) = batch.next_work() {
        let started = Instant::now();
        let audio = Arc::clone(work.window.samples());
        let text = engine.recognize(audio, work.options, SpeechPriority::File).wait()?;
        last_window = started.elapsed().as_secs_f64();
        batch.complete(work.id, Ok(text));
    }

    let mut live = DictationSession::new(vad, options);
    let mut out: Option<(u64, Recognition)> = None;
    let (mut committed, mut grown, mut changed) = (String::new(), 0, false);
    let begun = Instant::now();
    let mut pieces = samples.chunks(SAMPLE_RATE / 10);
    let mut ended = Instant::now();
    while !live.is_complete() {
        let due = Duration::from_secs_f64(live.duration());
        if !live.is_ended() && begun.elapsed() >= due {
            if let Some(piece) = pieces.next() {
                live.push(piece)?;
            } else {
                live.finish()?;
                ended = Instant::now();
            }
        }
        if let Some((id, recognition)) = &mut out {
            if live.is_overtaken() {
                recognition.cancel();
            }
            if let Some(result) = recognition.poll_now() {
                live.complete(*id, result.map_err(|_| WorkFailure::Cancelled));
                out = None;
            }
        }
        if out.is_none()
            && let Some(work) = live.next_work()
        {
            let audio = Arc::clone(work.window.samples());
            out = Some((work.id, engine.recognize(audio, work.options, SpeechPriority::Live)));
        }
        let text = live.text().committed;
        changed |= !text.starts_with(&committed);
        grown += usize::from(text.len() > committed.len() && !live.is_ended());
        committed = text;
        std::thread::sleep(Duration::from_millis(1));
    }
    let line = serde_json::json!({
        "audio": samples.len() as f64 / SAMPLE_RATE as f64,
        "end_seconds": ended.elapsed().as_secs_f64(),
        "last_window_seconds": last_window,
        "same_as_batch": committed == batch.text().committed,
        "committed_changed": changed,
        "committed_times": grown,
        "text": committed,
    });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}
