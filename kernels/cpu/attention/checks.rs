//! What must hold before attention runs.

use super::{AttentionOptions, AttentionRow};
use crate::{AffinePages, PAGE_TOKENS, PageFormat};

/// Why attention cannot run: the shapes of a call contradict each other.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AttentionError {
    /// The query heads cannot be shared out between the KV heads, or there are none.
    #[error("{heads} query heads cannot be shared out evenly between {kv_heads} key-value heads")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key-value heads.
        kv_heads: usize,
    },
    /// The head dimension is zero.
    #[error("the head dimension is zero")]
    HeadDimension,
    /// The window is zero: a query must at least see itself.
    #[error("the sliding window is zero tokens wide; a query must at least see its own position")]
    Window,
    /// The softcap is not a positive number.
    #[error("the softcap is {softcap}; it must be positive and finite")]
    Softcap {
        /// What was given.
        softcap: f32,
    },
    /// Not one sink per query head.
    #[error("{sinks} attention sinks for {heads} query heads; there must be one per head")]
    Sinks {
        /// Sinks given.
        sinks: usize,
        /// Query heads.
        heads: usize,
    },
    /// A row's query or output has the wrong length.
    #[error("row {row}: the {what} has {got} elements; {length} tokens need {expected}")]
    RowLength {
        /// Which row of the call.
        row: usize,
        /// `query` or `output`.
        what: &'static str,
        /// Tokens of the row.
        length: usize,
        /// Elements that must be there.
        expected: usize,
        /// Elements that are there.
        got: usize,
    },
    /// The pages end before the row's last token.
    #[error(
        "row {row}: {got} pages from position {first_position} on hold too few tokens; up to position {end} {needed} pages are needed"
    )]
    PagesMissing {
        /// Which row of the call.
        row: usize,
        /// The position of the first token of the first page.
        first_position: usize,
        /// One past the last query's position.
        end: usize,
        /// Pages that must be there.
        needed: usize,
        /// Pages that are there.
        got: usize,
    },
    /// A page does not have the size that the geometry gives.
    #[error("row {row}: page {page} has {got} elements; this geometry's pages have {expected}")]
    PageSize {
        /// Which row of the call.
        row: usize,
        /// Which of its pages.
        page: usize,
        /// Elements that must be there.
        expected: usize,
        /// Elements that are there.
        got: usize,
    },
    /// A page is quantized in a way that this head dimension does not allow.
    #[error(
        "row {row}: page {page} holds {bits} bits in groups of {group}; 4 or 8 bits in groups of 32, 64 or 128 that divide \
         the head dimension are possible"
    )]
    PageFormat {
        /// Which row of the call.
        row: usize,
        /// Which of its pages.
        page: usize,
        /// Bits per element.
        bits: usize,
        /// Elements per group.
        group: usize,
    },
    /// A query would see keys that were dropped.
    #[error("row {row}: its first query sees keys from position {needed} on, but the pages begin at {first_position}")]
    KeysDropped {
        /// Which row of the call.
        row: usize,
        /// The first position that must be there.
        needed: usize,
        /// The first position that is there.
        first_position: usize,
    },
}

/// Checks one call of attention.
pub(super) fn check(options: &AttentionOptions<'_>, rows: &[AttentionRow<'_>]) -> Result<(), AttentionError> {
    let (heads, geometry) = (options.heads, options.geometry);
    let kv_heads = geometry.kv_heads;
    if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(AttentionError::Heads { heads, kv_heads });
    }
    if geometry.head_dim == 0 {
        return Err(AttentionError::HeadDimension);
    }
    if options.window == Some(0) {
        return Err(AttentionError::Window);
    }
    if let Some(softcap) = options.softcap.filter(|&softcap| !(softcap > 0.0 && softcap.is_finite())) {
        return Err(AttentionError::Softcap { softcap });
    }
    if let Some(sinks) = options.sinks.filter(|sinks| sinks.len() != heads) {
        return Err(AttentionError::Sinks { sinks: sinks.len(), heads });
    }
    rows.iter().enumerate().try_for_each(|(index, row)| check_row(options, index, row))
}

fn check_row(options: &AttentionOptions<'_>, index: usize, row: &AttentionRow<'_>) -> Result<(), AttentionError> {
    let AttentionRow { start, length, first_position, .. } = *row;
    let expected = length * options.heads * options.geometry.head_dim;
    for (what, got) in [("query", row.query.len()), ("output", row.output.len())] {
        if got != expected {
            return Err(AttentionError::RowLength { row: index, what, length, expected, got });
        }
    }
    if length == 0 {
        return Ok(());
    }
    let needed = options.first_visible(start);
    if needed < first_position {
        return Err(AttentionError::KeysDropped { row: index, needed, first_position });
    }
    let end = start + length;
    let needed = (end - first_position).div_ceil(PAGE_TOKENS);
    let got = row.pages.len();
    if got < needed {
        return Err(AttentionError::PagesMissing { row: index, first_position, end, needed, got });
    }
    row.pages.iter().enumerate().try_for_each(|(number, page)| {
        if let PageFormat::Affine(affine) = page.format
            && !affine.fits(options.geometry)
        {
            let AffinePages { bits, group } = affine;
            return Err(AttentionError::PageFormat { row: index, page: number, bits, group });
        }
        let (expected, got) = (options.geometry.elements_as(page.format), page.data.len());
        if got == expected { Ok(()) } else { Err(AttentionError::PageSize { row: index, page: number, expected, got }) }
    })
}
