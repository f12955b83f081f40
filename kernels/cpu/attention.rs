//! Attention of queries over paged keys and values: causal, grouped-query, in one pass with an online softmax.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod bf16;
mod checks;
mod cross;
#[cfg(test)]
mod cross_tests;
mod join;
mod lines;
mod plan;
mod row_group;
mod scalar;
mod task;
#[cfg(test)]
mod tests;
mod tile;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use checks::AttentionError;
pub use cross::{
    CrossAttentionError, CrossMemory, CrossRow, MemoryFormat, coarse_full_attention, cross_attention, cross_scores,
    full_attention,
};
pub use lines::HeadLayout;

use self::{
    plan::{RowShape, Task, plan},
    task::{Partial, RowInput, Scratch},
};
use crate::{Context, Isa, Page, PageGeometry, simd::level_for_multiple};

/// One sequence's queries of a step and the pages that hold its keys and values.
#[derive(Debug)]
pub struct AttentionRow<'a> {
    /// `[length, heads, head_dim]`.
    pub query: &'a [f32],
    /// `[length, heads, head_dim]`, overwritten.
    pub output: &'a mut [f32],
    /// The absolute position of the first query. The keys up to `start + length` are already in the pages.
    pub start: usize,
    /// How many queries.
    pub length: usize,
    /// One layer's pages in order.
    pub pages: &'a [Page<'a>],
    /// The absolute position of the first token of page 0: not 0 when a sliding window dropped old pages.
    pub first_position: usize,
}

/// What the layers of a model share.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOptions<'a> {
    /// Query heads; a multiple of the KV heads. Query head `h` uses KV head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// The shape of the pages.
    pub geometry: PageGeometry,
    /// The factor on the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// With a window `w` a query at `p` sees the keys `p - w + 1 ..= p`, as in mlx-lm; otherwise all up to `p`.
    pub window: Option<usize>,
    /// With a cap `c` the scaled scores become `c * tanh(score / c)`.
    pub softcap: Option<f32>,
    /// One logit per query head that takes part in the softmax but has no value (gpt-oss).
    pub sinks: Option<&'a [f32]>,
}

impl AttentionOptions<'_> {
    /// Query heads per KV head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.geometry.kv_heads
    }

    /// The first position that a query at `position` sees.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Where a row's output begins.
struct OutputPointer(*mut f32);

// SAFETY: tasks write disjoint heads of disjoint queries through it, and the slice it comes from is borrowed for the call.
unsafe impl Sync for OutputPointer {}

/// A buffer whose parts different tasks own.
struct PartsPointer(*mut f32);

// SAFETY: each task writes only the part that the plan gave to it alone.
unsafe impl Sync for PartsPointer {}

/// Computes `softmax(scale * query . keys) . values` for all rows, in f32, keys and values read as the
/// pages hold them. Head dimensions
/// that are multiples of 8 are fast; others take the plain path. The result of a query has the same bits whatever is
/// computed beside it, in its own row or in others, and on however many threads.
///
/// # Errors
/// [`AttentionError`] when a shape does not fit, or a row needs keys that its pages do not hold.
pub fn attention(
    ctx: &Context,
    options: &AttentionOptions<'_>,
    rows: &mut [AttentionRow<'_>],
) -> Result<(), AttentionError> {
    checks::check(options, rows)?;
    let head_dim = options.geometry.head_dim;
    let isa = level_for_multiple(ctx.isa(), head_dim);
    let shapes: Vec<RowShape> = rows
        .iter()
        .map(|row| RowShape { start: row.start, length: row.length, first_position: row.first_position })
        .collect();
    let outputs: Vec<OutputPointer> = rows.iter_mut().map(|row| OutputPointer(row.output.as_mut_ptr())).collect();
    let inputs: Vec<RowInput<'_>> =
        rows.iter().zip(&shapes).map(|(row, &shape)| RowInput { query: row.query, pages: row.pages, shape }).collect();

    let plan = plan(options, &shapes, head_dim, if isa == Isa::Scalar { 1 } else { ctx.pool().threads() });
    let part_elements = Partial::elements(plan.part_rows, head_dim);
    let mut parts = vec![0.0; plan.parts * part_elements];
    let parts_pointer = PartsPointer(parts.as_mut_ptr());
    let (outputs, parts_pointer) = (&outputs[..], &parts_pointer);

    let run_task = |task: &Task, scratch: &mut Scratch, local: &mut Vec<f32>| {
        let output = outputs[task.row].0;
        if isa == Isa::Scalar {
            // SAFETY: this task alone writes these heads of these queries.
            unsafe { scalar::run(options, &inputs[task.row], task, output) };
            return;
        }
        let rows = task.queries.len() * options.group();
        let elements = Partial::elements(rows, head_dim);
        let input = &inputs[task.row];
        scratch.prepare(options, input, task);
        let blocks = task::blocks(input.shape.first_position, task.keys.clone()).enumerate();
        if let Some(part) = task.part {
            for (index, block) in blocks {
                // SAFETY: the parts of its blocks are this task's alone, and the buffer outlives all tasks.
                let buffer = unsafe {
                    std::slice::from_raw_parts_mut(parts_pointer.0.add((part + index) * part_elements), elements)
                };
                task::run_block(isa, options, input, (task, block, true), scratch, &mut Partial::new(buffer, rows));
            }
        } else {
            local.resize(elements.max(local.len()), 0.0);
            let mut partial = Partial::new(&mut local[..elements], rows);
            for (index, block) in blocks {
                task::run_block(isa, options, input, (task, block, index == 0), scratch, &mut partial);
            }
            // SAFETY: this task alone writes these heads of these queries.
            unsafe { partial.finish(options, task.kv_head, task.queries.clone(), output) };
        }
    };
    if plan.inline {
        let (mut scratch, mut local) = (Scratch::default(), Vec::new());
        plan.tasks.iter().for_each(|task| run_task(task, &mut scratch, &mut local));
    } else {
        let next = AtomicUsize::new(0);
        ctx.pool().run(&|_| {
            let (mut scratch, mut local) = (Scratch::default(), Vec::new());
            while let Some(task) = plan.tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                run_task(task, &mut scratch, &mut local);
            }
        });
    }

    for merge in &plan.merges {
        let rows = merge.queries.len() * options.group();
        let elements = Partial::elements(rows, head_dim);
        let mut merged_parts = parts[merge.parts.start * part_elements..merge.parts.end * part_elements]
            .chunks_exact_mut(part_elements)
            .map(|part| Partial::new(&mut part[..elements], rows));
        if let Some(mut merged) = merged_parts.next() {
            merged_parts.for_each(|part| merged.join(isa, &part));
            // SAFETY: all tasks are done; nobody else holds the output.
            unsafe { merged.finish(options, merge.kv_head, merge.queries.clone(), outputs[merge.row].0) };
        }
    }
    Ok(())
}
