//! How the work of one call is cut into tasks. Pure: shapes in, tasks out.

use std::ops::Range;

use super::{AttentionOptions, row_group::BLOCK_TOKENS, task::blocks};
use crate::PAGE_TOKENS;

/// Query rows (queries times query heads per KV head) that a task aims at: enough to pay for widening the pages once.
const TASK_ROWS: usize = 64;

/// Only tasks of at most so many query rows are cut along their keys: with more, there are enough tasks anyway.
const SPLIT_ROWS: usize = 24;

/// Tasks per thread that a cut along the keys aims at, so that a thread that comes late leaves little idle time.
const TASKS_PER_THREAD: usize = 3;

/// Below so many multiply-adds per product (about two microseconds of one core) the caller works alone.
const INLINE_PRODUCTS: usize = 60_000;

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
    /// With keys dealt to several tasks: where the states of this task's blocks begin, counted over the call; otherwise
    /// `None`, and the task joins its blocks itself.
    pub(super) part: Option<usize>,
}

/// The states of blocks that together make the output of some queries.
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
    /// How many states of blocks the merges join.
    pub(super) parts: usize,
    /// The most query rows of any of them.
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
        split_keys(group, scores / (threads * TASKS_PER_THREAD), rows, &mut plan);
    }
    plan
}

/// The keys that any of `queries` sees, the start rounded down to a page.
fn visible_keys(options: &AttentionOptions<'_>, row: &RowShape, queries: Range<usize>) -> Range<usize> {
    let first = options.first_visible(row.start + queries.start).saturating_sub(row.first_position);
    first / PAGE_TOKENS * PAGE_TOKENS..row.start + queries.end - row.first_position
}

/// Deals the keys of tasks of few query rows to several tasks, whole blocks to each, so that each has about `share` scores.
fn split_keys(group: usize, share: usize, rows: &[RowShape], plan: &mut Plan) {
    for task in std::mem::take(&mut plan.tasks) {
        let task_rows = task.queries.len() * group;
        let blocks_per_task = (share / task_rows).div_ceil(BLOCK_TOKENS).max(1);
        let blocks: Vec<Range<usize>> = blocks(rows[task.row].first_position, task.keys.clone()).collect();
        if task_rows > SPLIT_ROWS || blocks.len() <= blocks_per_task {
            plan.tasks.push(task);
            continue;
        }
        let Task { row, kv_head, ref queries, .. } = task;
        let parts = plan.parts..plan.parts + blocks.len();
        plan.merges.push(Merge { row, kv_head, queries: queries.clone(), parts });
        plan.part_rows = plan.part_rows.max(task_rows);
        for blocks in blocks.chunks(blocks_per_task) {
            let keys = blocks[0].start..blocks[blocks.len() - 1].end;
            plan.tasks.push(Task { keys, part: Some(plan.parts), ..task.clone() });
            plan.parts += blocks.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{AttentionOptions, Plan, RowShape, blocks, plan};
    use crate::{PAGE_TOKENS, PageGeometry};

    fn options(heads: usize, kv_heads: usize, window: Option<usize>) -> AttentionOptions<'static> {
        let geometry = PageGeometry { kv_heads, head_dim: 64 };
        AttentionOptions { heads, geometry, scale: 1.0, window, softcap: None, sinks: None }
    }

    /// Every visible pair of a query and a key lies in exactly one task, and every part in exactly one merge.
    fn check(options: &AttentionOptions<'_>, rows: &[RowShape], plan: &Plan) {
        let mut covered: HashMap<(usize, usize, usize), Vec<std::ops::Range<usize>>> = HashMap::new();
        for task in &plan.tasks {
            assert!(task.keys.start.is_multiple_of(PAGE_TOKENS) && task.keys.start < task.keys.end, "{task:?}");
            for query in task.queries.clone() {
                covered.entry((task.row, task.kv_head, query)).or_default().push(task.keys.clone());
            }
        }
        for (row, shape) in rows.iter().enumerate() {
            for kv_head in 0..options.geometry.kv_heads {
                for query in 0..shape.length {
                    let mut ranges = covered.remove(&(row, kv_head, query)).unwrap_or_default();
                    ranges.sort_by_key(|range| range.start);
                    let position = shape.start + query;
                    assert!(
                        ranges[0].start + shape.first_position
                            <= options.first_visible(position).max(shape.first_position)
                    );
                    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
                    assert!(ranges.last().is_some_and(|range| range.end + shape.first_position > position));
                }
            }
        }
        assert!(covered.is_empty());

        let mut parts = Vec::new();
        for task in &plan.tasks {
            if let Some(first) = task.part {
                let count = blocks(rows[task.row].first_position, task.keys.clone()).count();
                parts.extend(first..first + count);
            }
        }
        parts.sort_unstable();
        assert_eq!(parts, (0..plan.parts).collect::<Vec<usize>>());
        let merged: Vec<usize> = plan.merges.iter().flat_map(|merge| merge.parts.clone()).collect();
        assert_eq!(merged, parts);
    }

    #[test]
    fn every_visible_pair_is_in_exactly_one_task() {
        let rows = [(0, 1), (5000, 1), (0, 300), (4095, 2), (100, 0), (777, 21), (63, 65)]
            .map(|(start, length)| RowShape { start, length, first_position: 0 });
        for (heads, kv_heads) in [(9, 3), (32, 8), (8, 8), (71, 1), (200, 1)] {
            for window in [None, Some(1), Some(1000)] {
                for threads in [1, 2, 7, 64] {
                    let options = options(heads, kv_heads, window);
                    check(&options, &rows, &plan(&options, &rows, 64, threads));
                    for row in rows {
                        check(&options, &[row], &plan(&options, &[row], 64, threads));
                    }
                }
            }
        }
    }

    #[test]
    fn a_long_decode_gives_every_thread_work_and_one_thread_no_parts() {
        let row = RowShape { start: 4000, length: 1, first_position: 0 };
        let options = options(9, 3, None);
        let shared = plan(&options, &[row], 64, 8);
        assert!(shared.tasks.len() >= 16 && !shared.inline, "{}", shared.tasks.len());
        let alone = plan(&options, &[row], 64, 1);
        assert_eq!((alone.tasks.len(), alone.parts), (3, 0));
    }

    #[test]
    fn a_short_decode_stays_on_the_caller() {
        let row = RowShape { start: 20, length: 1, first_position: 0 };
        let plan = plan(&options(9, 3, None), &[row], 64, 8);
        assert!(plan.inline && plan.parts == 0);
    }
}
