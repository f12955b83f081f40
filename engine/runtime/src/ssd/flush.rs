//! Waiting for what was put to be durable.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::FlushReport;
use super::shared::{Job, Shared};

/// A flush under way.
#[derive(Debug)]
pub struct FlushTicket {
    shared: Arc<Shared>,
    slot: Arc<FlushSlot>,
}

/// Where the writer puts the answer.
#[derive(Debug)]
pub(super) struct FlushSlot {
    begun: Instant,
    report: Mutex<Option<FlushReport>>,
    changed: Condvar,
}

impl FlushSlot {
    fn lock(&self) -> MutexGuard<'_, Option<FlushReport>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give(&self, mut report: FlushReport) {
        report.elapsed = self.begun.elapsed();
        *self.lock() = Some(report);
        self.changed.notify_all();
    }
}

pub(super) fn begin(shared: &Arc<Shared>) -> FlushTicket {
    let slot = FlushSlot { begun: Instant::now(), report: Mutex::default(), changed: Condvar::new() };
    let slot = Arc::new(slot);
    let mut inner = shared.lock();
    if inner.is_stopped {
        slot.give(inner.flush_report(0, false));
    } else {
        inner.jobs.push_back(Job::Flush(Arc::clone(&slot)));
    }
    drop(inner);
    shared.work.notify_one();
    FlushTicket { shared: Arc::clone(shared), slot }
}

impl FlushTicket {
    /// The answer, if it is there. Never waits.
    #[must_use]
    pub fn poll(&self) -> Option<FlushReport> {
        self.slot.lock().clone()
    }

    /// Waits for the answer. After `timeout` it is that not everything is durable, with the counts of that moment.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> FlushReport {
        let until = Instant::now() + timeout;
        let mut report = self.slot.lock();
        loop {
            if let Some(report) = report.clone() {
                return report;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(report);
                let counts = self.shared.lock().flush_report(0, false);
                return FlushReport { elapsed: self.slot.begun.elapsed(), ..counts };
            }
            report = self.slot.changed.wait_timeout(report, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
