//! The products, written once over [`Simd`] and compiled for each instruction set.
//!
//! Two shapes of work. *Stream*: a few rows of activations against one tile read straight from memory, for decoding,
//! where memory is the limit. *Panel*: a few tiles are unpacked once into the first-level cache and multiplied with many
//! rows, register block by register block, for prefill, where arithmetic is.
#![allow(unsafe_code)]
// Rows and tiles index several register arrays at once; iterators would hide which.
#![allow(clippy::needless_range_loop)]

use super::{
    layout::{BLOCK, QUAD, ScaleKind},
    matrix::DenseKind,
    quantize::{GroupMeta, TERMS},
    simd::Simd,
};

/// Expands its body for the eight quads of a block with `Q` a constant.
macro_rules! for_quads {
    ($q:ident, $body:block) => {
        for_quads!(@ $q, $body, 0, 1, 2, 3, 4, 5, 6, 7)
    };
    (@ $q:ident, $body:block, $($number:literal),*) => {
        $({ const $q: usize = $number; $body })*
    };
}

/// Expands its body for the four bytes of a lane.
macro_rules! for_bytes {
    ($index:ident, $body:block) => {
        for_quads!(@ $index, $body, 0, 1, 2, 3)
    };
}

/// How far ahead of the weights in use the cache is asked for more, in bytes.
const PREFETCH: usize = 2048;

/// Operands of [`stream`].
pub(crate) struct Stream {
    pub(crate) tile: *const u8,
    pub(crate) groups: usize,
    pub(crate) blocks_per_group: usize,
    pub(crate) scale_kind: ScaleKind,
    /// Biases are stored behind the scales.
    pub(crate) affine: bool,
    /// Added to every code: see [`code_offset`].
    pub(crate) offset: f32,
    /// Quantized activations: `[rows, TERMS, columns]`.
    pub(crate) codes: *const i8,
    /// The same, both terms in one number: `[rows, columns]`. Read where [`Simd::WIDE`].
    pub(crate) wide: *const i16,
    pub(crate) columns: usize,
    /// `[rows, groups]`
    pub(crate) meta: *const GroupMeta,
    /// `lanes` sums per row, rows `out_stride` apart; written.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
}

/// What must be added to the codes as [`Simd::dot`] sees them so that `scale * (code + offset)` is the weight, up to a
/// stored bias.
pub(crate) fn code_offset<S: Simd>(bits: usize, center: f32, symmetric: bool) -> f32 {
    let subtracted_already = if bits == 8 { S::ZERO_POINT } else { 0.0 };
    subtracted_already - if symmetric { center } else { 0.0 }
}

/// [`code_offset`] for [`stream`], which takes 8-bit codes as they are where [`Simd::WIDE`].
pub(crate) fn stream_offset<S: Simd>(bits: usize, center: f32, symmetric: bool) -> f32 {
    code_offset::<S>(bits, center, symmetric) - if bits == 8 && S::WIDE { S::ZERO_POINT } else { 0.0 }
}

/// The part of quad `q` that a plane of `WIDTH` bits holds, moved to bit `LOW`.
#[inline(always)]
unsafe fn plane<S: Simd, const WIDTH: usize, const LOW: usize>(at: *const u8, q: usize) -> S::Bytes {
    let bit = q * WIDTH;
    // SAFETY: the caller's promise: the plane is WIDTH vectors long, and `bit / 8 < WIDTH`.
    unsafe {
        let vector = S::load_bytes(at.add(bit / 8 * S::LANES * QUAD));
        if WIDTH == 8 {
            return vector;
        }
        let moved =
            if bit % 8 >= LOW { S::shift_right(vector, bit % 8 - LOW) } else { S::shift_left(vector, LOW - bit % 8) };
        S::and(moved, S::splat_byte((((1usize << WIDTH) - 1) << LOW) as u8))
    }
}

/// Quad `q` of a block of `BITS`-wide codes, one unsigned byte per code.
#[inline(always)]
unsafe fn quad<S: Simd, const BITS: usize>(block: *const u8, q: usize) -> S::Bytes {
    let vector = S::LANES * QUAD;
    // SAFETY: the caller's promise: `block` points to BITS vectors.
    unsafe {
        match BITS {
            2 => plane::<S, 2, 0>(block, q),
            3 => S::or(plane::<S, 2, 0>(block, q), plane::<S, 1, 2>(block.add(2 * vector), q)),
            4 => plane::<S, 4, 0>(block, q),
            5 => S::or(plane::<S, 4, 0>(block, q), plane::<S, 1, 4>(block.add(4 * vector), q)),
            6 => S::or(plane::<S, 4, 0>(block, q), plane::<S, 2, 4>(block.add(4 * vector), q)),
            _ => plane::<S, 8, 0>(block, q),
        }
    }
}

/// [`quad`] as [`Simd::dot`] wants it.
#[inline(always)]
unsafe fn dot_quad<S: Simd, const BITS: usize>(block: *const u8, q: usize) -> S::Bytes {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = quad::<S, BITS>(block, q);
        if BITS == 8 { S::recode(codes) } else { codes }
    }
}

#[inline(always)]
unsafe fn load_scales<S: Simd>(kind: ScaleKind, at: *const u8) -> S::Floats {
    // SAFETY: the caller's promise: `lanes` scales of that kind.
    unsafe {
        match kind {
            ScaleKind::F16 => S::load_f16(at),
            ScaleKind::BF16 => S::load_bf16(at),
            ScaleKind::F32 => S::load(at.cast()),
        }
    }
}

/// `ROWS` rows of quantized activations against one tile.
///
/// # Safety
/// The pointers must be valid for the shapes of [`Stream`]; the instruction set of `S` must be available.
#[inline(always)]
pub(crate) unsafe fn stream<S: Simd, const BITS: usize, const ROWS: usize>(arguments: &Stream) {
    // Groups of one block need no second set of sums: worth a copy of the kernel.
    // SAFETY: the caller's promise.
    unsafe {
        if arguments.blocks_per_group == 1 {
            stream_groups::<S, BITS, ROWS>(arguments, 1);
        } else {
            stream_groups::<S, BITS, ROWS>(arguments, arguments.blocks_per_group);
        }
    }
}

#[inline(always)]
unsafe fn stream_groups<S: Simd, const BITS: usize, const ROWS: usize>(arguments: &Stream, blocks_per_group: usize) {
    let block_bytes = BITS * S::LANES * QUAD;
    let scales_bytes = S::LANES * arguments.scale_kind.bytes();
    // SAFETY: every offset stays within the tile (its group records in order), the activations and the output.
    unsafe {
        let mut at = arguments.tile;
        let mut column = 0;
        let mut total = [S::zero(); ROWS];
        for group in 0..arguments.groups {
            let sum = if BITS == 8 && S::WIDE {
                stream_group_wide::<S, ROWS>(arguments, at, column, blocks_per_group)
            } else {
                stream_group::<S, BITS, ROWS>(arguments, at, column, blocks_per_group)
            };
            at = at.add(blocks_per_group * block_bytes);
            column += blocks_per_group * BLOCK;
            let scales = load_scales::<S>(arguments.scale_kind, at);
            at = at.add(scales_bytes);
            for row in 0..ROWS {
                let meta = &*arguments.meta.add(row * arguments.groups + group);
                let mut dot = S::ints_to_floats(sum[row]);
                if arguments.offset != 0.0 {
                    dot = S::mul_add(S::splat(arguments.offset), S::splat(meta.sum), dot);
                }
                total[row] = S::mul_add(dot, S::mul(scales, S::splat(meta.scale)), total[row]);
            }
            if arguments.affine {
                let biases = load_scales::<S>(arguments.scale_kind, at);
                at = at.add(scales_bytes);
                for row in 0..ROWS {
                    let meta = &*arguments.meta.add(row * arguments.groups + group);
                    total[row] = S::mul_add(biases, S::splat(meta.scaled_sum), total[row]);
                }
            }
        }
        for row in 0..ROWS {
            S::store(arguments.out.add(row * arguments.out_stride), total[row]);
        }
    }
}

/// The integer sums of the group at `at`, whose first column is `column`.
#[inline(always)]
unsafe fn stream_group<S: Simd, const BITS: usize, const ROWS: usize>(
    arguments: &Stream,
    at: *const u8,
    column: usize,
    blocks: usize,
) -> [S::Ints; ROWS] {
    let flush = S::flush_interval(BITS);
    // SAFETY: as in `stream_groups`.
    unsafe {
        let mut sum = [S::ints_zero(); ROWS];
        let mut partial = [[S::partial_zero(); TERMS]; ROWS];
        for block in 0..blocks {
            let at = at.add(block * BITS * S::LANES * QUAD);
            let codes = arguments.codes.add(column + block * BLOCK);
            S::prefetch(at.wrapping_add(PREFETCH));
            S::prefetch(at.wrapping_add(PREFETCH + 64));
            for_quads!(Q, {
                let weights = dot_quad::<S, BITS>(at, Q);
                for row in 0..ROWS {
                    for term in 0..TERMS {
                        let activations = S::splat_quad(codes.add((row * TERMS + term) * arguments.columns + Q * QUAD));
                        partial[row][term] = S::dot::<BITS>(partial[row][term], weights, activations);
                        if flush <= 8 && (Q + 1usize).is_multiple_of(flush) {
                            sum[row] = S::flush(sum[row], partial[row][term], term);
                            partial[row][term] = S::partial_zero();
                        }
                    }
                }
            });
        }
        if flush > 8 {
            for row in 0..ROWS {
                for term in 0..TERMS {
                    sum[row] = S::flush(sum[row], partial[row][term], term);
                }
            }
        }
        sum
    }
}

/// [`stream_group`] for 8-bit codes and activations of 16 bits.
#[inline(always)]
unsafe fn stream_group_wide<S: Simd, const ROWS: usize>(
    arguments: &Stream,
    at: *const u8,
    column: usize,
    blocks: usize,
) -> [S::Ints; ROWS] {
    let vector = S::LANES * QUAD;
    // SAFETY: as in `stream_groups`.
    unsafe {
        let mut sums = [[S::ints_zero(); 2]; ROWS];
        for block in 0..blocks {
            let at = at.add(block * 8 * vector);
            for_quads!(Q, {
                if (Q * vector).is_multiple_of(64) {
                    S::prefetch(at.wrapping_add(PREFETCH + Q * vector));
                }
                for row in 0..ROWS {
                    let activations = arguments.wide.add(row * arguments.columns + column + block * BLOCK + Q * QUAD);
                    sums[row] = S::dot_wide(sums[row], at.add(Q * vector), activations);
                }
            });
        }
        sums.map(|sums| S::join_wide(sums))
    }
}

/// Operands of [`unpack_fast`]: one tile's groups into one slot of a panel.
pub(crate) struct UnpackFast {
    /// The first group record.
    pub(crate) record: *const u8,
    pub(crate) groups: usize,
    pub(crate) blocks_per_group: usize,
    pub(crate) scale_kind: ScaleKind,
    pub(crate) affine: bool,
    /// Slots of the panel.
    pub(crate) tiles: usize,
    /// `[block][quad][slot][4 * lanes]`, at this slot.
    pub(crate) codes: *mut u8,
    /// `[group][slot][lanes]`, at this slot.
    pub(crate) scales: *mut f32,
    /// Likewise; the biases of codes as [`Simd::dot`] sees them. Written if `affine`.
    pub(crate) biases: *mut f32,
}

/// Unpacks groups of a tile into a panel for [`panel_fast`].
///
/// # Safety
/// As for [`stream`].
#[inline(always)]
pub(crate) unsafe fn unpack_fast<S: Simd, const BITS: usize>(arguments: &UnpackFast) {
    let vector = S::LANES * QUAD;
    let scales_bytes = S::LANES * arguments.scale_kind.bytes();
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = arguments.record;
        let mut to = arguments.codes;
        for group in 0..arguments.groups {
            for _ in 0..arguments.blocks_per_group {
                for_quads!(Q, {
                    S::store_bytes(to, dot_quad::<S, BITS>(at, Q));
                    to = to.add(arguments.tiles * vector);
                });
                at = at.add(BITS * vector);
            }
            let slot = group * arguments.tiles * S::LANES;
            let scales = load_scales::<S>(arguments.scale_kind, at);
            S::store(arguments.scales.add(slot), scales);
            at = at.add(scales_bytes);
            if arguments.affine {
                let mut biases = load_scales::<S>(arguments.scale_kind, at);
                if BITS == 8 && S::ZERO_POINT != 0.0 {
                    biases = S::mul_add(scales, S::splat(S::ZERO_POINT), biases);
                }
                S::store(arguments.biases.add(slot), biases);
                at = at.add(scales_bytes);
            }
        }
    }
}

/// Operands of [`panel_fast`].
pub(crate) struct PanelFast {
    /// `[block][quad][tile][4 * lanes]`.
    pub(crate) weights: *const u8,
    /// `[group][tile][lanes]`.
    pub(crate) scales: *const f32,
    /// Likewise, read if `affine`.
    pub(crate) biases: *const f32,
    pub(crate) affine: bool,
    /// Added to every code, if not `affine`.
    pub(crate) offset: f32,
    pub(crate) groups: usize,
    pub(crate) blocks_per_group: usize,
    /// Quantized activations, `[rows, TERMS, columns]`, from the first column of the panel on.
    pub(crate) codes: *const i8,
    pub(crate) columns: usize,
    pub(crate) meta: *const GroupMeta,
    pub(crate) meta_stride: usize,
    /// `[rows][tiles][lanes]`, added to.
    pub(crate) out: *mut f32,
}

/// `ROWS` rows of quantized activations against a panel of `TILES` tiles.
///
/// # Safety
/// As for [`stream`].
#[inline(always)]
pub(crate) unsafe fn panel_fast<S: Simd, const BITS: usize, const TILES: usize, const ROWS: usize>(
    arguments: &PanelFast,
) {
    // As in `stream`.
    // SAFETY: the caller's promise.
    unsafe {
        if arguments.blocks_per_group == 1 {
            panel_groups::<S, BITS, TILES, ROWS>(arguments, 1);
        } else {
            panel_groups::<S, BITS, TILES, ROWS>(arguments, arguments.blocks_per_group);
        }
    }
}

#[inline(always)]
unsafe fn panel_groups<S: Simd, const BITS: usize, const TILES: usize, const ROWS: usize>(
    arguments: &PanelFast,
    blocks_per_group: usize,
) {
    let vector = S::LANES * QUAD;
    let block_bytes = 8 * TILES * vector;
    let flush = S::flush_interval(BITS);
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = arguments.weights;
        let mut codes = [arguments.codes; ROWS];
        let mut meta = [arguments.meta; ROWS];
        for row in 0..ROWS {
            codes[row] = codes[row].add(row * TERMS * arguments.columns);
            meta[row] = meta[row].add(row * arguments.meta_stride);
        }
        let mut total = [[S::zero(); TILES]; ROWS];
        for row in 0..ROWS {
            for tile in 0..TILES {
                total[row][tile] = S::load(arguments.out.add((row * TILES + tile) * S::LANES));
            }
        }
        for group in 0..arguments.groups {
            let mut sum = [[S::ints_zero(); TILES]; ROWS];
            for term in 0..TERMS {
                let mut partial = [[S::partial_zero(); TILES]; ROWS];
                for block in 0..blocks_per_group {
                    let at = at.add(block * block_bytes);
                    let column = term * arguments.columns + block * BLOCK;
                    for_quads!(Q, {
                        let mut weights = [S::splat_byte(0); TILES];
                        for tile in 0..TILES {
                            weights[tile] = S::load_bytes(at.add((Q * TILES + tile) * vector));
                        }
                        for row in 0..ROWS {
                            let activations = S::splat_quad(codes[row].add(column + Q * QUAD));
                            for tile in 0..TILES {
                                let (sum, partial) = (&mut sum[row][tile], &mut partial[row][tile]);
                                *partial = S::dot::<BITS>(*partial, weights[tile], activations);
                                if flush <= 8 && (Q + 1usize).is_multiple_of(flush) {
                                    *sum = S::flush(*sum, *partial, term);
                                    *partial = S::partial_zero();
                                }
                            }
                        }
                    });
                }
                if flush > 8 {
                    for row in 0..ROWS {
                        for tile in 0..TILES {
                            sum[row][tile] = S::flush(sum[row][tile], partial[row][tile], term);
                        }
                    }
                }
            }
            at = at.add(blocks_per_group * block_bytes);
            for row in 0..ROWS {
                codes[row] = codes[row].add(blocks_per_group * BLOCK);
            }
            for row in 0..ROWS {
                let meta = &*meta[row].add(group);
                let scale = S::splat(meta.scale);
                for tile in 0..TILES {
                    let slot = (group * TILES + tile) * S::LANES;
                    let mut dot = S::ints_to_floats(sum[row][tile]);
                    if arguments.affine {
                        let biases = S::load(arguments.biases.add(slot));
                        total[row][tile] = S::mul_add(biases, S::splat(meta.scaled_sum), total[row][tile]);
                    } else {
                        dot = S::mul_add(S::splat(arguments.offset), S::splat(meta.sum), dot);
                    }
                    let scales = S::mul(S::load(arguments.scales.add(slot)), scale);
                    total[row][tile] = S::mul_add(dot, scales, total[row][tile]);
                }
            }
        }
        for row in 0..ROWS {
            for tile in 0..TILES {
                S::store(arguments.out.add((row * TILES + tile) * S::LANES), total[row][tile]);
            }
        }
    }
}

/// Operands of [`unpack_affine_f32`] and [`unpack_dense_f32`]: columns of one tile into one slot of a panel.
pub(crate) struct UnpackF32 {
    /// The first group record, or the first column of a dense tile.
    pub(crate) from: *const u8,
    /// Group records, or columns.
    pub(crate) count: usize,
    pub(crate) blocks_per_group: usize,
    pub(crate) scale_kind: ScaleKind,
    /// Minus the center of the codes if the biases are implied.
    pub(crate) center: Option<f32>,
    pub(crate) dense_kind: DenseKind,
    pub(crate) tiles: usize,
    /// `[column][slot][lanes]`, at this slot.
    pub(crate) out: *mut f32,
}

/// Dequantizes groups of a tile into a panel for [`panel_f32`].
///
/// # Safety
/// As for [`stream`].
#[inline(always)]
pub(crate) unsafe fn unpack_affine_f32<S: Simd, const BITS: usize>(arguments: &UnpackF32) {
    let vector = S::LANES * QUAD;
    let scales_bytes = S::LANES * arguments.scale_kind.bytes();
    let codes_bytes = arguments.blocks_per_group * BITS * vector;
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = arguments.from;
        let mut to = arguments.out;
        for _ in 0..arguments.count {
            let scales = load_scales::<S>(arguments.scale_kind, at.add(codes_bytes));
            let biases = match arguments.center {
                Some(center) => S::mul(scales, S::splat(-center)),
                None => load_scales::<S>(arguments.scale_kind, at.add(codes_bytes + scales_bytes)),
            };
            for _ in 0..arguments.blocks_per_group {
                for_quads!(Q, {
                    let codes = quad::<S, BITS>(at, Q);
                    for_bytes!(INDEX, {
                        S::store(to, S::mul_add(S::byte_to_floats(codes, INDEX), scales, biases));
                        to = to.add(arguments.tiles * S::LANES);
                    });
                });
                at = at.add(BITS * vector);
            }
            at = at.add(if arguments.center.is_some() { scales_bytes } else { 2 * scales_bytes });
        }
    }
}

/// Widens columns of a dense tile into a panel for [`panel_f32`].
///
/// # Safety
/// As for [`stream`].
#[inline(always)]
pub(crate) unsafe fn unpack_dense_f32<S: Simd>(arguments: &UnpackF32) {
    let stride = arguments.tiles * S::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        match arguments.dense_kind {
            DenseKind::F32 => {
                for column in 0..arguments.count {
                    let from = arguments.from.add(column * S::LANES * 4);
                    S::store(arguments.out.add(column * stride), S::load(from.cast()));
                }
            }
            DenseKind::F16 => {
                for column in 0..arguments.count {
                    let from = arguments.from.add(column * S::LANES * 2);
                    S::store(arguments.out.add(column * stride), S::load_f16(from));
                }
            }
            DenseKind::BF16 => {
                for column in 0..arguments.count {
                    let from = arguments.from.add(column * S::LANES * 2);
                    S::store(arguments.out.add(column * stride), S::load_bf16(from));
                }
            }
        }
    }
}

/// Operands of [`panel_f32`].
pub(crate) struct PanelF32 {
    /// `[column][tile][lanes]`.
    pub(crate) weights: *const f32,
    pub(crate) columns: usize,
    /// Activations of the first column of the panel, rows `stride` apart.
    pub(crate) x: *const f32,
    pub(crate) stride: usize,
    /// `[rows][tiles][lanes]`, added to.
    pub(crate) out: *mut f32,
}

/// `ROWS` rows of activations against a panel of `TILES` tiles in single precision, the columns dealt to `WAYS`
/// independent sums so that few rows do not wait for the latency of one.
///
/// # Safety
/// As for [`stream`].
#[inline(always)]
pub(crate) unsafe fn panel_f32<S: Simd, const TILES: usize, const ROWS: usize, const WAYS: usize>(
    arguments: &PanelF32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut total = [[[S::zero(); TILES]; ROWS]; WAYS];
        let mut x = [arguments.x; ROWS];
        for (row, x) in x.iter_mut().enumerate() {
            *x = x.add(row * arguments.stride);
        }
        let mut at = arguments.weights;
        let mut column = 0;
        while column + WAYS <= arguments.columns {
            for (way, total) in total.iter_mut().enumerate() {
                let mut weights = [S::zero(); TILES];
                for (tile, weights) in weights.iter_mut().enumerate() {
                    *weights = S::load(at.add((way * TILES + tile) * S::LANES));
                }
                for row in 0..ROWS {
                    let value = S::splat(*x[row].add(column + way));
                    for tile in 0..TILES {
                        total[row][tile] = S::mul_add(weights[tile], value, total[row][tile]);
                    }
                }
            }
            at = at.add(WAYS * TILES * S::LANES);
            column += WAYS;
        }
        while column < arguments.columns {
            for row in 0..ROWS {
                let value = S::splat(*x[row].add(column));
                for tile in 0..TILES {
                    let weights = S::load(at.add(tile * S::LANES));
                    total[0][row][tile] = S::mul_add(weights, value, total[0][row][tile]);
                }
            }
            at = at.add(TILES * S::LANES);
            column += 1;
        }
        for row in 0..ROWS {
            for tile in 0..TILES {
                let to = arguments.out.add((row * TILES + tile) * S::LANES);
                let mut value = S::load(to);
                for total in &total {
                    value = S::add(value, total[row][tile]);
                }
                S::store(to, value);
            }
        }
    }
}

/// Operands of [`finish`].
pub(crate) struct Finish<'a> {
    /// `[rows][stride]`: finished sums.
    pub(crate) values: *const f32,
    pub(crate) stride: usize,
    /// Sums to use of each row, from its first on.
    pub(crate) count: usize,
    pub(crate) rows: usize,
    /// Where the first sum of the first row goes, rows `output_stride` apart.
    pub(crate) output: *mut f32,
    pub(crate) output_stride: usize,
    /// Added to each row: `count` numbers.
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether the sums are added to the output.
    pub(crate) accumulate: bool,
}

/// Puts a block of sums into the output.
///
/// # Safety
/// As for [`stream`].
#[inline(always)]
pub(crate) unsafe fn finish<S: Simd>(arguments: &Finish<'_>) {
    let whole = arguments.count / S::LANES * S::LANES;
    // SAFETY: the caller's promise; whole vectors first, then what is left one by one.
    unsafe {
        for row in 0..arguments.rows {
            let from = arguments.values.add(row * arguments.stride);
            let to = arguments.output.add(row * arguments.output_stride);
            for column in (0..whole).step_by(S::LANES) {
                let mut value = S::load(from.add(column));
                if let Some(bias) = arguments.bias {
                    value = S::add(value, S::load(bias.as_ptr().add(column)));
                }
                if arguments.accumulate {
                    value = S::add(value, S::load(to.add(column)));
                }
                S::store(to.add(column), value);
            }
            for column in whole..arguments.count {
                let mut value = *from.add(column);
                if let Some(bias) = arguments.bias {
                    value += bias[column];
                }
                if arguments.accumulate {
                    value += *to.add(column);
                }
                *to.add(column) = value;
            }
        }
    }
}
