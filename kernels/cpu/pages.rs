//! The layout of KV pages.
//!
//! A page holds [`PAGE_TOKENS`] tokens of one layer in f16. Each KV head has its keys and then its values side by side:
//! keys with tokens innermost (`[head_dim, PAGE_TOKENS]`), so that one query's scores against many keys are plain
//! multiply-adds with no sum across lanes; values with the head dimension innermost (`[PAGE_TOKENS, head_dim]`), so that
//! the weighted sum of values is the same. Callers must treat a page as opaque.

use half::f16;

/// Tokens per page.
pub const PAGE_TOKENS: usize = 64;

/// The shape of one layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageGeometry {
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of one head of keys, and of values.
    pub head_dim: usize,
}

impl PageGeometry {
    /// The f16 elements of one layer's page, keys and values.
    #[must_use]
    pub fn elements(&self) -> usize {
        2 * self.kv_heads * self.head_dim * PAGE_TOKENS
    }

    /// Where the keys of `kv_head` begin in a page.
    pub(crate) fn keys_start(&self, kv_head: usize) -> usize {
        2 * kv_head * self.head_dim * PAGE_TOKENS
    }

    /// Where the values of `kv_head` begin in a page.
    pub(crate) fn values_start(&self, kv_head: usize) -> usize {
        self.keys_start(kv_head) + self.head_dim * PAGE_TOKENS
    }
}

/// Writes `tokens` tokens into `page` from token `offset` of the page on. `keys` and `values` are
/// `[tokens, kv_heads, head_dim]`. Each value is rounded to the nearest f16; finite values beyond f16's range become its
/// largest finite value, so that one outlier cannot turn a whole attention row into NaN.
///
/// # Panics
/// If the page, the keys or the values do not have the length that `geometry` and `tokens` ask for, or the tokens do not
/// fit behind `offset`.
pub fn append(geometry: PageGeometry, page: &mut [u16], offset: usize, keys: &[f32], values: &[f32], tokens: usize) {
    let PageGeometry { kv_heads, head_dim } = geometry;
    check(geometry, page.len(), offset, keys.len(), values.len(), tokens);
    for token in 0..tokens {
        for kv_head in 0..kv_heads {
            let source = (token * kv_heads + kv_head) * head_dim;
            let keys_start = geometry.keys_start(kv_head) + offset + token;
            let values_start = geometry.values_start(kv_head) + (offset + token) * head_dim;
            for dim in 0..head_dim {
                page[keys_start + dim * PAGE_TOKENS] = saturating_f16(keys[source + dim]);
                page[values_start + dim] = saturating_f16(values[source + dim]);
            }
        }
    }
}

/// Reads `tokens` tokens from token `offset` of the page on: the exact inverse of [`append`] (up to its rounding).
///
/// # Panics
/// As [`append`].
pub fn read_page(
    geometry: PageGeometry,
    page: &[u16],
    offset: usize,
    keys: &mut [f32],
    values: &mut [f32],
    tokens: usize,
) {
    let PageGeometry { kv_heads, head_dim } = geometry;
    check(geometry, page.len(), offset, keys.len(), values.len(), tokens);
    for token in 0..tokens {
        for kv_head in 0..kv_heads {
            let target = (token * kv_heads + kv_head) * head_dim;
            let keys_start = geometry.keys_start(kv_head) + offset + token;
            let values_start = geometry.values_start(kv_head) + (offset + token) * head_dim;
            for dim in 0..head_dim {
                keys[target + dim] = f16::from_bits(page[keys_start + dim * PAGE_TOKENS]).to_f32();
                values[target + dim] = f16::from_bits(page[values_start + dim]).to_f32();
            }
        }
    }
}

fn check(geometry: PageGeometry, page: usize, offset: usize, keys: usize, values: usize, tokens: usize) {
    let expected = tokens * geometry.kv_heads * geometry.head_dim;
    assert_eq!(page, geometry.elements(), "page length against its geometry {geometry:?}");
    assert_eq!(keys, expected, "keys against {tokens} tokens of {geometry:?}");
    assert_eq!(values, expected, "values against {tokens} tokens of {geometry:?}");
    assert!(offset + tokens <= PAGE_TOKENS, "{tokens} tokens at {offset} in a page of {PAGE_TOKENS}");
}

fn saturating_f16(value: f32) -> u16 {
    let largest = f16::MAX.to_f32();
    let value = if value.is_finite() { value.clamp(-largest, largest) } else { value };
    f16::from_f32(value).to_bits()
}
