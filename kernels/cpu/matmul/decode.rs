//! Codes, scales and biases of a tile, from memory into registers.
#![allow(unsafe_code)]

use super::{
    layout::{QUAD, ScaleKind},
    quantize::GroupMeta,
    simd::Simd,
};

/// Expands its body for the eight quads of a block with `Q` a constant.
macro_rules! for_quads {
    ($q:ident, $body:block) => {
        for_quads!(@ $q, $body, 0, 1, 2, 3, 4, 5, 6, 7)
    };
    (@ $q:ident, $body:block, $($number:literal),*) => {
        $({ const $q: usize = $number; $body })*
    };
}
pub(crate) use for_quads;

/// What the integer sums of a group need on top, times the sum of the activations' codes: afterwards they count the
/// weights' codes as they are, or less their center where no biases are stored. 0 where they do already.
pub(crate) fn correction<S: Simd>(bits: usize, symmetric: bool) -> i32 {
    let subtracted_already = if bits == 8 { S::ZERO_POINT } else { 0 };
    subtracted_already - if symmetric { 1 << (bits - 1) } else { 0 }
}

/// The sums of one group as floats, corrected while they are integers: exact up to the one rounding of the conversion,
/// and so the same from every kernel.
#[inline(always)]
pub(crate) unsafe fn group_dot<S: Simd>(sum: S::Ints, correction: i32, meta: &GroupMeta) -> S::Floats {
    // SAFETY: the caller's promise: the instruction set is available.
    unsafe {
        if correction == 0 {
            return S::ints_to_floats(sum);
        }
        S::ints_to_floats(S::add_ints(sum, S::splat_int(correction.wrapping_mul(meta.code_sum))))
    }
}

/// The part of quad `q` that a plane of `WIDTH` bits holds, moved to bit `LOW`.
#[inline(always)]
unsafe fn plane<S: Simd, const WIDTH: usize, const LOW: usize>(at: *const u8, q: usize) -> S::Bytes {
    let bit = q * WIDTH;
    // SAFETY: the caller's promise: the plane is WIDTH vectors long, and `bit / 8 < WIDTH`.
    unsafe {
        let vector = S::load_bytes(at.add(bit / 8 * S::LANES * QUAD));
        if WIDTH == 8 {
            return vector;
        }
        let moved =
            if bit % 8 >= LOW { S::shift_right(vector, bit % 8 - LOW) } else { S::shift_left(vector, LOW - bit % 8) };
        S::and(moved, S::splat_byte((((1usize << WIDTH) - 1) << LOW) as u8))
    }
}

/// Quad `q` of a block of `BITS`-wide codes, one unsigned byte per code.
///
/// # Safety
/// `block` points to a block of such codes; the instruction set of `S` must be available.
#[inline(always)]
pub(crate) unsafe fn quad<S: Simd, const BITS: usize>(block: *const u8, q: usize) -> S::Bytes {
    let vector = S::LANES * QUAD;
    // SAFETY: the caller's promise: `block` points to BITS vectors.
    unsafe {
        match BITS {
            2 => plane::<S, 2, 0>(block, q),
            3 => S::or(plane::<S, 2, 0>(block, q), plane::<S, 1, 2>(block.add(2 * vector), q)),
            4 => plane::<S, 4, 0>(block, q),
            5 => S::or(plane::<S, 4, 0>(block, q), plane::<S, 1, 4>(block.add(4 * vector), q)),
            6 => S::or(plane::<S, 4, 0>(block, q), plane::<S, 2, 4>(block.add(4 * vector), q)),
            _ => plane::<S, 8, 0>(block, q),
        }
    }
}

/// [`quad`] as [`Simd::dot`] wants it.
///
/// # Safety
/// As for [`quad`].
#[inline(always)]
pub(crate) unsafe fn dot_quad<S: Simd, const BITS: usize>(block: *const u8, q: usize) -> S::Bytes {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = quad::<S, BITS>(block, q);
        if BITS == 8 { S::recode(codes) } else { codes }
    }
}

/// [`quad`] as [`Simd::dot_words`] wants it: the codes of columns 0 and 2, then of columns 1 and 3, as 16-bit words.
///
/// # Safety
/// As for [`quad`].
#[inline(always)]
pub(crate) unsafe fn words<S: Simd, const BITS: usize>(block: *const u8, q: usize) -> [S::Bytes; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        if matches!(BITS, 3 | 5 | 6) {
            let codes = quad::<S, BITS>(block, q);
            return [S::and(codes, S::splat_word(0xff)), S::shift_word_right(codes, 8)];
        }
        // One plane: straight from the packed bits, without making bytes of them first.
        let bit = q * BITS;
        let vector = S::load_bytes(block.add(bit / 8 * S::LANES * QUAD));
        let mask = S::splat_word(((1usize << BITS) - 1) as u16);
        let (even, odd) = (S::shift_word_right(vector, bit % 8), S::shift_word_right(vector, bit % 8 + 8));
        [S::and(even, mask), if bit % 8 + BITS == 8 { odd } else { S::and(odd, mask) }]
    }
}

/// The scales (or biases) of a tile's rows.
///
/// # Safety
/// `at` points to `LANES` numbers of that kind; the instruction set of `S` must be available.
#[inline(always)]
pub(crate) unsafe fn load_scales<S: Simd>(kind: ScaleKind, at: *const u8) -> S::Floats {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            ScaleKind::F16 => S::load_f16(at),
            ScaleKind::BF16 => S::load_bf16(at),
            ScaleKind::F32 => S::load(at.cast()),
        }
    }
}
