//! The prefix cache at work: what is known of a prompt is adopted, what is computed is published, room is made.
//!
//! [`PrefixTree`] decides what is kept; the model keeps it. A fault of either costs time, never an answer: a block that
//! cannot be kept or adopted is computed again.

mod disk;

pub(super) use disk::{Restore, Restored};

use self::disk::Disk;
use super::worker::guarded;
use crate::{
    EngineOptions, KeptBlock, RamCacheStatus, Slot, StepModel, StepModelError,
    prefix::{Eviction, Node, PrefixMatch, PrefixTree, Sessions},
    ssd::SsdTier,
};
use std::sync::Arc;

/// What an engine keeps.
pub(super) struct Cache {
    tree: PrefixTree<KeptBlock>,
    root: Node,
    sessions: Sessions,
    max_bytes: usize,
    disk: Option<Disk>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    hits: u64,
    misses: u64,
    hit_tokens: u64,
    session_hits: u64,
    session_misses: u64,
    prefix_scans: u64,
    evictions: u64,
}

/// A running request's whole blocks, in order, as far as they are in the tree. They stay there as long as it runs.
#[derive(Debug, Default)]
pub(super) struct Path {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    node: Node,
    /// Whether the request's own tokens are the block's: they were adopted or published, not computed a second time.
    is_shared: bool,
    /// Whether the request published it.
    is_own: bool,
}

impl Path {
    fn blocks(&self) -> usize {
        self.steps.len()
    }

    /// With how many of these places the path begins, where it is the blocks' own memory.
    pub(super) fn blocks_of(&self, nodes: &[Node]) -> usize {
        let pairs = self.steps.iter().zip(nodes).take_while(|(step, node)| step.node == **node);
        pairs.filter(|(step, _)| step.is_shared).count()
    }

    /// How many of this path's blocks are the same memory as those of another one.
    pub(super) fn blocks_shared_with(&self, other: &Self) -> usize {
        let pairs = self.steps.iter().zip(&other.steps).take_while(|(a, b)| a.node == b.node);
        pairs.filter(|(a, b)| a.is_shared && b.is_shared).count()
    }
}

impl Cache {
    pub(super) fn new<M: StepModel>(model: &M, options: &EngineOptions, disk: Option<Arc<SsdTier>>) -> Self {
        let block = model.block_tokens();
        let max_bytes = if block == 0 { 0 } else { options.prefix_cache_bytes };
        let mut tree = PrefixTree::new(block, Eviction::default());
        let root = tree.root(&model.namespace());
        let disk = disk.filter(|_| max_bytes > 0).map(Disk::new);
        Self { tree, root, sessions: Sessions::default(), max_bytes, disk, counts: Counts::default() }
    }

    /// Whether anything is ever kept.
    pub(super) fn is_on(&self) -> bool {
        self.max_bytes > 0
    }

    /// Tokens of a block.
    pub(super) fn block(&self) -> usize {
        self.tree.block()
    }

    /// Changes whenever a look-up may give something else.
    pub(super) fn version(&self) -> u64 {
        self.tree.version()
    }

    /// The kept beginning of a prompt that a sequence can adopt. One token is always left to process, which gives the first
    /// logits. Also whether the session led to it.
    pub(super) fn look_up<M: StepModel>(
        &mut self,
        model: &M,
        tokens: &[u32],
        session: Option<&str>,
    ) -> (PrefixMatch, bool) {
        let most = tokens.len().saturating_sub(1);
        if !self.is_on() || most == 0 {
            return (PrefixMatch::default(), false);
        }
        let checkpoint = session.and_then(|name| self.sessions.get(name));
        let path = checkpoint.and_then(|node| self.tree.path(node, tokens, most));
        let is_session = path.is_some();
        let mut found = match path {
            // Beyond the checkpoint there may be more: another branch that goes the same way.
            Some(mut path) => {
                if let Some((_, fitting)) = path.tail.take() {
                    path.tokens -= fitting;
                }
                let from = path.nodes.last().copied().unwrap_or(self.root);
                self.tree.find_from(from, path, tokens, most)
            }
            None => self.tree.find(self.root, tokens, most),
        };
        let adoptable = model.adoptable(&self.payloads(&found), found.tokens);
        self.shorten(&mut found, adoptable);
        (found, is_session)
    }

    fn payloads(&self, found: &PrefixMatch) -> Vec<KeptBlock> {
        let nodes = found.nodes.iter().chain(found.tail.as_ref().map(|(node, _)| node));
        nodes.filter_map(|&node| self.tree.payload(node)).collect()
    }

    fn shorten(&self, found: &mut PrefixMatch, tokens: usize) {
        if tokens >= found.tokens {
            return;
        }
        let block = self.tree.block();
        let whole = tokens / block;
        let rest = tokens % block;
        let next = found.nodes.get(whole).copied().or(found.tail.map(|(node, _)| node));
        found.tail = next.filter(|_| rest > 0).map(|node| (node, rest));
        found.nodes.truncate(whole);
        found.tokens = tokens;
    }

    /// Makes what was found the beginning of an empty sequence.
    pub(super) fn adopt<M: StepModel>(
        &mut self,
        model: &mut M,
        slot: Slot,
        found: &PrefixMatch,
        path: &mut Path,
    ) -> Result<(), StepModelError> {
        if found.tokens == 0 {
            return Ok(());
        }
        let blocks = self.payloads(found);
        guarded(|| model.adopt(slot, &blocks, found.tokens))?;
        for &node in &found.nodes {
            self.tree.pin(node);
            path.steps.push(Step { node, is_shared: true, is_own: false });
        }
        self.tree.touch(&found.nodes);
        if let Some((node, _)) = found.tail {
            self.tree.touch(&[node]);
        }
        Ok(())
    }

    /// Notes what a request found when it started.
    pub(super) fn note_start(&mut self, found: usize, session: Option<bool>) {
        if !self.is_on() {
            return;
        }
        let counts = &mut self.counts;
        if found > 0 {
            counts.hits += 1
        } else {
            counts.misses += 1
        }
        counts.hit_tokens += found as u64;
        match session {
            Some(true) => counts.session_hits += 1,
            Some(false) => counts.session_misses += 1,
            None => {}
        }
        counts.prefix_scans += u64::from(session != Some(true));
    }

    /// Publishes the whole blocks of a sequence that holds `tokens`, whose step is through.
    pub(super) fn publish<M: StepModel>(&mut self, model: &mut M, slot: Slot, tokens: &[u32], path: &mut Path) {
        if !self.is_on() {
            return;
        }
        let block = self.tree.block();
        while let Some(own) = tokens.get(path.blocks() * block..(path.blocks() + 1) * block) {
            let parent = path.steps.last().map_or(self.root, |step| step.node);
            let step = match self.tree.child(parent, own) {
                Some(node) => Step { node, is_shared: false, is_own: false },
                None => match self.keep(model, slot, path.blocks() * block, own, parent) {
                    Some(node) => Step { node, is_shared: true, is_own: true },
                    None => return,
                },
            };
            self.tree.pin(step.node);
            path.steps.push(step);
        }
        self.keep_within(model);
    }

    fn keep<M: StepModel>(
        &mut self,
        model: &mut M,
        slot: Slot,
        start: usize,
        tokens: &[u32],
        parent: Node,
    ) -> Option<Node> {
        let kept = match guarded(|| model.keep(slot, start, tokens.len())) {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(%error, "a computed block is not kept");
                return None;
            }
        };
        let node = self.insert(model, parent, tokens, kept);
        if tokens.len() == self.tree.block()
            && let (Some(disk), Some(key)) = (&mut self.disk, self.tree.key(node))
        {
            disk.push(node, key);
        }
        Some(node)
    }

    fn insert<M: StepModel>(&mut self, model: &mut M, parent: Node, tokens: &[u32], kept: KeptBlock) -> Node {
        let (node, superfluous) = self.tree.insert(parent, tokens, kept, model.kept_bytes(tokens.len()));
        if let Some((old, kept)) = superfluous {
            // What pointed to the part points to the whole.
            self.sessions.move_on(old, Some(node));
            release(model, kept);
        }
        node
    }

    /// Publishes all that a sequence holds, its last part of a block included, and notes where its session stands.
    pub(super) fn publish_end<M: StepModel>(
        &mut self,
        model: &mut M,
        slot: Slot,
        tokens: &[u32],
        path: &mut Path,
        session: Option<&str>,
    ) {
        if !self.is_on() {
            return;
        }
        self.publish(model, slot, tokens, path);
        let start = path.blocks() * self.tree.block();
        let last = path.steps.last().map_or(self.root, |step| step.node);
        let rest = tokens.get(start..).filter(|rest| !rest.is_empty() && rest.len() < self.tree.block());
        let tail = rest.and_then(|rest| match self.tree.covers(last, rest) {
            Some(node) => {
                self.tree.touch(&[node]);
                Some(node)
            }
            None => self.keep(model, slot, start, rest, last),
        });
        let end = tail.or(path.steps.last().map(|step| step.node));
        if let (Some(name), Some(end)) = (session, end) {
            for (node, change) in self.sessions.set(name, end) {
                self.tree.count_sessions(node, change);
            }
            self.note_session(name, path);
        }
    }

    /// A request does without its blocks; they may be given up from now on.
    pub(super) fn let_go<M: StepModel>(&mut self, model: &mut M, path: &mut Path) {
        for step in std::mem::take(&mut path.steps).into_iter().rev() {
            for kept in self.tree.unpin(step.node) {
                release(model, kept);
            }
        }
        self.keep_within(model);
    }

    /// A request's step failed: what it published may be wrong and is never found again.
    pub(super) fn condemn<M: StepModel>(&mut self, model: &mut M, path: &mut Path) {
        if let Some(first) = path.steps.iter().find(|step| step.is_own) {
            for kept in self.tree.condemn(first.node) {
                release(model, kept);
            }
        }
        self.let_go(model, path);
    }

    /// Gives up blocks until `rows` fit into the model's store. Returns how many blocks are lacking all the same.
    pub(super) fn make_room<M: StepModel>(&mut self, model: &mut M, rows: &[(Slot, usize)]) -> usize {
        loop {
            let lacking = model.lacking(rows);
            if lacking == 0 || !self.evict(model) {
                return lacking;
            }
        }
    }

    /// Gives up blocks until those that nobody uses take no more than they may.
    fn keep_within<M: StepModel>(&mut self, model: &mut M) {
        loop {
            let totals = self.tree.totals();
            let unused = totals.bytes - totals.pinned_bytes;
            if unused <= self.max_bytes || !self.evict(model) {
                return;
            }
        }
    }

    fn evict<M: StepModel>(&mut self, model: &mut M) -> bool {
        self.rescue(model);
        let Some(evicted) = self.tree.evict() else { return false };
        self.counts.evictions += 1;
        let moved = self.sessions.move_on(evicted.node, evicted.parent);
        if let Some(parent) = evicted.parent.filter(|_| moved > 0) {
            self.tree.count_sessions(parent, moved);
        }
        for kept in evicted.payloads {
            release(model, kept);
        }
        true
    }

    /// Gives up all that nobody uses, and all session names.
    pub(super) fn clear<M: StepModel>(&mut self, model: &mut M) {
        self.sessions.clear();
        // What is given up on purpose need not be written first.
        let disk = self.disk.take();
        while self.evict(model) {}
        self.disk = disk;
    }

    /// Forgets a session's name. Returns whether it was known.
    pub(super) fn close_session(&mut self, name: &str) -> bool {
        let node = self.sessions.remove(name);
        if let Some(node) = node {
            self.tree.count_sessions(node, -1);
        }
        let was_on_disk = self.forget_session(name);
        node.is_some() || was_on_disk
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    pub(super) fn ram_status(&self) -> RamCacheStatus {
        let totals = self.tree.totals();
        let counts = &self.counts;
        RamCacheStatus {
            entries: totals.blocks,
            tokens: totals.tokens,
            bytes: totals.bytes,
            max_bytes: self.max_bytes,
            hits: counts.hits,
            misses: counts.misses,
            hit_tokens: counts.hit_tokens,
            session_hits: counts.session_hits,
            session_misses: counts.session_misses,
            prefix_scans: counts.prefix_scans,
            evictions: counts.evictions,
        }
    }
}

fn release<M: StepModel>(model: &mut M, kept: KeptBlock) {
    if let Err(error) = guarded(|| {
        model.release(kept);
        Ok(())
    }) {
        tracing::error!(%error, "a kept block could not be released");
    }
}
