//! A file that is not complete yet: its bytes on disk, their running hash, and the lock that makes one owner.
//!
//! Partials are named by the content they will have, not by the file: one of an older commit can then never be
//! continued with another's bytes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::PullError;
use crate::disk;

use super::verify::{BlobHash, BlobHasher};

/// Folder inside the target that holds partials and locks while a pull runs.
pub(crate) const WORK_FOLDER: &str = ".linnet-pull";

const PARTIAL_ENDING: &str = ".partial";
const LOCK_ENDING: &str = ".lock";

/// Where a blob's partial and lock are.
#[derive(Clone, Debug)]
pub(crate) struct BlobPaths {
    pub(crate) partial: PathBuf,
    pub(crate) lock: PathBuf,
}

impl BlobPaths {
    /// The places below `target` for content of this hash; content without a known hash is named by its file.
    pub(crate) fn new(target: &Path, name: &str, hash: Option<&BlobHash>) -> Self {
        let stem = match hash {
            Some(hash) => hash.hex(),
            None => {
                let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
                format!("unhashed-{}", BlobHash::Sha256(digest).hex())
            }
        };
        let folder = target.join(WORK_FOLDER);
        Self {
            partial: folder.join(format!("{stem}{PARTIAL_ENDING}")),
            lock: folder.join(format!("{stem}{LOCK_ENDING}")),
        }
    }
}

/// Bytes of the partial that a pull into `target` would go on from.
pub(crate) fn partial_length(target: &Path, name: &str, hash: Option<&BlobHash>) -> u64 {
    let Some(hash) = hash else { return 0 };
    BlobPaths::new(target, name, Some(hash)).partial.metadata().map(|facts| facts.len()).unwrap_or(0)
}

/// The right to write one blob. The operating system holds it, so a killed process lets go of it too; the process id
/// in the file is only for people to read.
#[derive(Debug)]
pub(crate) struct BlobLock {
    _file: File,
}

impl BlobLock {
    /// Takes the lock, or returns `None` while another task or process has it.
    pub(crate) fn try_acquire(path: &Path) -> Result<Option<Self>, PullError> {
        let fault = |error| PullError::io("lock", path, error);
        loop {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(|error| PullError::io("create", folder, error))?;
            }
            let mut file = match OpenOptions::new().create(true).read(true).write(true).truncate(false).open(path) {
                Ok(file) => file,
                // The folder went away in between: another pull finished and swept it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(fault(error)),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                // Some network file systems have no locks; there the hash check alone must do.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(fault(error)),
            }
            if !is_file_at(&file, path) {
                continue;
            }
            file.set_len(0).map_err(fault)?;
            file.write_all(std::process::id().to_string().as_bytes()).map_err(fault)?;
            return Ok(Some(Self { _file: file }));
        }
    }

    /// The process that has the lock, if it wrote its id.
    pub(crate) fn owner(path: &Path) -> Option<u32> {
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

/// Whether `path` still leads to this open file: a lock on a file that was deleted meanwhile keeps nobody out.
#[cfg(unix)]
fn is_file_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => open.dev() == there.dev() && open.ino() == there.ino(),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_file_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// Removes what finished and abandoned downloads left in the working folder; what another one still uses stays.
pub(crate) fn sweep_work_folder(target: &Path) {
    let folder = target.join(WORK_FOLDER);
    let Ok(entries) = fs::read_dir(&folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(LOCK_ENDING)) else { continue };
        let lock_path = entry.path();
        if let Ok(Some(lock)) = BlobLock::try_acquire(&lock_path) {
            let _ = fs::remove_file(folder.join(format!("{stem}{PARTIAL_ENDING}")));
            let _ = fs::remove_file(&lock_path);
            drop(lock);
        }
    }
    // Fails while anything is left in it, which is right.
    let _ = fs::remove_dir(&folder);
}

/// An open partial. It owns its lock, so that the lock outlives every write.
#[derive(Debug)]
pub(crate) struct PartialFile {
    path: PathBuf,
    file: File,
    size: u64,
    length: u64,
    expected: Option<BlobHash>,
    hasher: Option<BlobHasher>,
    lock: BlobLock,
}

impl std::fmt::Debug for BlobHasher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("BlobHasher")
    }
}

impl PartialFile {
    /// Opens or creates the partial of a blob of `size` bytes and hashes what it holds. Without an expected hash
    /// old bytes cannot be trusted, so they are dropped; so are more bytes than the blob has.
    pub(crate) fn open(
        path: PathBuf,
        size: u64,
        expected: Option<BlobHash>,
        lock: BlobLock,
    ) -> Result<Self, PullError> {
        let file = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| PullError::io("create", &path, error))?;
        let length = file.metadata().map_err(|error| PullError::io("read", &path, error))?.len();
        let mut partial = Self { path, file, size, length: 0, expected, hasher: None, lock };
        if length > size || expected.is_none() {
            partial.restart()?;
            return Ok(partial);
        }
        if let Some(expected) = &expected {
            let mut hasher = BlobHasher::new(expected, size);
            let mut reader = (&partial.file).take(length);
            partial.length =
                hasher.update_from(&mut reader).map_err(|error| PullError::io("read", &partial.path, error))?;
            partial.hasher = Some(hasher);
        }
        Ok(partial)
    }

    /// Bytes that are written.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Writes the next bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        let fault = |error| PullError::io("write", &self.path, error);
        // Placed, not appended: if a failed write left part of its bytes, they are written over.
        self.file.seek(SeekFrom::Start(self.length)).map_err(fault)?;
        self.file.write_all(bytes).map_err(fault)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Drops all bytes.
    pub(crate) fn restart(&mut self) -> Result<(), PullError> {
        self.file.set_len(0).map_err(|error| PullError::io("empty", &self.path, error))?;
        self.length = 0;
        self.hasher = self.expected.as_ref().map(|expected| BlobHasher::new(expected, self.size));
        Ok(())
    }

    /// The hash of the bytes, if it is not the expected one.
    pub(crate) fn mismatch(&self) -> Option<(BlobHash, BlobHash)> {
        let (expected, actual) = (self.expected?, self.hasher.as_ref()?.digest());
        (expected != actual).then_some((expected, actual))
    }

    /// Deletes the partial.
    pub(crate) fn delete(self) -> Result<(), PullError> {
        fs::remove_file(&self.path).map_err(|error| PullError::io("delete", &self.path, error))
    }

    /// Puts the complete file in its place; what had that name before is replaced. The lock is returned, for the
    /// caller to hold until it has used the file.
    pub(crate) fn finish(self, place: &Path) -> Result<BlobLock, PullError> {
        // A full write cache that a power cut empties would otherwise leave a finished name with nothing in it.
        disk::sync(&self.file).map_err(|error| PullError::io("write", &self.path, error))?;
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder).map_err(|error| PullError::io("create", folder, error))?;
        }
        fs::rename(&self.path, place).map_err(|error| PullError::io("create", place, error))?;
        Ok(self.lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(bytes: &[u8]) -> BlobHash {
        BlobHash::Sha256(Sha256::digest(bytes).into())
    }

    fn open(target: &Path, content: &[u8], hash: Option<BlobHash>) -> PartialFile {
        let paths = BlobPaths::new(target, "f", hash.as_ref());
        let lock = BlobLock::try_acquire(&paths.lock).unwrap().expect("free");
        PartialFile::open(paths.partial, content.len() as u64, hash, lock).unwrap()
    }

    #[test]
    fn a_reopened_partial_goes_on_with_its_bytes_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let content = b"first half, second half";
        let hash = Some(expected(content));
        open(folder.path(), content, hash).append(&content[..11]).unwrap();
        assert_eq!(partial_length(folder.path(), "f", hash.as_ref()), 11);
        let mut partial = open(folder.path(), content, hash);
        assert_eq!(partial.length(), 11);
        partial.append(&content[11..]).unwrap();
        assert_eq!(partial.mismatch(), None);
        let place = folder.path().join("deep/er/f");
        drop(partial.finish(&place).unwrap());
        assert_eq!(fs::read(place).unwrap(), content);
        sweep_work_folder(folder.path());
        assert!(!folder.path().join(WORK_FOLDER).exists());
    }

    #[test]
    fn bytes_that_cannot_be_trusted_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), b"abc", None).append(b"ab").unwrap();
        assert_eq!(open(folder.path(), b"abc", None).length(), 0);
        let hash = Some(expected(b"abc"));
        open(folder.path(), b"abc", hash).append(b"abcdef").unwrap();
        assert_eq!(open(folder.path(), b"abc", hash).length(), 0);
    }

    #[test]
    fn a_blob_has_one_owner_and_the_sweep_leaves_it_alone() {
        let folder = tempfile::tempdir().unwrap();
        let hash = Some(expected(b"abc"));
        let mut first = open(folder.path(), b"abc", hash);
        first.append(b"a").unwrap();
        let paths = BlobPaths::new(folder.path(), "f", hash.as_ref());
        assert!(BlobLock::try_acquire(&paths.lock).unwrap().is_none());
        assert_eq!(BlobLock::owner(&paths.lock), Some(std::process::id()));
        sweep_work_folder(folder.path());
        assert!(paths.partial.exists());
        drop(first);
        assert!(BlobLock::try_acquire(&paths.lock).unwrap().is_some());
    }
}
