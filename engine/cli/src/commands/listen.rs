//! `linnet listen`.

mod microphone;

use std::io::{BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use linnet_library::Store;
use linnet_speech::{
    Delivery, DictationSession, PcmStream, Recognition, SessionOptions, SileroVad, SpeechError, SpeechPriority,
    TextOptions, TextStage, WindowOptions, WorkFailure,
};

use crate::exit::Exit;
use crate::output;
use crate::speech::SpeechArguments;

use microphone::Microphone;

/// How long nothing has to come from the microphone before results are looked at again.
const TICK: Duration = Duration::from_millis(20);

/// Arguments of `linnet listen`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  linnet listen
  linnet listen --language de --model whisper-base
  linnet listen > notes.txt

Enter or Ctrl-C ends it. What is said is written when it is certain; in a terminal the rest is shown too.")]
pub(crate) struct ListenArguments {
    /// The microphone [default: the system's]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// List the microphones
    #[arg(long)]
    list_devices: bool,
    #[command(flatten)]
    speech: SpeechArguments,
}

/// What the loop hears of.
pub(super) enum Heard {
    /// Samples as the microphone gives them: interleaved floats.
    Samples(Vec<f32>),
    /// The microphone failed.
    Lost(String),
    /// The user wants no more.
    Enough,
}

pub(crate) fn run(arguments: &ListenArguments) -> anyhow::Result<Exit> {
    if arguments.list_devices {
        for name in microphone::names()? {
            output::line(&name)?;
        }
        return Ok(Exit::Done);
    }
    let store = Store::from_environment()?;
    let entry = arguments.speech.entry(&store)?;
    let engine = arguments.speech.engine(&entry)?;
    // Loads while the microphone is opened.
    let _hold = engine.hold();
    let (sender, heard) = channel();
    let microphone = Microphone::open(arguments.device.as_deref(), sender.clone())?;
    let mut pcm = PcmStream::new(microphone.format()).context("the microphone's format is not known")?;
    end_on_enter(sender.clone())?;
    end_on_interrupt(sender)?;
    eprintln!("listening to {} with {} (Enter ends it)", microphone.name(), entry.name);

    let mut session = DictationSession::new(
        Arc::new(SileroVad::bundled().context("the detector of speech is broken; please report this")?),
        SessionOptions {
            windows: WindowOptions::LIVE,
            transcribe: arguments.speech.options(),
            text: Arc::new(TextStage::new(&TextOptions::default())?),
            partials: std::io::stdout().is_terminal(),
            ahead: true,
        },
    );
    let mut screen = Screen::new();
    let mut out: Option<(u64, Recognition)> = None;
    let mut lost = None;
    let mut was_delivering = true;
    let mut microphone = Some(microphone);
    while !session.is_complete() {
        match heard.recv_timeout(TICK) {
            Ok(Heard::Samples(frames)) => {
                let mut samples = Vec::new();
                pcm.push_frames(&frames, &mut samples);
                let delivery = session.push(&samples).map_err(|error| anyhow!("{error}"))?;
                let delivers = delivery != Delivery::NotDelivering;
                if was_delivering && !delivers {
                    screen.note("the microphone gives no sound: is it muted, or not ready yet?");
                }
                was_delivering = delivers;
            }
            Ok(Heard::Lost(problem)) => {
                lost = Some(problem);
                end(&mut session, &mut microphone)?;
            }
            Ok(Heard::Enough) | Err(RecvTimeoutError::Disconnected) => end(&mut session, &mut microphone)?,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some((id, recognition)) = &mut out {
            if session.is_overtaken() {
                recognition.cancel();
            }
            if let Some(result) = recognition.poll_now() {
                let result = result.map_err(|error| match error {
                    SpeechError::Cancelled => WorkFailure::Cancelled,
                    other => WorkFailure::Failed(other.to_string()),
                });
                session.complete(*id, result);
                out = None;
            }
        }
        if out.is_none()
            && let Some(work) = session.next_work()
        {
            let audio = Arc::clone(work.window.samples());
            out = Some((work.id, engine.recognize(audio, work.options, SpeechPriority::Live)));
        }
        if let Some(problem) = session.failure() {
            bail!("{problem}");
        }
        let text = session.text();
        screen.show(&text.committed, &text.tail)?;
    }
    screen.finish()?;
    match lost {
        Some(problem) => bail!("the microphone was lost: {problem}"),
        None if !session.has_heard() => bail!("the microphone gave no sound at all; choose another with --device"),
        None => Ok(Exit::Done),
    }
}

fn end(session: &mut DictationSession, microphone: &mut Option<Microphone>) -> anyhow::Result<()> {
    // Closed first, so that its light goes out.
    *microphone = None;
    session.finish().map_err(|error| anyhow!("{error}"))
}

fn end_on_enter(sender: Sender<Heard>) -> anyhow::Result<()> {
    if !std::io::stdin().is_terminal() {
        return Ok(());
    }
    let wait = move || {
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
        let _ = sender.send(Heard::Enough);
    };
    std::thread::Builder::new().name("listen stdin".into()).spawn(wait).context("cannot wait for Enter")?;
    Ok(())
}

fn end_on_interrupt(sender: Sender<Heard>) -> anyhow::Result<()> {
    let wait = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if sender.send(Heard::Enough).is_err() {
                    return;
                }
            }
        });
    };
    std::thread::Builder::new().name("listen signals".into()).spawn(wait).context("cannot wait for Ctrl-C")?;
    Ok(())
}

/// The width of a line in a terminal: the least that there is.
const WIDTH: usize = 79;

/// Text on standard output. In a terminal, what is not certain yet stands dimly behind the last line and is written over;
/// lines are broken here, as a line that the terminal broke could not be written over.
struct Screen {
    written: usize,
    /// The line that may still grow.
    line: String,
    tail: String,
    is_terminal: bool,
}

impl Screen {
    fn new() -> Self {
        Self { written: 0, line: String::new(), tail: String::new(), is_terminal: std::io::stdout().is_terminal() }
    }

    fn show(&mut self, committed: &str, tail: &str) -> anyhow::Result<()> {
        let new = committed.get(self.written..).unwrap_or_default();
        if new.is_empty() && (self.tail == tail || !self.is_terminal) {
            return Ok(());
        }
        self.written = committed.len();
        tail.clone_into(&mut self.tail);
        if self.is_terminal {
            self.line.push_str(new);
            output::piece(&self.drawn())?;
        } else {
            output::piece(new)?;
        }
        Ok(())
    }

    /// What brings the terminal up to date.
    fn drawn(&mut self) -> String {
        let mut text = String::from("\r\x1b[K");
        while let Some(end) = line_end(&self.line) {
            let rest = self.line.split_off(end);
            text.push_str(self.line.trim_end());
            text.push('\n');
            self.line = rest.trim_start_matches([' ', '\n']).to_owned();
        }
        text.push_str(&self.line);
        let room = WIDTH.saturating_sub(self.line.chars().count());
        let tail: String = self.tail.replace('\n', " ").chars().take(room).collect();
        text.push_str(&format!("\x1b[2m{tail}\x1b[0m"));
        text
    }

    fn note(&self, text: &str) {
        if self.is_terminal && !(self.line.is_empty() && self.tail.is_empty()) {
            eprintln!();
        }
        eprintln!("{text}");
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.tail.clear();
        if self.is_terminal {
            let drawn = self.drawn();
            output::piece(&drawn)?;
        }
        if self.written > 0 {
            output::line("")?;
        }
        Ok(())
    }
}

/// Where a line ends that holds a line end or is too long: at its last space, if it has one.
fn line_end(line: &str) -> Option<usize> {
    if let Some(end) = line.find('\n') {
        return Some(end);
    }
    let (limit, _) = line.char_indices().nth(WIDTH)?;
    Some(line[..limit].rfind(' ').filter(|&space| space > 0).unwrap_or(limit))
}

#[cfg(test)]
mod tests {
    use super::{Screen, WIDTH};

    #[test]
    fn what_is_certain_is_written_for_good_and_the_rest_over_and_over() {
        let mut screen = Screen { written: 0, line: "And so".into(), tail: " my".into(), is_terminal: true };
        assert_eq!(screen.drawn(), "\r\x1b[KAnd so\x1b[2m my\x1b[0m");
        screen.line = "word ".repeat(20);
        screen.tail = "x".repeat(200);
        let drawn = screen.drawn();
        let (first, second) = drawn.split_once('\n').unwrap();
        assert_eq!(first, format!("\r\x1b[K{}", "word ".repeat(15)).trim_end());
        assert!(second.starts_with("word word word word word \x1b[2mxxx"), "{second}");
        assert_eq!(second.chars().filter(|c| *c == 'x').count(), WIDTH - 25);
        screen.line = "one\ntwo".into();
        assert!(screen.drawn().starts_with("\r\x1b[Kone\ntwo"));
    }
}
