//! Reading a binary file front to back, with a bound on everything that it can claim.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use crate::error::{IoContext as _, LibraryError};

/// Large tables are read in few calls.
const BUFFER_BYTES: usize = 1 << 16;

/// A file under way, little end first.
pub(crate) struct Reader<'a> {
    path: &'a Path,
    input: BufReader<&'a File>,
    position: u64,
    length: u64,
}

impl<'a> Reader<'a> {
    /// Begins at the file's first byte.
    pub(crate) fn new(path: &'a Path, file: &'a File) -> Result<Self, LibraryError> {
        let length = file.metadata().at("read", path)?.len();
        let mut input = BufReader::with_capacity(BUFFER_BYTES, file);
        input.seek(SeekFrom::Start(0)).at("read", path)?;
        Ok(Reader { path, input, position: 0, length })
    }

    /// Offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of the file.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Whether everything was read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.position >= self.length
    }

    /// A fault of this file.
    pub(crate) fn malformed(&self, reason: impl Into<String>) -> LibraryError {
        LibraryError::malformed(self.path, reason)
    }

    /// Refuses to read beyond the end, before any memory is set aside.
    pub(crate) fn reserve(&self, bytes: u64, what: &str) -> Result<(), LibraryError> {
        let needed = self.position.saturating_add(bytes);
        if needed > self.length {
            return Err(LibraryError::Truncated {
                path: self.path.to_owned(),
                what: what.to_owned(),
                needed,
                actual: self.length,
            });
        }
        Ok(())
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: u64, what: &str) -> Result<Vec<u8>, LibraryError> {
        self.reserve(count, what)?;
        let mut bytes = vec![0; count as usize];
        self.input.read_exact(&mut bytes).at("read", self.path)?;
        self.position += count;
        Ok(bytes)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], LibraryError> {
        self.reserve(N as u64, what)?;
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).at("read", self.path)?;
        self.position += N as u64;
        Ok(bytes)
    }

    /// A number of four bytes.
    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, LibraryError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// A number that must not exceed `limit`.
    pub(crate) fn count(&mut self, what: &str, limit: u32) -> Result<u32, LibraryError> {
        let count = self.u32(what)?;
        if count > limit {
            return Err(self.malformed(format!("{what} is {count}; the limit is {limit}")));
        }
        Ok(count)
    }

    /// Goes past `count` bytes, which must be there.
    pub(crate) fn skip(&mut self, count: u64, what: &str) -> Result<(), LibraryError> {
        self.reserve(count, what)?;
        let forward = i64::try_from(count).map_err(|_| self.malformed(format!("{what} has {count} bytes")))?;
        self.input.seek_relative(forward).at("read", self.path)?;
        self.position += count;
        Ok(())
    }
}
