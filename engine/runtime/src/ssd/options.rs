//! How the tier is set up, and how much disk it may take.

use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The most that is taken where the user chose nothing.
const DEFAULT_LIMIT: u64 = 8 << 30;
/// With less than this, unless the user wants no more, a disk counts as full.
const LEAST_USEFUL: u64 = 64 * MIB;
/// Below this a limit could not hold even a few small segments.
pub(super) const LOWEST_LIMIT: u64 = 64 << 10;

/// How an [`SsdTier`](super::SsdTier) works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsdOptions {
    /// Where the files lie. Made if it is missing, for this user only. Nothing else should lie there.
    pub directory: PathBuf,
    /// Bytes that the files may take, at any moment. `None`: 8 GiB or a tenth of the free space, whichever is smaller.
    pub limit_bytes: Option<u64>,
    /// Bytes of blocks that may wait to be written; what exceeds them is dropped.
    pub queue_bytes: usize,
    /// Bytes of restored blocks that may wait to be taken, for each [`Fetch`](super::Fetch).
    pub restore_window_bytes: usize,
    /// The largest segment file. `None`: 64 MiB, but at most a 32nd of the limit.
    pub segment_bytes: Option<u64>,
    /// Threads that read.
    pub reader_threads: usize,
    /// How long after the last write everything is made durable without being asked. `None`: never.
    pub sync_when_idle: Option<Duration>,
    /// Whether the threads yield to those that compute, and to other users of the disk.
    pub is_background: bool,
    /// How long to wait after a first failure before the disk is tried again; doubled with each further one.
    pub retry: Duration,
}

impl SsdOptions {
    /// The usual options for a directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            limit_bytes: None,
            queue_bytes: 256 << 20,
            restore_window_bytes: 64 << 20,
            segment_bytes: None,
            reader_threads: 1,
            sync_when_idle: Some(Duration::from_secs(10)),
            is_background: true,
            retry: Duration::from_secs(5),
        }
    }
}

/// How the limit is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Bytes that all files together never exceed.
    pub(super) limit: u64,
    /// A segment that holds several records is never longer.
    pub(super) segment: u64,
    /// Kept free below the limit, so that a segment's live records can be copied before it is removed: with their trailer
    /// even the smallest of them fit.
    pub(super) slack: u64,
    /// The longest record.
    pub(super) record: u64,
    /// The disk leaves so little that nothing should be written.
    pub(super) is_too_small: bool,
}

/// Divides the limit, given what the files take already and what is free on their disk. However much the user allows,
/// a tenth of what is free stays free: a cache must not be what fills a disk.
pub(super) fn sizes(options: &SsdOptions, own_bytes: u64, free_bytes: u64) -> Sizes {
    let wanted = options.limit_bytes.unwrap_or_else(|| DEFAULT_LIMIT.min(own_bytes.saturating_add(free_bytes) / 10));
    let available = own_bytes.saturating_add(free_bytes - free_bytes / 10);
    let limit = wanted.min(available).max(LOWEST_LIMIT);
    let segment = options.segment_bytes.unwrap_or(64 * MIB).min(limit / 32).max(LOWEST_LIMIT / 32);
    let is_too_small = limit < LEAST_USEFUL.min(options.limit_bytes.unwrap_or(LEAST_USEFUL)).max(LOWEST_LIMIT)
        || available < LOWEST_LIMIT;
    Sizes { limit, segment, slack: 2 * segment + 4096, record: (limit / 4).max(segment), is_too_small }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_default_is_eight_gibibytes_or_a_tenth_of_what_is_free() {
        let options = SsdOptions::new("x");
        assert_eq!(sizes(&options, 0, 500 * GIB).limit, 8 * GIB);
        assert_eq!(sizes(&options, 0, 20 * GIB).limit, 2 * GIB);
        // What the cache holds counts as free for it, or each start would shrink it.
        assert_eq!(sizes(&options, 2 * GIB, 18 * GIB).limit, 2 * GIB);
    }

    #[test]
    fn a_limit_beyond_the_disk_still_leaves_some_of_it_free() {
        let options = SsdOptions { limit_bytes: Some(1000 * GIB), ..SsdOptions::new("x") };
        assert_eq!(sizes(&options, GIB, 10 * GIB).limit, 10 * GIB);
        assert_eq!(sizes(&options, GIB, 0).limit, GIB);
        assert!(!sizes(&options, GIB, 0).is_too_small && sizes(&options, 0, 0).is_too_small);
        assert!(sizes(&SsdOptions::new("x"), 0, 500 * MIB).is_too_small);
        assert!(!sizes(&SsdOptions { limit_bytes: Some(1), ..SsdOptions::new("x") }, 0, MIB).is_too_small);
    }

    #[test]
    fn segments_are_small_against_the_limit_and_there_is_room_to_copy_one() {
        for limit in [1, 1 << 16, 1 << 20, 1 << 28, 8 * GIB] {
            let options = SsdOptions { limit_bytes: Some(limit), ..SsdOptions::new("x") };
            let sizes = sizes(&options, 0, 1 << 50);
            assert!(sizes.segment <= 64 * MIB && sizes.segment * 32 <= sizes.limit, "{sizes:?}");
            assert!(sizes.record + sizes.slack <= sizes.limit, "{sizes:?}");
        }
    }
}
