//! Progress on standard error: bars in a terminal, single lines elsewhere.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linnet_library::{FileState, Progress, PullProgress, Stage};

const STYLE: &str = "{msg:24!} {bar:30} {bytes:>10}/{total_bytes:<10} {bytes_per_sec:>12} {eta:>4}";

/// The progress of one piece of work. Ends when it is dropped.
pub(crate) struct Report {
    bar: ProgressBar,
    is_terminal: bool,
    last_line: Mutex<String>,
}

impl Report {
    /// Begins; without a terminal nothing is drawn, and only what must be known is said.
    pub(crate) fn new() -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let target = if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template(STYLE) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, is_terminal, last_line: Mutex::default() }
    }

    /// Shows where a download stands.
    pub(crate) fn pull(&self, progress: &PullProgress) {
        self.bar.set_length(progress.bytes_total);
        self.bar.set_position(progress.bytes_done);
        self.bar.set_message(state_text(progress));
        if let Some(note) = &progress.note {
            self.say(note);
        }
    }

    /// Shows where an import stands.
    pub(crate) fn import(&self, progress: &Progress) {
        self.bar.set_length(progress.total);
        self.bar.set_position(progress.done);
        self.bar.set_message(match progress.stage {
            Stage::Checking => "checking",
            Stage::Converting => "importing",
            Stage::Finishing => "finishing",
        });
    }

    /// Says something once, above the bar.
    pub(crate) fn say(&self, text: &str) {
        let mut last = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == text {
            return;
        }
        text.clone_into(&mut last);
        if self.is_terminal {
            self.bar.println(text);
        } else {
            eprintln!("{text}");
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The state that matters most to whoever waits, in few words.
fn state_text(progress: &PullProgress) -> String {
    let states = || progress.files.iter().map(|file| &file.state);
    for state in states() {
        match state {
            FileState::Retrying { failures, .. } => return format!("retry {failures}"),
            FileState::Stalled { silent } => return format!("stalled for {} s", silent.as_secs()),
            _ => {}
        }
    }
    if states().any(|state| matches!(state, FileState::WaitingForOther { .. })) {
        return "waiting for another pull".to_owned();
    }
    if states().any(|state| matches!(state, FileState::Downloading)) {
        let done = states().filter(|state| matches!(state, FileState::Done)).count();
        return format!("downloading {}/{}", (done + 1).min(progress.files.len()), progress.files.len());
    }
    if states().any(|state| matches!(state, FileState::Verifying)) { "verifying" } else { "starting" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linnet_library::FileProgress;
    use std::time::Duration;

    fn progress(states: &[FileState]) -> PullProgress {
        let files = states
            .iter()
            .map(|state| FileProgress { name: "f".into(), bytes_done: 0, bytes_total: 1, state: state.clone() })
            .collect();
        PullProgress { files, ..PullProgress::default() }
    }

    #[test]
    fn trouble_is_shown_before_bytes() {
        let stalled = FileState::Stalled { silent: Duration::from_secs(7) };
        assert_eq!(state_text(&progress(&[FileState::Downloading, stalled])), "stalled for 7 s");
        assert_eq!(state_text(&progress(&[FileState::Done, FileState::Downloading])), "downloading 2/2");
        assert_eq!(state_text(&progress(&[FileState::Verifying, FileState::Done])), "verifying");
        assert_eq!(state_text(&progress(&[])), "starting");
    }
}
