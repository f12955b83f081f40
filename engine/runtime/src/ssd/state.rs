//! Whether the tier can be used, and what each failure of the disk means for that.

use std::io::{Error, ErrorKind};
use std::time::Duration;

/// Whether the tier can be used. In every state but [`TierState::Ready`] new blocks stay in RAM only; what was stored
/// before is still read where the files are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TierState {
    /// Blocks are written and read.
    #[default]
    Ready,
    /// Another process works in the directory.
    InUse,
    /// The directory cannot be written.
    ReadOnly,
    /// There is no room on the disk.
    DiskFull,
    /// The disk reports errors.
    Failing,
    /// The tier was stopped.
    Stopped,
}

impl TierState {
    /// The state's name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::InUse => "in_use",
            Self::ReadOnly => "read_only",
            Self::DiskFull => "disk_full",
            Self::Failing => "failing",
            Self::Stopped => "stopped",
        }
    }

    /// What the user can do about it. `None` when there is nothing to be done.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Ready | Self::Stopped => None,
            Self::InUse => Some(
                "another Linnet uses this cache directory; stop it, or give this one a directory of its own. The cache is \
                 kept in memory only until then",
            ),
            Self::ReadOnly => Some(
                "make the cache directory writable for this user, or choose another one. The cache is kept in memory only \
                 until then",
            ),
            Self::DiskFull => Some(
                "free some space on the disk of the cache directory, or choose another one. The cache is kept in memory \
                 only until then",
            ),
            Self::Failing => Some(
                "check the disk of the cache directory, or choose another one. The cache is kept in memory only until it \
                 works again",
            ),
        }
    }

    /// What an operation's failure makes of the tier.
    pub(super) fn after(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Self::DiskFull,
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Self::ReadOnly,
            ErrorKind::WouldBlock | ErrorKind::ResourceBusy => Self::InUse,
            _ => Self::Failing,
        }
    }
}

/// How long to wait before the next try after so many failed ones in a row: twice as long each time, up to five minutes.
pub(super) fn retry_delay(first: Duration, failures: u32) -> Duration {
    const LONGEST: Duration = Duration::from_secs(300);
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST.max(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_has_a_remedy_and_a_name_of_its_own() {
        let troubles = [TierState::InUse, TierState::ReadOnly, TierState::DiskFull, TierState::Failing];
        assert!(troubles.iter().all(|state| state.remedy().is_some()));
        let names: std::collections::HashSet<_> = troubles.iter().map(|state| state.name()).collect();
        assert_eq!(names.len(), troubles.len());
        assert!(TierState::Ready.remedy().is_none());
    }

    #[test]
    fn tries_become_rare_but_never_end() {
        let second = Duration::from_secs(1);
        let delays = [1, 2, 3, 9, 10, 1000].map(|failures| retry_delay(second, failures).as_secs());
        assert_eq!(delays, [1, 2, 4, 256, 300, 300]);
    }
}
