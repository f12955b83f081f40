//! Attention without a mask: every query sees all keys. In an encoder the keys are those of the same lines; a decoder
//! listens to keys that were prepared once.

#![allow(unsafe_code)]

use super::lines::{Group, HeadLayout, Kept, Line, Packed, attend, plain_score};
use crate::{
    Context, Isa, PAGE_TOKENS,
    attention::tile::{Matrix, scores},
    simd::{MAX_LANES, Vector, VectorKernel, dispatch_vector, level_for_multiple},
};

/// Why attention over all keys cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CrossAttentionError {
    /// A layout without heads, or heads without elements.
    #[error("{heads} heads of {head_dim} elements: there must be at least one of each")]
    Layout {
        /// Heads asked for.
        heads: usize,
        /// Elements of a head asked for.
        head_dim: usize,
    },
    /// A slice is not as long as the others and the layout ask for.
    #[error("{what} hold {found} numbers, expected {expected} ({width} for each line)")]
    Length {
        /// What is too long or too short.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length it should have.
        expected: usize,
        /// Elements of a line.
        width: usize,
    },
    /// There are no keys to look at.
    #[error("there are no keys: attention needs at least one line of keys and values")]
    NoKeys,
    /// Rows of one call listen to memories of different shape or format.
    #[error("row {row} listens to a memory of another layout or format than row 0: use one call for each")]
    Mixed {
        /// The first such row.
        row: usize,
    },
    /// A head that the memory lacks was asked for.
    #[error("head {head} of a memory with {heads} heads")]
    NoSuchHead {
        /// The head asked for.
        head: usize,
        /// Heads of the memory.
        heads: usize,
    },
}

/// How a [`CrossMemory`] holds its keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryFormat {
    /// As they came.
    F32,
    /// Rounded to the nearest f16: half the memory, and half the time where reading it is what takes it.
    F16,
}

/// Keys and values that many queries listen to, laid out once for all of them: one layer's of one window of audio.
#[derive(Debug)]
pub struct CrossMemory(Store);

#[derive(Debug)]
enum Store {
    F32(Packed<f32>),
    F16(Packed<u16>),
}

impl CrossMemory {
    /// Takes over lines of keys and values, both `[lines, heads * head_dim]`. Runs on all threads of the context.
    ///
    /// # Errors
    /// [`CrossAttentionError`] when the layout or the lengths do not fit, or there are no lines.
    pub fn new(
        ctx: &Context,
        layout: HeadLayout,
        keys: &[f32],
        values: &[f32],
        format: MemoryFormat,
    ) -> Result<Self, CrossAttentionError> {
        check_keys(layout, keys, values)?;
        Ok(Self(match format {
            MemoryFormat::F32 => Store::F32(Packed::new(ctx, layout, keys, values, Vec::new())),
            MemoryFormat::F16 => Store::F16(Packed::new(ctx, layout, keys, values, Vec::new())),
        }))
    }

    /// How its lines are cut into heads.
    #[must_use]
    pub fn layout(&self) -> HeadLayout {
        match &self.0 {
            Store::F32(packed) => packed.layout(),
            Store::F16(packed) => packed.layout(),
        }
    }

    /// Lines of keys.
    #[must_use]
    pub fn lines(&self) -> usize {
        match &self.0 {
            Store::F32(packed) => packed.lines(),
            Store::F16(packed) => packed.lines(),
        }
    }

    /// Bytes that it takes, and that a step which listens to it reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Store::F32(packed) => packed.elements() * 4,
            Store::F16(packed) => packed.elements() * 2,
        }
    }
}

/// Some queries that listen to one memory.
#[derive(Debug)]
pub struct CrossRow<'a> {
    /// `[tokens, heads * head_dim]`.
    pub query: &'a [f32],
    /// As the query; overwritten.
    pub output: &'a mut [f32],
    /// What they listen to. Rows with the same memory (the beams of a window) share one pass over it.
    pub memory: &'a CrossMemory,
}

/// `softmax(scale * q . k) . v` for each head, every line over all lines. `query` and `output` are `[lines, width]`, `keys`
/// and `values` `[other lines, width]` of the layout. In f32 throughout, tile by tile: no array of all scores is made.
/// Head dimensions that are multiples of 8 are fast.
///
/// # Errors
/// [`CrossAttentionError`] when the layout or the lengths do not fit, or there are no keys.
#[allow(clippy::too_many_arguments)] // the operands of one attention
pub fn full_attention(
    ctx: &Context,
    layout: HeadLayout,
    scale: f32,
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    output: &mut [f32],
) -> Result<(), CrossAttentionError> {
    check_keys(layout, keys, values)?;
    check_lines(layout, query, output.len())?;
    let packed = Packed::<f32>::new(ctx, layout, keys, values, ctx.scratch().take());
    let group = Group { packed: &packed, lines: lines(layout, query, output).collect() };
    // SAFETY: the lengths were checked, and the lines are disjoint parts of `output`.
    unsafe { attend(ctx, scale, &[group]) };
    ctx.scratch().give_back(packed.into_buffer());
    Ok(())
}

/// [`full_attention`] with queries, keys, weights and values rounded to bf16 where the machine multiplies those faster (AVX-512
/// BF16, heads of a multiple of 16): half a percent off and 1.7 times as fast, for encoders of speech. Elsewhere the same as
/// [`full_attention`].
///
/// # Errors
/// As [`full_attention`].
#[allow(clippy::too_many_arguments)] // the operands of one attention
pub fn coarse_full_attention(
    ctx: &Context,
    layout: HeadLayout,
    scale: f32,
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    output: &mut [f32],
) -> Result<(), CrossAttentionError> {
    #[cfg(target_arch = "x86_64")]
    if super::bf16::fits(ctx.isa(), layout) {
        check_keys(layout, keys, values)?;
        check_lines(layout, query, output.len())?;
        let lines: Vec<Line> = lines(layout, query, output).collect();
        // SAFETY: the instruction set is there and the lengths fit; the lines are disjoint parts of `output`.
        unsafe { super::bf16::attend(ctx, layout, scale, keys, values, &lines) };
        return Ok(());
    }
    full_attention(ctx, layout, scale, query, keys, values, output)
}

/// `softmax(scale * q . k) . v` for each head of each row over all lines of the row's memory. The memories of a call have one
/// layout and one format. A query's result has the same bits alone and beside others.
///
/// # Errors
/// [`CrossAttentionError`] when a row does not fit its memory, or the memories differ in layout or format.
pub fn cross_attention(ctx: &Context, scale: f32, rows: &mut [CrossRow<'_>]) -> Result<(), CrossAttentionError> {
    let Some(first) = rows.first().map(|row| row.memory) else { return Ok(()) };
    let layout = first.layout();
    for (number, row) in rows.iter().enumerate() {
        let alike =
            matches!((&row.memory.0, &first.0), (Store::F32(_), Store::F32(_)) | (Store::F16(_), Store::F16(_)));
        if !alike || row.memory.layout() != layout {
            return Err(CrossAttentionError::Mixed { row: number });
        }
        check_lines(layout, row.query, row.output.len())?;
    }
    match first.0 {
        Store::F32(_) => listen(ctx, scale, layout, rows, |memory| match &memory.0 {
            Store::F32(packed) => Some(packed),
            Store::F16(_) => None,
        }),
        Store::F16(_) => listen(ctx, scale, layout, rows, |memory| match &memory.0 {
            Store::F16(packed) => Some(packed),
            Store::F32(_) => None,
        }),
    }
    Ok(())
}

/// Groups checked rows by their memories and computes them.
fn listen<'a, E: Kept + 'a>(
    ctx: &Context,
    scale: f32,
    layout: HeadLayout,
    rows: &mut [CrossRow<'a>],
    packed: impl Fn(&'a CrossMemory) -> Option<&'a Packed<E>>,
) {
    let mut groups: Vec<Group<'_, E>> = Vec::new();
    for row in rows {
        let Some(packed) = packed(row.memory) else { continue };
        let lines = lines(layout, row.query, row.output);
        match groups.iter_mut().find(|group| std::ptr::eq(group.packed, packed)) {
            Some(group) => group.lines.extend(lines),
            None => groups.push(Group { packed, lines: lines.collect() }),
        }
    }
    // SAFETY: the lengths were checked, and rows are borrowed mutably, so that their outputs cannot overlap.
    unsafe { attend(ctx, scale, &groups) };
}

/// The scaled scores `scale * q . k` of some heads over all lines of a memory, which [`cross_attention`] takes the softmax of:
/// `[heads, tokens, lines]`. `query` is `[tokens, width]`.
///
/// # Errors
/// [`CrossAttentionError`] when lengths do not fit or the memory lacks a head.
pub fn cross_scores(
    ctx: &Context,
    scale: f32,
    memory: &CrossMemory,
    query: &[f32],
    heads: &[usize],
    scores: &mut [f32],
) -> Result<(), CrossAttentionError> {
    let layout = memory.layout();
    if let Some(&head) = heads.iter().find(|&&head| head >= layout.heads) {
        return Err(CrossAttentionError::NoSuchHead { head, heads: layout.heads });
    }
    check_lines(layout, query, query.len())?;
    let tokens = query.len() / layout.width();
    let expected = heads.len() * tokens * memory.lines();
    if scores.len() != expected {
        let (found, width) = (scores.len(), memory.lines());
        return Err(CrossAttentionError::Length { what: "scores", found, expected, width });
    }
    match &memory.0 {
        Store::F32(packed) => score(ctx, scale, packed, query, heads, scores),
        Store::F16(packed) => score(ctx, scale, packed, query, heads, scores),
    }
    Ok(())
}

fn score<E: Kept>(ctx: &Context, scale: f32, packed: &Packed<E>, query: &[f32], heads: &[usize], out: &mut [f32]) {
    let (layout, lines) = (packed.layout(), packed.lines());
    let tokens = query.len() / layout.width();
    let isa = level_for_multiple(ctx.isa(), layout.head_dim);
    crate::parallel::for_row_parts(ctx, out, lines, &|first, part| {
        for (number, scores) in part.chunks_exact_mut(lines).enumerate() {
            let (head, token) = (heads[(first + number) / tokens], (first + number) % tokens);
            let query = &query[token * layout.width() + head * layout.head_dim..][..layout.head_dim];
            if isa == Isa::Scalar {
                for (key, score) in scores.iter_mut().enumerate() {
                    *score = plain_score(scale, packed, head, query, key);
                }
            } else {
                // The scalar level went the other way.
                let _ = dispatch_vector(isa, ScoreLine { packed, head, query, scale, scores });
            }
        }
    });
}

/// The scores of one query against all keys of a head.
struct ScoreLine<'a, E> {
    packed: &'a Packed<E>,
    head: usize,
    query: &'a [f32],
    scale: f32,
    scores: &'a mut [f32],
}

impl<E: Kept> VectorKernel for ScoreLine<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        let head_dim = self.query.len();
        let query = Matrix { start: self.query.as_ptr().cast_mut(), stride: head_dim };
        for (page, target) in self.scores.chunks_mut(PAGE_TOKENS).enumerate() {
            // Whole vectors are written, and the keys of a page are never more than this.
            let mut all = [0.0f32; PAGE_TOKENS.next_multiple_of(MAX_LANES)];
            let out = Matrix { start: all.as_mut_ptr(), stride: PAGE_TOKENS };
            let keys = self.packed.page(page, self.head).as_ptr();
            // SAFETY: one query of `head_dim`, the page's keys, and a whole page of scores; the instruction set is the
            // caller's promise.
            unsafe { scores::<V, E, 1>(query, keys, head_dim, PAGE_TOKENS, 0..target.len(), out) };
            for (target, score) in target.iter_mut().zip(&all) {
                *target = score * self.scale;
            }
        }
    }
}

fn lines<'a>(layout: HeadLayout, query: &'a [f32], output: &'a mut [f32]) -> impl Iterator<Item = Line> + 'a {
    query
        .chunks_exact(layout.width())
        .zip(output.chunks_exact_mut(layout.width()))
        .map(|(query, output)| Line { query: query.as_ptr(), output: output.as_mut_ptr() })
}

fn check_layout(layout: HeadLayout) -> Result<(), CrossAttentionError> {
    let HeadLayout { heads, head_dim } = layout;
    if heads == 0 || head_dim == 0 || heads.checked_mul(head_dim).is_none() {
        return Err(CrossAttentionError::Layout { heads, head_dim });
    }
    Ok(())
}

fn check_keys(layout: HeadLayout, keys: &[f32], values: &[f32]) -> Result<(), CrossAttentionError> {
    check_layout(layout)?;
    let width = layout.width();
    if keys.is_empty() {
        return Err(CrossAttentionError::NoKeys);
    }
    if !keys.len().is_multiple_of(width) {
        let expected = keys.len().next_multiple_of(width);
        return Err(CrossAttentionError::Length { what: "keys", found: keys.len(), expected, width });
    }
    if values.len() != keys.len() {
        return Err(CrossAttentionError::Length { what: "values", found: values.len(), expected: keys.len(), width });
    }
    Ok(())
}

fn check_lines(layout: HeadLayout, query: &[f32], output: usize) -> Result<(), CrossAttentionError> {
    check_layout(layout)?;
    let width = layout.width();
    if !query.len().is_multiple_of(width) {
        let expected = query.len().next_multiple_of(width);
        return Err(CrossAttentionError::Length { what: "queries", found: query.len(), expected, width });
    }
    if output != query.len() {
        return Err(CrossAttentionError::Length { what: "outputs", found: output, expected: query.len(), width });
    }
    Ok(())
}
