//! Register tiles: several query rows against several vectors of keys or values at once.
//!
//! Both products are written over the element type of the page: f16 straight from the cache for few rows, or f32 from a
//! copy widened once for many.

#![allow(unsafe_code)]

use super::join::Join;
use crate::simd::Vector;

/// The most query rows of a tile: with two vectors of columns, 12 sums and their operands fill 16 registers.
pub(super) const TILE_ROWS: usize = 6;

/// An element type that vectors load from.
pub(super) trait Element: Copy {
    /// Reads `LANES` elements as f32.
    ///
    /// # Safety
    /// `source` must be readable for `LANES` elements and the machine have `V`'s instruction set.
    unsafe fn load<V: Vector>(source: *const Self) -> V;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<V: Vector>(source: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(source) }
    }
}

/// The bits of an f16.
impl Element for u16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(source: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(source) }
    }
}

/// A strided matrix of f32.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) start: *mut f32,
    pub(super) stride: usize,
}

/// How many vectors of columns fit a tile of `rows` rows, one register at least left over: a sum that spills costs more
/// than a narrower tile.
#[inline(always)]
const fn tile_vectors<V: Vector>(rows: usize) -> usize {
    match rows {
        _ if V::REGISTERS >= 32 => 4,
        1 | 2 => 4,
        3 => 3,
        _ => 2,
    }
}

/// Scores of `M` query rows against the keys `columns` of a page: `scores[m, c] = queries[m] . keys[.., c]`. `columns`
/// begins at a multiple of 16 and ends wherever the caller needs; the rest of the last vector is written too.
///
/// # Safety
/// `queries` holds `M` rows of `head_dim`, `keys` a page's `[head_dim, page_tokens]`, `scores` `M` rows of
/// `page_tokens`; the machine has `V`'s instruction set.
#[inline(always)]
pub(super) unsafe fn scores<V: Vector, E: Element, const M: usize>(
    queries: Matrix,
    keys: *const E,
    head_dim: usize,
    page_tokens: usize,
    columns: std::ops::Range<usize>,
    scores: Matrix,
) {
    let mut column = columns.start;
    // SAFETY: page_tokens is a multiple of LANES and no tile passes its end.
    unsafe {
        while column < columns.end {
            let target = Matrix { start: scores.start.add(column), ..scores };
            let keys = keys.add(column);
            let in_page = (page_tokens - column) / V::LANES;
            let wanted = (columns.end - column).div_ceil(V::LANES).min(in_page);
            let tile = tile_vectors::<V>(M);
            let vectors = if wanted >= tile { tile } else { wanted.min(2) };
            match vectors {
                4 => score_tile::<V, E, M, 4>(queries, keys, head_dim, page_tokens, target),
                3 => score_tile::<V, E, M, 3>(queries, keys, head_dim, page_tokens, target),
                2 => score_tile::<V, E, M, 2>(queries, keys, head_dim, page_tokens, target),
                _ => score_tile::<V, E, M, 1>(queries, keys, head_dim, page_tokens, target),
            }
            column += vectors * V::LANES;
        }
    }
}

#[inline(always)]
unsafe fn score_tile<V: Vector, E: Element, const M: usize, const N: usize>(
    queries: Matrix,
    keys: *const E,
    head_dim: usize,
    key_stride: usize,
    scores: Matrix,
) {
    // SAFETY: the caller's promise about the operands' shapes.
    unsafe {
        let mut sums = [[V::splat(0.0); N]; M];
        for dim in 0..head_dim {
            multiply_tile::<V, E, M, N>(&mut sums, queries, dim, keys.add(dim * key_stride));
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (vector, sum) in sums.into_iter().enumerate() {
                sum.store(scores.start.add(row * scores.stride + vector * V::LANES));
            }
        }
    }
}

/// `sums[m][n] += left[m, index] * right[n]`: one step of both products. Which operand is read first follows from which
/// leaves registers free: few rows keep their factors, few vectors keep their columns.
#[inline(always)]
unsafe fn multiply_tile<V: Vector, E: Element, const M: usize, const N: usize>(
    sums: &mut [[V; N]; M],
    left: Matrix,
    index: usize,
    right: *const E,
) {
    // SAFETY: the caller's promise about the operands' shapes.
    unsafe {
        if M < N {
            let mut factors = [V::splat(0.0); M];
            for (row, factor) in factors.iter_mut().enumerate() {
                *factor = V::splat(*left.start.add(row * left.stride + index));
            }
            for vector in 0..N {
                let column = E::load::<V>(right.add(vector * V::LANES));
                for (sums, factor) in sums.iter_mut().zip(factors) {
                    sums[vector] = factor.mul_add(column, sums[vector]);
                }
            }
        } else {
            let mut columns = [V::splat(0.0); N];
            for (vector, column) in columns.iter_mut().enumerate() {
                *column = E::load::<V>(right.add(vector * V::LANES));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let factor = V::splat(*left.start.add(row * left.stride + index));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = factor.mul_add(column, *sum);
                }
            }
        }
    }
}

/// A run of tokens whose values lie together.
#[derive(Clone, Copy)]
pub(super) struct ValueRun<E> {
    /// `[tokens, head_dim]`.
    pub(super) values: *const E,
    pub(super) tokens: usize,
}

/// Joins the weighted values of a block, `sum over t of weights[m, t] * values[t]`, with `output[m]`, the tokens of all runs
/// counted on.
///
/// # Safety
/// `weights` holds `M` rows with one weight per token, `output` `M` rows of `head_dim`, a multiple of `V::LANES`; the
/// machine has `V`'s instruction set.
#[inline(always)]
pub(super) unsafe fn weighted_values<V: Vector, E: Element, const M: usize>(
    weights: Matrix,
    runs: &[ValueRun<E>],
    head_dim: usize,
    joins: &[Option<Join>; M],
    output: Matrix,
) {
    let mut dim = 0;
    // SAFETY: tiles are taken only while they fit into head_dim.
    unsafe {
        while dim < head_dim {
            let target = Matrix { start: output.start.add(dim), ..output };
            let left = (head_dim - dim) / V::LANES;
            let tile = tile_vectors::<V>(M);
            let vectors = if left >= tile { tile } else { left.min(2) };
            match vectors {
                4 => value_tile::<V, E, M, 4>(weights, runs, head_dim, dim, joins, target),
                3 => value_tile::<V, E, M, 3>(weights, runs, head_dim, dim, joins, target),
                2 => value_tile::<V, E, M, 2>(weights, runs, head_dim, dim, joins, target),
                _ => value_tile::<V, E, M, 1>(weights, runs, head_dim, dim, joins, target),
            }
            dim += vectors * V::LANES;
        }
    }
}

#[inline(always)]
unsafe fn value_tile<V: Vector, E: Element, const M: usize, const N: usize>(
    weights: Matrix,
    runs: &[ValueRun<E>],
    head_dim: usize,
    dim: usize,
    joins: &[Option<Join>; M],
    output: Matrix,
) {
    // SAFETY: the caller's promise about the operands' shapes.
    unsafe {
        let mut sums = [[V::splat(0.0); N]; M];
        let mut index = 0;
        for run in runs {
            let mut values = run.values.add(dim);
            for _ in 0..run.tokens {
                multiply_tile::<V, E, M, N>(&mut sums, weights, index, values);
                values = values.add(head_dim);
                index += 1;
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            let Some(join) = joins[row] else { continue };
            for (vector, sum) in sums.into_iter().enumerate() {
                let target = output.start.add(row * output.stride + vector * V::LANES);
                join.vectors(V::load(target), sum).store(target);
            }
        }
    }
}
