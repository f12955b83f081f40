//! Many rows of activations against a panel: a few tiles unpacked once into the first-level cache and multiplied with
//! row after row, register block by register block. For prefill, where arithmetic is the limit and is done on bytes.
#![allow(unsafe_code)]
// Rows and tiles index several register arrays at once; iterators would hide which.
#![allow(clippy::needless_range_loop)]

use super::{
    decode::{dot_quad, for_quads, group_dot, load_scales},
    layout::{BLOCK, QUAD, ScaleKind},
    quantize::{GroupMeta, TERM_WEIGHTS},
    simd::Simd,
};

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
    /// Likewise. Written if `affine`.
    pub(crate) biases: *mut f32,
}

/// Unpacks groups of a tile into a panel for [`panel_fast`].
///
/// # Safety
/// The pointers must be valid for the shapes of [`UnpackFast`]; the instruction set of `S` must be available.
#[inline(always)]
pub(crate) unsafe fn unpack_fast<S: Simd, const BITS: usize>(arguments: &UnpackFast) {
    if S::WIDE {
        return; // never called there: nothing to compile
    }
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
            S::store(arguments.scales.add(slot), load_scales::<S>(arguments.scale_kind, at));
            at = at.add(scales_bytes);
            if arguments.affine {
                S::store(arguments.biases.add(slot), load_scales::<S>(arguments.scale_kind, at));
                at = at.add(scales_bytes);
            }
        }
    }
}

/// Operands of [`panel_fast`].
pub(crate) struct PanelFast {
    /// As [`UnpackFast::codes`] leaves them.
    pub(crate) weights: *const u8,
    /// `[group][tile][lanes]`.
    pub(crate) scales: *const f32,
    /// Likewise, read if `affine`.
    pub(crate) biases: *const f32,
    pub(crate) affine: bool,
    /// See [`super::decode::correction`].
    pub(crate) correction: i32,
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

/// `ROWS` rows of quantized activations against a panel of `TILES` tiles, by byte products.
///
/// # Safety
/// The pointers must be valid for the shapes of [`PanelFast`]; the instruction set of `S` must be available.
#[inline(always)]
pub(crate) unsafe fn panel_fast<
    S: Simd,
    const BITS: usize,
    const TERMS: usize,
    const TILES: usize,
    const ROWS: usize,
>(
    arguments: &PanelFast,
) {
    if S::WIDE {
        return; // never called there: nothing to compile
    }
    // Groups of one block need no second set of sums: worth a copy of the kernel.
    // SAFETY: the caller's promise.
    unsafe {
        if arguments.blocks_per_group == 1 {
            panel_groups::<S, BITS, TERMS, TILES, ROWS>(arguments, 1);
        } else {
            panel_groups::<S, BITS, TERMS, TILES, ROWS>(arguments, arguments.blocks_per_group);
        }
    }
}

#[inline(always)]
unsafe fn panel_groups<S: Simd, const BITS: usize, const TERMS: usize, const TILES: usize, const ROWS: usize>(
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
        for row in 0..ROWS {
            codes[row] = codes[row].add(row * TERMS * arguments.columns);
        }
        let mut total = load_totals::<S, TILES, ROWS>(arguments);
        for group in 0..arguments.groups {
            let mut sum = [[S::ints_zero(); TILES]; ROWS];
            for term in 0..TERMS {
                // One term alone counts once, as the last of two does.
                let digit = TERM_WEIGHTS.len() - TERMS + term;
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
                                    *sum = S::flush(*sum, *partial, digit);
                                    *partial = S::partial_zero();
                                }
                            }
                        }
                    });
                }
                if flush > 8 {
                    for row in 0..ROWS {
                        for tile in 0..TILES {
                            sum[row][tile] = S::flush(sum[row][tile], partial[row][tile], digit);
                        }
                    }
                }
            }
            at = at.add(blocks_per_group * block_bytes);
            for row in 0..ROWS {
                codes[row] = codes[row].add(blocks_per_group * BLOCK);
            }
            add_group::<S, TILES, ROWS>(arguments, group, &sum, &mut total);
        }
        store_totals::<S, TILES, ROWS>(arguments, &total);
    }
}

#[inline(always)]
unsafe fn load_totals<S: Simd, const TILES: usize, const ROWS: usize>(
    arguments: &PanelFast,
) -> [[S::Floats; TILES]; ROWS] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut total = [[S::zero(); TILES]; ROWS];
        for row in 0..ROWS {
            for tile in 0..TILES {
                total[row][tile] = S::load(arguments.out.add((row * TILES + tile) * S::LANES));
            }
        }
        total
    }
}

#[inline(always)]
unsafe fn store_totals<S: Simd, const TILES: usize, const ROWS: usize>(
    arguments: &PanelFast,
    total: &[[S::Floats; TILES]; ROWS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for row in 0..ROWS {
            for tile in 0..TILES {
                S::store(arguments.out.add((row * TILES + tile) * S::LANES), total[row][tile]);
            }
        }
    }
}

/// Adds what a group contributes, in the order of [`super::stream::stream`]: a row gives the same bits from both.
#[inline(always)]
unsafe fn add_group<S: Simd, const TILES: usize, const ROWS: usize>(
    arguments: &PanelFast,
    group: usize,
    sum: &[[S::Ints; TILES]; ROWS],
    total: &mut [[S::Floats; TILES]; ROWS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for row in 0..ROWS {
            let meta = &*arguments.meta.add(row * arguments.meta_stride + group);
            let scale = S::splat(meta.scale);
            for tile in 0..TILES {
                let slot = (group * TILES + tile) * S::LANES;
                let dot = group_dot::<S>(sum[row][tile], arguments.correction, meta);
                let scales = S::mul(S::load(arguments.scales.add(slot)), scale);
                total[row][tile] = S::mul_add(dot, scales, total[row][tile]);
                if arguments.affine {
                    let biases = S::load(arguments.biases.add(slot));
                    total[row][tile] = S::mul_add(biases, S::splat(meta.scaled_sum), total[row][tile]);
                }
            }
        }
    }
}
