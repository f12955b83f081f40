//! Runs one task: its queries against its keys, block by block.

#![allow(unsafe_code)]

use std::ops::Range;

use super::{
    AttentionOptions,
    join::{Join, JoinOutputs},
    plan::{RowShape, Task},
    row_group::{BLOCK_PAGES, BLOCK_TOKENS, Block, RowGroup, Running},
    tile::{Element, TILE_ROWS},
};
use crate::{Isa, PAGE_TOKENS, Page, PageFormat, convert::widen_f16_bits, pages::widen_affine, simd::dispatch_vector};

/// Up to so many query rows read f16 from the pages; above, and where they are quantized, the pages are widened once into
/// scratch memory.
const DIRECT_ROWS: usize = 2 * TILE_ROWS;

/// One row of the call, as tasks see it.
pub(super) struct RowInput<'a> {
    pub(super) query: &'a [f32],
    pub(super) pages: &'a [Page<'a>],
    pub(super) shape: RowShape,
}

/// The state of a finished or partial softmax for the query rows of a task. Query row `q * group + g` is query `q` of the
/// task, query head `g` of its KV head.
pub(super) struct Partial<'a> {
    maxima: &'a mut [f32],
    sums: &'a mut [f32],
    outputs: &'a mut [f32],
}

impl<'a> Partial<'a> {
    /// The f32 elements that `rows` query rows need.
    pub(super) fn elements(rows: usize, head_dim: usize) -> usize {
        rows * (head_dim + 2)
    }

    /// Cuts a buffer of [`Partial::elements`].
    pub(super) fn new(buffer: &'a mut [f32], rows: usize) -> Self {
        let (maxima, rest) = buffer.split_at_mut(rows);
        let (sums, outputs) = rest.split_at_mut(rows);
        Self { maxima, sums, outputs }
    }

    /// The state before any key.
    fn clear(&mut self) {
        self.maxima.fill(f32::NEG_INFINITY);
        self.sums.fill(0.0);
        self.outputs.fill(0.0);
    }

    /// Joins the next block's state, as [`run_block`] does when it goes on from this one.
    pub(super) fn join(&mut self, isa: Isa, next: &Partial<'_>) {
        let head_dim = self.outputs.len() / self.maxima.len();
        for row in 0..self.maxima.len() {
            // A block of which a query sees nothing has nothing to add, and its maximum of -inf would make NaN.
            if next.sums[row] == 0.0 {
                continue;
            }
            let join = Join::new(self.maxima[row], next.maxima[row]);
            self.maxima[row] = join.maximum;
            self.sums[row] = join.sum(self.sums[row], next.sums[row]);
            let range = row * head_dim..(row + 1) * head_dim;
            let kernel = JoinOutputs { join, earlier: &mut self.outputs[range.clone()], later: &next.outputs[range] };
            // The caller has sent the scalar level elsewhere.
            let _ = dispatch_vector(isa, kernel);
        }
    }

    /// Divides by the sums (with each head's sink, whose logit has no value) and writes to the output of the row.
    ///
    /// # Safety
    /// `output` is the whole output of the row, `[length, heads, head_dim]`, and no one else touches the heads of
    /// `kv_head` of `queries` meanwhile.
    pub(super) unsafe fn finish(
        &self,
        options: &AttentionOptions<'_>,
        kv_head: usize,
        queries: Range<usize>,
        output: *mut f32,
    ) {
        let (group, head_dim) = (options.group(), options.geometry.head_dim);
        for (index, query) in queries.enumerate() {
            for member in 0..group {
                let row = index * group + member;
                let head = kv_head * group + member;
                let (mut scale, mut sum) = (1.0, self.sums[row]);
                if let Some(sinks) = options.sinks {
                    let maximum = self.maxima[row].max(sinks[head]);
                    scale = (self.maxima[row] - maximum).exp();
                    sum = sum * scale + (sinks[head] - maximum).exp();
                }
                let factor = scale / sum;
                // SAFETY: the head of this query lies inside the output and is this call's alone.
                let target = unsafe {
                    std::slice::from_raw_parts_mut(output.add((query * options.heads + head) * head_dim), head_dim)
                };
                let source = &self.outputs[row * head_dim..(row + 1) * head_dim];
                target.iter_mut().zip(source).for_each(|(target, source)| *target = source * factor);
            }
        }
    }
}

/// Working memory of one task, reused by the next.
#[derive(Default)]
pub(super) struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    widened: Vec<f32>,
}

impl Scratch {
    /// The task's queries, scaled, and room for scores.
    pub(super) fn prepare(&mut self, options: &AttentionOptions<'_>, input: &RowInput<'_>, task: &Task) {
        let (group, head_dim) = (options.group(), options.geometry.head_dim);
        self.queries.clear();
        for query in task.queries.clone() {
            let start = (query * options.heads + task.kv_head * group) * head_dim;
            self.queries.extend(input.query[start..start + group * head_dim].iter().map(|value| value * options.scale));
        }
        self.scores.resize(TILE_ROWS * BLOCK_TOKENS, 0.0);
    }
}

/// The blocks of a range of keys, counted as in [`Task::keys`]. They end at multiples of [`BLOCK_TOKENS`] of the sequence's
/// positions (as far as pages begin at multiples of theirs), whatever else is computed beside.
pub(super) fn blocks(first_position: usize, keys: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let offset = first_position / PAGE_TOKENS * PAGE_TOKENS % BLOCK_TOKENS;
    let mut start = keys.start;
    std::iter::from_fn(move || {
        let end = ((start + offset) / BLOCK_TOKENS + 1) * BLOCK_TOKENS - offset;
        let block = start..end.min(keys.end);
        start = end;
        (!block.is_empty()).then_some(block)
    })
}

/// Computes the softmax state of all queries of a task against one block of its keys and joins it to `partial`, cleared
/// before if `is_first`. `scratch` was prepared for the task.
pub(super) fn run_block(
    isa: Isa,
    options: &AttentionOptions<'_>,
    input: &RowInput<'_>,
    (task, tokens, is_first): (&Task, Range<usize>, bool),
    scratch: &mut Scratch,
    partial: &mut Partial<'_>,
) {
    let (geometry, group) = (options.geometry, options.group());
    let rows = task.queries.len() * group;
    if is_first {
        partial.clear();
    }
    let start = tokens.start;
    let pages = &input.pages[start / PAGE_TOKENS..tokens.end.div_ceil(PAGE_TOKENS)];
    let heads = pages.iter().map(|page| {
        let elements = geometry.head_elements(page.format);
        (page.format, &page.data[task.kv_head * elements..(task.kv_head + 1) * elements])
    });
    let visible = |row: usize| {
        let position = input.shape.start + task.queries.start + row / group;
        let first = options.first_visible(position).saturating_sub(input.shape.first_position).max(start);
        let end = (position + 1 - input.shape.first_position).min(tokens.end);
        first.min(end).saturating_sub(start)..end.saturating_sub(start)
    };
    let mut state = BlockRows { isa, options, rows, queries: &scratch.queries, scores: &mut scratch.scores, partial };
    if rows <= DIRECT_ROWS && pages.iter().all(|page| page.format == PageFormat::F16) {
        let mut starts = [std::ptr::null::<u16>(); BLOCK_PAGES];
        starts.iter_mut().zip(heads).for_each(|(start, (_, head))| *start = head.as_ptr());
        state.run(&starts[..pages.len()], &visible);
        return;
    }
    let elements = 2 * geometry.head_dim * PAGE_TOKENS;
    scratch.widened.resize(BLOCK_PAGES * elements, 0.0);
    let mut starts = [std::ptr::null::<f32>(); BLOCK_PAGES];
    for ((start, (format, head)), widened) in
        starts.iter_mut().zip(heads).zip(scratch.widened.chunks_exact_mut(elements))
    {
        match format {
            PageFormat::F16 => widen_f16_bits(isa, head, widened),
            PageFormat::Affine(affine) => widen_affine(isa, geometry, affine, head, widened),
        }
        *start = widened.as_ptr();
    }
    state.run(&starts[..pages.len()], &visible);
}

/// All query rows of a task against one block, some rows at a time.
struct BlockRows<'a, 'b> {
    isa: Isa,
    options: &'a AttentionOptions<'a>,
    rows: usize,
    queries: &'a [f32],
    scores: &'a mut [f32],
    partial: &'a mut Partial<'b>,
}

impl BlockRows<'_, '_> {
    fn run<E: Element>(&mut self, pages: &[*const E], visible: &dyn Fn(usize) -> Range<usize>) {
        let head_dim = self.options.geometry.head_dim;
        let block = Block { pages, head_dim, softcap: self.options.softcap };
        let groups = self.rows.div_ceil(TILE_ROWS);
        for index in 0..groups {
            // Groups of even size: 8 rows are two tiles of 4, not one of 6 and one of 2.
            let rows = self.rows * index / groups..self.rows * (index + 1) / groups;
            let mut ranges = [const { 0..0 }; TILE_ROWS];
            ranges.iter_mut().zip(rows.clone()).for_each(|(range, row)| *range = visible(row));
            let elements = rows.start * head_dim..rows.end * head_dim;
            let kernel = RowGroup {
                block,
                queries: &self.queries[elements.clone()],
                visible: &ranges[..rows.len()],
                running: Running {
                    maxima: &mut self.partial.maxima[rows.clone()],
                    sums: &mut self.partial.sums[rows],
                    outputs: &mut self.partial.outputs[elements],
                },
                scores: self.scores,
            };
            // The caller has sent the scalar level elsewhere.
            let _ = dispatch_vector(self.isa, kernel);
        }
    }
}
