//! A block as bytes. What is stored apart from keys and values, "meta", is:
//!
//! ```text
//! u32 number of layers · u32 × tokens: the token ids
//! per layer: u64 first token · keys · values, each as
//!     u8 form (0 floats, 1 affine) · u8 type · u16 bits · u32 group size · u32 heads · u32 tokens · u32 elements a head
//! ```
//!
//! The lengths of the parts follow from the shapes. Nothing is allocated on a damaged block's word: the shapes must add
//! up to the payload, whose length the segment file confirms.

use linnet_compute::{Dtype, KvBlock, KvData, KvFormat, LayerBlock};

use super::record::checksum;

/// Tokens and shapes of a block are never longer than this.
pub(super) const MOST_META_BYTES: usize = 16 << 20;

/// Why bytes are no block, or a block cannot be put into bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The checksum of tokens and shapes, or of keys and values, does not hold.
    #[error("its checksum does not hold")]
    Checksum,
    /// The bytes end too early.
    #[error("its description ends too early")]
    Truncated,
    /// Bytes follow that do not belong there.
    #[error("its description is followed by {0} stray bytes")]
    TrailingBytes(usize),
    /// A number that stands for nothing known.
    #[error("its {what} is {value}, which is unknown")]
    Unknown {
        /// What it should say.
        what: &'static str,
        /// What it says.
        value: u32,
    },
    /// Shapes that do not go with the bytes, or with the number of tokens.
    #[error("its shapes ask for {expected} bytes or tokens where there are {found}")]
    Length {
        /// What the shapes ask for.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// Shapes beyond what can be counted or held.
    #[error("its shapes are too large")]
    TooLarge,
}

/// The keys' and values' bytes, in the order in which they are stored.
pub(super) fn parts(block: &KvBlock) -> impl Iterator<Item = &[u8]> {
    block.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]).flat_map(|data| &data.parts).map(Vec::as_slice)
}

/// The checksum over all parts: of the list of their checksums, so that each is hashed in one go.
pub(super) fn payload_checksum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    let sums: Vec<u8> = parts.flat_map(|part| checksum(part).to_le_bytes()).collect();
    checksum(&sums)
}

/// Checks that a block can be put into bytes, and counts its payload.
pub(super) fn check(tokens: &[u32], block: &KvBlock) -> Result<u64, CodecError> {
    if tokens.len() != block.tokens || tokens.is_empty() {
        return Err(CodecError::Length { expected: block.tokens as u64, found: tokens.len() as u64 });
    }
    let mut total = 0u64;
    for data in block.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]) {
        let lengths = part_lengths(data)?;
        if lengths.len() != data.parts.len() {
            return Err(CodecError::Length { expected: lengths.len() as u64, found: data.parts.len() as u64 });
        }
        for (expected, part) in lengths.into_iter().zip(&data.parts) {
            let (expected, found) = (expected as u64, part.len() as u64);
            if expected != found {
                return Err(CodecError::Length { expected, found });
            }
            total += found;
        }
    }
    Ok(total)
}

/// Bytes of tokens and shapes.
pub(super) fn meta_bytes(tokens: &[u32], block: &KvBlock) -> usize {
    4 + 4 * tokens.len() + block.layers.len() * (8 + 2 * DATA_BYTES)
}

const DATA_BYTES: usize = 20;

/// Tokens and shapes as bytes. The block must have passed [`check`].
pub(super) fn encode_meta(tokens: &[u32], block: &KvBlock) -> Result<Vec<u8>, CodecError> {
    // Exhaustive, so that whatever a block gains later cannot be forgotten here.
    let KvBlock { start: _, tokens: _, layers } = block;
    let length = meta_bytes(tokens, block);
    if length > MOST_META_BYTES {
        return Err(CodecError::TooLarge);
    }
    let mut meta = Vec::with_capacity(length);
    meta.extend(narrow(layers.len())?.to_le_bytes());
    meta.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    for LayerBlock { first, keys, values } in layers {
        meta.extend((*first as u64).to_le_bytes());
        for KvData { format, heads, tokens, head_dim, parts: _ } in [keys, values] {
            let (form, dtype, bits, group_size) = match *format {
                KvFormat::Plain(dtype) => (0, dtype, 0, 0),
                KvFormat::Affine { bits, group_size, dtype } => (1, dtype, bits, group_size),
            };
            meta.extend([form, dtype_number(dtype)]);
            meta.extend(u16::try_from(bits).map_err(|_| CodecError::TooLarge)?.to_le_bytes());
            for number in [group_size, *heads, *tokens, *head_dim] {
                meta.extend(narrow(number)?.to_le_bytes());
            }
        }
    }
    Ok(meta)
}

/// A block whose keys and values are still to be read.
#[derive(Debug)]
pub(super) struct Outline {
    /// The token ids.
    pub(super) tokens: Vec<u32>,
    /// The block; its parts are there, but empty.
    pub(super) block: KvBlock,
    /// Bytes of each part.
    pub(super) lengths: Vec<usize>,
}

/// Reads tokens and shapes back, for a block of so many tokens and bytes.
pub(super) fn decode_meta(meta: &[u8], start: u64, tokens: u32, payload: u64) -> Result<Outline, CodecError> {
    let mut rest = Reader(meta);
    let layer_count = rest.u32()?;
    let token_count = usize::try_from(tokens).map_err(|_| CodecError::TooLarge)?;
    let ids = rest.take(token_count.checked_mul(4).ok_or(CodecError::TooLarge)?)?;
    let ids = ids.chunks_exact(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect();
    let mut layers = Vec::new();
    let mut lengths = Vec::new();
    let mut total = 0u64;
    for _ in 0..layer_count {
        let first = wide(rest.u64()?)?;
        let mut data = || -> Result<KvData, CodecError> {
            let (mut data, part_lengths) = decode_data(&mut rest)?;
            for length in part_lengths {
                let sum = total.checked_add(length as u64).filter(|total| *total <= payload);
                total = sum.ok_or(CodecError::TooLarge)?;
                lengths.push(length);
                data.parts.push(Vec::new());
            }
            Ok(data)
        };
        let (keys, values) = (data()?, data()?);
        layers.push(LayerBlock { first, keys, values });
    }
    if !rest.0.is_empty() {
        return Err(CodecError::TrailingBytes(rest.0.len()));
    }
    if total != payload {
        return Err(CodecError::Length { expected: total, found: payload });
    }
    Ok(Outline { tokens: ids, block: KvBlock { start: wide(start)?, tokens: token_count, layers }, lengths })
}

impl Outline {
    /// Completes the block with its parts, in order.
    pub(super) fn complete(mut self, parts: Vec<Vec<u8>>) -> (Vec<u32>, KvBlock) {
        let places = self.block.layers.iter_mut().flat_map(|layer| [&mut layer.keys, &mut layer.values]);
        for (place, part) in places.flat_map(|data| &mut data.parts).zip(parts) {
            *place = part;
        }
        (self.tokens, self.block)
    }
}

fn decode_data(rest: &mut Reader<'_>) -> Result<(KvData, Vec<usize>), CodecError> {
    let [form, dtype] = [rest.u8()?, rest.u8()?];
    let bits = u32::from(rest.u16()?);
    let mut number = || -> Result<usize, CodecError> { wide(u64::from(rest.u32()?)) };
    let [group_size, heads, tokens, head_dim] = [number()?, number()?, number()?, number()?];
    let dtype = dtype_of(dtype)?;
    let format = match form {
        0 => KvFormat::Plain(dtype),
        1 => KvFormat::Affine { bits, group_size, dtype },
        other => return Err(CodecError::Unknown { what: "form", value: u32::from(other) }),
    };
    let data = KvData { format, heads, tokens, head_dim, parts: Vec::new() };
    let lengths = part_lengths(&data)?;
    Ok((data, lengths))
}

/// How long each part of such data must be.
fn part_lengths(data: &KvData) -> Result<Vec<usize>, CodecError> {
    data.part_bytes().ok_or(CodecError::TooLarge)
}

fn dtype_number(dtype: Dtype) -> u8 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::BF16 => 2,
        Dtype::U32 => 3,
    }
}

fn dtype_of(number: u8) -> Result<Dtype, CodecError> {
    match number {
        0 => Ok(Dtype::F32),
        1 => Ok(Dtype::F16),
        2 => Ok(Dtype::BF16),
        3 => Ok(Dtype::U32),
        other => Err(CodecError::Unknown { what: "type", value: u32::from(other) }),
    }
}

fn narrow(number: usize) -> Result<u32, CodecError> {
    u32::try_from(number).map_err(|_| CodecError::TooLarge)
}

fn wide(number: u64) -> Result<usize, CodecError> {
    usize::try_from(number).map_err(|_| CodecError::TooLarge)
}

/// Bytes still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(CodecError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(CodecError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, CodecError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, CodecError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, CodecError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, CodecError> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(heads: usize, tokens: usize) -> KvData {
        let elements = heads * tokens * 64;
        let part = |bytes: usize, seed: usize| (0..bytes).map(|at| (at * 7 + seed) as u8).collect();
        let parts = vec![part(elements / 2, 1), part(elements / 64 * 2, 2), part(elements / 64 * 2, 3)];
        let format = KvFormat::Affine { bits: 4, group_size: 64, dtype: Dtype::BF16 };
        KvData { format, heads, tokens, head_dim: 64, parts }
    }

    fn plain(heads: usize, tokens: usize) -> KvData {
        let part = (0..heads * tokens * 64 * 2).map(|at| at as u8).collect();
        KvData { format: KvFormat::Plain(Dtype::F16), heads, tokens, head_dim: 64, parts: vec![part] }
    }

    /// Mixed formats, and a layer whose window dropped the first tokens.
    fn block() -> KvBlock {
        let layers = vec![
            LayerBlock { first: 32, keys: plain(3, 8), values: plain(3, 8) },
            LayerBlock { first: 36, keys: affine(2, 4), values: plain(2, 4) },
            LayerBlock { first: 40, keys: plain(2, 0), values: plain(2, 0) },
        ];
        KvBlock { start: 32, tokens: 8, layers }
    }

    const TOKENS: [u32; 8] = [1, 2, 3, 4, 5, 6, u32::MAX, 0];

    #[test]
    fn blocks_of_all_forms_come_back() {
        let block = block();
        let payload = check(&TOKENS, &block).unwrap();
        assert_eq!(payload as usize, block.bytes());
        let meta = encode_meta(&TOKENS, &block).unwrap();
        assert_eq!(meta.len(), meta_bytes(&TOKENS, &block));
        let outline = decode_meta(&meta, 32, 8, payload).unwrap();
        let lengths = outline.lengths.clone();
        let stored: Vec<u8> = parts(&block).flatten().copied().collect();
        let mut rest = stored.as_slice();
        let read = lengths.iter().map(|length| rest.split_off(..*length).unwrap().to_vec()).collect();
        assert_eq!(outline.complete(read), (TOKENS.to_vec(), block));
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_an_error_or_another_block_but_never_a_panic() {
        let block = block();
        let payload = block.bytes() as u64;
        let meta = encode_meta(&TOKENS, &block).unwrap();
        for length in 0..meta.len() {
            assert!(decode_meta(&meta[..length], 32, 8, payload).is_err(), "cut to {length}");
        }
        let longer = [meta.as_slice(), &[0]].concat();
        assert_eq!(decode_meta(&longer, 32, 8, payload).unwrap_err(), CodecError::TrailingBytes(1));
        for at in 0..meta.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = meta.clone();
                changed[at] ^= change;
                if let Ok(outline) = decode_meta(&changed, 32, 8, payload) {
                    let total: usize = outline.lengths.iter().sum();
                    assert_eq!(total as u64, payload, "a changed byte made room be asked for");
                }
            }
        }
    }

    #[test]
    fn shapes_beyond_all_measure_are_refused_without_asking_for_memory() {
        let meta = encode_meta(&TOKENS, &block()).unwrap();
        let mut huge = meta.clone();
        let shape = 4 + 4 * TOKENS.len() + 8 + 8;
        huge[shape..shape + 12].fill(0xff);
        assert_eq!(decode_meta(&huge, 32, 8, 1 << 30).unwrap_err(), CodecError::TooLarge);
        let mut many = meta;
        many[..4].fill(0xff);
        assert!(decode_meta(&many, 32, 8, 1 << 30).is_err());
        assert!(decode_meta(&[], 0, u32::MAX, 0).is_err());
    }

    #[test]
    fn a_block_that_is_not_as_it_says_is_not_stored() {
        let mut short = block();
        short.layers[1].keys.parts[2].pop();
        assert!(matches!(check(&TOKENS, &short), Err(CodecError::Length { .. })));
        let mut parts_missing = block();
        parts_missing.layers[0].values.parts.clear();
        assert!(matches!(check(&TOKENS, &parts_missing), Err(CodecError::Length { expected: 1, found: 0 })));
        assert!(check(&TOKENS[1..], &block()).is_err());
        assert!(check(&[], &KvBlock { start: 0, tokens: 0, layers: Vec::new() }).is_err());
    }

    #[test]
    fn the_checksum_knows_the_order_and_the_borders_of_parts() {
        let sum = |parts: &[&[u8]]| payload_checksum(parts.iter().copied());
        assert_ne!(sum(&[b"ab", b"c"]), sum(&[b"a", b"bc"]));
        assert_ne!(sum(&[b"a", b"b"]), sum(&[b"b", b"a"]));
        assert_ne!(sum(&[b"a"]), sum(&[b"a", b""]));
    }
}
