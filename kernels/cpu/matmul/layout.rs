//! How quantized weights are re-laid for the kernels.
//!
//! A *tile* is `lanes` output rows (the 32-bit lanes of the widest vector in use). Its columns are cut into *blocks* of
//! 32, a block into eight *quads* of four columns. A quad of a tile is one vector of `4 * lanes` bytes: lane `r` holds the
//! four consecutive columns of row `r`. Multiplying it with a broadcast of four activations therefore gives all rows at
//! once and no sum across lanes is ever needed.
//!
//! Codes keep their true width: a block of `bits`-wide codes takes `bits` vectors. 2, 4 and 8 bits are stored as one
//! plane; 3, 5 and 6 bits as two (2+1, 4+1, 4+2), the low plane first. Quad `q` of a plane `w` bits wide lies in vector
//! `q * w / 8` of that plane, in bits `q * w % 8 ..` of each byte.
//!
//! A *group record* is the blocks of one quantization group followed by the `lanes` scales and, unless the matrix is
//! symmetric, the `lanes` biases. A tile is its group records in column order: one stream, read front to back.

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Columns of a quad.
pub(crate) const QUAD: usize = 4;

/// How scales and biases are stored: two bytes where that loses nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleKind {
    F16,
    BF16,
    F32,
}

impl ScaleKind {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
        }
    }
}

/// The geometry of a quantized matrix in tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TileLayout {
    /// Output rows per tile.
    pub(crate) lanes: usize,
    /// Bits per code: 2, 3, 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// Columns per quantization group: a multiple of [`BLOCK`].
    pub(crate) group: usize,
    /// Groups per row.
    pub(crate) groups: usize,
    pub(crate) scale_kind: ScaleKind,
    /// Every bias is exactly `-2^(bits-1) * scale`, so none is stored.
    pub(crate) symmetric: bool,
}

/// The planes that codes of a width are split into: (bits of the plane, the bit of the code it starts at).
pub(crate) fn planes(bits: usize) -> &'static [(usize, usize)] {
    match bits {
        2 => &[(2, 0)],
        3 => &[(2, 0), (1, 2)],
        4 => &[(4, 0)],
        5 => &[(4, 0), (1, 4)],
        6 => &[(4, 0), (2, 4)],
        _ => &[(8, 0)],
    }
}

impl TileLayout {
    /// Bytes of one vector.
    pub(crate) fn vector(&self) -> usize {
        self.lanes * QUAD
    }

    /// Bytes of one block of codes.
    pub(crate) fn block_bytes(&self) -> usize {
        self.bits * self.vector()
    }

    /// Bytes of the codes of one group record.
    pub(crate) fn codes_bytes(&self) -> usize {
        self.group / BLOCK * self.block_bytes()
    }

    /// Bytes of the scales (or of the biases) of one group record.
    pub(crate) fn scales_bytes(&self) -> usize {
        self.lanes * self.scale_kind.bytes()
    }

    /// Bytes of one group record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.codes_bytes() + self.scales_bytes() * if self.symmetric { 1 } else { 2 }
    }

    /// Bytes of one tile.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.groups * self.record_bytes()
    }

    /// The middle of the code range: what a symmetric matrix subtracts from its codes.
    pub(crate) fn center(&self) -> f32 {
        (1u32 << (self.bits - 1)) as f32
    }

    /// Stores the codes of one group of `lane` into a zeroed group record, four columns at a time.
    pub(crate) fn put_codes(&self, record: &mut [u8], lane: usize, codes: &[u8]) {
        for (block, codes) in record.chunks_exact_mut(self.block_bytes()).zip(codes.as_chunks::<BLOCK>().0) {
            let mut plane_start = 0;
            for &(width, low) in planes(self.bits) {
                let mask = (0xff >> (8 - width)) * 0x0101_0101;
                for (quad, codes) in codes.as_chunks::<QUAD>().0.iter().enumerate() {
                    let bit = quad * width;
                    let part = ((u32::from_le_bytes(*codes) >> low) & mask) << (bit % 8);
                    let at = plane_start + bit / 8 * self.vector() + lane * QUAD;
                    for (target, byte) in block[at..at + QUAD].iter_mut().zip(part.to_le_bytes()) {
                        *target |= byte;
                    }
                }
                plane_start += width * self.vector();
            }
        }
    }

    /// The code of `column` (within the group) and `lane` in a group record.
    pub(crate) fn code(&self, record: &[u8], lane: usize, column: usize) -> u8 {
        let block = &record[column / BLOCK * self.block_bytes()..];
        let (quad, byte) = (column % BLOCK / QUAD, lane * QUAD + column % QUAD);
        let mut plane_start = 0;
        let mut code = 0;
        for &(width, low) in planes(self.bits) {
            let bit = quad * width;
            let part = (block[plane_start + bit / 8 * self.vector() + byte] >> (bit % 8)) & (0xff >> (8 - width));
            code |= part << low;
            plane_start += width * self.vector();
        }
        code
    }
}
