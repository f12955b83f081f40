//! How much room a file system still has.

use std::io;
use std::path::Path;

use crate::PullError;

/// Room left free for everything else on the disk, in bytes: a disk filled to its last block breaks other programs.
const RESERVE: u64 = 64 << 20;

/// Bytes that this user can still write to the file system of `path`, which need not exist yet: the nearest folder
/// above it that does is asked.
///
/// # Errors
/// When the file system does not say.
pub fn available_space(path: &Path) -> io::Result<u64> {
    let absolute = std::path::absolute(path)?;
    let existing = absolute.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let facts = rustix::fs::statvfs(existing)?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}

/// What a file system lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// Bytes that must be free: what is to be written and the reserve.
    pub(crate) needed: u64,
    /// Bytes that are.
    pub(crate) available: u64,
}

/// Whether so many bytes can be written and the reserve stays free; nothing always fits.
pub(crate) fn decide(bytes: u64, available: u64) -> Result<(), Shortage> {
    let needed = bytes.saturating_add(RESERVE);
    if bytes == 0 || (needed <= available && needed < u64::MAX) {
        return Ok(());
    }
    Err(Shortage { needed, available })
}

/// Refuses with both figures when `bytes` do not fit beside the reserve.
pub(crate) fn require_space(path: &Path, bytes: u64) -> Result<(), PullError> {
    let available = available_space(path).map_err(|error| PullError::io("ask the free space of", path, error))?;
    decide(bytes, available).map_err(|Shortage { needed, available }| PullError::NoSpace {
        path: path.to_owned(),
        needed,
        available,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_refused_with_figures_that_contradict() {
        // Everything that is to be written would fit, but nothing would be left.
        let Shortage { needed, available } = decide(1 << 30, 1 << 30).unwrap_err();
        assert!(needed > available, "{needed} needed, {available} free");
        assert_eq!(decide(1000, RESERVE + 999), Err(Shortage { needed: RESERVE + 1000, available: RESERVE + 999 }));
        decide(1000, RESERVE + 1000).unwrap();
        decide(0, 0).unwrap();
        assert!(decide(u64::MAX, u64::MAX).is_err());
    }

    #[test]
    fn a_folder_not_made_yet_has_the_space_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert!(available_space(&folder.path().join("a/b/c")).unwrap() > 0);
    }
}
