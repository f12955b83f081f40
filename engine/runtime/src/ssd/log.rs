//! The segment files as one log: where records are appended and made durable.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use super::file_system::{FileSystem, SegmentFile, append_all};
use super::index::{Index, Location, Segment};
use super::options::sizes;
use super::record::{RecordHeader, SEGMENT_HEADER, segment_header};
use super::report::{DiscardReason, Discarded};
use super::segment::{trailer, trailer_bytes};
use super::shared::Shared;
use super::{codec, segment};

/// Whoever works in the directory holds this file.
pub(super) const LOCK_FILE: &str = "lock";

/// Why a record is not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// It does not fit within the limit, because all that is there leads to blocks that are still to be written.
    #[error("no room within the limit")]
    NoRoom,
    /// The disk does not take it.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The files. Only the writer has it.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) shared: Arc<Shared>,
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) directory: PathBuf,
    _lock: Box<dyn Any + Send + Sync>,
    /// The segment that is appended to.
    active: Option<Active>,
    next: u64,
    /// Whether a file was made or removed since the directory was made durable.
    is_directory_dirty: bool,
}

/// The segment that is appended to.
#[derive(Debug)]
struct Active {
    number: u64,
    /// Its records, for the trailer.
    records: Vec<RecordHeader>,
}

impl Log {
    /// Takes the directory and finds what is in it. The shared index is replaced by what was found.
    pub(super) fn open(shared: &Arc<Shared>, files: &Arc<dyn FileSystem>) -> io::Result<(Self, Vec<Discarded>)> {
        let directory = shared.options.directory.clone();
        files.make_directory(&directory)?;
        let lock = files.lock(&directory.join(LOCK_FILE))?;
        let mut log = Self {
            shared: Arc::clone(shared),
            files: Arc::clone(files),
            directory,
            _lock: lock,
            active: None,
            next: 1,
            is_directory_dirty: true,
        };
        let discarded = log.find()?;
        log.check_space()?;
        match log.make_room(0) {
            Ok(()) | Err(WriteError::NoRoom) => Ok((log, discarded)),
            Err(WriteError::Io(error)) => Err(error),
        }
    }

    /// Bytes of the trailer that the active segment would have with so many records more.
    pub(super) fn trailer_bytes(&self, more: usize) -> u64 {
        trailer_bytes(self.active.as_ref().map_or(0, |active| active.records.len()) + more)
    }

    /// Appends no more to a segment, if that is the active one.
    pub(super) fn leave(&mut self, number: u64) {
        self.active = self.active.take().filter(|active| active.number != number);
    }

    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.directory.join(segment::file_name(number))
    }

    fn find(&mut self) -> io::Result<Vec<Discarded>> {
        let mut discarded = Vec::new();
        let mut numbers = Vec::new();
        for name in self.files.list(&self.directory)? {
            match segment::number(&name) {
                Some(number) => numbers.push(number),
                None if name == LOCK_FILE => {}
                None => {
                    let file = self.directory.join(name);
                    discarded.push(Discarded { file, bytes: 0, reason: DiscardReason::Foreign });
                }
            }
        }
        numbers.sort_unstable();
        self.next = numbers.last().map_or(1, |last| last.saturating_add(1));
        let (mut segments, mut blocks, mut notes) = (BTreeMap::new(), Vec::new(), Vec::new());
        for number in &numbers {
            let is_newest = Some(number) == numbers.last();
            let Some((file, scan)) = self.find_segment(*number, is_newest, &mut discarded)? else { continue };
            // Only the newest can hold what is not durable: each is synced before the next is begun.
            let synced = if is_newest { 0 } else { scan.end };
            segments.insert(*number, Segment { file, length: scan.end, synced, live: 0, trailer: scan.trailer });
            let is_open = scan.trailer == 0;
            let records = || scan.records.iter().map(|(_, record)| *record).collect();
            self.active = is_open.then(|| Active { number: *number, records: records() });
            for (offset, record) in scan.records {
                let location = Location { segment: *number, offset, bytes: record.record_bytes().unwrap_or(0) };
                match record {
                    RecordHeader::Block(block) => blocks.push((location, block)),
                    RecordHeader::Session { name, note } => notes.push((location, name, note)),
                }
            }
        }
        let (index, unreachable) = Index::restore(segments, &blocks, &notes);
        let mut lost: HashMap<u64, u64> = HashMap::new();
        for location in unreachable {
            *lost.entry(location.segment).or_default() += location.bytes;
        }
        discarded.extend(lost.into_iter().map(|(number, bytes)| Discarded {
            file: self.path(number),
            bytes,
            reason: DiscardReason::Unreachable,
        }));
        let mut inner = self.shared.lock();
        inner.index = index;
        inner.unsynced = 0;
        Ok(discarded)
    }

    /// Looks into one segment. What is no segment is removed, what is no record at its end is cut off.
    fn find_segment(
        &mut self,
        number: u64,
        is_newest: bool,
        discarded: &mut Vec<Discarded>,
    ) -> io::Result<Option<(Arc<dyn SegmentFile>, segment::Scan)>> {
        let path = self.path(number);
        let found = self.files.open(&path).and_then(|file| {
            let scan = segment::scan(&*file, number)?;
            Ok((file, scan))
        });
        let (bytes, reason) = match found {
            Ok((file, scan)) if scan.is_segment => {
                if scan.end < scan.length {
                    file.truncate(scan.end)?;
                    let reason = if is_newest { DiscardReason::TornTail } else { DiscardReason::Damaged };
                    discarded.push(Discarded { file: path, bytes: scan.length - scan.end, reason });
                }
                return Ok(Some((file, scan)));
            }
            Ok((_, scan)) if is_newest && scan.length < SEGMENT_HEADER as u64 => (scan.length, DiscardReason::TornTail),
            Ok((_, scan)) => (scan.length, DiscardReason::UnknownFormat),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(_) => (0, DiscardReason::Unreadable),
        };
        // What cannot be read must not count towards the limit for ever either.
        self.files.remove(&path)?;
        self.is_directory_dirty = true;
        discarded.push(Discarded { file: path, bytes, reason });
        Ok(None)
    }

    /// Divides the limit anew, by what is free on the disk now.
    pub(super) fn refresh_sizes(&self) {
        // Where the system does not say what is free, the limit alone holds.
        let free = self.files.free_bytes(&self.directory).unwrap_or(u64::MAX >> 8);
        let mut inner = self.shared.lock();
        inner.sizes = sizes(&self.shared.options, inner.index.bytes, free);
    }

    /// Whether the disk has room for a cache that is of any use.
    pub(super) fn check_space(&self) -> io::Result<()> {
        self.refresh_sizes();
        if self.shared.lock().sizes.is_too_small { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// Appends a record. If that fails, nothing of it is left.
    pub(super) fn append(
        &mut self,
        header: RecordHeader,
        meta: &[u8],
        parts: &[&[u8]],
    ) -> Result<Location, WriteError> {
        let bytes = header.record_bytes().unwrap_or(u64::MAX);
        self.make_room(bytes)?;
        match self.try_append(header, meta, parts, bytes) {
            // Others fill the disk too: it may be enough to give some of it back.
            Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                self.refresh_sizes();
                self.make_room(bytes)?;
                Ok(self.try_append(header, meta, parts, bytes)?)
            }
            result => Ok(result?),
        }
    }

    /// Appends a record without seeing to the limit.
    pub(super) fn try_append(
        &mut self,
        header: RecordHeader,
        meta: &[u8],
        parts: &[&[u8]],
        bytes: u64,
    ) -> io::Result<Location> {
        let number = self.segment_for(bytes)?;
        let (file, offset) = {
            let mut inner = self.shared.lock();
            let Some(segment) = inner.index.segments.get_mut(&number) else {
                return Err(io::Error::other("the active segment is gone"));
            };
            let place = (Arc::clone(&segment.file), segment.length);
            // Counted before it is written: the limit must hold at every moment.
            segment.length += bytes;
            inner.index.bytes += bytes;
            place
        };
        let header_bytes = header.to_bytes(number);
        let head = [IoSlice::new(&header_bytes), IoSlice::new(meta)];
        let mut slices: Vec<_> = head.into_iter().chain(parts.iter().map(|part| IoSlice::new(part))).collect();
        let written = append_all(&*file, &mut slices);
        if let Err(error) = written {
            self.cut_back(number, &*file, offset);
            return Err(error);
        }
        if let Some(active) = &mut self.active {
            active.records.push(header);
        }
        self.shared.lock().counters.written_bytes += bytes;
        Ok(Location { segment: number, offset, bytes })
    }

    /// Cuts what was not wholly written off a segment. If that fails too, the segment is left alone: its end is found to
    /// be torn at the next start, or it is compacted away.
    fn cut_back(&mut self, number: u64, file: &dyn SegmentFile, length: u64) {
        if file.truncate(length).is_err() {
            self.leave(number);
            return;
        }
        let mut inner = self.shared.lock();
        if let Some(segment) = inner.index.segments.get_mut(&number) {
            let cut = segment.length - length;
            segment.length = length;
            inner.index.bytes -= cut;
        }
    }

    /// The segment to append so many bytes to: the active one, or a new one if they do not fit.
    fn segment_for(&mut self, bytes: u64) -> io::Result<u64> {
        let active = self.active.as_ref().map(|active| active.number);
        let (length, most) = {
            let inner = self.shared.lock();
            let length = active.and_then(|active| inner.index.segments.get(&active)).map(|active| active.length);
            (length, inner.sizes.segment)
        };
        let more = bytes + self.trailer_bytes(1);
        match (active, length) {
            // Whatever is first in a segment may be there, however long: else it could be nowhere.
            (Some(active), Some(length)) if length + more <= most || length == SEGMENT_HEADER as u64 => Ok(active),
            _ => self.begin_segment(),
        }
    }

    /// Seals the active segment, makes it durable, so that only the newest can hold what is not, and begins another one.
    pub(super) fn begin_segment(&mut self) -> io::Result<u64> {
        self.seal();
        self.sync_files()?;
        self.refresh_sizes();
        let number = self.next;
        self.next += 1;
        let header = segment_header(number);
        let length = header.len() as u64;
        let path = self.path(number);
        let file = self.files.create(&path)?;
        self.is_directory_dirty = true;
        {
            let mut inner = self.shared.lock();
            let segment = Segment { file: Arc::clone(&file), length, synced: 0, live: 0, trailer: 0 };
            inner.index.segments.insert(number, segment);
            inner.index.bytes += length;
        }
        let written = append_all(&*file, &mut [IoSlice::new(&header)]);
        drop(file);
        if let Err(error) = written {
            // If that fails too, it is found to be no segment at the next start.
            let _ = self.remove_segment(number);
            return Err(error);
        }
        self.active = Some(Active { number, records: Vec::new() });
        Ok(number)
    }

    /// Ends the active segment with its trailer. Where that fails it has none.
    fn seal(&mut self) {
        let Some(Active { number, records }) = self.active.take() else { return };
        let bytes = trailer(number, &records);
        let (file, offset) = {
            let mut inner = self.shared.lock();
            let Some(segment) = inner.index.segments.get_mut(&number) else { return };
            let place = (Arc::clone(&segment.file), segment.length);
            segment.length += bytes.len() as u64;
            segment.trailer = bytes.len() as u64;
            inner.index.bytes += bytes.len() as u64;
            place
        };
        if append_all(&*file, &mut [IoSlice::new(&bytes)]).is_err() {
            self.cut_back(number, &*file, offset);
            if let Some(segment) = self.shared.lock().index.segments.get_mut(&number) {
                segment.trailer = 0;
            }
        }
    }

    /// Makes everything durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.sync_files()?;
        if self.is_directory_dirty {
            self.files.sync_directory(&self.directory)?;
            self.is_directory_dirty = false;
        }
        let mut inner = self.shared.lock();
        inner.synced += std::mem::take(&mut inner.unsynced);
        Ok(())
    }

    /// Makes every segment durable that is not yet: the active one, and those that had to be left alone.
    fn sync_files(&mut self) -> io::Result<()> {
        let dirty: Vec<_> = {
            let inner = self.shared.lock();
            let segments = inner.index.segments.iter().filter(|(_, segment)| segment.synced < segment.length);
            segments.map(|(number, segment)| (*number, segment.clone())).collect()
        };
        for (number, Segment { file, length, synced, .. }) in dirty {
            let result = file.sync();
            if result.is_err() {
                self.leave(number);
            }
            let mut inner = self.shared.lock();
            if result.is_err() {
                // The system may have dropped what it could not write, and says so only once: none of it can be counted
                // on, and a later success would mean nothing.
                for key in inner.index.stored_from(number, synced) {
                    inner.fail(&key);
                }
                inner.index.forget_sessions_from(number, synced);
            }
            if let Some(segment) = inner.index.segments.get_mut(&number) {
                segment.synced = length;
            }
            result?;
        }
        Ok(())
    }

    /// Removes a segment in which nothing is wanted any more.
    pub(super) fn remove_segment(&mut self, number: u64) -> io::Result<()> {
        self.leave(number);
        let Some(segment) = self.shared.lock().index.segments.remove(&number) else { return Ok(()) };
        // A file that is removed takes its space until it is closed. A reader holds it for a single record.
        while Arc::strong_count(&segment.file) > 1 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let length = segment.length;
        match self.files.remove(&self.path(number)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                self.shared.lock().index.segments.insert(number, segment);
                return Err(error);
            }
            _ => {}
        }
        drop(segment);
        self.is_directory_dirty = true;
        self.shared.lock().index.bytes -= length;
        Ok(())
    }
}

/// A block's header and what follows it.
pub(super) fn encode(
    key: super::BlockKey,
    parent: Option<super::BlockKey>,
    tokens: &[u32],
    block: &linnet_compute::KvBlock,
) -> Result<(super::record::BlockHeader, Vec<u8>), super::CodecError> {
    let payload_bytes = codec::check(tokens, block)?;
    let meta = codec::encode_meta(tokens, block)?;
    let header = super::record::BlockHeader {
        key,
        parent,
        start: block.start as u64,
        tokens: u32::try_from(tokens.len()).map_err(|_| super::CodecError::TooLarge)?,
        meta_bytes: u32::try_from(meta.len()).map_err(|_| super::CodecError::TooLarge)?,
        payload_bytes,
        meta_checksum: super::record::checksum(&meta),
        payload_checksum: codec::payload_checksum(codec::parts(block)),
    };
    Ok((header, meta))
}
