//! The threads that read blocks back.

use std::io;
use std::sync::Arc;

use super::fetch::{FetchError, FetchedBlock};
use super::file_system::{SegmentFile, read_exact_at};
use super::index::{Location, Place};
use super::record::{BlockHeader, RECORD_HEADER, RecordHeader, checksum};
use super::shared::Shared;
use super::{BlockKey, CodecError, codec, priority};

/// How often a block is looked up again that was moved while it was being read.
const MOST_TRIES: usize = 8;

/// Works until the tier is stopped.
pub(super) fn run(shared: &Shared) {
    if shared.options.is_background {
        priority::lower_reader();
    }
    while let Some(job) = shared.reads.pop() {
        let Some(key) = job.next_key() else { continue };
        let result = read(shared, &key);
        if let Ok(block) = &result {
            let mut inner = shared.lock();
            inner.counters.restores += 1;
            inner.counters.restored_bytes += block.block.bytes() as u64;
        }
        let given = job.give(result);
        if let Some(elapsed) = given.finished {
            shared.lock().counters.last_restore = Some(elapsed);
        }
        if given.should_continue && !shared.reads.push(Arc::clone(&job)) {
            job.give(Err(FetchError::Stopped));
        }
    }
}

fn read(shared: &Shared, key: &BlockKey) -> Result<FetchedBlock, FetchError> {
    let mut last = FetchError::Missing;
    for _ in 0..MOST_TRIES {
        let (file, location, parent) = {
            let mut inner = shared.lock();
            inner.index.touch_prefix(&[*key]);
            let Some(entry) = inner.index.get(key) else { return Err(FetchError::Missing) };
            match &entry.place {
                // Not on the disk yet; what is to be written is as good.
                Place::Queued(queued) => {
                    let (tokens, block) = (Arc::clone(&queued.tokens), Arc::clone(&queued.block));
                    return Ok(FetchedBlock { key: *key, tokens, block });
                }
                Place::Stored(location) => {
                    let segment = inner.index.segments.get(&location.segment).ok_or(FetchError::Missing)?;
                    (Arc::clone(&segment.file), *location, entry.parent)
                }
            }
        };
        match read_record(&*file, location, key, parent) {
            Ok(block) => return Ok(block),
            Err(error) => {
                drop(file);
                last = error;
                let mut inner = shared.lock();
                let is_there = inner.index.get(key).is_some_and(|entry| match &entry.place {
                    Place::Stored(now) => *now == location,
                    Place::Queued(_) => false,
                });
                if is_there {
                    tracing::warn!(error = %last, "a block of the cache on disk is discarded");
                    inner.discard(key);
                    return Err(last);
                }
            }
        }
    }
    Err(last)
}

/// Reads one block and verifies all of it.
fn read_record(
    file: &dyn SegmentFile,
    location: Location,
    key: &BlockKey,
    parent: Option<BlockKey>,
) -> Result<FetchedBlock, FetchError> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => FetchError::Damaged(CodecError::Truncated),
        _ => FetchError::Unreadable(error.to_string()),
    };
    let mut bytes = [0; RECORD_HEADER];
    read_exact_at(file, location.offset, &mut bytes).map_err(unreadable)?;
    let header = match RecordHeader::from_bytes(&bytes, location.segment) {
        Some(RecordHeader::Block(header)) => header,
        _ => return Err(CodecError::Checksum.into()),
    };
    let BlockHeader { start, tokens, meta_bytes, payload_bytes, meta_checksum, payload_checksum, .. } = header;
    if (header.key, header.parent, header.record_bytes()) != (*key, parent, Some(location.bytes)) {
        return Err(CodecError::Checksum.into());
    }
    let mut at = location.offset + bytes.len() as u64;
    let mut take = |length: usize| -> Result<Vec<u8>, FetchError> {
        let mut bytes = vec![0; length];
        read_exact_at(file, at, &mut bytes).map_err(unreadable)?;
        at += length as u64;
        Ok(bytes)
    };
    let meta = take(meta_bytes as usize)?;
    if checksum(&meta) != meta_checksum {
        return Err(CodecError::Checksum.into());
    }
    let outline = codec::decode_meta(&meta, start, tokens, payload_bytes)?;
    let parts = outline.lengths.iter().map(|length| take(*length)).collect::<Result<Vec<_>, _>>()?;
    if codec::payload_checksum(parts.iter().map(Vec::as_slice)) != payload_checksum {
        return Err(CodecError::Checksum.into());
    }
    let (tokens, block) = outline.complete(parts);
    Ok(FetchedBlock { key: *key, tokens: tokens.into(), block: Arc::new(block) })
}
