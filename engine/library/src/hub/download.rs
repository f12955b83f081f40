//! The download of one file: lock, resume, stream, retry, verify, put in place.

use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::header::{self, HeaderMap};
use reqwest::{Method, Response, StatusCode};

use crate::PullError;
use crate::blocking::blocking;
use crate::pull_progress::{FileReporter, FileState};

use super::client::{HubClient, reason_of};
use super::listing::{RemoteFile, RepositoryListing};
use super::partial::{BlobLock, BlobPaths, PartialFile};
use super::retry::{Failure, RequestSubject, RetryTally};
use super::verify::{BlobHash, hash_matches};

/// Bytes gathered before they are written and hashed: large enough to keep the hand-over to a blocking thread cheap.
const WRITE_SIZE: usize = 1 << 20;

/// Longest time that received bytes stay unwritten: all that a killed process can lose.
const WRITE_DELAY: Duration = Duration::from_millis(250);

/// Time between two looks at a lock that another one has.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// Silence is shown to the user after this part of the stall limit.
const SILENCE_SHOWN_AFTER: u32 = 6;

/// What to download.
struct Blob<'a> {
    subject: RequestSubject<'a>,
    name: &'a str,
    size: u64,
}

/// Downloads one file of the listing to its place below `target`, going on from what an earlier run left. Returns
/// its size and the hash it was checked against. Dropping the future stops it and leaves a partial to go on from.
pub(crate) async fn download_file(
    client: &HubClient,
    listing: &RepositoryListing,
    file: &RemoteFile,
    target: &Path,
    report: FileReporter<'_>,
) -> Result<(u64, Option<BlobHash>), PullError> {
    let subject = RequestSubject { id: &listing.id, revision: &listing.commit, file: Some(&file.name) };
    let (size, hash) = match (file.size, file.hash) {
        (Some(size), Some(hash)) => (size, Some(hash)),
        _ => ask_for_facts(client, file, &subject, report).await?,
    };
    report.size(size);
    let blob = Blob { subject, name: &file.name, size };
    let place = target.join(&file.name);
    let paths = BlobPaths::new(target, &file.name, hash.as_ref());

    let lock = wait_for_lock(&paths, report).await?;
    report.state(FileState::Verifying);
    if let Some(hash) = hash {
        let path = place.clone();
        let there =
            blocking(move || hash_matches(&path, size, &hash).map_err(|error| PullError::io("read", &path, error)));
        if there.await? {
            report.done();
            return Ok((size, Some(hash)));
        }
    }
    let partial = blocking(move || PartialFile::open(paths.partial, size, hash, lock)).await?;
    let mut writer = PartialWriter { partial: Some(partial), buffer: Vec::new(), oldest: None };
    fill(client, &blob, &mut writer, report).await?;
    report.state(FileState::Verifying);
    let partial = writer.take()?;
    drop(blocking(move || partial.finish(&place)).await?);
    report.done();
    Ok((size, hash))
}

/// Asks for what the listing did not tell.
async fn ask_for_facts(
    client: &HubClient,
    file: &RemoteFile,
    subject: &RequestSubject<'_>,
    report: FileReporter<'_>,
) -> Result<(u64, Option<BlobHash>), PullError> {
    let mut tally = RetryTally::new(client.options(), 0);
    loop {
        match client.send(Method::HEAD, file_address(client, subject), None, subject).await {
            Ok(answer) => {
                let offered = header_number(answer.response.headers(), header::CONTENT_LENGTH);
                let size = file.size.or(answer.stated.size).or(offered);
                let hash = file.hash.or(answer.stated.hash);
                let host = answer.host;
                let size = size.ok_or_else(|| PullError::Unverifiable { file: file.name.clone(), host })?;
                return Ok((size, hash));
            }
            Err(failure) => pause(tally.after(failure, 0)?, &tally, report).await,
        }
    }
}

fn file_address(client: &HubClient, subject: &RequestSubject<'_>) -> reqwest::Url {
    let name = subject.file.unwrap_or_default();
    let parts = subject.id.split('/').chain(["resolve", subject.revision]).chain(name.split('/'));
    client.address(parts)
}

async fn wait_for_lock(paths: &BlobPaths, report: FileReporter<'_>) -> Result<BlobLock, PullError> {
    loop {
        let path = paths.lock.clone();
        if let Some(lock) = blocking(move || BlobLock::try_acquire(&path)).await? {
            return Ok(lock);
        }
        report.state(FileState::WaitingForOther { process: BlobLock::owner(&paths.lock) });
        report.bytes(paths.partial.metadata().map(|facts| facts.len()).unwrap_or(0));
        tokio::time::sleep(LOCK_POLL).await;
    }
}

/// Brings the partial to the blob's full size with the right hash.
async fn fill(
    client: &HubClient,
    blob: &Blob<'_>,
    writer: &mut PartialWriter,
    report: FileReporter<'_>,
) -> Result<(), PullError> {
    let mut tally = RetryTally::new(client.options(), writer.length());
    let mut damaged_before = false;
    loop {
        if writer.length() == blob.size {
            let Some((expected, actual)) = writer.mismatch() else { return Ok(()) };
            if damaged_before {
                let partial = writer.take()?;
                blocking(move || partial.delete()).await?;
                return Err(PullError::WrongHash { file: blob.name.to_owned(), expected, actual });
            }
            damaged_before = true;
            writer.restart().await?;
        }
        report.bytes(writer.length());
        report.state(FileState::Downloading);
        let result = stream_once(client, blob, writer, report).await;
        // What came is kept, however the attempt ended.
        writer.flush().await?;
        if let Err(failure) = result {
            let next = tally.after(failure, writer.length())?;
            pause(next, &tally, report).await;
        }
    }
}

async fn pause((wait, reason): (Duration, String), tally: &RetryTally, report: FileReporter<'_>) {
    report.state(FileState::Retrying { failures: tally.failures(), wait, reason });
    tokio::time::sleep(wait).await;
}

/// One request for what is missing, written as far as it comes.
async fn stream_once(
    client: &HubClient,
    blob: &Blob<'_>,
    writer: &mut PartialWriter,
    report: FileReporter<'_>,
) -> Result<(), Failure> {
    if blob.size == 0 {
        return Ok(());
    }
    let start = writer.length();
    let range = (start > 0).then_some(start);
    let answer = match client.send(Method::GET, file_address(client, &blob.subject), range, &blob.subject).await {
        Ok(answer) => answer,
        Err(failure) => return Err(after_refused_range(failure, writer).await),
    };
    let host = answer.host;
    let begins_at = match first_byte(answer.response.status(), answer.response.headers()) {
        Some(first) if first == start || first == 0 => first,
        _ => {
            writer.restart().await.map_err(Failure::Fatal)?;
            return Err(Failure::passing(PullError::UnexpectedAnswer {
                host,
                what: blob.subject.describe(),
                reason: format!("asked for the bytes from {start} on, it sends others"),
            }));
        }
    };
    if let Some(length) = header_number(answer.response.headers(), header::CONTENT_LENGTH)
        && begins_at.saturating_add(length) != blob.size
    {
        return Err(wrong_size(blob, host, begins_at.saturating_add(length)));
    }
    if begins_at != start {
        // The server ignored the range, so what follows is the whole file.
        writer.restart().await.map_err(Failure::Fatal)?;
    }
    receive(client, blob, host, answer.response, writer, report).await
}

/// A refused range (416) means that our partial and the server's file differ: begin anew.
async fn after_refused_range(failure: Failure, writer: &mut PartialWriter) -> Failure {
    let is_refused_range =
        matches!(&failure, Failure::Fatal(PullError::Server { status: 416, .. }) if writer.length() > 0);
    if !is_refused_range {
        return failure;
    }
    match (writer.restart().await, failure) {
        (Ok(()), Failure::Fatal(error)) => Failure::passing(error),
        (Ok(()), passing) => passing,
        (Err(error), _) => Failure::Fatal(error),
    }
}

/// Reads the body to its end.
async fn receive(
    client: &HubClient,
    blob: &Blob<'_>,
    host: String,
    mut response: Response,
    writer: &mut PartialWriter,
    report: FileReporter<'_>,
) -> Result<(), Failure> {
    let limit = client.options().stall_limit;
    let mut last_bytes = Instant::now();
    loop {
        // Waking up in slices lets waiting bytes be written and silence be shown before the limit.
        let slice = WRITE_DELAY.min(limit / SILENCE_SHOWN_AFTER);
        let ended = match tokio::time::timeout(slice, response.chunk()).await {
            Ok(Ok(Some(bytes))) => {
                last_bytes = Instant::now();
                let length = writer.total() + bytes.len() as u64;
                if length > blob.size {
                    return Err(wrong_size(blob, host, length));
                }
                writer.push(&bytes).await.map_err(Failure::Fatal)?;
                report.bytes(writer.total());
                report.state(FileState::Downloading);
                None
            }
            Ok(Ok(None)) if writer.total() == blob.size => return Ok(()),
            Ok(Ok(None)) => Some("it was closed early".to_owned()),
            Ok(Err(error)) => Some(reason_of(error)),
            Err(_) => {
                writer.flush().await.map_err(Failure::Fatal)?;
                let silent = last_bytes.elapsed();
                if silent >= limit {
                    return Err(Failure::passing(PullError::Stalled {
                        file: blob.name.to_owned(),
                        host,
                        limit_seconds: limit.as_secs(),
                        attempts: 1,
                        received: writer.total(),
                        total: blob.size,
                    }));
                }
                if silent >= limit / SILENCE_SHOWN_AFTER {
                    report.state(FileState::Stalled { silent });
                }
                None
            }
        };
        if let Some(reason) = ended {
            return Err(Failure::passing(PullError::Truncated {
                file: blob.name.to_owned(),
                host,
                received: writer.total(),
                total: blob.size,
                attempts: 1,
                reason,
            }));
        }
    }
}

fn wrong_size(blob: &Blob<'_>, host: String, offered: u64) -> Failure {
    Failure::passing(PullError::WrongSize { file: blob.name.to_owned(), host, expected: blob.size, offered })
}

/// Where the body begins in the file: 0 for a whole answer, the stated start for a part, `None` if it does not say.
fn first_byte(status: StatusCode, headers: &HeaderMap) -> Option<u64> {
    if status != StatusCode::PARTIAL_CONTENT {
        return Some(0);
    }
    let range = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn header_number(headers: &HeaderMap, name: header::HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Gathers received bytes and writes them on a blocking thread. While that thread has the partial, it owns the lock
/// with it: a dropped download lets go of the lock only after its last write.
struct PartialWriter {
    partial: Option<PartialFile>,
    buffer: Vec<u8>,
    oldest: Option<Instant>,
}

impl PartialWriter {
    /// Bytes written.
    fn length(&self) -> u64 {
        self.partial.as_ref().map_or(0, PartialFile::length)
    }

    /// Bytes written and waiting to be.
    fn total(&self) -> u64 {
        self.length() + self.buffer.len() as u64
    }

    fn mismatch(&self) -> Option<(BlobHash, BlobHash)> {
        self.partial.as_ref().and_then(PartialFile::mismatch)
    }

    fn take(&mut self) -> Result<PartialFile, PullError> {
        self.partial.take().ok_or_else(|| {
            let source = std::io::Error::other("an earlier write failed");
            PullError::Io { action: "write", path: super::partial::WORK_FOLDER.into(), source }
        })
    }

    async fn push(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        self.buffer.extend_from_slice(bytes);
        let oldest = *self.oldest.get_or_insert_with(Instant::now);
        if self.buffer.len() >= WRITE_SIZE || oldest.elapsed() >= WRITE_DELAY {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), PullError> {
        self.oldest = None;
        if self.buffer.is_empty() {
            return Ok(());
        }
        let mut partial = self.take()?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let (partial, buffer) = blocking(move || {
            partial.append(&buffer)?;
            buffer.clear();
            Ok((partial, buffer))
        })
        .await?;
        (self.partial, self.buffer) = (Some(partial), buffer);
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), PullError> {
        self.buffer.clear();
        self.oldest = None;
        let mut partial = self.take()?;
        let partial = blocking(move || partial.restart().map(|()| partial)).await?;
        self.partial = Some(partial);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_is_read_from_the_answer_not_assumed() {
        let range = |text: &str| HeaderMap::from_iter([(header::CONTENT_RANGE, text.parse().unwrap())]);
        let part = |text: &str| first_byte(StatusCode::PARTIAL_CONTENT, &range(text));
        assert_eq!(part("bytes 50-99/100"), Some(50));
        assert_eq!(part("bytes 0-99/100"), Some(0));
        assert_eq!(part("items 50-99/100"), None);
        assert_eq!(first_byte(StatusCode::PARTIAL_CONTENT, &HeaderMap::new()), None);
        assert_eq!(first_byte(StatusCode::OK, &HeaderMap::new()), Some(0));
    }
}
