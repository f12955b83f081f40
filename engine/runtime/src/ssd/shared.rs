//! What the tier's handle, its writer and its readers share. Every lock is held for memory only.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linnet_compute::KvBlock;

use super::fetch::ReadQueue;
use super::flush::FlushSlot;
use super::index::{Entry, Index, Place, QueuedBlock};
use super::options::{Sizes, sizes};
use super::record::RECORD_HEADER;
use super::{BlockKey, DropReason, FlushReport, PutOutcome, SessionNote, SsdOptions, SsdStatus, TierState, codec};

/// Missing blocks beyond this are not counted: a disk that is away for days must not cost memory.
const MOST_MISSING: usize = 100_000;

/// With this much to do already, no session is noted: the disk hangs.
const MOST_JOBS: usize = 100_000;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: SsdOptions,
    pub(super) reads: ReadQueue,
    inner: Mutex<Inner>,
    /// There is something to write, or the end.
    pub(super) work: Condvar,
    /// Something was written.
    room: Condvar,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) index: Index,
    pub(super) jobs: VecDeque<Job>,
    pub(super) state: TierState,
    pub(super) detail: Option<String>,
    pub(super) sizes: Sizes,
    pub(super) is_stopped: bool,
    /// Blocks that were dropped or failed and are not stored.
    pub(super) missing: HashSet<BlockKey>,
    pub(super) counters: Counters,
    /// Blocks that wait to be written, and their bytes.
    pub(super) queued: usize,
    pub(super) queued_bytes: usize,
    /// Blocks that were written since the last sync.
    pub(super) unsynced: usize,
    /// Blocks that became durable since the last flush.
    pub(super) synced: usize,
}

/// What the writer is asked to do.
#[derive(Debug)]
pub(super) enum Job {
    Block(BlockKey),
    /// In its place among the blocks: a note must not be on the disk before its block.
    Session([u8; 32], Option<SessionNote>),
    Flush(Arc<FlushSlot>),
}

/// What happened since the tier was opened.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    pub(super) restores: u64,
    pub(super) restored_bytes: u64,
    pub(super) last_restore: Option<Duration>,
    pub(super) spills: u64,
    pub(super) written_bytes: u64,
    pub(super) copied_bytes: u64,
    pub(super) evictions: u64,
    pub(super) corrupt: u64,
    pub(super) dropped: u64,
    pub(super) failed: u64,
}

impl Shared {
    pub(super) fn new(options: SsdOptions) -> Self {
        let inner = Inner {
            index: Index::default(),
            jobs: VecDeque::new(),
            state: TierState::Failing,
            detail: None,
            sizes: sizes(&options, 0, 0),
            is_stopped: false,
            missing: HashSet::new(),
            counters: Counters::default(),
            queued: 0,
            queued_bytes: 0,
            unsynced: 0,
            synced: 0,
        };
        let (work, room) = (Condvar::new(), Condvar::new());
        Self { options, reads: ReadQueue::default(), inner: Mutex::new(inner), work, room }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(
        &self,
        key: BlockKey,
        parent: Option<BlockKey>,
        tokens: Arc<[u32]>,
        block: Arc<KvBlock>,
    ) -> PutOutcome {
        let checked = codec::check(&tokens, &block);
        let meta = codec::meta_bytes(&tokens, &block);
        let mut inner = self.lock();
        if inner.index.contains(&key) {
            inner.index.touch_prefix(&[key]);
            return PutOutcome::Present;
        }
        let room = self.options.queue_bytes.saturating_sub(inner.queued_bytes);
        let (start, end) = (block.start as u64, parent.map(|parent| inner.index.get(&parent).map(|entry| entry.end())));
        let reason = match (checked, end) {
            (Err(_), _) => Err(DropReason::Malformed),
            _ if inner.state != TierState::Ready => Err(DropReason::Unavailable),
            (_, Some(None)) => Err(DropReason::ParentMissing),
            (_, end) if end.flatten().unwrap_or(0) != start => Err(DropReason::Malformed),
            // A tree has one root for each namespace: a block without a parent starts at the first token, one with a
            // parent does not.
            (_, Some(_)) if start == 0 => Err(DropReason::Malformed),
            (Ok(bytes), _) if bytes + (meta + RECORD_HEADER) as u64 > inner.sizes.record => Err(DropReason::TooLarge),
            _ if meta > codec::MOST_META_BYTES => Err(DropReason::TooLarge),
            (Ok(bytes), _) if bytes > room as u64 && inner.queued > 0 => Err(DropReason::QueueFull),
            (Ok(bytes), _) => Ok(bytes),
        };
        let count = u32::try_from(tokens.len()).map_err(|_| DropReason::TooLarge);
        match reason.and_then(|bytes| Ok((bytes as usize, count?))) {
            Err(reason) => {
                inner.counters.dropped += 1;
                inner.count_missing(key);
                PutOutcome::Dropped(reason)
            }
            Ok((bytes, count)) => {
                let queued = QueuedBlock { tokens, block, bytes };
                inner.index.insert(key, parent, start, count, Place::Queued(Arc::new(queued)));
                inner.queued += 1;
                inner.queued_bytes += bytes;
                inner.jobs.push_back(Job::Block(key));
                drop(inner);
                self.work.notify_one();
                PutOutcome::Queued
            }
        }
    }

    pub(super) fn note_session(&self, name: [u8; 32], note: Option<SessionNote>) {
        let mut inner = self.lock();
        let is_taken = inner.state == TierState::Ready && inner.jobs.len() < MOST_JOBS;
        if is_taken && inner.index.note_session(name, note) {
            inner.jobs.push_back(Job::Session(name, note));
            drop(inner);
            self.work.notify_one();
        }
    }

    pub(super) fn wait_for_room(&self, bytes: usize, until: Instant) -> bool {
        let mut inner = self.lock();
        loop {
            if inner.state != TierState::Ready || inner.is_stopped {
                return false;
            }
            if inner.queued == 0 || inner.queued_bytes.saturating_add(bytes) <= self.options.queue_bytes {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inner = self.room.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Tells those who wait for room that something changed.
    pub(super) fn tell_room(&self) {
        self.room.notify_all();
    }

    /// Ends the threads.
    pub(super) fn stop(&self) {
        let mut inner = self.lock();
        inner.is_stopped = true;
        inner.state = TierState::Stopped;
        let jobs = std::mem::take(&mut inner.jobs);
        let report = inner.flush_report(0, false);
        drop(inner);
        for job in jobs {
            if let Job::Flush(slot) = job {
                slot.give(report.clone());
            }
        }
        self.work.notify_all();
        self.room.notify_all();
        self.reads.stop();
    }
}

impl Inner {
    /// A block that could not be written is gone, with all that follow from it.
    pub(super) fn fail(&mut self, key: &BlockKey) {
        for (key, entry) in self.index.remove_tree(key) {
            self.count_removed(key, &entry, true);
        }
    }

    /// A block that turned out to be damaged is gone, with all that follow from it.
    pub(super) fn discard(&mut self, key: &BlockKey) {
        self.counters.corrupt += 1;
        for (key, entry) in self.index.remove_tree(key) {
            self.count_removed(key, &entry, false);
        }
    }

    /// A block has to go, with all that follow from it.
    pub(super) fn evict(&mut self, key: &BlockKey) {
        for (key, entry) in self.index.remove_tree(key) {
            self.counters.evictions += 1;
            self.count_removed(key, &entry, false);
        }
    }

    fn count_removed(&mut self, key: BlockKey, entry: &Entry, has_failed: bool) {
        if let Place::Queued(block) = &entry.place {
            self.queued -= 1;
            self.queued_bytes -= block.bytes;
        }
        if has_failed || matches!(entry.place, Place::Queued(_)) {
            self.counters.failed += 1;
            self.count_missing(key);
        }
    }

    fn count_missing(&mut self, key: BlockKey) {
        if self.missing.len() < MOST_MISSING {
            self.missing.insert(key);
        }
    }

    /// Nothing more can be written for now: what waits has failed. Flushes still wait for their answer.
    pub(super) fn fail_all(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        for job in jobs {
            match job {
                Job::Block(key) => {
                    if matches!(self.index.get(&key).map(|entry| &entry.place), Some(Place::Queued(_))) {
                        self.fail(&key);
                    }
                }
                Job::Session(name, _) => self.index.forget_session(&name),
                Job::Flush(slot) => self.jobs.push_back(Job::Flush(slot)),
            }
        }
    }

    /// The counts of a flush; without those of what waits, which depend on whether the flush came to its end.
    pub(super) fn flush_report(&self, flushed: usize, is_complete: bool) -> FlushReport {
        let pending = |count: usize| if is_complete { 0 } else { count };
        FlushReport {
            durable: is_complete && self.missing.is_empty(),
            flushed_snapshots: flushed,
            missing_snapshots: self.missing.len(),
            pending_snapshots: pending(self.queued + self.unsynced),
            pending_spills: pending(self.queued),
            pending_spill_bytes: pending(self.queued_bytes),
            dropped_spills: self.counters.dropped,
            failed_spills: self.counters.failed,
            elapsed: Duration::ZERO,
            entries: self.index.len() - self.queued,
            longest_durable_prefix_tokens: self.index.longest_durable_prefix(),
        }
    }

    pub(super) fn status(&self, options: &SsdOptions) -> SsdStatus {
        let Counters { restores, restored_bytes, last_restore, spills, written_bytes, copied_bytes, evictions, .. } =
            self.counters;
        SsdStatus {
            state: self.state,
            detail: self.detail.clone(),
            directory: options.directory.clone(),
            entries: self.index.len(),
            sessions: self.index.session_count(),
            bytes: self.index.bytes,
            max_bytes: self.sizes.limit,
            restores,
            restored_bytes,
            last_restore,
            spills,
            written_bytes,
            copied_bytes,
            evictions,
            corrupt: self.counters.corrupt,
            pending_snapshots: self.queued + self.unsynced,
            pending_spills: self.queued,
            pending_spill_bytes: self.queued_bytes,
            dropped_spills: self.counters.dropped,
            failed_spills: self.counters.failed,
            missing_snapshots: self.missing.len(),
            longest_durable_prefix_tokens: self.index.longest_durable_prefix(),
        }
    }
}
