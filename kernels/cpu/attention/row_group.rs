//! A few query rows of one KV head against one block of keys: scores, online softmax, weighted values.

#![allow(unsafe_code)]

use std::ops::Range;

use super::{
    join::Join,
    tile::{Element, Matrix, TILE_ROWS, ValueRun, scores, weighted_values},
};
use crate::{
    PAGE_TOKENS,
    simd::{ExpConstants, MAX_LANES, Vector, VectorKernel, exp, tanh},
};

/// Tokens whose scores are held at once, and whose softmax is taken by itself before it is joined with that of the blocks
/// before ([`Join`]). Softmax bookkeeping is paid once per block; a block's keys and values, widened, should stay in the
/// second-level cache.
pub(super) const BLOCK_TOKENS: usize = 256;

/// Pages of a block.
pub(super) const BLOCK_PAGES: usize = BLOCK_TOKENS / PAGE_TOKENS;

/// The running state of an online softmax (Milakov and Gimelshein 2018), one entry per query row.
#[derive(Debug)]
pub(super) struct Running<'a> {
    /// The largest score so far.
    pub(super) maxima: &'a mut [f32],
    /// The sum of `exp(score - maximum)`.
    pub(super) sums: &'a mut [f32],
    /// The values weighted with `exp(score - maximum)`, `[rows, head_dim]`.
    pub(super) outputs: &'a mut [f32],
}

/// One block of keys and values.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, E> {
    /// For each page where its keys (`[head_dim, PAGE_TOKENS]`, then the values `[PAGE_TOKENS, head_dim]`) of this KV head
    /// begin.
    pub(super) pages: &'a [*const E],
    /// Elements of a head.
    pub(super) head_dim: usize,
    /// The cap on scores.
    pub(super) softcap: Option<f32>,
}

/// At most [`TILE_ROWS`] query rows against a block, as a kernel.
pub(super) struct RowGroup<'a, E> {
    pub(super) block: Block<'a, E>,
    /// The scaled queries, `[rows, head_dim]`.
    pub(super) queries: &'a [f32],
    /// The tokens of the block that each row sees; may be empty.
    pub(super) visible: &'a [Range<usize>],
    pub(super) running: Running<'a>,
    /// Room for `TILE_ROWS * BLOCK_TOKENS` scores.
    pub(super) scores: &'a mut [f32],
}

impl<E: Element> VectorKernel for RowGroup<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.visible.len() {
                1 => self.run::<V, 1>(),
                2 => self.run::<V, 2>(),
                3 => self.run::<V, 3>(),
                4 => self.run::<V, 4>(),
                5 => self.run::<V, 5>(),
                _ => self.run::<V, TILE_ROWS>(),
            }
        }
    }
}

impl<E: Element> RowGroup<'_, E> {
    #[inline(always)]
    unsafe fn run<V: Vector, const M: usize>(&mut self) {
        let seen = self.visible.iter().filter(|range| !range.is_empty());
        let first = seen.clone().map(|range| range.start).min().unwrap_or(0);
        let end = seen.map(|range| range.end).max().unwrap_or(0);
        if first >= end {
            return;
        }
        let Block { pages, head_dim, .. } = self.block;
        assert!(
            self.visible.len() == M && self.queries.len() == M * head_dim && self.running.outputs.len() == M * head_dim
        );
        assert!(self.scores.len() >= M * BLOCK_TOKENS && end <= pages.len() * PAGE_TOKENS && end <= BLOCK_TOKENS);

        let queries = Matrix { start: self.queries.as_ptr().cast_mut(), stride: head_dim };
        let weights = Matrix { start: self.scores.as_mut_ptr(), stride: BLOCK_TOKENS };
        let output = Matrix { start: self.running.outputs.as_mut_ptr(), stride: head_dim };
        let tile_start = first / MAX_LANES * MAX_LANES;
        let tile_end = end.next_multiple_of(V::LANES);
        let mut runs = [ValueRun::<E> { values: std::ptr::null(), tokens: 0 }; BLOCK_PAGES];
        let page_range = first / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS);
        let run_count = page_range.len();

        // SAFETY: the assertions above bound queries, outputs, scores and pages; each page holds keys and values of
        // PAGE_TOKENS tokens, which the makers of a Block promise.
        unsafe {
            for (run, page) in runs.iter_mut().zip(page_range) {
                let page_start = page * PAGE_TOKENS;
                let columns = tile_start.max(page_start) - page_start..end.min(page_start + PAGE_TOKENS) - page_start;
                let target = Matrix { start: weights.start.add(page_start), ..weights };
                scores::<V, E, M>(queries, pages[page], head_dim, PAGE_TOKENS, columns.clone(), target);
                // What a page does not hold yet may be NaN, which a weight of zero would not silence: runs end with the
                // last visible token.
                let token = first.max(page_start) - page_start;
                let values = pages[page].add(head_dim * PAGE_TOKENS + token * head_dim);
                *run = ValueRun { values, tokens: columns.end - token };
            }
            let joins = self.softmax::<V, M>(tile_start..tile_end);
            let weights = Matrix { start: weights.start.add(first), ..weights };
            weighted_values::<V, E, M>(weights, &runs[..run_count], head_dim, &joins, output);
        }
    }

    /// Turns the scores of `columns` into weights relative to the block's own maxima, joins the sums, and returns how
    /// the outputs are to be joined; `None` for a row that sees nothing of the block.
    #[inline(always)]
    unsafe fn softmax<V: Vector, const M: usize>(&mut self, columns: Range<usize>) -> [Option<Join>; M] {
        let mut joins = [None; M];
        for (row, join) in joins.iter_mut().enumerate() {
            let visible = &self.visible[row];
            let scores = &mut self.scores[row * BLOCK_TOKENS..][..BLOCK_TOKENS];
            if visible.is_empty() {
                scores[columns.clone()].fill(0.0);
                continue;
            }
            // SAFETY: columns are whole vectors inside the row of scores; the instruction set is the caller's promise.
            let (maximum, sum) = unsafe {
                let constants = ExpConstants::<V>::new();
                if let Some(cap) = self.block.softcap {
                    let (cap, inverse) = (V::splat(cap), V::splat(1.0 / cap));
                    for chunk in scores[columns.clone()].chunks_exact_mut(V::LANES) {
                        tanh(V::load(chunk.as_ptr()).mul(inverse), &constants).mul(cap).store(chunk.as_mut_ptr());
                    }
                }
                scores[columns.start..visible.start].fill(f32::NEG_INFINITY);
                scores[visible.end..columns.end].fill(f32::NEG_INFINITY);
                let scores = &mut scores[columns.clone()];
                let mut maximum = V::splat(f32::NEG_INFINITY);
                for chunk in scores.chunks_exact(V::LANES) {
                    maximum = V::load(chunk.as_ptr()).max(maximum);
                }
                // All scores -inf (an infinite query): their weights are NaN, as in a plain softmax.
                let maximum = maximum.reduce_max();
                let (mut sum, subtract) = (V::splat(0.0), V::splat(maximum));
                for chunk in scores.chunks_exact_mut(V::LANES) {
                    let weight = exp(V::load(chunk.as_ptr()).sub(subtract), &constants);
                    weight.store(chunk.as_mut_ptr());
                    sum = sum.add(weight);
                }
                (maximum, sum.reduce_add())
            };
            let factors = Join::new(self.running.maxima[row], maximum);
            self.running.maxima[row] = factors.maximum;
            self.running.sums[row] = factors.sum(self.running.sums[row], sum);
            *join = Some(factors);
        }
        joins
    }
}
