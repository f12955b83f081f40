//! What a download tells while it runs.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two reports of mere byte counts; changes of state are told at once.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Where a whole pull stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PullProgress {
    /// Bytes that are on this machine, of all files.
    pub bytes_done: u64,
    /// Bytes that all files have together.
    pub bytes_total: u64,
    /// Every file, in the order of the listing.
    pub files: Vec<FileProgress>,
    /// A sentence for the user about what is being done now, where the counts alone do not tell it.
    pub note: Option<String>,
}

/// Where one file stands.
#[derive(Clone, Debug, PartialEq)]
pub struct FileProgress {
    /// Name inside the repository, with `/` between folders.
    pub name: String,
    /// Bytes received, those of earlier runs included.
    pub bytes_done: u64,
    /// Bytes the file has.
    pub bytes_total: u64,
    /// What is happening to it.
    pub state: FileState,
}

/// What is happening to one file.
#[derive(Clone, Debug, PartialEq)]
pub enum FileState {
    /// Not begun.
    Queued,
    /// Another task or process downloads the same content; we take its result.
    WaitingForOther {
        /// The other's process id, where it could be read.
        process: Option<u32>,
    },
    /// Bytes are coming.
    Downloading,
    /// The connection is open but silent.
    Stalled {
        /// How long nothing has come.
        silent: Duration,
    },
    /// An attempt failed and the next one follows after a pause.
    Retrying {
        /// How many attempts have failed in a row.
        failures: u32,
        /// The pause.
        wait: Duration,
        /// Why the last attempt failed.
        reason: String,
    },
    /// Being hashed, unpacked or given its final name.
    Verifying,
    /// In place and verified.
    Done,
}

/// The caller's function that hears about progress. It is called from the async threads: let it be quick.
pub(crate) type ProgressFunction<'a> = &'a (dyn Fn(&PullProgress) + Send + Sync);

/// Gathers what the files' downloads report, and tells the caller.
pub(crate) struct ProgressBoard<'a> {
    tell: ProgressFunction<'a>,
    state: Mutex<BoardState>,
}

struct BoardState {
    progress: PullProgress,
    last_report: Option<Instant>,
}

impl<'a> ProgressBoard<'a> {
    /// A board for these files: name and size of each.
    pub(crate) fn new(tell: ProgressFunction<'a>, files: impl IntoIterator<Item = (String, u64)>) -> Self {
        let files: Vec<FileProgress> = files
            .into_iter()
            .map(|(name, bytes_total)| FileProgress { name, bytes_done: 0, bytes_total, state: FileState::Queued })
            .collect();
        let bytes_total = files.iter().map(|file| file.bytes_total).sum();
        let progress = PullProgress { bytes_done: 0, bytes_total, files, note: None };
        Self { tell, state: Mutex::new(BoardState { progress, last_report: None }) }
    }

    /// Tells a sentence about what is being done now.
    pub(crate) fn note(&self, text: impl Into<String>) {
        self.change(true, |progress| progress.note = Some(text.into()));
    }

    /// The reporter of the file at this place of the list.
    pub(crate) fn file(&self, index: usize) -> FileReporter<'_> {
        FileReporter { board: self, index }
    }

    fn change(&self, at_once: bool, change: impl FnOnce(&mut PullProgress)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state.progress);
        state.progress.bytes_done = state.progress.files.iter().map(|file| file.bytes_done).sum();
        let due = state.last_report.is_none_or(|last| last.elapsed() >= REPORT_INTERVAL);
        if !(at_once || due) {
            return;
        }
        state.last_report = Some(Instant::now());
        let snapshot = state.progress.clone();
        // The lock is let go first, so that the caller's function may take as long as it likes.
        drop(state);
        (self.tell)(&snapshot);
    }
}

/// One file's line on the board.
#[derive(Clone, Copy)]
pub(crate) struct FileReporter<'a> {
    board: &'a ProgressBoard<'a>,
    index: usize,
}

impl FileReporter<'_> {
    /// Sets how many bytes are here; told at the next due moment.
    pub(crate) fn bytes(&self, done: u64) {
        self.board.change(false, |progress| {
            if let Some(file) = progress.files.get_mut(self.index) {
                file.bytes_done = done;
            }
        });
    }

    /// Sets a size that was not known when the board was made.
    pub(crate) fn size(&self, total: u64) {
        self.board.change(false, |progress| {
            if let Some(file) = progress.files.get_mut(self.index) {
                file.bytes_total = total;
            }
            progress.bytes_total = progress.files.iter().map(|file| file.bytes_total).sum();
        });
    }

    /// Sets the state; told at once if it is another one.
    pub(crate) fn state(&self, state: FileState) {
        let mut current = self.board.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = current.progress.files.get(self.index).is_some_and(|file| file.state != state);
        if let Some(file) = current.progress.files.get_mut(self.index) {
            file.state = state;
        }
        drop(current);
        if changed {
            self.board.change(true, |_| {});
        }
    }

    /// The file is in place.
    pub(crate) fn done(&self) {
        self.board.change(true, |progress| {
            if let Some(file) = progress.files.get_mut(self.index) {
                file.bytes_done = file.bytes_total;
                file.state = FileState::Done;
            }
        });
    }
}
