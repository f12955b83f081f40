//! Keys and values of whole heads that every query sees, and the queries' way through them.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;

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
    /// The nearest.
    fn keep(value: f32) -> Self;
    /// Widened, exactly.
    fn widen(self) -> f32;
}

impl Kept for f32 {
    #[inline(always)]
    fn keep(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Kept for u16 {
    #[inline(always)]
    fn keep(value: f32) -> Self {
        // What lies beyond f16's range becomes its largest value: one outlier must not make a whole line NaN.
        let largest = f16::MAX.to_f32();
        f16::from_f32(if value.abs() > largest { largest.copysign(value) } else { value }).to_bits()
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        f16::from_bits(self).to_f32()
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
struct Parts<E>(*mut E);

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
            let head_of = |lines: &'_ [f32], line: usize| -> std::ops::Range<usize> {
                let at = (first + line) * width + head * layout.head_dim;
                debug_assert!(at < lines.len());
                at..at + layout.head_dim
            };
            for line in 0..count {
                for (dim, key) in keys[head_of(keys, line)].iter().enumerate() {
                    packed_keys[dim * PAGE_TOKENS + line] = E::keep(*key);
                }
                let target = &mut packed_values[line * layout.head_dim..][..layout.head_dim];
                for (target, value) in target.iter_mut().zip(&values[head_of(values, line)]) {
                    *target = E::keep(*value);
                }
            }
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
    let mut tasks = Vec::new();
    let mut products = 0;
    for (number, group) in groups.iter().enumerate() {
        let blocks = group.lines.len().div_ceil(TASK_LINES);
        products += group.lines.len() * group.packed.lines() * group.packed.layout().width();
        for head in 0..group.packed.layout().heads {
            for block in 0..blocks {
                // Blocks of even size, whole register tiles but for the last.
                let size = group.lines.len().div_ceil(blocks).next_multiple_of(TILE_ROWS).min(TASK_LINES);
                let (start, end) = (block * size, ((block + 1) * size).min(group.lines.len()));
                if start < end {
                    tasks.push((number, head, start..end));
                }
            }
        }
    }
    let run = |(number, head, lines): &(usize, usize, std::ops::Range<usize>), scratch: &mut Scratch| {
        let group = &groups[*number];
        let isa = level_for_multiple(ctx.isa(), group.packed.layout().head_dim);
        // SAFETY: the caller's promise; each task has its own heads of its own lines.
        unsafe {
            if isa == Isa::Scalar {
                plain(scale, group.packed, *head, &group.lines[lines.clone()]);
            } else {
                tiled(isa, scale, group.packed, *head, &group.lines[lines.clone()], scratch);
            }
        }
    };
    if products < INLINE_PRODUCTS || tasks.len() == 1 {
        let mut scratch = Scratch::default();
        tasks.iter().for_each(|task| run(task, &mut scratch));
        return;
    }
    let next = AtomicUsize::new(0);
    ctx.pool().run(&|_| {
        let mut scratch = Scratch::default();
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            run(task, &mut scratch);
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
        let visible = [const { 0..0 }; TILE_ROWS].map(|_: std::ops::Range<usize>| visible.clone());
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
