//! What the tier needs of a file system. Behind a trait, so that tests can make each operation fail.

use std::any::Any;
use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

/// The operations on files and directories.
pub trait FileSystem: Debug + Send + Sync {
    /// Makes a directory and those above it, for this user only, if it is not there.
    ///
    /// # Errors
    /// As the system says.
    fn make_directory(&self, directory: &Path) -> io::Result<()>;

    /// Takes a file for this process alone, until the result is dropped or the process ends.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when another process has it; else as the system says.
    fn lock(&self, file: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;

    /// The names in a directory.
    ///
    /// # Errors
    /// As the system says.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Makes a new file, for this user only.
    ///
    /// # Errors
    /// As the system says; also when the file is there already.
    fn create(&self, file: &Path) -> io::Result<Arc<dyn SegmentFile>>;

    /// Opens a file to be read and appended to.
    ///
    /// # Errors
    /// As the system says.
    fn open(&self, file: &Path) -> io::Result<Arc<dyn SegmentFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&self, file: &Path) -> io::Result<()>;

    /// Makes what was created and removed in a directory durable.
    ///
    /// # Errors
    /// As the system says.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;

    /// Bytes that this user may still write on the disk of a directory.
    ///
    /// # Errors
    /// As the system says.
    fn free_bytes(&self, directory: &Path) -> io::Result<u64>;
}

/// A file that only grows at its end, or is cut there.
pub trait SegmentFile: Debug + Send + Sync {
    /// How long it is.
    ///
    /// # Errors
    /// As the system says.
    fn length(&self) -> io::Result<u64>;

    /// Writes at the end. How many bytes were written: perhaps not all.
    ///
    /// # Errors
    /// As the system says.
    fn append(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads from `offset` on. How many bytes were read: perhaps not all, none at the end.
    ///
    /// # Errors
    /// As the system says.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Cuts the file to a length.
    ///
    /// # Errors
    /// As the system says.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// As the system says. What was written since the last success may be lost then, also if a later call succeeds.
    fn sync(&self) -> io::Result<()>;
}

/// Fills a buffer from `offset` on.
pub(super) fn read_exact_at(file: &dyn SegmentFile, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        match file.read_at(offset, into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                into = into.get_mut(count..).unwrap_or_default();
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Appends all parts.
pub(super) fn append_all(file: &dyn SegmentFile, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Empty parts first: a write of nothing but them writes nothing, which else means that there is no room.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match file.append(&parts[..parts.len().min(MOST_PARTS)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut parts, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// `IOV_MAX` of Linux and macOS.
const MOST_PARTS: usize = 1024;

/// The computer's own file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalFileSystem;

impl FileSystem for LocalFileSystem {
    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)
    }

    fn lock(&self, file: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let file = new_options().create(true).truncate(false).open(file)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }

    fn create(&self, file: &Path) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::new(LocalFile(new_options().create_new(true).open(file)?)))
    }

    fn open(&self, file: &Path) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::new(LocalFile(new_options().open(file)?)))
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        std::fs::remove_file(file)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        let facts = rustix::fs::statvfs(directory)?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }
}

/// Never through a link that somebody else has put there, and for this user only.
fn new_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let no_follow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    options.read(true).append(true).mode(0o600).custom_flags(no_follow);
    options
}

#[derive(Debug)]
struct LocalFile(File);

impl SegmentFile for LocalFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn append(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.0).write_vectored(parts)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(into, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
