//! Who computes first where several share the cores.
//!
//! Every model has threads of its own, as many as there are cores. Two that compute at once both take twice as long and
//! more: a parallel region waits for its last thread, and every thread waits for its core. Work that somebody waits for
//! right now (speech) is therefore marked urgent, and work in steps (text) waits between two steps while any is.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Marks work as urgent and lets other work wait for it. Shared by whatever computes on the same cores.
#[derive(Debug, Default)]
pub struct CoreTurns {
    urgent: AtomicUsize,
    lock: Mutex<()>,
    done: Condvar,
}

/// Urgent work under way; ends when dropped.
#[derive(Debug)]
pub struct UrgentTurn<'a>(&'a CoreTurns);

impl CoreTurns {
    /// Marks what the caller does until the turn is dropped as urgent.
    #[must_use]
    pub fn urgent(&self) -> UrgentTurn<'_> {
        self.urgent.fetch_add(1, Ordering::AcqRel);
        UrgentTurn(self)
    }

    /// Whether urgent work is under way.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire) > 0
    }

    /// Waits until no urgent work is under way, at most for `limit`, and returns how long it waited. Costs one load where
    /// there is none.
    pub fn wait(&self, limit: Duration) -> Duration {
        if !self.is_urgent() {
            return Duration::ZERO;
        }
        let started = Instant::now();
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.is_urgent() {
            let Some(left) = limit.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) else { break };
            guard = self.done.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        started.elapsed()
    }
}

impl Drop for UrgentTurn<'_> {
    fn drop(&mut self) {
        // Under the lock, so that nobody who just looked goes to sleep after the call.
        let _guard = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.urgent.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use super::CoreTurns;

    #[test]
    fn work_waits_for_urgent_work_and_no_longer() {
        let turns = Arc::new(CoreTurns::default());
        assert_eq!(turns.wait(Duration::from_secs(60)), Duration::ZERO);
        let (first, second) = (turns.urgent(), turns.urgent());
        drop(first);
        assert!(turns.is_urgent());
        // At most for the limit.
        assert!(turns.wait(Duration::from_millis(20)) >= Duration::from_millis(20));
        let waiting = thread::spawn({
            let turns = Arc::clone(&turns);
            move || turns.wait(Duration::from_secs(600))
        });
        thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        drop(second);
        assert!(waiting.join().unwrap() < Duration::from_secs(60));
        assert!(!turns.is_urgent());
    }
}
