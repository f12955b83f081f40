//! Pages whose keys and values are affine-quantized along each head, as MLX quantizes them.
//!
//! Each KV head has the codes of its keys, tokens innermost, then those of its values, the head dimension innermost, as
//! pages of f16 have their elements; then four tables `[groups, PAGE_TOKENS]` of f16: scales and biases of the keys, scales
//! and biases of the values. A group is `group` elements of one token; an element is `scale * code + bias`.
//!
//! Codes of 8 bits are bytes. Codes of 4 bits lie 32 in 16 bytes, the first sixteen in the low halves: what one vector load
//! takes apart with one shift and one mask.

#![allow(unsafe_code)]

use half::f16;

use super::{Half, PAGE_TOKENS, PageGeometry};
use crate::{
    Isa,
    simd::{Kernel, Vector, VectorKernel, dispatch},
};

/// The least scale, as in MLX's `affine_quantize` (mlx/backend/cpu/quantized.cpp).
const LEAST_SCALE: f32 = 1e-7;
/// Codes of 4 bits that lie in sixteen bytes.
const UNIT: usize = 32;
/// The most elements of a group.
const MAX_GROUP: usize = 128;

/// How keys and values are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AffinePages {
    /// Bits per code: 4 or 8.
    pub bits: usize,
    /// Elements of a token's head that share a scale and a bias: 32, 64 or 128; it must divide the head's size.
    pub group: usize,
}

/// Some tokens of one head of keys or values, quantized: what leaves a page and enters one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffineTokens {
    /// `[tokens, head_dim]`, one byte per code.
    pub codes: Vec<u8>,
    /// `[tokens, groups]`, the bits of f16.
    pub scales: Vec<u16>,
    /// Likewise.
    pub biases: Vec<u16>,
}

impl AffinePages {
    /// Whether heads of this size can be held so.
    #[must_use]
    pub fn fits(self, geometry: PageGeometry) -> bool {
        matches!(self.bits, 4 | 8)
            && matches!(self.group, 32 | 64 | 128)
            && geometry.head_dim > 0
            && geometry.head_dim.is_multiple_of(self.group)
    }

    fn groups(self, geometry: PageGeometry) -> usize {
        geometry.head_dim / self.group
    }

    /// Bytes of the codes of a head's keys, or values.
    fn code_bytes(self, geometry: PageGeometry) -> usize {
        geometry.head_dim * PAGE_TOKENS * self.bits / 8
    }

    /// The 16-bit elements that a head takes in a page.
    pub(crate) fn head_elements(self, geometry: PageGeometry) -> usize {
        self.code_bytes(geometry) + 4 * self.groups(geometry) * PAGE_TOKENS
    }

    /// Where the codes, the scales and the biases of a head's keys or values begin, in 16-bit elements of the head.
    fn starts(self, geometry: PageGeometry, half: Half) -> [usize; 3] {
        let (codes, table) = (self.code_bytes(geometry) / 2, self.groups(geometry) * PAGE_TOKENS);
        match half {
            Half::Keys => [0, 2 * codes, 2 * codes + table],
            Half::Values => [codes, 2 * codes + 2 * table, 2 * codes + 3 * table],
        }
    }

    /// Which code of its half an element has.
    fn place(geometry: PageGeometry, half: Half, token: usize, dim: usize) -> usize {
        match half {
            Half::Keys => dim * PAGE_TOKENS + token,
            Half::Values => token * geometry.head_dim + dim,
        }
    }

    /// The byte of a code and the bit it begins at.
    fn byte(self, place: usize) -> (usize, u32) {
        if self.bits == 8 {
            return (place, 0);
        }
        (place / UNIT * (UNIT / 2) + place % (UNIT / 2), if place % UNIT < UNIT / 2 { 0 } else { 4 })
    }

    fn get(self, codes: &[u16], place: usize) -> u8 {
        let (byte, bit) = self.byte(place);
        let whole = codes[byte / 2].to_le_bytes()[byte % 2];
        if self.bits == 8 { whole } else { whole >> bit & 0xf }
    }

    fn put(self, codes: &mut [u16], place: usize, code: u8) {
        let (byte, bit) = self.byte(place);
        let mut pair = codes[byte / 2].to_le_bytes();
        let mask = if self.bits == 8 { 0xff } else { 0xf << bit };
        pair[byte % 2] = pair[byte % 2] & !mask | code << bit;
        codes[byte / 2] = u16::from_le_bytes(pair);
    }

    /// One element of a head, dequantized: the plain version of what attention reads.
    pub(crate) fn element(self, geometry: PageGeometry, head: &[u16], half: Half, (token, dim): (usize, usize)) -> f32 {
        let [codes, scales, biases] = self.starts(geometry, half);
        let table = dim / self.group * PAGE_TOKENS + token;
        let code = self.get(&head[codes..], Self::place(geometry, half, token, dim));
        let (scale, bias) = (f16::from_bits(head[scales + table]), f16::from_bits(head[biases + table]));
        scale.to_f32().mul_add(f32::from(code), bias.to_f32())
    }
}

/// [`super::append`] for quantized pages. A group is quantized in single precision by MLX's formula: the edge of its range
/// with the larger magnitude is held exactly (up to f16) and zero falls on a code.
///
/// # Panics
/// If `format` does not fit the geometry, or as [`super::append`].
pub fn append_affine(
    geometry: PageGeometry,
    format: AffinePages,
    page: &mut [u16],
    offset: usize,
    (keys, values): (&[f32], &[f32]),
    tokens: usize,
) {
    check(geometry, format, page.len(), offset, tokens);
    let expected = tokens * geometry.kv_heads * geometry.head_dim;
    assert_eq!((keys.len(), values.len()), (expected, expected), "keys and values against {tokens} of {geometry:?}");
    dispatch(Isa::detect(), Append { geometry, format, page, offset, keys, values, tokens });
}

struct Append<'a> {
    geometry: PageGeometry,
    format: AffinePages,
    page: &'a mut [u16],
    offset: usize,
    keys: &'a [f32],
    values: &'a [f32],
    tokens: usize,
}

impl Kernel for Append<'_> {
    /// Also the vector version: [`quantize_group`] becomes vector code where this is inlined.
    #[inline(always)]
    fn scalar(self) {
        let Self { geometry, format, offset, .. } = self;
        let PageGeometry { kv_heads, head_dim } = geometry;
        let mut group_codes = [0; MAX_GROUP];
        let heads = self.page.chunks_exact_mut(format.head_elements(geometry));
        for (kv_head, head) in heads.enumerate() {
            for (half, source) in [(Half::Keys, self.keys), (Half::Values, self.values)] {
                let [codes, scales, biases] = format.starts(geometry, half);
                for token in 0..self.tokens {
                    let source = &source[(token * kv_heads + kv_head) * head_dim..][..head_dim];
                    for (group, x) in source.chunks_exact(format.group).enumerate() {
                        let group_codes = &mut group_codes[..format.group];
                        let (scale, bias) = quantize_group(x, format.bits, group_codes);
                        let table = group * PAGE_TOKENS + offset + token;
                        head[scales + table] = saturating(scale);
                        head[biases + table] = saturating(bias);
                        for (index, &code) in group_codes.iter().enumerate() {
                            let dim = group * format.group + index;
                            let place = AffinePages::place(geometry, half, offset + token, dim);
                            format.put(&mut head[codes..], place, code);
                        }
                    }
                }
            }
        }
    }
}

impl VectorKernel for Append<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        self.scalar();
    }
}

fn saturating(value: f32) -> u16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())).to_bits()
}

/// Codes, scale and bias of one group, as MLX's `affine_quantize` has them.
#[inline(always)]
fn quantize_group(x: &[f32], bits: usize, codes: &mut [u8]) -> (f32, f32) {
    let largest_code = ((1u32 << bits) - 1) as f32;
    let (mut least, mut largest) = (f32::INFINITY, f32::NEG_INFINITY);
    for &value in x {
        least = if value < least { value } else { least };
        largest = if value > largest { value } else { largest };
    }
    let low_edge = least.abs() > largest.abs();
    let magnitude = ((largest - least) / largest_code).max(LEAST_SCALE);
    let mut scale = if low_edge { magnitude } else { -magnitude };
    let edge = if low_edge { least } else { largest };
    let steps = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if steps != 0.0 {
        (scale, bias) = (edge / steps, edge);
    }
    for (code, &value) in codes.iter_mut().zip(x) {
        *code = ((value - bias) / scale).round_ties_even().clamp(0.0, largest_code) as u8;
    }
    (scale, bias)
}

/// Reads tokens of one head as they are held.
///
/// # Panics
/// If `format` does not fit the geometry, the page has another size, or the tokens or the head lie outside it.
#[must_use]
pub fn read_affine(
    geometry: PageGeometry,
    format: AffinePages,
    page: &[u16],
    (kv_head, half): (usize, Half),
    tokens: std::ops::Range<usize>,
) -> AffineTokens {
    check(geometry, format, page.len(), tokens.start, tokens.len());
    let elements = format.head_elements(geometry);
    let head = &page[kv_head * elements..(kv_head + 1) * elements];
    let [codes, scales, biases] = format.starts(geometry, half);
    let mut out = AffineTokens::default();
    for token in tokens {
        let code = |dim| format.get(&head[codes..], AffinePages::place(geometry, half, token, dim));
        out.codes.extend((0..geometry.head_dim).map(code));
        let tables = (0..format.groups(geometry)).map(|group| group * PAGE_TOKENS + token);
        out.scales.extend(tables.clone().map(|table| head[scales + table]));
        out.biases.extend(tables.map(|table| head[biases + table]));
    }
    out
}

/// Writes tokens of one head from token `offset` of the page on: the inverse of [`read_affine`].
///
/// # Panics
/// As [`read_affine`], or if the parts are not of `tokens` tokens.
pub fn write_affine(
    geometry: PageGeometry,
    format: AffinePages,
    page: &mut [u16],
    (kv_head, half): (usize, Half),
    offset: usize,
    data: &AffineTokens,
) {
    let groups = format.groups(geometry);
    let tokens = data.codes.len() / geometry.head_dim;
    check(geometry, format, page.len(), offset, tokens);
    assert_eq!(
        (data.codes.len(), data.scales.len(), data.biases.len()),
        (tokens * geometry.head_dim, tokens * groups, tokens * groups),
        "parts of {tokens} tokens of {geometry:?}"
    );
    let elements = format.head_elements(geometry);
    let head = &mut page[kv_head * elements..(kv_head + 1) * elements];
    let [codes, scales, biases] = format.starts(geometry, half);
    for token in 0..tokens {
        for dim in 0..geometry.head_dim {
            let place = AffinePages::place(geometry, half, offset + token, dim);
            format.put(&mut head[codes..], place, data.codes[token * geometry.head_dim + dim]);
        }
        for group in 0..groups {
            let table = group * PAGE_TOKENS + offset + token;
            head[scales + table] = data.scales[token * groups + group];
            head[biases + table] = data.biases[token * groups + group];
        }
    }
}

fn check(geometry: PageGeometry, format: AffinePages, page: usize, offset: usize, tokens: usize) {
    assert!(format.fits(geometry), "{format:?} for {geometry:?}");
    assert_eq!(
        page,
        geometry.kv_heads * format.head_elements(geometry),
        "page length against {geometry:?} as {format:?}"
    );
    assert!(offset + tokens <= PAGE_TOKENS, "{tokens} tokens at {offset} in a page of {PAGE_TOKENS}");
}

/// A head of a page, dequantized: keys `[head_dim, PAGE_TOKENS]`, then values `[PAGE_TOKENS, head_dim]`, as a page of f16
/// has them.
pub(crate) fn widen_affine(isa: Isa, geometry: PageGeometry, format: AffinePages, head: &[u16], out: &mut [f32]) {
    assert!(format.fits(geometry) && head.len() == format.head_elements(geometry), "{format:?} for {geometry:?}");
    assert_eq!(out.len(), 2 * geometry.head_dim * PAGE_TOKENS, "room for a head of {geometry:?}");
    dispatch(isa, Widen { geometry, format, head, out });
}

struct Widen<'a> {
    geometry: PageGeometry,
    format: AffinePages,
    head: &'a [u16],
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    fn scalar(self) {
        let Self { geometry, format, head, out } = self;
        let (keys, values) = out.split_at_mut(geometry.head_dim * PAGE_TOKENS);
        for token in 0..PAGE_TOKENS {
            for dim in 0..geometry.head_dim {
                let place = (token, dim);
                keys[dim * PAGE_TOKENS + token] = format.element(geometry, head, Half::Keys, place);
                values[token * geometry.head_dim + dim] = format.element(geometry, head, Half::Values, place);
            }
        }
    }
}

impl VectorKernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        // SAFETY: the caller's promise.
        unsafe { if self.format.bits == 8 { self.run::<V, false>() } else { self.run::<V, true>() } }
    }
}

impl Widen<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const NIBBLES: bool>(self) {
        let Self { geometry, format, head, out } = self;
        let (head_dim, group) = (geometry.head_dim, format.group);
        // SAFETY: `widen_affine` checked the sizes; places are multiples of LANES, which divides a unit's half, the tokens
        // of a page and a group. The instruction set is the caller's promise.
        unsafe {
            let [codes, scales, biases] = format.starts(geometry, Half::Keys).map(|at| head.as_ptr().add(at));
            let out = out.as_mut_ptr();
            for first_token in (0..PAGE_TOKENS).step_by(V::LANES) {
                for dim in 0..head_dim {
                    let table = dim / group * PAGE_TOKENS + first_token;
                    let place = dim * PAGE_TOKENS + first_token;
                    let code = load_codes::<V, NIBBLES>(codes, place);
                    let value = code.mul_add(V::load_f16(scales.add(table)), V::load_f16(biases.add(table)));
                    value.store(out.add(place));
                }
            }
            let [codes, scales, biases] = format.starts(geometry, Half::Values).map(|at| head.as_ptr().add(at));
            let out = out.add(head_dim * PAGE_TOKENS);
            for token in 0..PAGE_TOKENS {
                for first in (0..head_dim).step_by(group) {
                    let table = first / group * PAGE_TOKENS + token;
                    let scale = V::splat(f16::from_bits(*scales.add(table)).to_f32());
                    let bias = V::splat(f16::from_bits(*biases.add(table)).to_f32());
                    for dim in (first..first + group).step_by(V::LANES) {
                        let place = token * head_dim + dim;
                        load_codes::<V, NIBBLES>(codes, place).mul_add(scale, bias).store(out.add(place));
                    }
                }
            }
        }
    }
}

/// `LANES` codes from `place` on, which is a multiple of that.
#[inline(always)]
unsafe fn load_codes<V: Vector, const NIBBLES: bool>(codes: *const u16, place: usize) -> V {
    let codes = codes.cast::<u8>();
    // SAFETY: the caller's promise.
    unsafe {
        if !NIBBLES {
            return V::load_bytes(codes.add(place));
        }
        let at = codes.add(place / UNIT * (UNIT / 2) + place % (UNIT / 2));
        if place % UNIT < UNIT / 2 { V::load_low_nibbles(at) } else { V::load_high_nibbles(at) }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::{
        AffinePages, AffineTokens, Append, Half, append_affine, quantize_group, read_affine, widen_affine, write_affine,
    };
    use crate::{Isa, PAGE_TOKENS, PageGeometry, simd::dispatch};

    const SHAPES: [(usize, usize, usize); 6] =
        [(1, 32, 32), (3, 64, 64), (2, 64, 32), (1, 128, 128), (2, 96, 32), (1, 256, 64)];

    fn random(rng: &mut StdRng, count: usize) -> Vec<f32> {
        (0..count).map(|_| rng.random_range(-3.0f32..3.0) * if rng.random_bool(0.02) { 10.0 } else { 1.0 }).collect()
    }

    fn page(geometry: PageGeometry, format: AffinePages) -> Vec<u16> {
        vec![0; geometry.kv_heads * format.head_elements(geometry)]
    }

    #[test]
    fn groups_are_quantized_as_mlx_quantizes_them() {
        let ramp: [f32; 32] = std::array::from_fn(|index| index as f32 * 0.125 - 1.875);
        let mut codes = [0; 32];
        let (scale, bias) = quantize_group(&ramp, 4, &mut codes);
        // From -1.875 to 2 in 15 steps of 0.25833: the edge 2 is 7.7 steps from zero, so they become 2 / 8.
        assert_eq!((scale, bias), (-0.25, 2.0));
        assert_eq!((codes[31], codes[15], codes[0]), (0, 8, 15));
        let constant = [0.25; 32];
        let (scale, bias) = quantize_group(&constant, 8, &mut codes);
        assert_eq!(bias, 0.25);
        assert!(codes.iter().all(|&code| scale.mul_add(f32::from(code), bias) == 0.25));
        assert_eq!(quantize_group(&[0.0; 32], 8, &mut codes).1, 0.0);
    }

    #[test]
    fn what_is_appended_is_within_a_step_and_the_same_on_every_level() {
        let mut rng = StdRng::seed_from_u64(70);
        for (kv_heads, head_dim, group) in SHAPES {
            for bits in [4, 8] {
                let (geometry, format) = (PageGeometry { kv_heads, head_dim }, AffinePages { bits, group });
                for (offset, tokens) in [(0, PAGE_TOKENS), (PAGE_TOKENS - 1, 1), (5, 17)] {
                    let count = tokens * kv_heads * head_dim;
                    let (keys, values) = (random(&mut rng, count), random(&mut rng, count));
                    let mut whole = page(geometry, format);
                    append_affine(geometry, format, &mut whole, offset, (&keys, &values), tokens);
                    for isa in Isa::available() {
                        let mut page = page(geometry, format);
                        let (keys, values) = (&keys[..], &values[..]);
                        dispatch(isa, Append { geometry, format, page: &mut page, offset, keys, values, tokens });
                        assert!(page == whole, "{isa:?} {geometry:?} {format:?}");
                    }
                    let elements = format.head_elements(geometry);
                    for (index, (&key, &value)) in keys.iter().zip(&values).enumerate() {
                        let (token, kv_head, dim) =
                            (index / head_dim / kv_heads, index / head_dim % kv_heads, index % head_dim);
                        let head = &whole[kv_head * elements..][..elements];
                        let first = index / group * group;
                        for (half, exact, all) in [(Half::Keys, key, &keys), (Half::Values, value, &values)] {
                            let held = format.element(geometry, head, half, (offset + token, dim));
                            let group = &all[first..first + group];
                            let range = group.iter().copied().fold(f32::MIN, f32::max)
                                - group.iter().copied().fold(f32::MAX, f32::min);
                            // The step is bent until zero is one of the values. Half a step is rounded off then, and where
                            // the step became shorter, the far end is cut by up to the last one; and what f16 rounds off.
                            let step = range / ((1 << bits) - 1) as f32;
                            let bound = step + 40.0 * f32::from(f16::EPSILON);
                            assert!((held - exact).abs() <= bound, "{format:?}: {held} for {exact}, step {step}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_level_reads_the_elements_of_the_plain_version_bit_for_bit() {
        let mut rng = StdRng::seed_from_u64(71);
        for (kv_heads, head_dim, group) in SHAPES {
            for bits in [4, 8] {
                let (geometry, format) = (PageGeometry { kv_heads, head_dim }, AffinePages { bits, group });
                let mut page = page(geometry, format);
                let count = PAGE_TOKENS * kv_heads * head_dim;
                let (keys, values) = (random(&mut rng, count), random(&mut rng, count));
                append_affine(geometry, format, &mut page, 0, (&keys, &values), PAGE_TOKENS);
                for head in page.chunks_exact(format.head_elements(geometry)) {
                    for isa in Isa::available() {
                        let mut out = vec![f32::NAN; 2 * head_dim * PAGE_TOKENS];
                        widen_affine(isa, geometry, format, head, &mut out);
                        for token in 0..PAGE_TOKENS {
                            for dim in 0..head_dim {
                                let key = format.element(geometry, head, Half::Keys, (token, dim));
                                let value = format.element(geometry, head, Half::Values, (token, dim));
                                assert_eq!(out[dim * PAGE_TOKENS + token], key, "{isa:?} {format:?}");
                                assert_eq!(out[(PAGE_TOKENS + token) * head_dim + dim], value, "{isa:?} {format:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn tokens_leave_a_page_and_enter_another_unchanged_beside_others() {
        let mut rng = StdRng::seed_from_u64(72);
        for (kv_heads, head_dim, group) in SHAPES {
            for bits in [4, 8] {
                let (geometry, format) = (PageGeometry { kv_heads, head_dim }, AffinePages { bits, group });
                let mut from = page(geometry, format);
                let count = PAGE_TOKENS * kv_heads * head_dim;
                let (keys, values) = (random(&mut rng, count), random(&mut rng, count));
                append_affine(geometry, format, &mut from, 0, (&keys, &values), PAGE_TOKENS);
                let mut to = page(geometry, format);
                for tokens in [40..PAGE_TOKENS, 0..1, 1..40] {
                    for kv_head in 0..kv_heads {
                        for half in [Half::Keys, Half::Values] {
                            let data = read_affine(geometry, format, &from, (kv_head, half), tokens.clone());
                            write_affine(geometry, format, &mut to, (kv_head, half), tokens.start, &data);
                        }
                    }
                }
                assert_eq!(from, to);
                let nothing = read_affine(geometry, format, &from, (0, Half::Keys), 3..3);
                assert_eq!(nothing, AffineTokens::default());
            }
        }
    }
}
