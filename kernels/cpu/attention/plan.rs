//! How the work of one call is cut into tasks. Pure: shapes in, tasks out.

use std::ops::Range;

use super::AttentionOptions;
use crate::PAGE_TOKENS;

/// Query rows (queries times query heads per KV head) that a task aims at: enough to pay for widening the pages once.
const TASK_ROWS: usize = 64;

/// Only tasks of at most so many query rows are cut along their keys: with more, there are enough tasks anyway.
const SPLIT_ROWS: usize = 24;

/// Tasks per thread that a cut along the keys aims at, so that a thread that comes late leaves little idle time.
const TASKS_PER_THREAD: usize = 3;

/// Below so many multiply-adds per product (about two microseconds of one core) the caller works alone.
const INLINE_PRODUCTS: usize = 60_000;

/// The fewest keys worth a task of their own.
const LEAST_KEYS: usize = 2 * PAGE_TOKENS;

/// What the plan must know of a row. Positions as in [`super::AttentionRow`].
#[derive(Debug, Clone, Copy)]
pub(super) struct RowShape {
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) first_position: usize,
}

/// Some queries of one row against some of their keys, for one KV head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    /// Which row of the call.
    pub(super) row: usize,
    /// Which KV head.
    pub(super) kv_head: usize,
    /// Queries, counted from the row's first.
    pub(super) queries: Range<usize>,
    /// Keys, counted from the first token of the row's first page; the start is the start of a page.
    pub(super) keys: Range<usize>,
    /// With keys cut into parts: which part this is, counted over the call, otherwise `None`.
    pub(super) part: Option<usize>,
}

/// Parts that together make the output of some queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) row: usize,
    pub(super) kv_head: usize,
    pub(super) queries: Range<usize>,
    pub(super) parts: Range<usize>,
}

/// The tasks of a call, the heaviest of each row first, and the merges to do when all are done.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) tasks: Vec<Task>,
    pub(super) merges: Vec<Merge>,
    /// How many parts the merges join.
    pub(super) parts: usize,
    /// The most query rows of any part.
    pub(super) part_rows: usize,
    /// Whether the work is too small to wake other threads for.
    pub(super) inline: bool,
}

/// Cuts a call into tasks for `threads` threads; with one thread nothing is cut along its keys.
pub(super) fn plan(options: &AttentionOptions<'_>, rows: &[RowShape], head_dim: usize, threads: usize) -> Plan {
    let (group, kv_heads) = (options.group(), options.geometry.kv_heads);
    let queries_per_task = (TASK_ROWS / group).max(1);
    let mut tasks = Vec::new();
    // Products of a query and a key, all heads and tasks together.
    let mut scores = 0;
    for (row, shape) in rows.iter().enumerate() {
        let mut end = shape.length;
        while end > 0 {
            let start = (end - 1) / queries_per_task * queries_per_task;
            let keys = visible_keys(options, shape, start..end);
            scores += (end - start) * options.heads * keys.len();
            tasks.extend((0..kv_heads).map(|kv_head| Task {
                row,
                kv_head,
                queries: start..end,
                keys: keys.clone(),
                part: None,
            }));
            end = start;
        }
    }
    let inline = scores * head_dim < INLINE_PRODUCTS;
    let mut plan = Plan { tasks, merges: Vec::new(), parts: 0, part_rows: 0, inline };
    if threads > 1 && !inline {
        split_keys(group, scores / (threads * TASKS_PER_THREAD), &mut plan);
    }
    plan
}

/// The keys that any of `queries` sees, the start rounded down to a page.
fn visible_keys(options: &AttentionOptions<'_>, row: &RowShape, queries: Range<usize>) -> Range<usize> {
    let first = options.first_visible(row.start + queries.start).saturating_sub(row.first_position);
    first / PAGE_TOKENS * PAGE_TOKENS..row.start + queries.end - row.first_position
}

/// Cuts tasks of few query rows along their keys, so that each part has about `share` scores.
fn split_keys(group: usize, share: usize, plan: &mut Plan) {
    for task in std::mem::take(&mut plan.tasks) {
        let task_rows = task.queries.len() * group;
        let keys_per_part = (share / task_rows).max(LEAST_KEYS).next_multiple_of(PAGE_TOKENS);
        let count = task.keys.len().div_ceil(keys_per_part);
        if task_rows > SPLIT_ROWS || count < 2 {
            plan.tasks.push(task);
            continue;
        }
        let Task { row, kv_head, ref queries, .. } = task;
        plan.merges.push(Merge { row, kv_head, queries: queries.clone(), parts: plan.parts..plan.parts + count });
        plan.part_rows = plan.part_rows.max(task_rows);
        for start in task.keys.clone().step_by(keys_per_part) {
            let keys = start..task.keys.end.min(start + keys_per_part);
            plan.tasks.push(Task { keys, part: Some(plan.parts), ..task.clone() });
            plan.parts += 1;
        }
    }
}
