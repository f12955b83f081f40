//! Reading blocks back while the engine goes on.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linnet_compute::KvBlock;

use super::shared::Shared;
use super::{BlockKey, CodecError};

/// A block that was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedBlock {
    /// Its key.
    pub key: BlockKey,
    /// Its tokens. Compare them with those wanted: that rules out what a hash cannot.
    pub tokens: Arc<[u32]>,
    /// Its keys and values.
    pub block: Arc<KvBlock>,
}

/// Why a block could not be read back. It counts as not stored from then on, with all blocks that follow from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// It is not stored, or was evicted since.
    #[error("the block is not stored (any more); compute it again")]
    Missing,
    /// Its bytes changed on the disk.
    #[error("the block is damaged on disk: {0}; it was discarded, compute it again")]
    Damaged(#[from] CodecError),
    /// The disk could not read it.
    #[error("the block could not be read: {0}; compute it again")]
    Unreadable(String),
    /// The tier was stopped.
    #[error("the cache on disk was stopped")]
    Stopped,
}

/// What a [`Fetch`] has to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchPoll {
    /// The next block of the chain.
    Block(FetchedBlock),
    /// Nothing yet.
    Pending,
    /// All blocks have been given.
    Done,
    /// The next block cannot be had, nor can those after it. Those given before are good.
    Failed(FetchError),
}

/// Blocks on their way from the disk. Dropping it cancels what is left.
#[derive(Debug)]
pub struct Fetch {
    shared: Arc<Shared>,
    job: Arc<FetchJob>,
}

/// What the caller and the readers share of one fetch.
#[derive(Debug)]
pub(super) struct FetchJob {
    begun: Instant,
    window_bytes: usize,
    state: Mutex<JobState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct JobState {
    wanted: VecDeque<BlockKey>,
    ready: VecDeque<FetchedBlock>,
    ready_bytes: usize,
    failed: Option<FetchError>,
    /// Whether it stands in the readers' queue or is being read.
    is_active: bool,
    is_cancelled: bool,
}

impl JobState {
    fn fail(&mut self, error: FetchError) {
        self.failed = Some(error);
        self.wanted.clear();
    }
}

pub(super) fn begin(shared: &Arc<Shared>, keys: Vec<BlockKey>) -> Fetch {
    let is_active = !keys.is_empty();
    let state = JobState { wanted: keys.into(), is_active, ..JobState::default() };
    let job = Arc::new(FetchJob {
        begun: Instant::now(),
        window_bytes: shared.options.restore_window_bytes,
        state: Mutex::new(state),
        changed: Condvar::new(),
    });
    if is_active && !shared.reads.push(Arc::clone(&job)) {
        job.give(Err(FetchError::Stopped));
    }
    Fetch { shared: Arc::clone(shared), job }
}

impl Fetch {
    /// What there is now. Never waits.
    pub fn poll(&mut self) -> FetchPoll {
        self.take(&mut self.job.lock())
    }

    /// What comes next, if it comes within `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> FetchPoll {
        let until = Instant::now() + timeout;
        let mut state = self.job.lock();
        loop {
            let found = self.take(&mut state);
            let left = until.saturating_duration_since(Instant::now());
            if found != FetchPoll::Pending || left.is_zero() {
                return found;
            }
            state = self.job.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take(&self, state: &mut JobState) -> FetchPoll {
        let Some(block) = state.ready.pop_front() else {
            return match &state.failed {
                Some(error) => FetchPoll::Failed(error.clone()),
                None if state.wanted.is_empty() && !state.is_active => FetchPoll::Done,
                None => FetchPoll::Pending,
            };
        };
        state.ready_bytes -= block.block.bytes();
        if self.job.should_continue(state) {
            state.is_active = self.shared.reads.push(Arc::clone(&self.job));
            if !state.is_active {
                state.fail(FetchError::Stopped);
            }
        }
        FetchPoll::Block(block)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.job.lock().is_cancelled = true;
    }
}

impl FetchJob {
    fn lock(&self) -> MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn should_continue(&self, state: &JobState) -> bool {
        !state.is_active && !state.is_cancelled && !state.wanted.is_empty() && state.ready_bytes < self.window_bytes
    }

    /// The key to read next.
    pub(super) fn next_key(&self) -> Option<BlockKey> {
        let mut state = self.lock();
        if state.is_cancelled {
            state.is_active = false;
            return None;
        }
        state.wanted.front().copied()
    }

    /// Gives the caller what was read. Whether the reader should go on with this fetch: not if it is at its end, or the
    /// caller must take something first.
    pub(super) fn give(&self, result: Result<FetchedBlock, FetchError>) -> Given {
        let mut state = self.lock();
        state.wanted.pop_front();
        state.is_active = false;
        match result {
            Ok(block) => {
                state.ready_bytes += block.block.bytes();
                state.ready.push_back(block);
            }
            Err(error) => state.fail(error),
        }
        state.is_active = self.should_continue(&state);
        let given =
            Given { should_continue: state.is_active, finished: state.wanted.is_empty().then(|| self.begun.elapsed()) };
        drop(state);
        self.changed.notify_all();
        given
    }
}

/// What follows from a block having been read.
pub(super) struct Given {
    /// The next one should be read too.
    pub(super) should_continue: bool,
    /// It was the last: how long all took.
    pub(super) finished: Option<Duration>,
}

/// The readers' queue. Fetches take turns, a block at a time, so that a long one does not hold up a short one.
#[derive(Debug, Default)]
pub(super) struct ReadQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    jobs: VecDeque<Arc<FetchJob>>,
    is_stopped: bool,
}

impl ReadQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the fetch was taken on: not once the tier is stopped.
    pub(super) fn push(&self, job: Arc<FetchJob>) -> bool {
        let mut state = self.lock();
        if state.is_stopped {
            return false;
        }
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Waits for work. `None`: there will be no more.
    pub(super) fn pop(&self) -> Option<Arc<FetchJob>> {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.changed.notify_all();
        for job in jobs {
            job.give(Err(FetchError::Stopped));
        }
    }
}
