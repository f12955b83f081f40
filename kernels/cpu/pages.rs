//! The layout of KV pages.
//!
//! A page holds [`PAGE_TOKENS`] tokens of one layer in f16. Each KV head has its keys and then its values side by side:
//! keys with tokens innermost (`[head_dim, PAGE_TOKENS]`), so that one query's scores against many keys are plain
//! multiply-adds with no sum across lanes; values with the head dimension innermost (`[PAGE_TOKENS, head_dim]`), so that
//! the weighted sum of values is the same. Callers treat a page as opaque, but for moving it elsewhere.
//!
//! A page of affine-quantized keys and values has the same order ([`affine`]).

#![allow(unsafe_code)]

mod affine;

use half::f16;

pub(crate) use affine::widen_affine;
pub use affine::{AffinePages, AffineTokens, append_affine, read_affine, write_affine};

use crate::{
    Isa,
    simd::{Kernel, Vector, VectorKernel, dispatch},
};

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

/// Which half of a head's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Half {
    /// Its keys.
    Keys,
    /// Its values.
    Values,
}

/// How a page holds its keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageFormat {
    /// As f16.
    F16,
    /// Affine-quantized.
    Affine(AffinePages),
}

/// One layer's page.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// How it is held.
    pub format: PageFormat,
    /// [`PageGeometry::elements_as`] 16-bit elements.
    pub data: &'a [u16],
}

impl<'a> From<&'a [u16]> for Page<'a> {
    /// A page of f16.
    fn from(data: &'a [u16]) -> Self {
        Self { format: PageFormat::F16, data }
    }
}

impl PageGeometry {
    /// The f16 elements of one layer's page, keys and values.
    #[must_use]
    pub fn elements(&self) -> usize {
        2 * self.kv_heads * self.head_dim * PAGE_TOKENS
    }

    /// The 16-bit elements of one layer's page in a format.
    #[must_use]
    pub fn elements_as(&self, format: PageFormat) -> usize {
        self.kv_heads * self.head_elements(format)
    }

    /// The 16-bit elements that a head's keys and values take, side by side.
    pub(crate) fn head_elements(&self, format: PageFormat) -> usize {
        match format {
            PageFormat::F16 => 2 * self.head_dim * PAGE_TOKENS,
            PageFormat::Affine(affine) => affine.head_elements(*self),
        }
    }

    /// Where the keys of `kv_head` begin in a page.
    #[must_use]
    pub fn keys_start(&self, kv_head: usize) -> usize {
        2 * kv_head * self.head_dim * PAGE_TOKENS
    }

    /// Where the values of `kv_head` begin in a page.
    #[must_use]
    pub fn values_start(&self, kv_head: usize) -> usize {
        self.keys_start(kv_head) + self.head_dim * PAGE_TOKENS
    }
}

/// Writes `tokens` tokens into `page` from token `offset` of the page on. `keys` and `values` are
/// `[tokens, kv_heads, head_dim]`. Each value is rounded to the nearest finite f16: what lies beyond f16's range becomes
/// its largest value, so that one outlier cannot turn a whole attention row into NaN.
///
/// # Panics
/// If the page, the keys or the values do not have the length that `geometry` and `tokens` ask for, or the tokens do not
/// fit behind `offset`.
pub fn append(geometry: PageGeometry, page: &mut [u16], offset: usize, keys: &[f32], values: &[f32], tokens: usize) {
    check(geometry, page.len(), offset, keys.len(), values.len(), tokens);
    dispatch(Isa::detect(), Append { geometry, page, offset, keys, values, tokens });
}

/// Tokens whose keys are rounded before they are spread over the page, so that the writes to one line fall together.
const SPREAD_TOKENS: usize = 8;

/// The most elements of a head that the vector version has room for.
const MAX_HEAD_DIM: usize = 512;

struct Append<'a> {
    geometry: PageGeometry,
    page: &'a mut [u16],
    offset: usize,
    keys: &'a [f32],
    values: &'a [f32],
    tokens: usize,
}

impl Append<'_> {
    /// Where head `kv_head` of `token` begins in keys and values.
    fn source(&self, token: usize, kv_head: usize) -> usize {
        (token * self.geometry.kv_heads + kv_head) * self.geometry.head_dim
    }
}

impl Kernel for Append<'_> {
    fn scalar(self) {
        let PageGeometry { kv_heads, head_dim } = self.geometry;
        for token in 0..self.tokens {
            for kv_head in 0..kv_heads {
                let source = self.source(token, kv_head);
                let keys_start = self.geometry.keys_start(kv_head) + self.offset + token;
                let values_start = self.geometry.values_start(kv_head) + (self.offset + token) * head_dim;
                for dim in 0..head_dim {
                    self.page[keys_start + dim * PAGE_TOKENS] = saturating_f16(self.keys[source + dim]);
                    self.page[values_start + dim] = saturating_f16(self.values[source + dim]);
                }
            }
        }
    }
}

impl VectorKernel for Append<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        let PageGeometry { kv_heads, head_dim } = self.geometry;
        if head_dim > MAX_HEAD_DIM {
            return self.scalar();
        }
        let mut rounded = [0u16; SPREAD_TOKENS * MAX_HEAD_DIM];
        for first in (0..self.tokens).step_by(SPREAD_TOKENS) {
            let count = SPREAD_TOKENS.min(self.tokens - first);
            for kv_head in 0..kv_heads {
                for index in 0..count {
                    let token = first + index;
                    let source = self.source(token, kv_head);
                    let values_start = self.geometry.values_start(kv_head) + (self.offset + token) * head_dim;
                    // SAFETY: the caller's promise.
                    unsafe {
                        let keys = &self.keys[source..source + head_dim];
                        round_saturating::<V>(keys, &mut rounded[index * head_dim..(index + 1) * head_dim]);
                        let values = &self.values[source..source + head_dim];
                        round_saturating::<V>(values, &mut self.page[values_start..values_start + head_dim]);
                    }
                }
                let keys_start = self.geometry.keys_start(kv_head) + self.offset + first;
                let lines = self.page[keys_start..].chunks_mut(PAGE_TOKENS).take(head_dim);
                for (dim, line) in lines.enumerate() {
                    for (index, key) in line[..count].iter_mut().enumerate() {
                        *key = rounded[index * head_dim + dim];
                    }
                }
            }
        }
    }
}

/// Rounds to the nearest finite f16; NaN stays NaN.
///
/// # Safety
/// The machine must have `V`'s instruction set.
#[inline(always)]
unsafe fn round_saturating<V: Vector>(source: &[f32], out: &mut [u16]) {
    let mut sources = source.chunks_exact(V::LANES);
    let mut targets = out.chunks_exact_mut(V::LANES);
    // SAFETY: the chunks have LANES elements; the instruction set is the caller's promise.
    unsafe {
        let (least, largest) = (V::splat(f16::MIN.to_f32()), V::splat(f16::MAX.to_f32()));
        for (source, target) in (&mut sources).zip(&mut targets) {
            V::load(source.as_ptr()).min(largest).max(least).store_f16(target.as_mut_ptr());
        }
    }
    let tails = sources.remainder().iter().zip(targets.into_remainder());
    tails.for_each(|(&source, target)| *target = saturating_f16(source));
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
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())).to_bits()
}

#[cfg(test)]
mod tests {
    use half::f16;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::{Append, PAGE_TOKENS, PageGeometry, append, read_page};
    use crate::{Isa, simd::dispatch};

    #[test]
    fn what_is_appended_is_read_back_rounded_to_f16() {
        let mut rng = StdRng::seed_from_u64(60);
        for (kv_heads, head_dim) in [(1, 1), (3, 64), (2, 72), (5, 13), (1, 256), (1, 600)] {
            let geometry = PageGeometry { kv_heads, head_dim };
            for (offset, tokens) in [(0, PAGE_TOKENS), (0, 1), (PAGE_TOKENS - 1, 1), (5, 17), (40, 0), (31, 8)] {
                let count = tokens * kv_heads * head_dim;
                let mut random = || (0..count).map(|_| rng.random_range(-9.0f32..9.0)).collect::<Vec<f32>>();
                let (keys, values) = (random(), random());
                let untouched = 0xabcd;
                let mut pages = Vec::new();
                for isa in Isa::available() {
                    let mut page = vec![untouched; geometry.elements()];
                    let (keys, values) = (&keys[..], &values[..]);
                    dispatch(isa, Append { geometry, page: &mut page, offset, keys, values, tokens });
                    pages.push(page);
                }
                let mut page = vec![untouched; geometry.elements()];
                append(geometry, &mut page, offset, &keys, &values, tokens);
                assert!(pages.iter().all(|other| *other == page), "{geometry:?} {offset} {tokens}");
                let written = page.iter().filter(|&&bits| bits != untouched).count();
                assert_eq!(written, 2 * count, "only the tokens' own elements are written");

                let (mut read_keys, mut read_values) = (vec![0.0; count], vec![0.0; count]);
                read_page(geometry, &page, offset, &mut read_keys, &mut read_values, tokens);
                let rounded = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x).to_f32()).collect::<Vec<f32>>();
                assert_eq!(read_keys, rounded(&keys));
                assert_eq!(read_values, rounded(&values));
            }
        }
    }

    #[test]
    fn outliers_are_held_at_the_largest_f16_and_nan_stays() {
        let geometry = PageGeometry { kv_heads: 1, head_dim: 20 };
        let outliers = [1e5, -1e5, 65_519.0, -65_536.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let x: Vec<f32> = (0..20).map(|index| outliers[index % outliers.len()]).collect();
        for isa in Isa::available() {
            let mut page = vec![0; geometry.elements()];
            dispatch(isa, Append { geometry, page: &mut page, offset: 3, keys: &x, values: &x, tokens: 1 });
            let (mut keys, mut values) = (vec![0.0; 20], vec![0.0; 20]);
            read_page(geometry, &page, 3, &mut keys, &mut values, 1);
            for (index, (&key, &value)) in keys.iter().zip(&values).enumerate() {
                let expected = [65_504.0, -65_504.0, 65_504.0, -65_504.0, 65_504.0, -65_504.0, f32::NAN][index % 7];
                assert!(key == expected || key.is_nan() && expected.is_nan(), "{isa:?} {index}: {key}");
                assert!(value == expected || value.is_nan() && expected.is_nan(), "{isa:?} {index}: {value}");
            }
        }
    }
}
