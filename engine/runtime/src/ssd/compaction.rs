//! Keeping the limit: what is evicted, and how the space of what was evicted is had back.
//!
//! Evicting a block frees nothing, it makes garbage in a segment. A segment's space comes back when its file is removed,
//! after what is still wanted in it was copied to the end of the log. So the coldest blocks are evicted in advance, until
//! about a quarter of the limit is garbage, and then the segments with the most garbage are taken: the more there is in
//! one, the less is copied.

use std::io;

use super::file_system::read_exact_at;
use super::index::{Location, SESSION_BYTES, Wanted};
use super::log::{Log, WriteError};
use super::record::{RECORD_HEADER, RecordHeader, SEGMENT_HEADER};
use super::segment::trailer_bytes;
use super::shared::Inner;

/// What to do so that more can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing: there is room.
    Write,
    /// Have the space of this segment back.
    Compact(u64),
    /// Nothing helps: everything that is stored leads to blocks that are still to be written.
    GiveUp,
}

/// Decides, and evicts what has to go.
fn next_step(inner: &mut Inner, bytes: u64) -> Step {
    let sizes = inner.sizes;
    // A new segment may have to be begun for it.
    let wanted = inner.index.bytes.saturating_add(bytes).saturating_add(SEGMENT_HEADER as u64);
    let excess = wanted.saturating_sub(sizes.limit - sizes.slack);
    if excess == 0 {
        return Step::Write;
    }
    let garbage = inner.index.garbage();
    let enough = sizes.segment.max(sizes.limit / 4) + excess;
    if garbage < enough {
        inner.counters.evictions += inner.index.evict(enough - garbage);
        inner.index.forget_lost_sessions();
    }
    match inner.index.fullest_of_garbage() {
        Some((segment, garbage)) if garbage > 0 => Step::Compact(segment),
        _ => Step::GiveUp,
    }
}

impl Log {
    /// Evicts and compacts until so many bytes can be written within the limit.
    pub(super) fn make_room(&mut self, bytes: u64) -> Result<(), WriteError> {
        loop {
            // Without a record to come, what fitted before a restart must go on fitting after it.
            let trailer = self.trailer_bytes(usize::from(bytes > 0));
            let step = next_step(&mut self.shared.lock(), bytes.saturating_add(trailer));
            match step {
                Step::Write => return Ok(()),
                Step::Compact(segment) => self.compact(segment)?,
                Step::GiveUp => return Err(WriteError::NoRoom),
            }
        }
    }

    /// Copies what is wanted in a segment to the end of the log and removes the segment.
    fn compact(&mut self, number: u64) -> io::Result<()> {
        let wanted = {
            let mut inner = self.shared.lock();
            let wanted = inner.index.wanted_in(number);
            let live: u64 = wanted.iter().map(|(location, _)| location.bytes).sum();
            // The slack is for this. It is not there when the limit has just shrunk; then what is wanted has to go.
            let trailers = self.trailer_bytes(wanted.len()) + trailer_bytes(0);
            if inner.index.bytes + live + trailers + 2 * SEGMENT_HEADER as u64 > inner.sizes.limit {
                for (_, record) in wanted {
                    inner.give_up(record);
                }
                Vec::new()
            } else {
                wanted
            }
        };
        self.leave(number);
        for (location, record) in &wanted {
            self.copy(*location, *record)?;
        }
        if !wanted.is_empty() {
            // What was durable must be so again before its old place is gone.
            self.sync()?;
        }
        self.remove_segment(number)
    }

    /// Copies one record. One that cannot be read, or is damaged, is forgotten instead.
    fn copy(&mut self, from: Location, record: Wanted) -> io::Result<()> {
        let Some((header, body)) = self.read_raw(from) else {
            self.shared.lock().lose(record);
            return Ok(());
        };
        let meta_bytes = match header {
            RecordHeader::Block(block) => block.meta_bytes as usize,
            RecordHeader::Session { .. } => 0,
        };
        let (meta, payload) = body.split_at(meta_bytes.min(body.len()));
        let to = self.try_append(header, meta, &[payload], from.bytes)?;
        let mut inner = self.shared.lock();
        inner.counters.copied_bytes += from.bytes;
        match record {
            Wanted::Block(key) => {
                inner.index.set_location(&key, Some(from), to);
            }
            Wanted::Session(name) => inner.index.move_session(&name, Some(from), to),
        }
        Ok(())
    }

    /// A record's header and all that follows it. `None` if it cannot be read or its header is damaged; the checksums of
    /// the rest go along and are verified when it is read for use.
    fn read_raw(&self, location: Location) -> Option<(RecordHeader, Vec<u8>)> {
        let file = self.shared.lock().index.segments.get(&location.segment)?.file.clone();
        let mut header = [0; RECORD_HEADER];
        read_exact_at(&*file, location.offset, &mut header).ok()?;
        let header = RecordHeader::from_bytes(&header, location.segment)?;
        let body_bytes = location.bytes.checked_sub(SESSION_BYTES)?;
        if header.record_bytes() != Some(location.bytes) {
            return None;
        }
        let mut body = vec![0; usize::try_from(body_bytes).ok()?];
        read_exact_at(&*file, location.offset + SESSION_BYTES, &mut body).ok()?;
        Some((header, body))
    }
}

impl Inner {
    /// Evicts a record with all that follow from it.
    fn give_up(&mut self, record: Wanted) {
        match record {
            Wanted::Block(key) => self.evict(&key),
            Wanted::Session(name) => self.index.forget_session(&name),
        }
    }

    /// Forgets a record that cannot be read.
    fn lose(&mut self, record: Wanted) {
        match record {
            Wanted::Block(key) => self.discard(&key),
            Wanted::Session(name) => self.index.forget_session(&name),
        }
    }
}
