//! Content hashes, as the hub states them: SHA-256 for large files, git's blob SHA-1 for small ones.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha1::{Digest, Sha1};
use sha2::Sha256;

/// Bytes read at a time when a file on disk is hashed.
const READ_SIZE: usize = 1 << 20;

/// The hash of one file's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlobHash {
    /// SHA-256 of the bytes; what the hub states for files in large-file storage.
    Sha256([u8; 32]),
    /// SHA-1 of `blob <length>\0` and the bytes: git's own object name, stated for all other files.
    GitSha1([u8; 20]),
}

impl BlobHash {
    /// Reads 64 hexadecimal digits as a SHA-256; `None` for anything else.
    pub fn parse_sha256(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        parse_hex(text, &mut bytes).then_some(Self::Sha256(bytes))
    }

    /// Reads 40 hexadecimal digits as a git blob name; `None` for anything else.
    pub fn parse_git_sha1(text: &str) -> Option<Self> {
        let mut bytes = [0; 20];
        parse_hex(text, &mut bytes).then_some(Self::GitSha1(bytes))
    }

    /// The digits alone, in lower case.
    pub fn hex(&self) -> String {
        match self {
            Self::Sha256(bytes) => to_hex(bytes),
            Self::GitSha1(bytes) => to_hex(bytes),
        }
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Sha256(_) => "sha256",
            Self::GitSha1(_) => "git sha1",
        };
        write!(formatter, "{kind} {}", self.hex())
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hex(text: &str, into: &mut [u8]) -> bool {
    let digits = text.as_bytes();
    if digits.len() != 2 * into.len() {
        return false;
    }
    for (byte, pair) in into.iter_mut().zip(digits.chunks_exact(2)) {
        let (Some(high), Some(low)) = ((pair[0] as char).to_digit(16), (pair[1] as char).to_digit(16)) else {
            return false;
        };
        *byte = (high * 16 + low) as u8;
    }
    true
}

/// Hashes content as it arrives, in the kind that an expected hash asks for.
pub(crate) enum BlobHasher {
    Sha256(Sha256),
    GitSha1(Sha1),
}

impl BlobHasher {
    /// A hasher of `expected`'s kind for content of `size` bytes (git hashes the length first).
    pub(crate) fn new(expected: &BlobHash, size: u64) -> Self {
        match expected {
            BlobHash::Sha256(_) => Self::Sha256(Sha256::new()),
            BlobHash::GitSha1(_) => Self::GitSha1(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }

    /// Takes the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::GitSha1(hasher) => hasher.update(bytes),
        }
    }

    /// Takes all that `reader` still holds; returns how many bytes that was.
    pub(crate) fn update_from(&mut self, reader: &mut impl Read) -> io::Result<u64> {
        let mut buffer = vec![0; READ_SIZE];
        let mut total = 0;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(total),
                Ok(count) => {
                    self.update(&buffer[..count]);
                    total += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The hash of all bytes taken so far.
    pub(crate) fn digest(&self) -> BlobHash {
        match self {
            Self::Sha256(hasher) => BlobHash::Sha256(hasher.clone().finalize().into()),
            Self::GitSha1(hasher) => BlobHash::GitSha1(hasher.clone().finalize().into()),
        }
    }
}

/// Whether the file at `path` has this content; `false` also where there is no such file. Reads the whole file, so
/// call it off the async threads.
pub(crate) fn hash_matches(path: &Path, size: u64, expected: &BlobHash) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let facts = file.metadata()?;
    if !facts.is_file() || facts.len() != size {
        return Ok(false);
    }
    let mut hasher = BlobHasher::new(expected, size);
    hasher.update_from(&mut file)?;
    Ok(hasher.digest() == *expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(kind: BlobHash, bytes: &[u8]) -> BlobHash {
        let mut hasher = BlobHasher::new(&kind, bytes.len() as u64);
        hasher.update(bytes);
        hasher.digest()
    }

    #[test]
    fn git_blob_names_agree_with_git() {
        // `git hash-object` of an empty file, and of "hello\n".
        let empty = BlobHash::parse_git_sha1("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391").unwrap();
        let hello = BlobHash::parse_git_sha1("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        assert_eq!(hash_of(empty, b""), empty);
        assert_eq!(hash_of(empty, b"hello\n"), hello);
    }

    #[test]
    fn sha256_agrees_with_the_standards_example() {
        let abc = BlobHash::parse_sha256("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD").unwrap();
        assert_eq!(hash_of(abc, b"abc"), abc);
        assert_eq!(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn text_that_is_no_hash_is_not_read_as_one() {
        assert_eq!(BlobHash::parse_sha256("abc"), None);
        assert_eq!(BlobHash::parse_sha256(&"g".repeat(64)), None);
        assert_eq!(BlobHash::parse_git_sha1(&"é".repeat(20)), None);
    }
}
