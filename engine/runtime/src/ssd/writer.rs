//! The thread that writes. It alone changes files.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::file_system::FileSystem;
use super::index::Place;
use super::log::{Log, WriteError, encode};
use super::record::RecordHeader;
use super::shared::{Job, Shared};
use super::state::retry_delay;
use super::{BlockKey, OpenReport, SessionNote, TierState, codec, priority};

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    files: Arc<dyn FileSystem>,
    /// `None`: the directory could not be taken yet.
    log: Option<Log>,
    /// Failed tries in a row to get out of a trouble.
    failures: u32,
    retry_at: Option<Instant>,
    last_write: Instant,
}

/// What is to be done next.
enum Next {
    Job(Job),
    Sync,
    Retry,
    Stop,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, files: Arc<dyn FileSystem>) -> Self {
        Self { shared, files, log: None, failures: 0, retry_at: None, last_write: Instant::now() }
    }

    /// The first try to take the directory.
    pub(super) fn open(&mut self) -> OpenReport {
        let begun = Instant::now();
        let discarded = match Log::open(&self.shared, &self.files) {
            Ok((log, discarded)) => {
                self.recovered(Some(log));
                discarded
            }
            Err(error) => {
                self.failed(&error);
                Vec::new()
            }
        };
        let inner = self.shared.lock();
        OpenReport {
            state: inner.state,
            detail: inner.detail.clone(),
            entries: inner.index.len(),
            sessions: inner.index.session_count(),
            bytes: inner.index.bytes,
            discarded,
            elapsed: begun.elapsed(),
        }
    }

    /// Works until the tier is stopped.
    pub(super) fn run(mut self) {
        if self.shared.options.is_background {
            priority::lower();
        }
        loop {
            match self.next() {
                Next::Job(Job::Block(key)) => self.write_block(key),
                Next::Job(Job::Session(name, note)) => self.write_session(name, note),
                Next::Job(Job::Flush(slot)) => {
                    if self.retry_at.is_some() {
                        self.retry();
                    }
                    let is_synced = self.sync();
                    let mut inner = self.shared.lock();
                    let flushed = std::mem::take(&mut inner.synced);
                    let report = inner.flush_report(flushed, is_synced);
                    drop(inner);
                    slot.give(report);
                }
                Next::Sync => {
                    self.sync();
                }
                Next::Retry => self.retry(),
                Next::Stop => return,
            }
        }
    }

    fn next(&self) -> Next {
        let mut inner = self.shared.lock();
        loop {
            if inner.is_stopped {
                return Next::Stop;
            }
            if let Some(job) = inner.jobs.pop_front() {
                return Next::Job(job);
            }
            let now = Instant::now();
            let sync_at = self.shared.options.sync_when_idle.filter(|_| inner.unsynced > 0);
            let sync_at = sync_at.map(|idle| self.last_write + idle);
            if self.retry_at.is_some_and(|at| at <= now) {
                return Next::Retry;
            }
            if sync_at.is_some_and(|at| at <= now) {
                return Next::Sync;
            }
            let until = self.retry_at.into_iter().chain(sync_at).min();
            let wait = until.map_or(Duration::from_secs(3600), |at| at - now);
            inner = self.shared.work.wait_timeout(inner, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write_block(&mut self, key: BlockKey) {
        let (block, parent) = {
            let inner = self.shared.lock();
            match inner.index.get(&key).map(|entry| (&entry.place, entry.parent)) {
                Some((Place::Queued(block), parent)) => (Arc::clone(block), parent),
                // Given up in the meantime, or written already.
                _ => return,
            }
        };
        let Some(log) = &mut self.log else { return };
        // What is not well formed was refused when it was put.
        let Ok((header, meta)) = encode(key, parent, &block.tokens, &block.block) else {
            self.shared.lock().fail(&key);
            return;
        };
        let parts: Vec<_> = codec::parts(&block.block).collect();
        let written = log.append(RecordHeader::Block(header), &meta, &parts);
        self.last_write = Instant::now();
        let result = {
            let mut inner = self.shared.lock();
            match written {
                Ok(location) => {
                    if inner.index.set_location(&key, None, location) {
                        inner.queued -= 1;
                        inner.queued_bytes -= block.bytes;
                        inner.unsynced += 1;
                        inner.counters.spills += 1;
                        inner.missing.remove(&key);
                    }
                    Ok(())
                }
                Err(error) => {
                    inner.fail(&key);
                    Err(error)
                }
            }
        };
        self.shared.tell_room();
        if let Err(WriteError::Io(error)) = result {
            self.failed(&error);
        }
    }

    fn write_session(&mut self, name: [u8; 32], note: Option<SessionNote>) {
        let Some(log) = &mut self.log else { return };
        match log.append(RecordHeader::Session { name, note }, &[], &[]) {
            Ok(location) => self.shared.lock().index.move_session(&name, None, location),
            Err(error) => {
                self.shared.lock().index.forget_session(&name);
                if let WriteError::Io(error) = error {
                    self.failed(&error);
                }
            }
        }
    }

    /// Whether everything that was written is durable now.
    fn sync(&mut self) -> bool {
        let Some(log) = &mut self.log else { return true };
        match log.sync() {
            Ok(()) => true,
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// Tries to get out of a trouble.
    fn retry(&mut self) {
        let result = match &mut self.log {
            None => Log::open(&self.shared, &self.files).map(|(log, _)| Some(log)),
            // A new segment is what it takes to see whether the disk can be written.
            Some(log) => log.check_space().and_then(|()| log.begin_segment()).map(|_| None),
        };
        match result {
            Ok(log) => self.recovered(log),
            Err(error) => self.failed(&error),
        }
    }

    fn recovered(&mut self, log: Option<Log>) {
        if log.is_some() {
            self.log = log;
        }
        (self.failures, self.retry_at) = (0, None);
        let mut inner = self.shared.lock();
        if !inner.is_stopped {
            (inner.state, inner.detail) = (TierState::Ready, None);
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.failures += 1;
        self.retry_at = Some(Instant::now() + retry_delay(self.shared.options.retry, self.failures));
        let mut inner = self.shared.lock();
        if !inner.is_stopped {
            let state = TierState::after(error);
            if inner.state != state {
                tracing::warn!(state = state.name(), %error, "the cache on disk cannot be used for now");
            }
            (inner.state, inner.detail) = (state, Some(error.to_string()));
        }
        inner.fail_all();
        drop(inner);
        self.shared.tell_room();
    }
}
