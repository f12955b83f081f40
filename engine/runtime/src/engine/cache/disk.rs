//! The prefix cache's tier on disk, as the engine's thread uses it: whole blocks are handed to its writer a few at a time,
//! and blocks that come back take their place in the tree.

use super::{Cache, Path, Step, guarded};
use crate::{
    BlockKey, CacheFlush, DiskCacheStatus, KvBlock, Node, PrefixMatch, StepModel, StepModelError,
    ssd::{DropReason, Fetch, FetchPoll, PutOutcome, SsdTier, TierState},
};
use std::{
    collections::VecDeque,
    sync::{Arc, mpsc::SyncSender},
    time::{Duration, Instant},
};

/// How long blocks of a prompt may be taken over from the disk before the next step of what runs.
const RESTORE_SLICE: Duration = Duration::from_millis(8);

/// How long a tier that takes no blocks is left alone.
const RETRY: Duration = Duration::from_secs(5);

/// The tier and what it is still to be given.
#[derive(Debug)]
pub(super) struct Disk {
    tier: Arc<SsdTier>,
    /// Blocks that were not handed over yet, oldest first.
    pending: VecDeque<(Node, BlockKey)>,
    /// When the tier may be tried again.
    retry: Option<Instant>,
}

/// Blocks of a prompt on their way from the disk.
#[derive(Debug)]
pub(in crate::engine) struct Restore {
    fetch: Fetch,
    /// What is there already; it stays while the rest comes.
    path: Path,
}

/// Whether all blocks of a restore are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Restored {
    /// Or as many as there will be.
    Done,
    /// There are more to come.
    Pending,
}

/// What became of handing a block over.
enum Handed {
    Done,
    /// It is to be tried again.
    Later,
}

impl Disk {
    pub(super) fn new(tier: Arc<SsdTier>) -> Self {
        Self { tier, pending: VecDeque::new(), retry: None }
    }

    pub(super) fn push(&mut self, node: Node, key: BlockKey) {
        self.pending.push_back((node, key));
    }

    fn is_resting(&self) -> bool {
        self.retry.is_some_and(|retry| Instant::now() < retry)
    }

    /// A tier that takes nothing is left alone for a while.
    fn rest_if_unavailable(&mut self) {
        if self.tier.status().state != TierState::Ready {
            self.retry = Some(Instant::now() + RETRY);
        }
    }

    fn put(&mut self, key: BlockKey, parent: Option<BlockKey>, tokens: &[u32], block: KvBlock) -> Handed {
        match self.tier.put(key.0, parent.map(|parent| parent.0), tokens, Arc::new(block)) {
            PutOutcome::Queued | PutOutcome::Present => Handed::Done,
            PutOutcome::Dropped(DropReason::Unavailable) => {
                self.retry = Some(Instant::now() + RETRY);
                Handed::Later
            }
            PutOutcome::Dropped(DropReason::QueueFull) => Handed::Later,
            PutOutcome::Dropped(reason) => {
                tracing::debug!(?reason, "a block is not written to the disk");
                Handed::Done
            }
        }
    }
}

impl Cache {
    /// Whether there are blocks that the disk could be given now.
    pub(in crate::engine) fn has_spills(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| !disk.pending.is_empty() && !disk.is_resting())
    }

    /// Hands at most `most` blocks to the disk's writer, as far as its queue has room. Blocks that running requests use
    /// are left for later unless `all` are wanted.
    pub(in crate::engine) fn spill<M: StepModel>(&mut self, model: &mut M, most: usize, all: bool) {
        let mut skipped = Vec::new();
        let mut handed = 0;
        while handed < most && self.has_spills() {
            let Some((node, key)) = self.disk.as_mut().and_then(|disk| disk.pending.pop_front()) else { break };
            if self.tree.key(node) != Some(key) || !self.tree.is_block(node) {
                continue;
            }
            if !all && self.tree.is_pinned(node) {
                skipped.push((node, key));
                continue;
            }
            handed += 1;
            if matches!(self.hand_over(model, node), Handed::Later) {
                skipped.push((node, key));
                break;
            }
        }
        if let Some(disk) = &mut self.disk {
            for entry in skipped.into_iter().rev() {
                disk.pending.push_front(entry);
            }
        }
    }

    /// Hands a block to the writer, after those before it.
    fn hand_over<M: StepModel>(&mut self, model: &mut M, node: Node) -> Handed {
        let mut chain = Vec::new();
        let mut at = Some(node).filter(|&node| self.tree.is_block(node));
        while let Some(node) = at {
            let Some(disk) = &self.disk else { return Handed::Done };
            if self.tree.key(node).is_none_or(|key| disk.tier.contains(&key.0)) {
                break;
            }
            chain.push(node);
            at = self.tree.parent(node).filter(|&parent| self.tree.is_block(parent));
        }
        for node in chain.into_iter().rev() {
            let span = self.tree.span(node);
            let (Some(key), Some(kept)) = (self.tree.key(node), self.tree.payload(node)) else { return Handed::Done };
            let Some(disk) = &mut self.disk else { return Handed::Done };
            if !disk.tier.wait_for_room(model.kept_bytes(span.len()), Duration::ZERO) {
                disk.rest_if_unavailable();
                return Handed::Later;
            }
            let block = match guarded(|| model.read_kept(kept, span.clone())) {
                Ok(block) => block,
                Err(error) => {
                    tracing::warn!(%error, "a kept block cannot be read for the disk");
                    return Handed::Done;
                }
            };
            let parent = self.tree.parent(node).filter(|_| span.start > 0).and_then(|parent| self.tree.key(parent));
            if matches!(disk.put(key, parent, self.tree.tokens(node), block), Handed::Later) {
                return Handed::Later;
            }
        }
        Handed::Done
    }

    /// Before a block is given up in memory it is handed to the disk, if it never was.
    pub(super) fn rescue<M: StepModel>(&mut self, model: &mut M) {
        let Some(disk) = self.disk.as_ref().filter(|disk| !disk.is_resting()) else { return };
        let Some(node) = self.tree.next_evicted() else { return };
        let is_whole = self.tree.tokens(node).len() == self.tree.block();
        if is_whole && self.tree.key(node).is_some_and(|key| !disk.tier.contains(&key.0)) {
            self.hand_over(model, node);
        }
    }

    /// Asks the disk for blocks of `tokens` beyond those that were found in memory. `None`: it has none.
    pub(in crate::engine) fn restore(&mut self, tokens: &[u32], found: &PrefixMatch) -> Option<Restore> {
        let disk = self.disk.as_ref()?;
        let block = self.tree.block();
        let whole = found.nodes.len() * block;
        let rest = tokens.get(whole..tokens.len().saturating_sub(1))?;
        let mut key = self.tree.key(found.nodes.last().copied().unwrap_or(self.root))?;
        let keys: Vec<[u8; 32]> = rest
            .chunks_exact(block)
            .map(|tokens| {
                key = key.followed_by(tokens);
                key.0
            })
            .collect();
        let stored = disk.tier.stored_prefix(&keys);
        if stored == 0 {
            return None;
        }
        let fetch = disk.tier.fetch(keys[..stored].to_vec());
        let mut path = Path::default();
        for &node in &found.nodes {
            self.tree.pin(node);
            path.steps.push(Step { node, is_shared: false, is_own: false });
        }
        Some(Restore { fetch, path })
    }

    /// Takes over what has come of a restore, for a moment; waits for more at most as long as said.
    pub(in crate::engine) fn take_restored<M: StepModel>(
        &mut self,
        model: &mut M,
        restore: &mut Restore,
        tokens: &[u32],
        wait: Duration,
    ) -> Restored {
        let until = Instant::now() + RESTORE_SLICE;
        let mut poll = if wait.is_zero() { restore.fetch.poll() } else { restore.fetch.wait(wait) };
        loop {
            match poll {
                FetchPoll::Pending => return Restored::Pending,
                FetchPoll::Done => return Restored::Done,
                FetchPoll::Failed(error) => {
                    tracing::debug!(%error, "blocks on the disk are computed again");
                    return Restored::Done;
                }
                FetchPoll::Block(fetched) => {
                    let start = restore.path.blocks() * self.tree.block();
                    let own = tokens.get(start..start + self.tree.block());
                    let Some(own) = own.filter(|own| **own == *fetched.tokens) else { return Restored::Done };
                    let parent = restore.path.steps.last().map_or(self.root, |step| step.node);
                    let node = match self.tree.child(parent, own) {
                        Some(node) => node,
                        None => match self.write_kept(model, &fetched.block) {
                            Ok(kept) => self.insert(model, parent, own, kept),
                            Err(error) => {
                                tracing::debug!(%error, "no room for a block from the disk");
                                return Restored::Done;
                            }
                        },
                    };
                    self.tree.pin(node);
                    restore.path.steps.push(Step { node, is_shared: false, is_own: false });
                }
            }
            if Instant::now() >= until {
                return Restored::Pending;
            }
            poll = restore.fetch.poll();
        }
    }

    fn write_kept<M: StepModel>(&mut self, model: &mut M, block: &KvBlock) -> Result<crate::KeptBlock, StepModelError> {
        loop {
            match guarded(|| model.write_kept(block)) {
                Err(StepModelError::KvFull { .. }) if self.evict(model) => {}
                result => return result,
            }
        }
    }

    /// A restore is over: what it held may be given up from now on.
    pub(in crate::engine) fn end_restore<M: StepModel>(&mut self, model: &mut M, restore: Restore) {
        let mut path = restore.path;
        self.let_go(model, &mut path);
    }

    /// Notes on the disk where a session stands.
    pub(super) fn note_session(&self, name: &str, path: &Path) {
        if let (Some(disk), Some(last)) = (&self.disk, path.steps.last())
            && let Some(key) = self.tree.key(last.node)
        {
            let tokens = self.tree.span(last.node).end as u64;
            disk.tier.note_session(self.session_key(name), key.0, tokens);
        }
    }

    pub(super) fn forget_session(&self, name: &str) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.tier.close_session(self.session_key(name)))
    }

    fn session_key(&self, name: &str) -> [u8; 32] {
        let root = self.tree.key(self.root).unwrap_or(BlockKey([0; 32]));
        let mut hasher = blake3::Hasher::new();
        hasher.update(&root.0);
        hasher.update(name.as_bytes());
        *hasher.finalize().as_bytes()
    }

    /// Makes durable what was handed over and answers, on another thread. What was not handed over counts as missing.
    pub(in crate::engine) fn begin_flush(&self, answer: SyncSender<CacheFlush>, begun: Instant, timeout: Duration) {
        let missing = self.missing();
        let Some(disk) = &self.disk else {
            let _ = answer.send(missing_flush(missing, begun));
            return;
        };
        let ticket = disk.tier.begin_flush();
        let wait = move || {
            let report = ticket.wait(timeout.saturating_sub(begun.elapsed()));
            let _ = answer.send(to_flush(&report, missing, begun));
        };
        if let Err(error) = std::thread::Builder::new().name("cache flush".into()).spawn(wait) {
            tracing::error!(%error, "no thread to wait for the disk");
        }
    }

    /// Whole blocks that the disk was not given, or all without a disk.
    fn missing(&self) -> usize {
        match &self.disk {
            None => self.tree.totals().blocks,
            Some(disk) => {
                let is_missing =
                    |&&(node, key): &&(Node, BlockKey)| self.tree.key(node) == Some(key) && !disk.tier.contains(&key.0);
                disk.pending.iter().filter(is_missing).count()
            }
        }
    }

    /// Hands everything to the disk and waits until it is durable.
    pub(in crate::engine) fn flush_now<M: StepModel>(&mut self, model: &mut M, timeout: Duration) {
        let until = Instant::now() + timeout;
        while self.has_spills() && Instant::now() < until {
            self.spill(model, usize::MAX, true);
            self.wait_for_writer(model, Duration::from_millis(50));
        }
        if let Some(disk) = &self.disk {
            let report = disk.tier.flush(until.saturating_duration_since(Instant::now()));
            if !report.durable || self.missing() > 0 {
                tracing::warn!(missing = self.missing(), ?report, "not all kept prompts are on the disk");
            }
        }
    }

    /// Waits until the disk's writer has room for a block, but not long.
    pub(in crate::engine) fn wait_for_writer<M: StepModel>(&self, model: &M, timeout: Duration) {
        if let Some(disk) = self.disk.as_ref().filter(|disk| !disk.pending.is_empty()) {
            let _ = disk.tier.wait_for_room(model.kept_bytes(self.tree.block()), timeout);
        }
    }

    pub(in crate::engine) fn disk_status(&self) -> Option<DiskCacheStatus> {
        let disk = self.disk.as_ref()?;
        let status = disk.tier.status();
        let degraded = (status.state != TierState::Ready).then(|| {
            let remedy = status.state.remedy().map_or_else(String::new, |remedy| format!(": {remedy}"));
            format!("{}{remedy}", status.state.name())
        });
        Some(DiskCacheStatus {
            folder: status.directory,
            entries: status.entries,
            bytes: status.bytes,
            max_bytes: status.max_bytes,
            restores: status.restores,
            spills: status.spills,
            last_restore: status.last_restore.unwrap_or_default(),
            pending_snapshots: disk.pending.len() + status.pending_snapshots,
            pending_spills: status.pending_spills,
            pending_spill_bytes: status.pending_spill_bytes as u64,
            dropped_spills: status.dropped_spills,
            failed_spills: status.failed_spills,
            discarded: status.corrupt,
            longest_durable_prefix_tokens: status.longest_durable_prefix_tokens as usize,
            degraded,
        })
    }
}

fn missing_flush(missing_snapshots: usize, begun: Instant) -> CacheFlush {
    CacheFlush { durable: missing_snapshots == 0, missing_snapshots, elapsed: begun.elapsed(), ..CacheFlush::default() }
}

fn to_flush(report: &crate::ssd::FlushReport, missing: usize, begun: Instant) -> CacheFlush {
    CacheFlush {
        durable: report.durable && missing == 0,
        flushed_snapshots: report.flushed_snapshots,
        missing_snapshots: report.missing_snapshots + missing,
        pending_snapshots: report.pending_snapshots,
        pending_spills: report.pending_spills,
        pending_spill_bytes: report.pending_spill_bytes as u64,
        dropped_spills: report.dropped_spills,
        failed_spills: report.failed_spills,
        elapsed: begun.elapsed(),
        entries: report.entries,
        longest_durable_prefix_tokens: report.longest_durable_prefix_tokens as usize,
    }
}
