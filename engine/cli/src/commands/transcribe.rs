//! `linnet transcribe`.

mod files;
mod resume;
mod write;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linnet_library::{ModelEntry, Store};
use linnet_speech::{
    AudioReader, DictationSession, SAMPLE_RATE, SessionOptions, SileroVad, SpeechEngine, SpeechPriority, TextOptions,
    TextStage, Transcript, WindowOptions, WorkFailure,
};

use crate::exit::Exit;
use crate::output;
use crate::speech::SpeechArguments;

use files::Recording;
use resume::Resume;
use write::Format;

/// Arguments of `linnet transcribe`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  linnet transcribe talk.mp3
  linnet transcribe talk.mp3 --language de --format srt --output-dir subtitles
  linnet transcribe recordings/ --model whisper-base --beam 5

One file in one format is printed; several are written beside the recordings or into --output-dir.
What is interrupted goes on where it stopped.")]
pub(crate) struct TranscribeArguments {
    /// Audio files, or folders of them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<std::path::PathBuf>,
    /// How to write what was said: txt, srt, vtt or json; may be given more than once [default: txt]
    #[arg(long, short, value_name = "FORMAT", value_delimiter = ',')]
    format: Vec<Format>,
    /// Write files into this folder
    #[arg(long, short, value_name = "FOLDER")]
    output_dir: Option<std::path::PathBuf>,
    /// Find out when each word was spoken (for json)
    #[arg(long)]
    words: bool,
    /// Begin anew where an earlier run was interrupted
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    speech: SpeechArguments,
}

pub(crate) fn run(arguments: &TranscribeArguments) -> anyhow::Result<Exit> {
    let store = Store::from_environment()?;
    let entry = arguments.speech.entry(&store)?;
    let recordings = files::find(&arguments.files, arguments.output_dir.as_deref())?;
    let formats = if arguments.format.is_empty() { vec![Format::Txt] } else { arguments.format.clone() };
    let is_printed = recordings.len() == 1 && formats.len() == 1 && arguments.output_dir.is_none();
    if let Some(folder) = &arguments.output_dir {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let work = Work {
        arguments,
        entry: &entry,
        engine: arguments.speech.engine(&entry)?,
        vad: Arc::new(SileroVad::bundled().context("the detector of speech is broken; please report this")?),
        folder: store.home().join("transcripts"),
    };
    let mut failed = 0;
    for (number, recording) in recordings.iter().enumerate() {
        let label = if recordings.len() > 1 { format!("{}/{} ", number + 1, recordings.len()) } else { String::new() };
        match work.transcribe(recording, &label) {
            Ok((text, transcript)) if is_printed => {
                output::piece(&write::written(formats[0], &text, &transcript)?)?;
            }
            Ok((text, transcript)) => {
                for &format in &formats {
                    let path = recording.output(format.extension());
                    std::fs::write(&path, write::written(format, &text, &transcript)?)
                        .with_context(|| format!("cannot write {}", path.display()))?;
                    output::line(&path.display().to_string())?;
                }
            }
            // One bad file of many does not end the others.
            Err(error) if recordings.len() > 1 => {
                failed += 1;
                eprintln!("{}: {error:#}", recording.path.display());
            }
            Err(error) => return Err(error),
        }
    }
    if failed > 0 {
        bail!("{failed} of {} files could not be transcribed", recordings.len());
    }
    Ok(Exit::Done)
}

struct Work<'a> {
    arguments: &'a TranscribeArguments,
    entry: &'a ModelEntry,
    engine: SpeechEngine,
    vad: Arc<SileroVad>,
    /// Where finished segments are kept until the whole is there.
    folder: std::path::PathBuf,
}

impl Work<'_> {
    fn transcribe(&self, recording: &Recording, label: &str) -> anyhow::Result<(String, Transcript)> {
        let mut reader = AudioReader::open(&recording.path)?;
        let bar = progress_bar(label, &recording.path, reader.info().seconds);
        let options = linnet_speech::TranscribeOptions {
            word_timestamps: self.arguments.words,
            ..self.arguments.speech.options()
        };
        let key = format!("{} {} {options:?}", env!("CARGO_PKG_VERSION"), self.entry.name);
        let mut resume = Resume::open(&self.folder, &recording.path, &key, self.arguments.fresh)?;
        if resume.known() > 0 {
            bar.println(format!("going on after {:.0} s that were transcribed before", resume.known_seconds()));
        }
        let mut session = DictationSession::new(
            Arc::clone(&self.vad),
            SessionOptions {
                windows: WindowOptions::FILE,
                transcribe: options,
                text: Arc::new(TextStage::new(&TextOptions::default())?),
                partials: false,
                ahead: false,
            },
        );
        let hold = self.engine.hold();
        let mut samples = Vec::new();
        let mut segments = Vec::new();
        loop {
            while let Some(work) = session.next_work() {
                // The same windows come out of the same audio, so those of an earlier run need no recognition.
                let result = match resume.take(&work.window) {
                    Some(known) => Ok(known),
                    None => {
                        let audio = Arc::clone(work.window.samples());
                        let text = self.engine.recognize(audio, work.options, SpeechPriority::File).wait();
                        if let Ok(transcript) = &text {
                            resume.put(&work.window, transcript)?;
                        }
                        text
                    }
                };
                let failure = result.as_ref().err().map(ToString::to_string);
                session.complete(work.id, result.map_err(|error| WorkFailure::Failed(error.to_string())));
                if let Some(failure) = failure {
                    bail!("{failure}");
                }
                bar.set_position(work.window.end() / (SAMPLE_RATE as u64 / 1000));
                for window in session.take_finished() {
                    segments.extend(window.transcript.segments);
                }
            }
            if session.is_complete() {
                break;
            }
            samples.clear();
            if reader.read(&mut samples)? {
                session.push(&samples).map_err(|error| anyhow!("{error}"))?;
            } else {
                session.finish().map_err(|error| anyhow!("{error}"))?;
            }
        }
        drop(hold);
        if reader.skipped_packets() > 0 {
            bar.println(format!("{} damaged pieces were left out", reader.skipped_packets()));
        }
        bar.finish_and_clear();
        resume.done();
        for (id, segment) in segments.iter_mut().enumerate() {
            segment.id = id;
        }
        let transcript = Transcript { segments, ..session.transcript() };
        Ok((session.text().committed, transcript))
    }
}

/// A bar in milliseconds of audio, on standard error and only in a terminal.
fn progress_bar(label: &str, path: &Path, seconds: Option<f64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(
        seconds.map(|seconds| (seconds * 1000.0) as u64),
        if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        },
    );
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {percent:>3}% {elapsed} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    bar.set_message(format!("{label}{name}"));
    bar
}
