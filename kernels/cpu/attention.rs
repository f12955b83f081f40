//! Attention of queries over paged keys and values: causal, grouped-query, in one pass with an online softmax.

mod checks;
mod scalar;

pub use checks::AttentionError;

use crate::{Context, PageGeometry};

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
    pub pages: &'a [&'a [u16]],
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

/// Computes `softmax(scale * query . keys) . values` for all rows, in f32, keys and values read as f16.
///
/// # Errors
/// [`AttentionError`] when a shape does not fit, or a row needs keys that its pages do not hold.
pub fn attention(
    ctx: &Context,
    options: &AttentionOptions<'_>,
    rows: &mut [AttentionRow<'_>],
) -> Result<(), AttentionError> {
    checks::check(options, rows)?;
    let _ = ctx;
    for row in rows {
        scalar::attention_row(options, row);
    }
    Ok(())
}
