//! Segment files: their names, and what is in one.
//!
//! A segment that is full is sealed with a trailer: the headers of its records once more, in their order, from which
//! their places follow. It spares a start from reaching for each record on a cold disk. It is a hint: without it, or if it
//! is damaged, the records themselves are walked over.

use std::ffi::OsStr;
use std::io;

use super::file_system::{SegmentFile, read_exact_at};
use super::record::{RECORD_HEADER, RecordHeader, SEGMENT_HEADER, checksum, segment_header};

const SUFFIX: &str = ".kv";

/// The file name of a segment.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

/// Which segment a file name means, if it is one's.
pub(super) fn number(name: &OsStr) -> Option<u64> {
    let digits = name.to_str()?.strip_suffix(SUFFIX)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (file_name(number) == name.to_str()?).then_some(number)
}

const TRAILER_MAGIC: [u8; 8] = *b"LKVindex";
/// Bytes of what ends a trailer: magic, the segment's number, the number of records, the checksum of it all.
const TRAILER_END: usize = 32;

/// Bytes of the trailer of a segment of so many records.
pub(super) fn trailer_bytes(records: usize) -> u64 {
    (records * RECORD_HEADER + TRAILER_END) as u64
}

/// What a record's header in a trailer is bound to, so that it cannot be taken for a record.
fn trailer_number(segment: u64) -> u64 {
    !segment
}

/// The trailer of a segment.
pub(super) fn trailer(number: u64, records: &[RecordHeader]) -> Vec<u8> {
    let mut bytes: Vec<u8> = records.iter().flat_map(|record| record.to_bytes(trailer_number(number))).collect();
    bytes.extend(TRAILER_MAGIC);
    bytes.extend(number.to_le_bytes());
    bytes.extend((records.len() as u64).to_le_bytes());
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes
}

/// The records of a sealed segment, with their offsets. `None`: it is not sealed, or not well.
fn read_trailer(file: &dyn SegmentFile, number: u64, length: u64) -> io::Result<Option<Vec<(u64, RecordHeader)>>> {
    let Some(end_at) = length.checked_sub(TRAILER_END as u64).filter(|at| *at >= SEGMENT_HEADER as u64) else {
        return Ok(None);
    };
    let mut end = [0; TRAILER_END];
    read_exact_at(file, end_at, &mut end)?;
    let number_at = |at: usize| end[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    if end[..8] != TRAILER_MAGIC || number_at(8) != number {
        return Ok(None);
    }
    let header_bytes = number_at(16).checked_mul(RECORD_HEADER as u64);
    let begin =
        header_bytes.and_then(|bytes| end_at.checked_sub(bytes)).filter(|begin| *begin >= SEGMENT_HEADER as u64);
    let Some(begin) = begin else { return Ok(None) };
    // Not more than the file holds.
    let mut bytes = vec![0; usize::try_from(length - begin).unwrap_or(0)];
    read_exact_at(file, begin, &mut bytes)?;
    let Some((content, sum)) = bytes.split_last_chunk::<8>() else { return Ok(None) };
    if checksum(content) != u64::from_le_bytes(*sum) {
        return Ok(None);
    }
    let mut records = Vec::new();
    let mut offset = SEGMENT_HEADER as u64;
    let (headers, _) = content.as_chunks::<RECORD_HEADER>();
    for header in headers {
        let Some(record) = RecordHeader::from_bytes(header, trailer_number(number)) else { return Ok(None) };
        let Some(end) = record.record_bytes().and_then(|bytes| offset.checked_add(bytes)) else { return Ok(None) };
        records.push((offset, record));
        offset = end;
    }
    Ok((offset == begin).then_some(records))
}

/// What is in a segment.
#[derive(Debug)]
pub(super) struct Scan {
    /// Whether it is a segment of this format and number at all.
    pub(super) is_segment: bool,
    /// The records with their offsets.
    pub(super) records: Vec<(u64, RecordHeader)>,
    /// Where the last whole record ends, or the trailer.
    pub(super) end: u64,
    /// Bytes of the trailer; 0 if it is not sealed.
    pub(super) trailer: u64,
    /// How long the file is.
    pub(super) length: u64,
}

/// Reads the trailer of a segment, or walks over the headers of its records, up to the first that is none. Keys and values are not looked at: their checksums
/// are verified whenever they are read.
pub(super) fn scan(file: &dyn SegmentFile, number: u64) -> io::Result<Scan> {
    let length = file.length()?;
    let mut scan = Scan { is_segment: false, records: Vec::new(), end: 0, trailer: 0, length };
    let mut header = [0; SEGMENT_HEADER];
    if length < header.len() as u64 {
        return Ok(scan);
    }
    read_exact_at(file, 0, &mut header)?;
    if header != segment_header(number) {
        return Ok(scan);
    }
    scan.is_segment = true;
    if let Some(records) = read_trailer(file, number, length)? {
        scan.trailer = trailer_bytes(records.len());
        (scan.records, scan.end) = (records, length);
        return Ok(scan);
    }
    scan.end = header.len() as u64;
    let mut bytes = [0; RECORD_HEADER];
    while length - scan.end >= bytes.len() as u64 {
        read_exact_at(file, scan.end, &mut bytes)?;
        let Some(record) = RecordHeader::from_bytes(&bytes, number) else { break };
        let end = record.record_bytes().and_then(|bytes| scan.end.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= length) else { break };
        scan.records.push((scan.end, record));
        scan.end = end;
    }
    Ok(scan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_names_are_segments() {
        for segment in [0, 1, 0xabc, u64::MAX] {
            assert_eq!(number(OsStr::new(&file_name(segment))), Some(segment));
        }
        for name in
            ["1.kv", "000000000000000g.kv", "0000000000000001.KV", "0000000000000001", "lock", "+000000000000001.kv"]
        {
            assert_eq!(number(OsStr::new(name)), None, "{name}");
        }
    }
}
