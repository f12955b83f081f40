//! Weight matrices, re-laid once at load for the kernels.

use half::{bf16, f16};
use thiserror::Error;

use super::layout::{ScaleKind, TileLayout};
use crate::{Context, FloatSlice, weight_memory::WeightBytes};

/// A weight quantized the MLX affine way, as it lies in a file.
///
/// Element `i` of a row occupies bits `i * bits ..` of the row, low bits first; `w = scale * code + bias` with one scale
/// and bias per `group_size` consecutive elements.
#[derive(Debug, Clone, Copy)]
pub struct AffineWeight<'a> {
    /// Rows of the matrix.
    pub out_features: usize,
    /// Columns of the matrix: a multiple of `group_size`.
    pub in_features: usize,
    /// Bits per code: 2, 3, 4, 5, 6 or 8.
    pub bits: u32,
    /// Columns that share a scale: 32, 64 or 128.
    pub group_size: usize,
    /// The codes, `[out_features, in_features * bits / 8]` bytes.
    pub packed: &'a [u8],
    /// `[out_features, in_features / group_size]`.
    pub scales: FloatSlice<'a>,
    /// `[out_features, in_features / group_size]`.
    pub biases: FloatSlice<'a>,
}

/// An unquantized weight, as it lies in a file: `[out_features, in_features]`, row-major.
#[derive(Debug, Clone, Copy)]
pub struct DenseWeight<'a> {
    /// Rows of the matrix.
    pub out_features: usize,
    /// Columns of the matrix.
    pub in_features: usize,
    /// The elements.
    pub data: FloatSlice<'a>,
}

/// Why a matrix cannot be built or multiplied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MatrixError {
    /// The width of the codes is not one the kernels know.
    #[error("{bits}-bit affine weights are not supported: use 2, 3, 4, 5, 6 or 8 bits")]
    UnsupportedBits {
        /// The width asked for.
        bits: u32,
    },
    /// The group size is not one the kernels know.
    #[error("quantization groups of {group_size} are not supported: use 32, 64 or 128")]
    UnsupportedGroup {
        /// The group size asked for.
        group_size: usize,
    },
    /// Rows do not divide into groups.
    #[error("in_features {in_features} is not a multiple of the quantization group {group_size}")]
    TornGroup {
        /// Columns of the matrix.
        in_features: usize,
        /// The group size.
        group_size: usize,
    },
    /// A matrix without rows or columns, or too large to address.
    #[error("a weight of {out_features} x {in_features} cannot be stored")]
    BadShape {
        /// Rows asked for.
        out_features: usize,
        /// Columns asked for.
        in_features: usize,
    },
    /// A part of a weight has another size than its shape demands.
    #[error("{part} of a {out_features} x {in_features} weight has {found} {unit}, expected {expected}")]
    WrongSize {
        /// Which part: packed codes, scales, biases, data.
        part: &'static str,
        /// What is counted.
        unit: &'static str,
        /// Rows of the matrix.
        out_features: usize,
        /// Columns of the matrix.
        in_features: usize,
        /// The count found.
        found: usize,
        /// The count the shape demands.
        expected: usize,
    },
    /// The memory for the re-laid matrix could not be allocated.
    #[error("no memory for {bytes} bytes of weights: close other programs or load a smaller model")]
    OutOfMemory {
        /// The size asked for.
        bytes: usize,
    },
    /// The activations do not fit the number of rows and the weight's columns.
    #[error("activations hold {found} numbers, expected {rows} rows of in_features {in_features}")]
    WrongInput {
        /// The numbers found.
        found: usize,
        /// The rows asked for.
        rows: usize,
        /// Columns of the weight.
        in_features: usize,
    },
    /// The output does not fit the number of rows and the weight's rows.
    #[error("output holds {found} numbers, expected {rows} rows of out_features {out_features}")]
    WrongOutput {
        /// The numbers found.
        found: usize,
        /// The rows asked for.
        rows: usize,
        /// Rows of the weight.
        out_features: usize,
    },
    /// A bias vector has another length than the weight has rows.
    #[error("bias holds {found} numbers, expected out_features {out_features}")]
    WrongBias {
        /// The numbers found.
        found: usize,
        /// Rows of the weight.
        out_features: usize,
    },
    /// The two weights of a gated product have different shapes.
    #[error("gate is {gate_out} x {gate_in} but up is {up_out} x {up_in}: a gated product needs equal shapes")]
    GateMismatch {
        /// Rows of the gate.
        gate_out: usize,
        /// Columns of the gate.
        gate_in: usize,
        /// Rows of the up projection.
        up_out: usize,
        /// Columns of the up projection.
        up_in: usize,
    },
}

/// The largest quantization group.
const MAX_GROUP: usize = 128;

/// The element type of a dense matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DenseKind {
    F32,
    F16,
    BF16,
}

impl DenseKind {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// How the elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Tiles of group records: see [`TileLayout`].
    Quantized(TileLayout),
    /// Tiles of `lanes` rows, column by column: `[tile][column][lane]`.
    Dense { lanes: usize, kind: DenseKind },
}

/// A weight matrix `[out_features, in_features]` laid out for the kernels of one instruction set.
///
/// The only copy of the weight that is needed: rows can be read back exactly ([`Matrix::dequantize_row`]), so a tied
/// embedding table is served from the same memory as the output head. Quantized weights keep their width; scales and
/// biases take two bytes each where that is exact, and no biases are stored when every one of them is
/// `-2^(bits-1) * scale` (weights born as Q4_0 or Q8_0). Rows are padded to the tile height (4, 8 or 16).
#[derive(Debug)]
pub struct Matrix {
    out_features: usize,
    in_features: usize,
    format: Format,
    data: WeightBytes,
}

/// Rows per tile on an instruction set: the 32-bit lanes of its vectors.
fn lanes(context: &Context) -> usize {
    use crate::Isa;
    match context.isa() {
        Isa::Scalar | Isa::Avx2 | Isa::Avx2Vnni => 8,
        Isa::Avx512Vnni | Isa::Avx512Bf16 => 16,
        Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => 4,
    }
}

fn allocate(context: &Context, bytes: usize) -> Result<WeightBytes, MatrixError> {
    context.weight_memory().zeroed(bytes).ok_or(MatrixError::OutOfMemory { bytes })
}

impl Matrix {
    /// Re-lays an affine-quantized weight. Runs on all threads of the context.
    ///
    /// # Errors
    /// [`MatrixError`] when the width, the group size or the sizes of the parts are wrong, or memory is short.
    pub fn from_affine(context: &Context, weight: AffineWeight<'_>) -> Result<Self, MatrixError> {
        let AffineWeight { out_features, in_features, bits, group_size, packed, scales, biases } = weight;
        if !matches!(bits, 2..=6 | 8) {
            return Err(MatrixError::UnsupportedBits { bits });
        }
        if !matches!(group_size, 32 | 64 | 128) {
            return Err(MatrixError::UnsupportedGroup { group_size });
        }
        if in_features % group_size != 0 {
            return Err(MatrixError::TornGroup { in_features, group_size });
        }
        let bits = bits as usize;
        let elements = element_count(out_features, in_features)?;
        let groups = in_features / group_size;
        let sized = |part, unit, found, expected| {
            if found == expected {
                Ok(())
            } else {
                Err(MatrixError::WrongSize { part, unit, out_features, in_features, found, expected })
            }
        };
        sized("packed codes", "bytes", packed.len(), elements / 8 * bits)?;
        sized("scales", "numbers", scales.len(), out_features * groups)?;
        sized("biases", "numbers", biases.len(), out_features * groups)?;

        let (scale_kind, symmetric) = classify(&scales, &biases, out_features * groups, (1 << (bits - 1)) as f32);
        let layout = TileLayout { lanes: lanes(context), bits, group: group_size, groups, scale_kind, symmetric };
        let tiles = out_features.div_ceil(layout.lanes);
        let mut data = allocate(context, tiles * layout.tile_bytes())?;
        let row_bytes = in_features / 8 * bits;
        let record_bytes = layout.record_bytes();
        let fill = |tile: usize, target: &mut [u8]| {
            for lane in 0..layout.lanes.min(out_features - tile * layout.lanes) {
                let row = tile * layout.lanes + lane;
                let codes = &packed[row * row_bytes..(row + 1) * row_bytes];
                for (group, record) in target.chunks_exact_mut(record_bytes).enumerate() {
                    let mut unpacked = [0; MAX_GROUP];
                    let unpacked = &mut unpacked[..group_size];
                    unpack_codes(&codes[group * group_size * bits / 8..], bits, unpacked);
                    layout.put_codes(record, lane, unpacked);
                    let at = layout.codes_bytes() + lane * scale_kind.bytes();
                    put_scale(scale_kind, &mut record[at..], scales.get(row * groups + group));
                    if !symmetric {
                        let at = at + layout.scales_bytes();
                        put_scale(scale_kind, &mut record[at..], biases.get(row * groups + group));
                    }
                }
            }
        };
        fill_tiles(context, data.as_mut_slice(), layout.tile_bytes(), &fill);
        Ok(Self { out_features, in_features, format: Format::Quantized(layout), data })
    }

    /// Re-lays a dense weight; the element type is kept. Runs on all threads of the context.
    ///
    /// # Errors
    /// [`MatrixError`] when the size of the data is wrong or memory is short.
    pub fn from_dense(context: &Context, weight: DenseWeight<'_>) -> Result<Self, MatrixError> {
        let DenseWeight { out_features, in_features, data: source } = weight;
        let expected = element_count(out_features, in_features)?;
        let (kind, bytes) = match source {
            FloatSlice::F32(bytes) => (DenseKind::F32, bytes),
            FloatSlice::F16(bytes) => (DenseKind::F16, bytes),
            FloatSlice::BF16(bytes) => (DenseKind::BF16, bytes),
        };
        let width = kind.bytes();
        if bytes.len() != expected * width {
            let found = bytes.len();
            let expected = expected * width;
            return Err(MatrixError::WrongSize {
                part: "data",
                unit: "bytes",
                out_features,
                in_features,
                found,
                expected,
            });
        }
        let lanes = lanes(context);
        let tile_bytes = in_features * lanes * width;
        let mut data = allocate(context, out_features.div_ceil(lanes) * tile_bytes)?;
        let fill = |tile: usize, target: &mut [u8]| {
            for lane in 0..lanes.min(out_features - tile * lanes) {
                let row = &bytes[(tile * lanes + lane) * in_features * width..][..in_features * width];
                for (column, element) in row.chunks_exact(width).enumerate() {
                    let element: &[u8] = if cfg!(target_endian = "little") { element } else { &reversed(element) };
                    target[(column * lanes + lane) * width..][..width].copy_from_slice(&element[..width]);
                }
            }
        };
        fill_tiles(context, data.as_mut_slice(), tile_bytes, &fill);
        Ok(Self { out_features, in_features, format: Format::Dense { lanes, kind }, data })
    }

    /// Rows of the matrix: numbers it puts out.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Columns of the matrix: numbers it takes in.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Bytes the matrix takes in memory, and that a product with one row of activations reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Writes row `row` as single-precision numbers into `out` (`in_features` of them): `scale * code + bias`, rounded
    /// as those two operations.
    ///
    /// # Panics
    /// When `row` is not below `out_features` or `out` is not `in_features` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.out_features, "row {row} of a matrix with {} rows", self.out_features);
        assert!(out.len() == self.in_features, "{} numbers for a row of {}", out.len(), self.in_features);
        match self.format {
            Format::Quantized(layout) => {
                let tile = &self.data.as_slice()[row / layout.lanes * layout.tile_bytes()..][..layout.tile_bytes()];
                let lane = row % layout.lanes;
                let records = tile.chunks_exact(layout.record_bytes());
                for (record, numbers) in records.zip(out.chunks_exact_mut(layout.group)) {
                    let (scale, bias) = scale_and_bias(&layout, record, lane);
                    for (column, number) in numbers.iter_mut().enumerate() {
                        *number = scale * f32::from(layout.code(record, lane, column)) + bias;
                    }
                }
            }
            Format::Dense { lanes, kind } => {
                let width = kind.bytes();
                let tile = &self.data.as_slice()[row / lanes * self.in_features * lanes * width..];
                for (column, number) in out.iter_mut().enumerate() {
                    let at = (column * lanes + row % lanes) * width;
                    *number = dense_element(kind, &tile[at..at + width]);
                }
            }
        }
    }

    pub(crate) fn format(&self) -> &Format {
        &self.format
    }

    pub(crate) fn data(&self) -> &[u8] {
        self.data.as_slice()
    }
}

/// Scale and bias of `lane` in a group record.
pub(crate) fn scale_and_bias(layout: &TileLayout, record: &[u8], lane: usize) -> (f32, f32) {
    let at = layout.codes_bytes() + lane * layout.scale_kind.bytes();
    let scale = get_scale(layout.scale_kind, &record[at..]);
    let bias = if layout.symmetric {
        -layout.center() * scale
    } else {
        get_scale(layout.scale_kind, &record[at + layout.scales_bytes()..])
    };
    (scale, bias)
}

fn element_count(out_features: usize, in_features: usize) -> Result<usize, MatrixError> {
    match out_features.checked_mul(in_features) {
        // Every byte count below is at most sixteen rows of padding and eight bytes per element more than this.
        Some(elements) if elements > 0 && elements < usize::MAX / 1024 => Ok(elements),
        _ => Err(MatrixError::BadShape { out_features, in_features }),
    }
}

fn reversed(element: &[u8]) -> [u8; 4] {
    let mut bytes = [0; 4];
    for (target, source) in bytes.iter_mut().zip(element.iter().rev()) {
        *target = *source;
    }
    bytes
}

/// Code `index` of a packed row.
#[inline]
pub(crate) fn packed_code(row: &[u8], index: usize, bits: usize) -> u8 {
    let bit = index * bits;
    let low = u16::from(row[bit / 8]);
    let high = if bit % 8 + bits > 8 { u16::from(row[bit / 8 + 1]) } else { 0 };
    (((low | high << 8) >> (bit % 8)) & ((1 << bits) - 1)) as u8
}

/// The first codes of a packed row (starting at a byte's first bit), one to a byte.
fn unpack_codes(row: &[u8], bits: usize, codes: &mut [u8]) {
    match bits {
        8 => codes.copy_from_slice(&row[..codes.len()]),
        4 => {
            for (pair, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(row) {
                *pair = [byte & 15, byte >> 4];
            }
        }
        _ => codes.iter_mut().enumerate().for_each(|(index, code)| *code = packed_code(row, index, bits)),
    }
}

/// The narrowest exact storage for scales and biases, and whether biases are implied by the scales.
fn classify(scales: &FloatSlice<'_>, biases: &FloatSlice<'_>, count: usize, center: f32) -> (ScaleKind, bool) {
    let symmetric = (0..count).all(|index| biases.get(index) == -center * scales.get(index));
    let mut f16_exact = true;
    let mut bf16_exact = true;
    let mut look = |value: f32| {
        f16_exact &= f16::from_f32(value).to_f32() == value;
        bf16_exact &= bf16::from_f32(value).to_f32() == value;
    };
    for index in 0..count {
        look(scales.get(index));
        if !symmetric {
            look(biases.get(index));
        }
    }
    let kind = match (f16_exact, bf16_exact) {
        (true, _) => ScaleKind::F16,
        (false, true) => ScaleKind::BF16,
        _ => ScaleKind::F32,
    };
    (kind, symmetric)
}

fn put_scale(kind: ScaleKind, target: &mut [u8], value: f32) {
    match kind {
        ScaleKind::F16 => target[..2].copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
        ScaleKind::BF16 => target[..2].copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
        ScaleKind::F32 => target[..4].copy_from_slice(&value.to_ne_bytes()),
    }
}

fn get_scale(kind: ScaleKind, source: &[u8]) -> f32 {
    match kind {
        ScaleKind::F16 => f16::from_ne_bytes([source[0], source[1]]).to_f32(),
        ScaleKind::BF16 => bf16::from_ne_bytes([source[0], source[1]]).to_f32(),
        ScaleKind::F32 => f32::from_ne_bytes([source[0], source[1], source[2], source[3]]),
    }
}

fn dense_element(kind: DenseKind, source: &[u8]) -> f32 {
    match kind {
        DenseKind::F16 => f16::from_ne_bytes([source[0], source[1]]).to_f32(),
        DenseKind::BF16 => bf16::from_ne_bytes([source[0], source[1]]).to_f32(),
        DenseKind::F32 => f32::from_ne_bytes([source[0], source[1], source[2], source[3]]),
    }
}

/// Calls `fill(tile, its bytes)` for every tile, on all threads.
fn fill_tiles(context: &Context, data: &mut [u8], tile_bytes: usize, fill: &(dyn Fn(usize, &mut [u8]) + Sync)) {
    // A lock per chunk hands each thread its own mutable part without unsafe code; there are few of them.
    let tiles = data.len() / tile_bytes;
    let per_chunk = tiles.div_ceil(context.pool().threads() * 8).max(1);
    let chunks: Vec<_> = data.chunks_mut(per_chunk * tile_bytes).map(std::sync::Mutex::new).collect();
    context.pool().for_each(chunks.len(), &|index| {
        let mut chunk = chunks[index].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (offset, tile) in chunk.chunks_exact_mut(tile_bytes).enumerate() {
            fill(index * per_chunk + offset, tile);
        }
    });
}
