//! Attention of many lines over many on the bf16 products of AVX-512: twice the multiply-adds of single precision.
//!
//! Queries, keys, weights and values are rounded to bf16 (8 bits of precision), sums are kept in f32. Two neighbours that are
//! multiplied together (dimensions of a key, tokens of a value) lie side by side in a *pair* of 32 bits.

#![allow(unsafe_code)]
// Rows and vectors index several register arrays at once; iterators would hide which.
#![allow(clippy::needless_range_loop)]

use std::{
    arch::x86_64::{
        __m256bh, __m256i, __m512, __m512bh, __m512i, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT,
        _mm256_storeu_si256, _mm512_add_ps, _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
        _mm512_loadu_si512, _mm512_max_ps, _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_roundscale_ps,
        _mm512_scalef_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_sub_ps,
    },
    f32::consts::LOG2_E,
};

use half::bf16;

use super::lines::{HeadLayout, Line, Parts, each_task, transpose};
use crate::{Context, Isa, PAGE_TOKENS, convert::f32_to_bf16};

/// f32 lanes of a vector.
const LANES: usize = 16;
/// Query rows of a tile: with four vectors of columns, 24 sums and their operands fill 32 registers.
const TILE_ROWS: usize = 6;
/// Vectors of columns of a tile.
const TILE_VECTORS: usize = PAGE_TOKENS / LANES;
/// Tokens whose scores are held at once.
const BLOCK_TOKENS: usize = 256;
const BLOCK_PAGES: usize = BLOCK_TOKENS / PAGE_TOKENS;

/// Below every score: what a page holds beyond the last token.
const UNSEEN: f32 = -1e30;
/// Rounds to nearest, ties to even.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
/// The coefficients of [`power_of_e`]'s polynomial, from the constant on.
const POWER_OF_TWO: [f32; 4] = [0.9999246, 0.6931367, 0.2426395, 0.0558383];

/// Whether this machine and these heads can be computed here.
pub(super) fn fits(isa: Isa, layout: HeadLayout) -> bool {
    isa == Isa::Avx512Bf16 && layout.head_dim.is_multiple_of(LANES)
}

/// Pairs that keys and values of a page of a head take: keys `[head_dim / 2, PAGE_TOKENS]`, values `[PAGE_TOKENS / 2,
/// head_dim]`.
fn page_pairs(layout: HeadLayout) -> usize {
    layout.head_dim * PAGE_TOKENS
}

/// `softmax(scale * q . k) . v` as [`super::full_attention`], in bf16.
///
/// # Safety
/// [`fits`] said yes. Keys and values are as long as each other and whole lines of the layout; so are the queries and outputs
/// of `lines`, and no two outputs overlap.
pub(super) unsafe fn attend(
    ctx: &Context,
    layout: HeadLayout,
    scale: f32,
    keys: &[f32],
    values: &[f32],
    lines: &[Line],
) {
    let count = keys.len() / layout.width();
    let pages = count.div_ceil(PAGE_TOKENS);
    // The buffer of floats holds pairs: both have four bytes.
    let mut buffer = ctx.scratch().take();
    buffer.resize(pages * layout.heads * page_pairs(layout), 0.0);
    let parts = &Parts(buffer.as_mut_ptr().cast::<u32>());
    ctx.pool().for_each(pages * layout.heads, &|task| {
        let (page, head) = (task % pages, task / pages);
        // SAFETY: the part of this page and head, inside the buffer and this task's alone.
        let part =
            unsafe { std::slice::from_raw_parts_mut(parts.0.add(task * page_pairs(layout)), page_pairs(layout)) };
        // SAFETY: the instruction set is the caller's promise.
        unsafe { pack(layout, keys, values, (page, head), part) };
    });
    let packed: *const u32 = buffer.as_ptr().cast();
    // SAFETY: the buffer holds as many pairs, all written, and is not written again before the last task is done.
    let packed = unsafe { std::slice::from_raw_parts(packed, buffer.len()) };
    each_task(ctx, &[(layout.heads, lines.len(), count * layout.width())], Work::default, |_, head, range, work| {
        let pages = &packed[head * pages * page_pairs(layout)..][..pages * page_pairs(layout)];
        // SAFETY: the caller's promise; each task has its own heads of its own lines.
        unsafe { task(layout, scale, pages, count, head, &lines[range], work) };
    });
    ctx.scratch().give_back(buffer);
}

/// Rounds keys and values of a page of a head and lays them out in pairs; what lies beyond the last line is zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn pack(layout: HeadLayout, keys: &[f32], values: &[f32], (page, head): (usize, usize), part: &mut [u32]) {
    let (width, head_dim) = (layout.width(), layout.head_dim);
    let first = page * PAGE_TOKENS;
    let count = PAGE_TOKENS.min(keys.len() / width - first);
    let mut rounded = vec![bf16::ZERO; PAGE_TOKENS * head_dim];
    let mut round = |lines: &[f32]| {
        for (line, rounded) in rounded.chunks_exact_mut(head_dim).take(count).enumerate() {
            f32_to_bf16(&lines[(first + line) * width + head * head_dim..][..head_dim], rounded);
        }
        rounded.chunks_exact(2).map(pair).collect::<Vec<u32>>()
    };
    let (packed_keys, packed_values) = part.split_at_mut(head_dim / 2 * PAGE_TOKENS);
    transpose(&round(keys), head_dim / 2, packed_keys);
    round(values);
    for (tokens, target) in rounded.chunks_exact(2 * head_dim).zip(packed_values.chunks_exact_mut(head_dim)) {
        let (even, odd) = tokens.split_at(head_dim);
        for ((target, even), odd) in target.iter_mut().zip(even).zip(odd) {
            *target = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
        }
    }
}

fn pair(two: &[bf16]) -> u32 {
    u32::from(two[0].to_bits()) | u32::from(two[1].to_bits()) << 16
}

/// Working memory of one thread.
#[derive(Default)]
struct Work {
    queries: Vec<u32>,
    rounded: Vec<bf16>,
    scores: Vec<f32>,
    weights: Vec<u16>,
    maxima: Vec<f32>,
    sums: Vec<f32>,
    outputs: Vec<f32>,
}

/// One head of some lines against all pages.
///
/// # Safety
/// As for [`attend`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn task(
    layout: HeadLayout,
    scale: f32,
    pages: &[u32],
    count: usize,
    head: usize,
    lines: &[Line],
    work: &mut Work,
) {
    let head_dim = layout.head_dim;
    work.queries.clear();
    work.rounded.resize(head_dim, bf16::ZERO);
    let mut scaled = vec![0.0; head_dim];
    for line in lines {
        // SAFETY: the caller's promise.
        let query = unsafe { std::slice::from_raw_parts(line.query.add(head * head_dim), head_dim) };
        scaled.iter_mut().zip(query).for_each(|(scaled, value)| *scaled = value * scale);
        f32_to_bf16(&scaled, &mut work.rounded);
        work.queries.extend(work.rounded.chunks_exact(2).map(pair));
    }
    work.scores.resize(TILE_ROWS * BLOCK_TOKENS, 0.0);
    work.weights.resize(TILE_ROWS * BLOCK_TOKENS, 0);
    for (buffer, length, value) in [
        (&mut work.maxima, lines.len(), f32::NEG_INFINITY),
        (&mut work.sums, lines.len(), 0.0),
        (&mut work.outputs, lines.len() * head_dim, 0.0),
    ] {
        buffer.clear();
        buffer.resize(length, value);
    }
    let tiles = lines.len().div_ceil(TILE_ROWS);
    for (block, pages) in pages.chunks(BLOCK_PAGES * page_pairs(layout)).enumerate() {
        let tokens = BLOCK_TOKENS.min(count - block * BLOCK_TOKENS);
        for tile in 0..tiles {
            let (first, end) = (lines.len() * tile / tiles, lines.len() * (tile + 1) / tiles);
            // SAFETY: the instruction set is the caller's promise; the tile lies within the task.
            unsafe {
                match end - first {
                    1 => tile_of::<1>(layout, pages, tokens, first, work),
                    2 => tile_of::<2>(layout, pages, tokens, first, work),
                    3 => tile_of::<3>(layout, pages, tokens, first, work),
                    4 => tile_of::<4>(layout, pages, tokens, first, work),
                    5 => tile_of::<5>(layout, pages, tokens, first, work),
                    _ => tile_of::<TILE_ROWS>(layout, pages, tokens, first, work),
                }
            }
        }
    }
    for ((line, sum), source) in lines.iter().zip(&work.sums).zip(work.outputs.chunks_exact(head_dim)) {
        let factor = 1.0 / sum;
        // SAFETY: the caller's promise: this head of this line is this task's alone.
        let target = unsafe { std::slice::from_raw_parts_mut(line.output.add(head * head_dim), head_dim) };
        target.iter_mut().zip(source).for_each(|(target, source)| *target = source * factor);
    }
}

/// `M` rows from `first` on against a block of `tokens` tokens: scores, their softmax joined with that of the blocks before,
/// and weighted values.
#[inline(always)]
unsafe fn tile_of<const M: usize>(layout: HeadLayout, pages: &[u32], tokens: usize, first: usize, work: &mut Work) {
    let head_dim = layout.head_dim;
    let half = head_dim / 2;
    let queries = &work.queries[first * half..(first + M) * half];
    let padded = tokens.next_multiple_of(PAGE_TOKENS);
    // SAFETY: the slices above and below bound what is read and written; pages hold PAGE_TOKENS tokens of pairs each.
    unsafe {
        for (page, pairs) in pages.chunks_exact(page_pairs(layout)).enumerate() {
            let sums = products::<M, TILE_VECTORS>(queries.as_ptr(), half, half, pairs.as_ptr(), PAGE_TOKENS);
            for (row, sums) in sums.iter().enumerate() {
                for (vector, sum) in sums.iter().enumerate() {
                    let at = row * BLOCK_TOKENS + page * PAGE_TOKENS + vector * LANES;
                    _mm512_storeu_ps(work.scores[at..at + LANES].as_mut_ptr(), *sum);
                }
            }
        }
        let mut factors = [0.0f32; M];
        for (row, factor) in factors.iter_mut().enumerate() {
            let scores = &mut work.scores[row * BLOCK_TOKENS..][..padded];
            scores[tokens..].fill(UNSEEN);
            let mut largest = _mm512_set1_ps(UNSEEN);
            for chunk in scores.chunks_exact(LANES) {
                // A NaN need not survive here: its own weight is one.
                largest = _mm512_max_ps(largest, _mm512_loadu_ps(chunk.as_ptr()));
            }
            let (before, largest) = (work.maxima[first + row], _mm512_reduce_max_ps(largest));
            let maximum = if largest > before { largest } else { before };
            *factor = (before - maximum).exp();
            let (mut sum, subtract) = (_mm512_setzero_ps(), _mm512_set1_ps(-maximum * LOG2_E));
            let weights = &mut work.weights[row * BLOCK_TOKENS..][..padded];
            for (chunk, weights) in scores.chunks_exact(LANES).zip(weights.chunks_exact_mut(LANES)) {
                let weight = power_of_e(_mm512_loadu_ps(chunk.as_ptr()), subtract);
                sum = _mm512_add_ps(sum, weight);
                // The bits of sixteen bf16.
                let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(weight));
                _mm256_storeu_si256(weights.as_mut_ptr().cast(), rounded);
            }
            work.maxima[first + row] = maximum;
            work.sums[first + row] = work.sums[first + row] * *factor + _mm512_reduce_add_ps(sum);
        }
        for dim in (0..head_dim).step_by(TILE_VECTORS * LANES) {
            match (head_dim - dim) / LANES {
                1 => values::<M, 1>(layout, pages, dim, first, &factors, work),
                2 => values::<M, 2>(layout, pages, dim, first, &factors, work),
                3 => values::<M, 3>(layout, pages, dim, first, &factors, work),
                _ => values::<M, TILE_VECTORS>(layout, pages, dim, first, &factors, work),
            }
        }
    }
}

/// `e^x 2^exponent` to 1.1e-4, a fortieth of a bf16's own rounding. The polynomial interpolates `2^r` at the four Chebyshev
/// points of `|r| <= 1/2`.
#[inline(always)]
unsafe fn power_of_e(x: __m512, exponent: __m512) -> __m512 {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let exponent = _mm512_fmadd_ps(x, _mm512_set1_ps(LOG2_E), exponent);
        let whole = _mm512_roundscale_ps::<NEAREST>(exponent);
        let rest = _mm512_sub_ps(exponent, whole);
        let [constant, linear, square, cube] = POWER_OF_TWO;
        let polynomial = _mm512_fmadd_ps(_mm512_set1_ps(cube), rest, _mm512_set1_ps(square));
        let polynomial = _mm512_fmadd_ps(polynomial, rest, _mm512_set1_ps(linear));
        let polynomial = _mm512_fmadd_ps(polynomial, rest, _mm512_set1_ps(constant));
        _mm512_scalef_ps(polynomial, whole)
    }
}

/// Joins the weighted values of a block with the outputs of the blocks before, for `N` vectors of dimensions.
#[inline(always)]
unsafe fn values<const M: usize, const N: usize>(
    layout: HeadLayout,
    pages: &[u32],
    dim: usize,
    first: usize,
    factors: &[f32; M],
    work: &mut Work,
) {
    let head_dim = layout.head_dim;
    // SAFETY: as in `tile_of`.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); N]; M];
        for (page, pairs) in pages.chunks_exact(page_pairs(layout)).enumerate() {
            let weights = work.weights[page * PAGE_TOKENS..].as_ptr().cast::<u32>();
            let pairs = pairs[head_dim / 2 * PAGE_TOKENS + dim..].as_ptr();
            add_products::<M, N>(&mut sums, weights, BLOCK_TOKENS / 2, PAGE_TOKENS / 2, pairs, head_dim);
        }
        for row in 0..M {
            let factor = _mm512_set1_ps(factors[row]);
            let outputs = &mut work.outputs[(first + row) * head_dim + dim..][..N * LANES];
            for vector in 0..N {
                let at = outputs[vector * LANES..].as_mut_ptr();
                _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), factor, sums[row][vector]));
            }
        }
    }
}

#[inline(always)]
unsafe fn products<const M: usize, const N: usize>(
    left: *const u32,
    left_stride: usize,
    count: usize,
    right: *const u32,
    right_stride: usize,
) -> [[__m512; N]; M] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); N]; M];
        add_products::<M, N>(&mut sums, left, left_stride, count, right, right_stride);
        sums
    }
}

/// `sums[m][n] += sum over i below count of left[m][i] * right[i][n]`, for pairs.
///
/// # Safety
/// `left` is readable for `M` rows `left_stride` apart of `count` pairs, `right` for `count` rows `right_stride` apart of `N`
/// vectors. The weights behind `left` are pairs of bf16, aligned or not.
#[inline(always)]
unsafe fn add_products<const M: usize, const N: usize>(
    sums: &mut [[__m512; N]; M],
    left: *const u32,
    left_stride: usize,
    count: usize,
    right: *const u32,
    right_stride: usize,
) {
    // SAFETY: the caller's promise; vectors of bf16 and of 32-bit lanes are the same bits.
    unsafe {
        for index in 0..count {
            let mut columns = [std::mem::zeroed::<__m512bh>(); N];
            for vector in 0..N {
                let at = right.add(index * right_stride + vector * LANES);
                columns[vector] = std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast()));
            }
            for row in 0..M {
                let factor = left.add(row * left_stride + index).cast::<i32>().read_unaligned();
                let factor = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(factor));
                for vector in 0..N {
                    sums[row][vector] = _mm512_dpbf16_ps(sums[row][vector], factor, columns[vector]);
                }
            }
        }
    }
}
