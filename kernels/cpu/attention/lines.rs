//! Keys and values of whole heads that every query sees, and the queries' way through them.

#![allow(unsafe_code)]

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use half::{
    f16,
    slice::{HalfBitsSliceExt, HalfFloatSliceExt},
};

use super::{
    row_group::{BLOCK_PAGES, BLOCK_TOKENS, Block, RowGroup, Running},
    tile::{Element, TILE_ROWS},
};
use crate::{
    Context, Isa, PAGE_TOKENS,
    simd::{dispatch_vector, level_for_multiple},
};

/// Queries of a task: their outputs stay in the first-level cache, and a block of keys is read once for all of them.
const TASK_LINES: usize = 48;

/// Below so many multiply-adds per product (some microseconds of one core) the caller works alone.
const INLINE_PRODUCTS: usize = 60_000;

/// How a line is cut into heads: `[heads, head_dim]`, one query head for each head of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadLayout {
    /// Heads of a line.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl HeadLayout {
    /// Elements of a line.
    #[must_use]
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements that keys and values of one page of one head take.
    pub(super) fn page_elements(&self) -> usize {
        2 * self.head_dim * PAGE_TOKENS
    }
}

/// An element that keys and values are kept as.
pub(super) trait Kept: Element + Default + Send + Sync {
    /// The nearest of each.
    fn keep(source: &[f32], target: &mut [Self]);
    /// Widened, exactly.
    fn widen(self) -> f32;
}

impl Kept for f32 {
    fn keep(source: &[f32], target: &mut [Self]) {
        target.copy_from_slice(source);
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Kept for u16 {
    fn keep(source: &[f32], target: &mut [Self]) {
        /// Numbers that are rounded together.
        const PART: usize = 64;
        // What lies beyond f16's range becomes its largest value: one outlier must not make a whole line NaN.
        let largest = f16::MAX.to_f32();
        for (source, target) in source.chunks(PART).zip(target.chunks_mut(PART)) {
            let mut held = [0.0; PART];
            for (held, value) in held.iter_mut().zip(source) {
                let value = if *value > largest { largest } else { *value };
                *held = if value < -largest { -largest } else { value };
            }
            target.reinterpret_cast_mut::<f16>().convert_from_f32_slice(&held[..source.len()]);
        }
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        f16::from_bits(self).to_f32()
    }
}

/// `target[dim][line] = source[line][dim]`, `target`'s lines being [`PAGE_TOKENS`] long.
pub(super) fn transpose<E: Copy>(source: &[E], head_dim: usize, target: &mut [E]) {
    /// Lines that are moved together: what they write is a cache line of f32.
    const TOGETHER: usize = 16;
    for (part, lines) in source.chunks(TOGETHER * head_dim).enumerate() {
        for (dim, target) in target.chunks_exact_mut(PAGE_TOKENS).enumerate() {
            let target = &mut target[part * TOGETHER..][..lines.len() / head_dim];
            for (target, line) in target.iter_mut().zip(lines.chunks_exact(head_dim)) {
                *target = line[dim];
            }
        }
    }
}

/// Lines of keys and values as attention reads them: page by page, in a page head by head, the keys `[head_dim,
/// PAGE_TOKENS]` and then the values `[PAGE_TOKENS, head_dim]`. What the last page holds beyond the lines is zero.
#[derive(Debug)]
pub(super) struct Packed<E> {
    layout: HeadLayout,
    lines: usize,
    data: Vec<E>,
}

/// A buffer whose parts different tasks write.
pub(super) struct Parts<E>(pub(super) *mut E);

// SAFETY: each task writes only its own part, and the buffer is borrowed until all are done.
unsafe impl<E: Send> Sync for Parts<E> {}

impl<E: Kept> Packed<E> {
    /// Packs lines, `[lines, width]` each, into `buffer`, whose memory is used again. The lengths were checked.
    pub(super) fn new(ctx: &Context, layout: HeadLayout, keys: &[f32], values: &[f32], buffer: Vec<E>) -> Self {
        let (width, page_elements) = (layout.width(), layout.page_elements());
        let lines = keys.len() / width;
        let pages = lines.div_ceil(PAGE_TOKENS);
        let mut data = buffer;
        data.resize(pages * layout.heads * page_elements, E::default());
        let parts = &Parts(data.as_mut_ptr());
        ctx.pool().for_each(pages * layout.heads, &|task| {
            let (page, head) = (task / layout.heads, task % layout.heads);
            let first = page * PAGE_TOKENS;
            let count = PAGE_TOKENS.min(lines - first);
            // SAFETY: the part of this page and head, inside the buffer and this task's alone.
            let part = unsafe { std::slice::from_raw_parts_mut(parts.0.add(task * page_elements), page_elements) };
            let (packed_keys, packed_values) = part.split_at_mut(page_elements / 2);
            let head_dim = layout.head_dim;
            let mut rounded = vec![E::default(); count * head_dim];
            for (line, rounded) in rounded.chunks_exact_mut(head_dim).enumerate() {
                let at = (first + line) * width + head * head_dim;
                E::keep(&keys[at..at + head_dim], rounded);
                E::keep(&values[at..at + head_dim], &mut packed_values[line * head_dim..][..head_dim]);
            }
            transpose(&rounded, head_dim, packed_keys);
            if count < PAGE_TOKENS {
                packed_keys.chunks_exact_mut(PAGE_TOKENS).for_each(|dim| dim[count..].fill(E::default()));
                packed_values[count * layout.head_dim..].fill(E::default());
            }
        });
        Self { layout, lines, data }
    }

    pub(super) fn layout(&self) -> HeadLayout {
        self.layout
    }

    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    pub(super) fn elements(&self) -> usize {
        self.data.len()
    }

    /// Gives the memory back.
    pub(super) fn into_buffer(self) -> Vec<E> {
        self.data
    }

    /// Keys and values of a page of a head.
    pub(super) fn page(&self, page: usize, head: usize) -> &[E] {
        let elements = self.layout.page_elements();
        &self.data[(page * self.layout.heads + head) * elements..][..elements]
    }

    pub(super) fn pages(&self) -> usize {
        self.lines.div_ceil(PAGE_TOKENS)
    }
}

/// A query and where its result goes, both `[heads, head_dim]`.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) query: *const f32,
    pub(super) output: *mut f32,
}

// SAFETY: made of slices that are borrowed for the whole call; tasks write disjoint heads of disjoint lines.
unsafe impl Sync for Line {}
// SAFETY: as above.
unsafe impl Send for Line {}

/// Lines that look into the same keys.
pub(super) struct Group<'a, E> {
    pub(super) packed: &'a Packed<E>,
    pub(super) lines: Vec<Line>,
}

/// Working memory of one thread.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    maxima: Vec<f32>,
    sums: Vec<f32>,
    outputs: Vec<f32>,
}

/// `softmax(scale * query . keys) . values` of every line over all keys of its group, head by head. A line's result has the
/// same bits whatever is computed beside it.
///
/// # Safety
/// The queries and outputs of the lines are as long as the layout of their group says, and no two outputs overlap.
pub(super) unsafe fn attend<E: Kept>(ctx: &Context, scale: f32, groups: &[Group<'_, E>]) {
    let shapes: Vec<(usize, usize, usize)> = groups
        .iter()
        .map(|group| {
            let layout = group.packed.layout();
            (layout.heads, group.lines.len(), group.packed.lines() * layout.width())
        })
        .collect();
    each_task(ctx, &shapes, Scratch::default, |number, head, range, scratch| {
        let group = &groups[number];
        let isa = level_for_multiple(ctx.isa(), group.packed.layout().head_dim);
        // SAFETY: the caller's promise; each task has its own heads of its own lines.
        unsafe {
            if isa == Isa::Scalar {
                plain(scale, group.packed, head, &group.lines[range]);
            } else {
                tiled(isa, scale, group.packed, head, &group.lines[range], scratch);
            }
        }
    });
}

/// Cuts groups into tasks and runs them: `work(group, head, lines, working memory)`. Of each group its heads, its lines, and
/// what a line is multiplied with.
pub(super) fn each_task<S>(
    ctx: &Context,
    groups: &[(usize, usize, usize)],
    memory: impl Fn() -> S + Sync,
    work: impl Fn(usize, usize, Range<usize>, &mut S) + Sync,
) {
    let mut tasks = Vec::new();
    let mut products = 0;
    for (number, &(heads, lines, products_of_line)) in groups.iter().enumerate() {
        products += lines * products_of_line;
        // Blocks of even size, whole register tiles but for the last.
        let size = lines.div_ceil(lines.div_ceil(TASK_LINES).max(1)).next_multiple_of(TILE_ROWS).min(TASK_LINES);
        for head in 0..heads {
            tasks.extend((0..lines).step_by(size.max(1)).map(|start| (number, head, start..(start + size).min(lines))));
        }
    }
    let run = |(number, head, range): &(usize, usize, Range<usize>), memory: &mut S| {
        work(*number, *head, range.clone(), memory);
    };
    if products < INLINE_PRODUCTS || tasks.len() == 1 {
        let mut memory = memory();
        tasks.iter().for_each(|task| run(task, &mut memory));
        return;
    }
    let next = AtomicUsize::new(0);
    ctx.pool().run(&|_| {
        let mut memory = memory();
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            run(task, &mut memory);
        }
    });
}

/// Register tiles of lines against block after block of keys.
///
/// # Safety
/// As for [`attend`].
unsafe fn tiled<E: Kept>(isa: Isa, scale: f32, packed: &Packed<E>, head: usize, lines: &[Line], scratch: &mut Scratch) {
    let head_dim = packed.layout().head_dim;
    scratch.queries.clear();
    for line in lines {
        // SAFETY: the caller's promise.
        let query = unsafe { std::slice::from_raw_parts(line.query.add(head * head_dim), head_dim) };
        scratch.queries.extend(query.iter().map(|value| value * scale));
    }
    scratch.scores.resize(TILE_ROWS * BLOCK_TOKENS, 0.0);
    reset(&mut scratch.maxima, lines.len(), f32::NEG_INFINITY);
    reset(&mut scratch.sums, lines.len(), 0.0);
    reset(&mut scratch.outputs, lines.len() * head_dim, 0.0);
    let tiles = lines.len().div_ceil(TILE_ROWS);
    for first in (0..packed.pages()).step_by(BLOCK_PAGES) {
        let count = BLOCK_PAGES.min(packed.pages() - first);
        let mut starts = [std::ptr::null::<E>(); BLOCK_PAGES];
        for (page, start) in starts[..count].iter_mut().enumerate() {
            *start = packed.page(first + page, head).as_ptr();
        }
        let visible = 0..BLOCK_TOKENS.min(packed.lines() - first * PAGE_TOKENS);
        let visible = [const { 0..0 }; TILE_ROWS].map(|_: Range<usize>| visible.clone());
        for tile in 0..tiles {
            // Tiles of even size: 8 lines are two of 4, not one of 6 and one of 2.
            let rows = lines.len() * tile / tiles..lines.len() * (tile + 1) / tiles;
            let elements = rows.start * head_dim..rows.end * head_dim;
            let kernel = RowGroup {
                block: Block { pages: &starts[..count], head_dim, softcap: None },
                queries: &scratch.queries[elements.clone()],
                visible: &visible[..rows.len()],
                running: Running {
                    maxima: &mut scratch.maxima[rows.clone()],
                    sums: &mut scratch.sums[rows],
                    outputs: &mut scratch.outputs[elements],
                },
                scores: &mut scratch.scores,
            };
            // The caller has sent the scalar level elsewhere.
            let _ = dispatch_vector(isa, kernel);
        }
    }
    for ((line, sum), source) in lines.iter().zip(&scratch.sums).zip(scratch.outputs.chunks_exact(head_dim)) {
        let factor = 1.0 / sum;
        // SAFETY: the caller's promise: this head of this line is this task's alone.
        let target = unsafe { std::slice::from_raw_parts_mut(line.output.add(head * head_dim), head_dim) };
        target.iter_mut().zip(source).for_each(|(target, source)| *target = source * factor);
    }
}

fn reset(buffer: &mut Vec<f32>, length: usize, value: f32) {
    buffer.clear();
    buffer.resize(length, value);
}

/// The readable reference: one line at a time, all its scores at once.
///
/// # Safety
/// As for [`attend`].
unsafe fn plain<E: Kept>(scale: f32, packed: &Packed<E>, head: usize, lines: &[Line]) {
    let head_dim = packed.layout().head_dim;
    for line in lines {
        // SAFETY: the caller's promise.
        let (query, output) = unsafe {
            (
                std::slice::from_raw_parts(line.query.add(head * head_dim), head_dim),
                std::slice::from_raw_parts_mut(line.output.add(head * head_dim), head_dim),
            )
        };
        let mut scores: Vec<f32> =
            (0..packed.lines()).map(|key| plain_score(scale, packed, head, query, key)).collect();
        let maximum = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - maximum).exp());
        let sum: f32 = scores.iter().sum();
        output.fill(0.0);
        for (key, weight) in scores.into_iter().enumerate() {
            let values = &packed.page(key / PAGE_TOKENS, head)[(PAGE_TOKENS + key % PAGE_TOKENS) * head_dim..];
            for (output, value) in output.iter_mut().zip(values) {
                *output += weight / sum * value.widen();
            }
        }
    }
}

/// One score, from the definition.
pub(super) fn plain_score<E: Kept>(scale: f32, packed: &Packed<E>, head: usize, query: &[f32], key: usize) -> f32 {
    let keys = packed.page(key / PAGE_TOKENS, head);
    let dot: f32 =
        query.iter().enumerate().map(|(dim, query)| query * keys[dim * PAGE_TOKENS + key % PAGE_TOKENS].widen()).sum();
    dot * scale
}
