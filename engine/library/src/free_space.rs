//! How much room a file system still has.

use std::io;
use std::path::Path;

use crate::PullError;

/// Room left free for everything else on the disk, in bytes: a disk filled to its last block breaks other programs.
pub(crate) const RESERVE: u64 = 64 << 20;

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

/// Refuses with both figures when `needed` bytes do not fit beside the reserve.
pub(crate) fn require_space(path: &Path, needed: u64) -> Result<(), PullError> {
    let available = available_space(path).map_err(|error| PullError::io("ask the free space of", path, error))?;
    fits(path, needed, available)
}

fn fits(path: &Path, needed: u64, available: u64) -> Result<(), PullError> {
    let fits = needed.checked_add(RESERVE).is_some_and(|with_reserve| with_reserve <= available);
    if needed == 0 || fits {
        return Ok(());
    }
    Err(PullError::NoSpace { path: path.to_owned(), needed, available })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_refused_with_both_figures() {
        let error = fits(Path::new("/models"), 5 << 30, 2 << 30).unwrap_err().to_string();
        assert!(error.contains("5.4 GB") && error.contains("2.1 GB"), "{error}");
        assert!(fits(Path::new("/models"), u64::MAX, u64::MAX).is_err());
        fits(Path::new("/models"), 1 << 30, 2 << 30).unwrap();
        fits(Path::new("/models"), 0, 0).unwrap();
    }

    #[test]
    fn a_folder_not_made_yet_has_the_space_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert!(available_space(&folder.path().join("a/b/c")).unwrap() > 0);
    }
}
