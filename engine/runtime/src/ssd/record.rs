//! The fixed parts of a segment file: its own header and the header in front of each record. All numbers are
//! little-endian.

use twox_hash::XxHash3_64;

use super::{BlockKey, SessionNote};

/// Bytes of a segment's header.
pub(super) const SEGMENT_HEADER: usize = 32;
/// Bytes of a record's header.
pub(super) const RECORD_HEADER: usize = 128;

const SEGMENT_MAGIC: [u8; 8] = *b"LINNETKV";
const RECORD_MAGIC: [u8; 4] = *b"LKVr";
/// Of the segments' and the records' form. Another one is not read.
const VERSION: u32 = 1;
const BLOCK: u8 = 1;
const SESSION: u8 = 2;

/// The checksum of everything in a segment: XXH3 with 64 bits.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// A segment's first bytes. The number ties them to the file's name.
pub(super) fn segment_header(number: u64) -> [u8; SEGMENT_HEADER] {
    let mut bytes = [0; SEGMENT_HEADER];
    bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&number.to_le_bytes());
    let sum = checksum(&bytes[..24]);
    bytes[24..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// What stands in front of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordHeader {
    /// A block: its tokens and shapes follow, then its keys and values.
    Block(BlockHeader),
    /// How far a session has come; nothing follows. `None`: it was closed.
    Session { name: [u8; 32], note: Option<SessionNote> },
}

/// A block's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHeader {
    pub(super) key: BlockKey,
    pub(super) parent: Option<BlockKey>,
    /// The position of the first token.
    pub(super) start: u64,
    pub(super) tokens: u32,
    /// Bytes of tokens and shapes.
    pub(super) meta_bytes: u32,
    /// Bytes of keys and values.
    pub(super) payload_bytes: u64,
    pub(super) meta_checksum: u64,
    pub(super) payload_checksum: u64,
}

impl RecordHeader {
    /// Bytes of the record, header included. `None` if they cannot be counted, so that it cannot be one.
    pub(super) fn record_bytes(&self) -> Option<u64> {
        match self {
            Self::Block(block) => block.record_bytes(),
            Self::Session { .. } => Some(RECORD_HEADER as u64),
        }
    }

    /// The header's bytes in a segment. The segment's number is in them, so that bytes of another segment are not taken
    /// for this one's.
    pub(super) fn to_bytes(self, segment: u64) -> [u8; RECORD_HEADER] {
        let mut bytes = [0; RECORD_HEADER];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &RECORD_MAGIC);
        put(8, &segment.to_le_bytes());
        match self {
            Self::Block(block) => {
                put(4, &[BLOCK, u8::from(block.parent.is_some())]);
                put(16, &block.meta_bytes.to_le_bytes());
                put(20, &block.tokens.to_le_bytes());
                put(24, &block.payload_bytes.to_le_bytes());
                put(32, &block.key);
                put(64, &block.parent.unwrap_or_default());
                put(96, &block.start.to_le_bytes());
                put(104, &block.meta_checksum.to_le_bytes());
                put(112, &block.payload_checksum.to_le_bytes());
            }
            Self::Session { name, note } => {
                put(4, &[SESSION, u8::from(note.is_some())]);
                put(32, &name);
                if let Some(note) = note {
                    put(64, &note.key);
                    put(96, &note.tokens.to_le_bytes());
                }
            }
        }
        let sum = checksum(&bytes[..120]);
        bytes[120..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header back. `None`: these bytes are none, or not one of this segment.
    pub(super) fn from_bytes(bytes: &[u8; RECORD_HEADER], segment: u64) -> Option<Self> {
        let is_intact = bytes[..4] == RECORD_MAGIC
            && u64::from_le_bytes(field(bytes, 120)) == checksum(&bytes[..120])
            && u64::from_le_bytes(field(bytes, 8)) == segment;
        if !is_intact {
            return None;
        }
        let has_second = bytes[5] != 0;
        let (first, second): (BlockKey, BlockKey) = (field(bytes, 32), field(bytes, 64));
        let position = u64::from_le_bytes(field(bytes, 96));
        match bytes[4] {
            BLOCK => Some(Self::Block(BlockHeader {
                key: first,
                parent: has_second.then_some(second),
                start: position,
                tokens: u32::from_le_bytes(field(bytes, 20)),
                meta_bytes: u32::from_le_bytes(field(bytes, 16)),
                payload_bytes: u64::from_le_bytes(field(bytes, 24)),
                meta_checksum: u64::from_le_bytes(field(bytes, 104)),
                payload_checksum: u64::from_le_bytes(field(bytes, 112)),
            })),
            SESSION => Some(Self::Session {
                name: first,
                note: has_second.then_some(SessionNote { key: second, tokens: position }),
            }),
            _ => None,
        }
    }
}

impl BlockHeader {
    pub(super) fn record_bytes(&self) -> Option<u64> {
        (RECORD_HEADER as u64 + u64::from(self.meta_bytes)).checked_add(self.payload_bytes)
    }
}

fn field<const N: usize>(bytes: &[u8; RECORD_HEADER], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> [RecordHeader; 4] {
        let block = BlockHeader {
            key: [7; 32],
            parent: Some([0; 32]),
            start: 1 << 40,
            tokens: 3,
            meta_bytes: 99,
            payload_bytes: u64::MAX - 5,
            meta_checksum: 11,
            payload_checksum: 12,
        };
        [
            RecordHeader::Block(block),
            RecordHeader::Block(BlockHeader { parent: None, start: 0, payload_bytes: 5, ..block }),
            RecordHeader::Session { name: [1; 32], note: Some(SessionNote { key: [2; 32], tokens: 77 }) },
            RecordHeader::Session { name: [1; 32], note: None },
        ]
    }

    #[test]
    fn headers_come_back_and_no_changed_byte_goes_unseen() {
        for header in headers() {
            let bytes = header.to_bytes(5);
            assert_eq!(RecordHeader::from_bytes(&bytes, 5), Some(header));
            assert_eq!(RecordHeader::from_bytes(&bytes, 6), None, "bytes of another segment");
            for at in 0..RECORD_HEADER {
                let mut changed = bytes;
                changed[at] ^= 0x10;
                assert_eq!(RecordHeader::from_bytes(&changed, 5), None, "byte {at}");
            }
        }
    }

    #[test]
    fn a_length_that_overflows_is_no_length() {
        assert_eq!(headers()[0].record_bytes(), None);
        assert_eq!(headers()[1].record_bytes(), Some(128 + 99 + 5));
    }
}
