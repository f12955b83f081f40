//! Products in single precision: of dense weights, and of quantized ones where nothing may be lost.
#![allow(unsafe_code)]
// Rows and tiles index several register arrays at once; iterators would hide which.
#![allow(clippy::needless_range_loop)]

use super::{
    decode::{for_quads, load_scales, quad},
    layout::{QUAD, ScaleKind},
    matrix::DenseKind,
    simd::Simd,
};

/// Expands its body for the four bytes of a lane.
macro_rules! for_bytes {
    ($index:ident, $body:block) => {
        for_quads!(@ $index, $body, 0, 1, 2, 3)
    };
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
/// The pointers must be valid for the shapes of [`UnpackF32`]; the instruction set of `S` must be available.
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
/// The pointers must be valid for the shapes of [`UnpackF32`]; the instruction set of `S` must be available.
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

/// The sums that the columns of a panel are dealt to.
pub(crate) const WAYS: usize = 4;

/// `ROWS` rows of activations against a panel of `TILES` tiles in single precision.
///
/// Column `c` of the panel goes to sum `c % WAYS`, for one row because a single sum would wait for itself, and for many
/// because a row must not depend on its company. `AT_ONCE` of these sums are kept in registers; the columns are gone
/// through `WAYS / AT_ONCE` times.
///
/// # Safety
/// The pointers must be valid for the shapes of [`PanelF32`]; the instruction set of `S` must be available.
#[inline(always)]
pub(crate) unsafe fn panel_f32<S: Simd, const TILES: usize, const ROWS: usize, const AT_ONCE: usize>(
    arguments: &PanelF32,
) {
    let whole = arguments.columns / WAYS * WAYS;
    // SAFETY: the caller's promise.
    unsafe {
        let mut x = [arguments.x; ROWS];
        for (row, x) in x.iter_mut().enumerate() {
            *x = x.add(row * arguments.stride);
        }
        for first in (0..WAYS).step_by(AT_ONCE) {
            let mut total = [[[S::zero(); TILES]; ROWS]; AT_ONCE];
            let mut column = first;
            while column < whole {
                let at = arguments.weights.add(column * TILES * S::LANES);
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
                column += WAYS;
            }
            if first == 0 {
                // What does not go round once more is the first sum's.
                for column in whole..arguments.columns {
                    for row in 0..ROWS {
                        let value = S::splat(*x[row].add(column));
                        for tile in 0..TILES {
                            let weights = S::load(arguments.weights.add((column * TILES + tile) * S::LANES));
                            total[0][row][tile] = S::mul_add(weights, value, total[0][row][tile]);
                        }
                    }
                }
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
}
