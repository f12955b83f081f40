//! What the handles of an engine and its thread share.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use linnet_kernels::CoreTurns;
use tokio::sync::oneshot;

use super::{SpeechEngineOptions, SpeechError, SpeechPriority, SpeechStatus};
use crate::{SAMPLE_RATE, TranscribeOptions, Transcript};

/// A piece of audio that waits for its text.
pub(super) struct Job {
    pub(super) samples: Arc<Vec<f32>>,
    pub(super) options: TranscribeOptions,
    pub(super) priority: SpeechPriority,
    pub(super) sender: oneshot::Sender<Result<Transcript, SpeechError>>,
    pub(super) cancelled: Arc<AtomicBool>,
}

impl Job {
    /// Whether nobody waits for it any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// What the thread is to do next.
pub(super) enum Order {
    Recognize(Box<Job>),
    Load,
    Unload,
    End,
}

/// What is asked of the thread, and what it has done.
pub(super) struct Queue {
    options: SpeechEngineOptions,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    live: VecDeque<Job>,
    files: VecDeque<Job>,
    status: SpeechStatus,
    wants_load: bool,
    wants_unload: bool,
    closed: bool,
    last_used: Option<Instant>,
}

impl State {
    fn queued(&self) -> usize {
        self.live.len() + self.files.len()
    }

    fn next(&mut self) -> Option<Job> {
        self.live.pop_front().or_else(|| self.files.pop_front())
    }

    /// When an idle model is to be let go; `None`: not at all.
    fn unload_at(&self, idle: Option<Duration>) -> Option<Instant> {
        let is_idle = self.status.loaded && !self.status.pinned && self.status.holds == 0;
        if !is_idle {
            return None;
        }
        if self.wants_unload { self.last_used } else { Some(self.last_used? + idle?) }
    }
}

impl Queue {
    pub(super) fn new(options: SpeechEngineOptions) -> Self {
        Self { options, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn turns(&self) -> &Arc<CoreTurns> {
        &self.options.turns
    }

    // Nothing in here can panic half-way through a change, so a poisoned lock still guards a whole state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    pub(super) fn submit(&self, job: Job) {
        let mut state = self.state();
        let waiting = state.queued();
        let refusal = if state.closed {
            Some(SpeechError::Gone)
        } else if waiting >= self.options.queue_limit {
            Some(SpeechError::QueueFull { waiting })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            // Whoever asked may be gone; then nobody needs to know.
            let _ = job.sender.send(Err(refusal));
            return;
        }
        state.status.requests += 1;
        match job.priority {
            SpeechPriority::Live => state.live.push_back(job),
            SpeechPriority::File => state.files.push_back(job),
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn hold(&self) {
        self.change(|state| {
            state.status.holds += 1;
            state.wants_load = true;
            state.wants_unload = false;
        });
    }

    pub(super) fn release(&self) {
        self.change(|state| {
            state.status.holds = state.status.holds.saturating_sub(1);
            state.last_used = Some(Instant::now());
        });
    }

    pub(super) fn pin(&self, pinned: bool) {
        self.change(|state| {
            state.status.pinned = pinned;
            state.wants_load |= pinned;
            state.wants_unload &= !pinned;
        });
    }

    pub(super) fn ask_unload(&self) -> bool {
        let mut state = self.state();
        let is_free = state.status.holds == 0 && state.queued() == 0 && !state.status.busy;
        if is_free {
            state.status.pinned = false;
            state.wants_unload = true;
            state.wants_load = false;
        }
        drop(state);
        self.changed.notify_all();
        is_free
    }

    pub(super) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    pub(super) fn status(&self) -> SpeechStatus {
        let state = self.state();
        SpeechStatus { queued: state.queued(), ..state.status.clone() }
    }

    /// Waits for something to do.
    pub(super) fn next_order(&self) -> Order {
        let mut state = self.state();
        loop {
            if state.closed {
                return Order::End;
            }
            if let Some(job) = state.next() {
                if job.is_cancelled() {
                    state.status.cancelled += 1;
                    let _ = job.sender.send(Err(SpeechError::Cancelled));
                    continue;
                }
                state.status.busy = true;
                return Order::Recognize(Box::new(job));
            }
            if std::mem::take(&mut state.wants_load) && !state.status.loaded {
                return Order::Load;
            }
            let now = Instant::now();
            let wait = match state.unload_at(self.options.idle_unload) {
                Some(at) if at <= now => {
                    state.wants_unload = false;
                    return Order::Unload;
                }
                Some(at) => at - now,
                None => Duration::MAX,
            };
            state = if wait == Duration::MAX {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// The model was loaded, or could not be.
    pub(super) fn note_load(&self, took: Duration, problem: Option<&SpeechError>) {
        self.change(|state| {
            state.status.loaded = problem.is_none();
            state.status.problem = problem.map(ToString::to_string);
            state.last_used = Some(Instant::now());
            if problem.is_none() {
                state.status.loads += 1;
                state.status.last_load = took;
            }
        });
    }

    pub(super) fn note_unload(&self) {
        self.change(|state| {
            state.status.loaded = false;
            state.status.unloads += 1;
        });
    }

    /// A job has ended.
    pub(super) fn note_end(&self, samples: usize, took: Duration, result: &Result<Transcript, SpeechError>) {
        self.change(|state| {
            let status = &mut state.status;
            status.busy = false;
            state.last_used = Some(Instant::now());
            match result {
                Ok(_) => {
                    status.finished += 1;
                    status.audio_seconds += samples as f64 / SAMPLE_RATE as f64;
                    status.busy_seconds += took.as_secs_f64();
                    status.problem = None;
                }
                Err(SpeechError::Cancelled) => status.cancelled += 1,
                Err(error) => {
                    status.failed += 1;
                    status.problem = Some(error.to_string());
                }
            }
        });
    }

    /// The thread ends: nobody waits for ever.
    pub(super) fn refuse_all(&self) {
        let mut state = self.state();
        state.closed = true;
        state.status.loaded = false;
        while let Some(job) = state.next() {
            let _ = job.sender.send(Err(SpeechError::Gone));
        }
    }
}
