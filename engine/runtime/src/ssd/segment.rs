//! Segment files: their names, and what is in one.

use std::ffi::OsStr;
use std::io;

use super::file_system::{SegmentFile, read_exact_at};
use super::record::{RECORD_HEADER, RecordHeader, SEGMENT_HEADER, segment_header};

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

/// What is in a segment.
#[derive(Debug)]
pub(super) struct Scan {
    /// Whether it is a segment of this format and number at all.
    pub(super) is_segment: bool,
    /// The records with their offsets.
    pub(super) records: Vec<(u64, RecordHeader)>,
    /// Where the last whole record ends.
    pub(super) end: u64,
    /// How long the file is.
    pub(super) length: u64,
}

/// Walks over the headers of a segment, up to the first that is none. Keys and values are not looked at: their checksums
/// are verified whenever they are read.
pub(super) fn scan(file: &dyn SegmentFile, number: u64) -> io::Result<Scan> {
    let length = file.length()?;
    let mut scan = Scan { is_segment: false, records: Vec::new(), end: 0, length };
    let mut header = [0; SEGMENT_HEADER];
    if length < header.len() as u64 {
        return Ok(scan);
    }
    read_exact_at(file, 0, &mut header)?;
    if header != segment_header(number) {
        return Ok(scan);
    }
    scan.is_segment = true;
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
