//! What the tier tells about itself.

use std::path::PathBuf;
use std::time::Duration;

use super::TierState;

/// What was found when the directory was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpenReport {
    /// Whether the tier can be used.
    pub state: TierState,
    /// Why it cannot, as the system said it.
    pub detail: Option<String>,
    /// Blocks that can be restored.
    pub entries: usize,
    /// Sessions that are known.
    pub sessions: usize,
    /// Bytes of the files.
    pub bytes: u64,
    /// What was found but is not used, each with the reason.
    pub discarded: Vec<Discarded>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Something in the directory that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discarded {
    /// The file.
    pub file: PathBuf,
    /// Bytes that are of no use in it.
    pub bytes: u64,
    /// Why.
    pub reason: DiscardReason,
}

/// Why something in the directory is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardReason {
    /// Not a file of this cache. It is left alone and does not count.
    Foreign,
    /// A file of the cache in another version of the format, or not what its name says. It was removed.
    UnknownFormat,
    /// The end of a segment that was being written when the process or the system stopped. It was cut off.
    TornTail,
    /// Records that do not match their checksum.
    Damaged,
    /// Blocks whose earlier blocks are gone. Their space is reclaimed.
    Unreachable,
    /// A file that could not be read.
    Unreadable,
}

/// What became of a block that was given to [`put`](super::SsdTier::put).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// It will be written.
    Queued,
    /// It is there already, or waits to be written.
    Present,
    /// It will not be written.
    Dropped(DropReason),
}

/// Why a block is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// Too much waits to be written already.
    QueueFull,
    /// The block before it is not stored, so this one could never be found.
    ParentMissing,
    /// It is larger than a quarter of the limit.
    TooLarge,
    /// It does not begin where its parent ends, or its parts are not as long as its shapes say.
    Malformed,
    /// The tier is not [`TierState::Ready`].
    Unavailable,
}

/// Whether everything that was put is durable, and the counts behind it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlushReport {
    /// Everything that was put before the flush, and is still to be kept, survives a power failure.
    pub durable: bool,
    /// Blocks that became durable since the flush before this one.
    pub flushed_snapshots: usize,
    /// Blocks that were dropped or failed and have not been stored since. They stay counted from flush to flush until
    /// they are stored or [forgotten](super::SsdTier::forget_missing).
    pub missing_snapshots: usize,
    /// Blocks that still wait, to be written or to be made durable.
    pub pending_snapshots: usize,
    /// Blocks that wait to be written.
    pub pending_spills: usize,
    /// Bytes of the blocks that wait to be written.
    pub pending_spill_bytes: usize,
    /// Blocks that were dropped since the tier was opened.
    pub dropped_spills: u64,
    /// Blocks whose writing failed since the tier was opened.
    pub failed_spills: u64,
    /// How long the flush took.
    pub elapsed: Duration,
    /// Blocks that are stored.
    pub entries: usize,
    /// Tokens of the longest prefix that is durable.
    pub longest_durable_prefix_tokens: u64,
}

/// How the tier is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SsdStatus {
    /// Whether it can be used; [`TierState::remedy`] says what to do if not.
    pub state: TierState,
    /// Why not, as the system said it.
    pub detail: Option<String>,
    /// Where the files lie.
    pub directory: PathBuf,
    /// Blocks that are stored or wait to be written.
    pub entries: usize,
    /// Sessions that are known.
    pub sessions: usize,
    /// Bytes of the files.
    pub bytes: u64,
    /// Bytes that the files may take.
    pub max_bytes: u64,
    /// Blocks that were read back.
    pub restores: u64,
    /// Bytes of keys and values that were read back.
    pub restored_bytes: u64,
    /// How long the latest fetch took from its request to its last block.
    pub last_restore: Option<Duration>,
    /// Blocks that were written.
    pub spills: u64,
    /// Bytes that were written, copies during compaction included.
    pub written_bytes: u64,
    /// Bytes of them that were copied during compaction.
    pub copied_bytes: u64,
    /// Blocks that were evicted to keep the limit.
    pub evictions: u64,
    /// Blocks that were read and found damaged, and are never served.
    pub corrupt: u64,
    /// Blocks that wait, to be written or to be made durable.
    pub pending_snapshots: usize,
    /// Blocks that wait to be written.
    pub pending_spills: usize,
    /// Bytes of the blocks that wait to be written.
    pub pending_spill_bytes: usize,
    /// Blocks that were dropped.
    pub dropped_spills: u64,
    /// Blocks whose writing failed.
    pub failed_spills: u64,
    /// Blocks that were dropped or failed and have not been stored since.
    pub missing_snapshots: usize,
    /// Tokens of the longest prefix that is durable.
    pub longest_durable_prefix_tokens: u64,
}
