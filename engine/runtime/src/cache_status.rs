//! What an engine says about the state it keeps of prompts and answers.

use std::{path::PathBuf, time::Duration};

/// The outcome of [`crate::Engine::flush_cache`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheFlush {
    /// Whether everything that is kept would survive a restart: nothing waits to be written and nothing failed. Without a
    /// disk tier only an empty cache is durable.
    pub durable: bool,
    /// Checkpoints that this flush wrote.
    pub flushed_snapshots: usize,
    /// Kept checkpoints that are not on the disk.
    pub missing_snapshots: usize,
    /// Checkpoints that still wait to be handed to the writer.
    pub pending_snapshots: usize,
    /// Blocks that the writer has taken and not finished.
    pub pending_spills: usize,
    /// Their bytes.
    pub pending_spill_bytes: u64,
    /// Blocks that were not written because the writer could not keep up, since the start.
    pub dropped_spills: u64,
    /// Blocks whose writing failed, since the start.
    pub failed_spills: u64,
    /// How long the flush took.
    pub elapsed: Duration,
    /// Blocks on the disk.
    pub entries: usize,
    /// Tokens of the longest prefix on the disk.
    pub longest_durable_prefix_tokens: usize,
}

/// A snapshot of what an engine keeps of prompts and answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// What lies in memory.
    pub ram: RamCacheStatus,
    /// Names that have a checkpoint.
    pub sessions: usize,
    /// What lies on the disk; `None` without a disk tier.
    pub disk: Option<DiskCacheStatus>,
}

/// The prefix cache in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RamCacheStatus {
    /// Blocks kept.
    pub entries: usize,
    /// Tokens in them.
    pub tokens: usize,
    /// Bytes of their keys and values.
    pub bytes: usize,
    /// The most bytes that are kept; 0 keeps nothing.
    pub max_bytes: usize,
    /// Requests that found at least one token of their prompt.
    pub hits: u64,
    /// Requests that found none.
    pub misses: u64,
    /// Prompt tokens that did not have to be processed.
    pub hit_tokens: u64,
    /// Requests of a session whose newest checkpoint their prompt continues.
    pub session_hits: u64,
    /// Requests of a session that had no checkpoint, or continue another history.
    pub session_misses: u64,
    /// Look-ups that went over blocks because no session led to them.
    pub prefix_scans: u64,
    /// Blocks given up for room.
    pub evictions: u64,
}

/// The prefix cache on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskCacheStatus {
    /// Where it lies.
    pub folder: PathBuf,
    /// Blocks there.
    pub entries: usize,
    /// Bytes of all its files.
    pub bytes: u64,
    /// The most bytes it may take.
    pub max_bytes: u64,
    /// Blocks read back since the start.
    pub restores: u64,
    /// Blocks written since the start.
    pub spills: u64,
    /// How long the latest restore took.
    pub last_restore: Duration,
    /// Checkpoints that still wait to be handed to the writer.
    pub pending_snapshots: usize,
    /// Blocks that the writer has taken and not finished.
    pub pending_spills: usize,
    /// Their bytes.
    pub pending_spill_bytes: u64,
    /// Blocks that were not written because the writer could not keep up.
    pub dropped_spills: u64,
    /// Blocks whose writing failed.
    pub failed_spills: u64,
    /// Blocks thrown away because they were damaged or foreign.
    pub discarded: u64,
    /// Tokens of the longest prefix there.
    pub longest_durable_prefix_tokens: usize,
    /// Why nothing is written any more, if so: a full or read-only volume. The cache in memory goes on.
    pub degraded: Option<String>,
}
