//! What a repository holds at one revision.

use reqwest::Method;
use serde::Deserialize;

use crate::PullError;

use super::client::{HubClient, host_of};
use super::partial::WORK_FOLDER;
use super::retry::{Failure, RequestSubject, RetryTally};
use super::verify::BlobHash;

/// Largest listing that is read, in bytes; the largest real ones have a few thousand files and stay under 2 MB.
const LARGEST_LISTING: usize = 32 << 20;

/// Longest part of a path that the common file systems take, in bytes.
const LONGEST_NAME: usize = 255;

/// The files of a repository at one commit.
#[derive(Clone, Debug, PartialEq)]
pub struct RepositoryListing {
    /// The repository, `owner/name`.
    pub id: String,
    /// The commit that the revision stood for, in hexadecimal: files are fetched from it, so that they fit together.
    pub commit: String,
    /// All files; their names are checked to be safe below any folder.
    pub files: Vec<RemoteFile>,
}

/// One file of a repository.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteFile {
    /// Path inside the repository, with `/` between folders.
    pub name: String,
    /// Bytes, where the listing tells it.
    pub size: Option<u64>,
    /// Hash of the content, where the listing tells it.
    pub hash: Option<BlobHash>,
}

/// The part of the hub's answer that we read.
#[derive(Deserialize)]
struct ModelInformation {
    sha: Option<String>,
    siblings: Option<Vec<Sibling>>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: Option<String>,
    size: Option<u64>,
}

impl HubClient {
    /// Asks the hub what `id` holds at `revision` (a branch, a tag or a commit).
    ///
    /// # Errors
    /// When the name cannot be one, the hub cannot be reached or refuses, or a listed file name is unsafe.
    pub async fn repository_files(&self, id: &str, revision: &str) -> Result<RepositoryListing, PullError> {
        check_repository_id(id)?;
        check_revision(revision)?;
        let mut tally = RetryTally::new(self.options(), 0);
        loop {
            match self.list_once(id, revision).await {
                Ok(listing) => return Ok(listing),
                Err(failure) => {
                    let (pause, _) = tally.after(failure, 0)?;
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    async fn list_once(&self, id: &str, revision: &str) -> Result<RepositoryListing, Failure> {
        let parts = ["api", "models"].into_iter().chain(id.split('/')).chain(["revision", revision]);
        let mut url = self.address(parts);
        url.set_query(Some("blobs=true"));
        let subject = RequestSubject { id, revision, file: None };
        let host = host_of(&url);
        let mut answer = self.send(Method::GET, url, None, &subject).await?;
        let unexpected =
            |reason: String| PullError::UnexpectedAnswer { host: host.clone(), what: subject.describe(), reason };
        let mut body = Vec::new();
        loop {
            let piece = tokio::time::timeout(self.options().stall_limit, answer.response.chunk()).await;
            match piece {
                Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
                Ok(Ok(None)) => break,
                Ok(Err(error)) => {
                    let reason = super::client::reason_of(error);
                    return Err(Failure::passing(PullError::Unreachable { host: answer.host, reason }));
                }
                Err(_) => {
                    let reason = "the listing stopped half-way".to_owned();
                    return Err(Failure::passing(PullError::Unreachable { host: answer.host, reason }));
                }
            }
            if body.len() > LARGEST_LISTING {
                return Err(Failure::Fatal(unexpected(format!("it is larger than {LARGEST_LISTING} bytes"))));
            }
        }
        read_listing(id, &body).map_err(|error| match error {
            ListingFault::Shape(reason) => Failure::Fatal(unexpected(reason)),
            ListingFault::Name(error) => Failure::Fatal(error),
        })
    }
}

enum ListingFault {
    Shape(String),
    Name(PullError),
}

fn read_listing(id: &str, body: &[u8]) -> Result<RepositoryListing, ListingFault> {
    let information: ModelInformation = serde_json::from_slice(body)
        .map_err(|error| ListingFault::Shape(format!("it is not the JSON we know ({error})")))?;
    let commit = information.sha.ok_or_else(|| ListingFault::Shape("it names no commit".to_owned()))?;
    if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(ListingFault::Shape(format!("its commit is {commit:?}")));
    }
    let siblings = information.siblings.ok_or_else(|| ListingFault::Shape("it lists no files".to_owned()))?;
    let mut files = Vec::with_capacity(siblings.len());
    for sibling in siblings {
        check_file_name(&sibling.rfilename).map_err(ListingFault::Name)?;
        // For a large file the blob is only a pointer, so its own hash and size must not be used.
        let (hash, size) = match sibling.lfs {
            Some(large) => (large.sha256.as_deref().and_then(BlobHash::parse_sha256), large.size.or(sibling.size)),
            None => (sibling.blob_id.as_deref().and_then(BlobHash::parse_git_sha1), sibling.size),
        };
        files.push(RemoteFile { name: sibling.rfilename, size, hash });
    }
    Ok(RepositoryListing { id: id.to_owned(), commit, files })
}

fn check_repository_id(id: &str) -> Result<(), PullError> {
    let refused = |reason| Err(PullError::BadRepositoryId { id: id.to_owned(), reason });
    let parts: Vec<&str> = id.split('/').collect();
    if parts.len() > 2 {
        return refused("it has more than one slash");
    }
    for part in parts {
        if part.is_empty() {
            return refused("the owner or the name is empty");
        }
        if !part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')) {
            return refused("it may hold only letters, digits, - _ and .");
        }
        if part.starts_with(['.', '-']) || part.contains("..") {
            return refused("no part may begin with . or -, nor hold ..");
        }
        if part.len() > 96 {
            return refused("it is too long");
        }
    }
    Ok(())
}

fn check_revision(revision: &str) -> Result<(), PullError> {
    let refused = |reason| Err(PullError::BadRevision { revision: revision.to_owned(), reason });
    if revision.is_empty() || revision.len() > 200 {
        return refused("it is empty or too long");
    }
    if revision.contains("..") || revision == "." || revision.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return refused("it holds .. or spaces");
    }
    Ok(())
}

/// Refuses a name that would not stay below the folder it is written to, on any system we run on.
pub(crate) fn check_file_name(name: &str) -> Result<(), PullError> {
    let refused = |reason| Err(PullError::UnsafeName { name: name.to_owned(), reason });
    if name.contains('\\') || name.chars().any(char::is_control) {
        return refused("it holds a backslash or a control character");
    }
    for part in name.split('/') {
        match part {
            "" => return refused("it begins or ends with / or holds two in a row"),
            "." | ".." => return refused("it holds . or .. as a folder"),
            WORK_FOLDER => return refused("it is our own working folder"),
            _ if part.len() > LONGEST_NAME => return refused("a part of it is longer than 255 bytes"),
            _ => {}
        }
    }
    if name.as_bytes().get(1) == Some(&b':') {
        return refused("it begins with a drive letter");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for name in ["../x", "a/../b", "/etc/passwd", "a//b", "a/", "", ".", "a\\b", "C:x", "a\nb", ".linnet-pull/x"] {
            assert!(check_file_name(name).is_err(), "{name:?}");
        }
        for name in ["config.json", "模型/權重 ü.safetensors", "..config", "a/.hidden"] {
            check_file_name(name).unwrap();
        }
    }

    #[test]
    fn repository_ids_are_those_of_the_hub() {
        for id in ["gpt2", "mlx-community/Qwen3-0.6B-4bit", "a_b/c.d"] {
            check_repository_id(id).unwrap();
        }
        for id in ["", "/", "a/", "a/b/c", "../b", "a/..", "a b/c", "a/b?x", "https://huggingface.co/a/b", "-x/y"] {
            assert!(check_repository_id(id).is_err(), "{id:?}");
        }
    }

    #[test]
    fn a_large_files_pointer_is_not_taken_for_the_file() {
        let sha = "a".repeat(64);
        let body = format!(
            r#"{{"sha":"abc1","siblings":[{{"rfilename":"m.safetensors","size":135,"blobId":"{}",
            "lfs":{{"sha256":"{sha}","size":9000,"pointerSize":135}}}},{{"rfilename":"plain"}}]}}"#,
            "b".repeat(40)
        );
        let Ok(listing) = read_listing("a/b", body.as_bytes()) else { panic!("not read") };
        assert_eq!(listing.files[0].size, Some(9000));
        assert_eq!(listing.files[0].hash, BlobHash::parse_sha256(&sha));
        assert_eq!(listing.files[1], RemoteFile { name: "plain".into(), size: None, hash: None });
    }
}
