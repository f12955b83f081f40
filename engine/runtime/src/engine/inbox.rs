//! What the handles and the engine thread share: the queue of waiting requests and the counters.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use linnet_kernels::CoreTurns;
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender, unbounded_channel};

use super::{EngineHealth, EngineStatus, Generation, KvStatus, retry_after::retry_after, sequence::lets_others_start};
use crate::{
    CacheFlush, CacheStatus, FinishReason, GenerationEvent, GenerationRequest, StepModelError, SubmitError, Usage,
};

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

/// Something other than a request that a handle wants of the thread.
pub(super) enum Command {
    /// Write what is kept to the disk.
    Flush(SyncSender<CacheFlush>),
    /// Forget a session's name.
    CloseSession(String, SyncSender<bool>),
    /// Give up what is kept.
    Clear(SyncSender<()>),
}

/// What the thread finds when it looks for work.
pub(super) enum Arrival {
    /// A request that may start now.
    Request(Box<Submission>),
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

/// How long a step waits for urgent work at most: longer than a window of speech takes with any model that is of use for
/// dictation.
const LONGEST_GIVE_WAY: Duration = Duration::from_secs(3);

/// The queue and the counters.
pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    queue_limit: usize,
    max_concurrent: usize,
    /// Whose urgent work goes before a step, once somebody said so.
    turns: OnceLock<Arc<CoreTurns>>,
}

struct State {
    queue: VecDeque<Submission>,
    commands: VecDeque<Command>,
    cache: CacheStatus,
    status: EngineStatus,
    stopping: Option<String>,
    /// When each of the requests that run was taken. One whose sender is gone has ended.
    running: Vec<(Instant, WeakUnboundedSender<GenerationEvent>)>,
    /// A running mean of how long requests run.
    usual: Option<Duration>,
    /// Requests that were refused and for which no place has become free since.
    turned_away: usize,
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
            kv: KvStatus::default(),
            health: EngineHealth::Serving,
        };
        let (queue, commands, cache) = (VecDeque::new(), VecDeque::new(), CacheStatus::default());
        let state =
            State { queue, commands, cache, status, stopping: None, running: Vec::new(), usual: None, turned_away: 0 };
        Self { state: Mutex::new(state), arrived: Condvar::new(), queue_limit, max_concurrent, turns: OnceLock::new() }
    }

    pub(super) fn give_way_to(&self, turns: Arc<CoreTurns>) {
        // The first one stays: an engine has one machine to share.
        let _ = self.turns.set(turns);
    }

    /// Lets urgent work go first; not for ever, as an answer that stands still looks broken.
    pub(super) fn give_way(&self) {
        if let Some(turns) = self.turns.get() {
            turns.wait(LONGEST_GIVE_WAY);
        }
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
            let retry_after = state.turn_away();
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
                state.note_started(&submission);
                return Arrival::Request(Box::new(submission));
            }
            if !wait || !state.commands.is_empty() {
                return Arrival::Nothing;
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands the thread a command and waits for the answer; `None` when the thread is gone.
    pub(super) fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        let mut state = self.lock();
        if state.stopping.is_some() || matches!(state.status.health, EngineHealth::Gone(_)) {
            return None;
        }
        state.commands.push_back(command(answer));
        drop(state);
        self.arrived.notify_one();
        answered.recv().ok()
    }

    /// The next command, if there is one.
    pub(super) fn take_command(&self) -> Option<Command> {
        self.lock().commands.pop_front()
    }

    /// Publishes what the cache says of itself.
    pub(super) fn set_cache_status(&self, cache: CacheStatus) {
        self.lock().cache = cache;
    }

    pub(super) fn cache_status(&self) -> CacheStatus {
        self.lock().cache.clone()
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
        // Whoever waits for an answer learns that none will come.
        state.commands.clear();
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

    /// Notes that a request ended well and how long it ran, which [`SubmitError::QueueFull`] derives its advice from.
    pub(super) fn note_finished(&self, ran: Duration) {
        let mut state = self.lock();
        state.status.finished += 1;
        state.usual = Some(state.usual.map_or(ran, |usual| usual.mul_f64(0.8) + ran.mul_f64(0.2)));
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

    fn note_started(&mut self, submission: &Submission) {
        self.drop_ended();
        self.running.push((Instant::now(), submission.events.downgrade()));
        // Its place in the queue is free for one of those that were refused.
        self.turned_away = self.turned_away.saturating_sub(1);
    }

    /// Refuses a request. Returns when it should come back.
    fn turn_away(&mut self) -> Duration {
        self.drop_ended();
        let ages: Vec<Duration> = self.running.iter().map(|(taken, _)| taken.elapsed()).collect();
        let told = retry_after(self.usual, &ages, self.turned_away);
        self.turned_away += 1;
        told
    }

    fn drop_ended(&mut self) {
        self.running.retain(|(_, events)| events.strong_count() > 0);
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
}
