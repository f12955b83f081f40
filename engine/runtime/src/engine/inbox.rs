//! What the handles and the engine thread share: the queue of waiting requests and the counters.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{EngineHealth, EngineStatus, Generation, sequence::lets_others_start};
use crate::{FinishReason, GenerationEvent, GenerationRequest, StepModelError, SubmitError, Usage};

/// A request on its way to the engine thread.
pub(super) struct Submission {
    pub(super) request: GenerationRequest,
    /// The most tokens to generate, resolved.
    pub(super) limit: usize,
    pub(super) events: UnboundedSender<GenerationEvent>,
    pub(super) submitted: Instant,
}

impl Submission {
    pub(super) fn new(request: GenerationRequest, limit: usize) -> (Self, Generation) {
        let (events, receiver) = unbounded_channel();
        (Self { request, limit, events, submitted: Instant::now() }, Generation::new(receiver))
    }

    /// Nothing was asked for, so nothing is done: not even the prompt is processed.
    fn finish_empty(self) {
        let usage = Usage { prompt_tokens: self.request.prompt.len(), ..Usage::default() };
        drop(self.events.send(GenerationEvent::Finished { reason: FinishReason::Length, usage }));
    }
}

/// What the thread finds when it looks for work.
pub(super) enum Arrival {
    /// A request that may start now.
    Request(Submission),
    /// Nothing waits.
    Nothing,
    /// The engine must end, and why.
    Stop(String),
}

/// Who may take a place among the requests that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Places {
    /// Whoever waits.
    ForAll,
    /// Only what does not let others start first: the last place is kept for a question that somebody asks.
    ForInteractive,
}

impl Places {
    /// Of `free` places of `all`.
    pub(super) fn of(free: usize, all: usize) -> Self {
        if free == 1 && all > 1 { Self::ForInteractive } else { Self::ForAll }
    }
}

/// The queue and the counters.
pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    queue_limit: usize,
    max_concurrent: usize,
}

struct State {
    queue: VecDeque<Submission>,
    status: EngineStatus,
    stopping: Option<String>,
    /// A running mean of how long a request takes, in seconds; 0 before the first.
    mean_seconds: f64,
}

impl Inbox {
    pub(super) fn new(queue_limit: usize, max_concurrent: usize) -> Self {
        let status = EngineStatus {
            active: 0,
            queued: 0,
            requests: 0,
            finished: 0,
            cancelled: 0,
            failed: 0,
            prompt_tokens: 0,
            generated_tokens: 0,
            health: EngineHealth::Serving,
        };
        let state = State { queue: VecDeque::new(), status, stopping: None, mean_seconds: 0.0 };
        Self { state: Mutex::new(state), arrived: Condvar::new(), queue_limit, max_concurrent }
    }

    // Nothing in here can panic half-way through a change, so a poisoned lock still guards a whole state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, submission: Submission) -> Result<(), SubmitError> {
        let mut state = self.lock();
        if let EngineHealth::Gone(reason) = &state.status.health {
            return Err(SubmitError::EngineGone(reason.clone()));
        }
        if let Some(reason) = &state.stopping {
            return Err(SubmitError::EngineGone(reason.clone()));
        }
        state.drop_cancelled();
        if submission.limit == 0 {
            state.status.requests += 1;
            state.status.finished += 1;
            submission.finish_empty();
            return Ok(());
        }
        // A place that is free counts: a request that need not wait is never refused.
        let free = self.max_concurrent.saturating_sub(state.status.active);
        if state.queue.len() >= self.queue_limit.saturating_add(free) {
            let retry_after = retry_after(state.mean_seconds, state.queue.len(), self.max_concurrent);
            return Err(SubmitError::QueueFull { limit: self.queue_limit, retry_after });
        }
        state.status.requests += 1;
        state.queue.push_back(submission);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes the next request that may have one of the places. Sleeps while there is none if `wait` is set.
    pub(super) fn take(&self, wait: bool, places: Places) -> Arrival {
        let mut state = self.lock();
        loop {
            if let Some(reason) = &state.stopping {
                return Arrival::Stop(reason.clone());
            }
            state.drop_cancelled();
            let now = Instant::now();
            let lets_others = state.queue.iter().map(|waiting| {
                lets_others_start(waiting.request.priority, now.saturating_duration_since(waiting.submitted))
            });
            let next = next_in_queue(lets_others, places);
            if let Some(submission) = next.and_then(|next| state.queue.remove(next)) {
                state.status.active += 1;
                return Arrival::Request(submission);
            }
            if !wait {
                return Arrival::Nothing;
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Why the thread must end, if it must.
    pub(super) fn stop_reason(&self) -> Option<String> {
        self.lock().stopping.clone()
    }

    /// Asks the thread to end. The first reason stays.
    pub(super) fn stop(&self, reason: &str) {
        self.lock().stopping.get_or_insert_with(|| reason.into());
        self.arrived.notify_all();
    }

    /// The thread is gone: everything that waits fails, and nothing is taken any more.
    pub(super) fn close(&self, reason: &str) {
        let mut state = self.lock();
        state.status.health = EngineHealth::Gone(reason.into());
        state.status.active = 0;
        let waiting = std::mem::take(&mut state.queue);
        state.status.failed += waiting.len() as u64;
        drop(state);
        for submission in waiting {
            let failure = GenerationEvent::Failed(StepModelError::EngineGone(reason.into()));
            // A receiver that is gone needs no answer.
            drop(submission.events.send(failure));
        }
    }

    /// Changes the counters.
    pub(super) fn update(&self, change: impl FnOnce(&mut EngineStatus)) {
        change(&mut self.lock().status);
    }

    /// Notes that a request ended well and how long it took, which [`SubmitError::QueueFull`] derives its advice from.
    pub(super) fn note_finished(&self, duration: Duration) {
        let mut state = self.lock();
        state.status.finished += 1;
        let seconds = duration.as_secs_f64();
        state.mean_seconds =
            if state.mean_seconds == 0.0 { seconds } else { 0.8f64.mul_add(state.mean_seconds, 0.2 * seconds) };
    }

    pub(super) fn status(&self) -> EngineStatus {
        let mut state = self.lock();
        state.drop_cancelled();
        EngineStatus { queued: state.queue.len(), ..state.status.clone() }
    }
}

impl State {
    fn drop_cancelled(&mut self) {
        let before = self.queue.len();
        self.queue.retain(|submission| !submission.events.is_closed());
        self.status.cancelled += (before - self.queue.len()) as u64;
    }
}

/// The place in the queue of the request that goes next: the oldest that does not let others start first, else the oldest.
fn next_in_queue(lets_others: impl Iterator<Item = bool>, places: Places) -> Option<usize> {
    let mut oldest = None;
    for (index, lets_others) in lets_others.enumerate() {
        if !lets_others {
            return Some(index);
        }
        oldest.get_or_insert(index);
    }
    oldest.filter(|_| places == Places::ForAll)
}

/// When a place in a full queue is likely to be free: the time one request takes, divided among those that run.
fn retry_after(mean_seconds: f64, queued: usize, max_concurrent: usize) -> Duration {
    let seconds = mean_seconds * (queued as f64 / max_concurrent.max(1) as f64 / 2.0).max(1.0);
    Duration::from_secs_f64(seconds.clamp(1.0, 60.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Priority;

    #[test]
    fn the_oldest_interactive_request_goes_first_and_keeps_a_place() {
        let next = |queue: &[bool], places| next_in_queue(queue.iter().copied(), places);
        assert_eq!(next(&[true, false, false], Places::ForAll), Some(1));
        assert_eq!(next(&[true, true], Places::ForAll), Some(0));
        assert_eq!(next(&[true, true], Places::ForInteractive), None);
        assert_eq!(next(&[true, false], Places::ForInteractive), Some(1));
        assert_eq!(next(&[], Places::ForAll), None);
        assert_eq!(Places::of(1, 1), Places::ForAll);
        assert_eq!(Places::of(1, 8), Places::ForInteractive);
        assert_eq!(Places::of(2, 8), Places::ForAll);
    }

    #[test]
    fn a_background_request_is_patient_but_not_for_ever() {
        assert!(lets_others_start(Priority::Background, Duration::from_secs(1)));
        assert!(!lets_others_start(Priority::Background, Duration::from_secs(11)));
        assert!(!lets_others_start(Priority::Interactive, Duration::ZERO));
    }

    #[test]
    fn retry_after_stays_between_a_second_and_a_minute() {
        assert_eq!(retry_after(0.0, 64, 8), Duration::from_secs(1));
        assert_eq!(retry_after(2.0, 64, 8), Duration::from_secs(8));
        assert_eq!(retry_after(600.0, 64, 8), Duration::from_secs(60));
    }
}
