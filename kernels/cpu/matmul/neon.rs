//! Arm NEON, plain and with the byte dot product: four rows to a tile.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use super::{
    quantize::TERM_WEIGHTS,
    simd::{Simd, compile_kernels},
};

/// NEON as every aarch64 machine has it.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// [`Neon`] with `dotprod`.
#[derive(Clone, Copy)]
pub(crate) struct NeonDotprod;

/// What both share: all but the byte products.
macro_rules! common {
    () => {
        const LANES: usize = 4;
        /// The byte products multiply signed with signed.
        const ZERO_POINT: i32 = 128;
        type Floats = float32x4_t;
        type Ints = int32x4_t;
        type Bytes = uint8x16_t;
        type Partial = int32x4_t;

        #[inline(always)]
        unsafe fn zero() -> float32x4_t {
            // SAFETY: the instruction set is available (the trait's condition), here and below; pointers are valid for
            // a vector.
            unsafe { vdupq_n_f32(0.0) }
        }
        #[inline(always)]
        unsafe fn splat(value: f32) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vdupq_n_f32(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vld1q_f32(from) }
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, value: float32x4_t) {
            // SAFETY: as above.
            unsafe { vst1q_f32(to, value) }
        }
        #[inline(always)]
        unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vaddq_f32(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vmulq_f32(a, b) }
        }
        #[inline(always)]
        unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vfmaq_f32(c, a, b) }
        }
        #[inline(always)]
        unsafe fn load_f16(from: *const u8) -> float32x4_t {
            let wide: float32x4_t;
            // SAFETY: as above. `fcvtl` is part of every NEON; the intrinsic for it needs the unstable f16 type.
            unsafe {
                let halves = vld1_u8(from);
                std::arch::asm!(
                    "fcvtl {wide:v}.4s, {halves:v}.4h",
                    wide = lateout(vreg) wide,
                    halves = in(vreg) halves,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            wide
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u8) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(from)))) }
        }
        #[inline(always)]
        unsafe fn ints_zero() -> int32x4_t {
            // SAFETY: as above.
            unsafe { vdupq_n_s32(0) }
        }
        #[inline(always)]
        unsafe fn splat_int(value: i32) -> int32x4_t {
            // SAFETY: as above.
            unsafe { vdupq_n_s32(value) }
        }
        #[inline(always)]
        unsafe fn add_ints(a: int32x4_t, b: int32x4_t) -> int32x4_t {
            // SAFETY: as above.
            unsafe { vaddq_s32(a, b) }
        }
        #[inline(always)]
        unsafe fn ints_to_floats(value: int32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vcvtq_f32_s32(value) }
        }
        #[inline(always)]
        unsafe fn load_bytes(from: *const u8) -> uint8x16_t {
            // SAFETY: as above.
            unsafe { vld1q_u8(from) }
        }
        #[inline(always)]
        unsafe fn store_bytes(to: *mut u8, value: uint8x16_t) {
            // SAFETY: as above.
            unsafe { vst1q_u8(to, value) }
        }
        #[inline(always)]
        unsafe fn splat_byte(value: u8) -> uint8x16_t {
            // SAFETY: as above.
            unsafe { vdupq_n_u8(value) }
        }
        #[inline(always)]
        unsafe fn splat_quad(from: *const i8) -> uint8x16_t {
            // SAFETY: as above; the four bytes are read unaligned.
            unsafe { vreinterpretq_u8_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned())) }
        }
        #[inline(always)]
        unsafe fn and(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            // SAFETY: as above.
            unsafe { vandq_u8(a, b) }
        }
        #[inline(always)]
        unsafe fn or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
            // SAFETY: as above.
            unsafe { vorrq_u8(a, b) }
        }
        #[inline(always)]
        unsafe fn shift_right(value: uint8x16_t, count: usize) -> uint8x16_t {
            // SAFETY: as above.
            unsafe {
                match count {
                    0 => value,
                    1 => vshrq_n_u8::<1>(value),
                    2 => vshrq_n_u8::<2>(value),
                    3 => vshrq_n_u8::<3>(value),
                    4 => vshrq_n_u8::<4>(value),
                    5 => vshrq_n_u8::<5>(value),
                    6 => vshrq_n_u8::<6>(value),
                    _ => vshrq_n_u8::<7>(value),
                }
            }
        }
        #[inline(always)]
        unsafe fn shift_left(value: uint8x16_t, count: usize) -> uint8x16_t {
            // SAFETY: as above.
            unsafe {
                match count {
                    0 => value,
                    1 => vshlq_n_u8::<1>(value),
                    2 => vshlq_n_u8::<2>(value),
                    3 => vshlq_n_u8::<3>(value),
                    4 => vshlq_n_u8::<4>(value),
                    5 => vshlq_n_u8::<5>(value),
                    6 => vshlq_n_u8::<6>(value),
                    _ => vshlq_n_u8::<7>(value),
                }
            }
        }
        #[inline(always)]
        unsafe fn byte_to_floats(value: uint8x16_t, index: usize) -> float32x4_t {
            // SAFETY: as above.
            unsafe {
                let lanes = vreinterpretq_u32_u8(value);
                let byte = vdupq_n_u32(0xff);
                vcvtq_f32_u32(match index {
                    0 => vandq_u32(lanes, byte),
                    1 => vandq_u32(vshrq_n_u32::<8>(lanes), byte),
                    2 => vandq_u32(vshrq_n_u32::<16>(lanes), byte),
                    _ => vshrq_n_u32::<24>(lanes),
                })
            }
        }
        #[inline(always)]
        unsafe fn recode(codes: uint8x16_t) -> uint8x16_t {
            // SAFETY: as above.
            unsafe { veorq_u8(codes, vdupq_n_u8(128)) }
        }
        #[inline(always)]
        unsafe fn partial_zero() -> int32x4_t {
            // SAFETY: as above.
            unsafe { vdupq_n_s32(0) }
        }
        #[inline(always)]
        fn flush_interval(_bits: usize) -> usize {
            usize::MAX
        }
        #[inline(always)]
        unsafe fn flush(sum: int32x4_t, partial: int32x4_t, term: usize) -> int32x4_t {
            // SAFETY: as above.
            unsafe { vmlaq_n_s32(sum, partial, TERM_WEIGHTS[term]) }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const u8) {
            // SAFETY: a hint; any address is allowed.
            unsafe {
                std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags));
            }
        }
    };
}

impl Simd for Neon {
    common!();

    #[inline(always)]
    unsafe fn dot<const BITS: usize>(partial: int32x4_t, weights: uint8x16_t, activations: uint8x16_t) -> int32x4_t {
        // SAFETY: as above.
        unsafe {
            let (weights, activations) = (vreinterpretq_s8_u8(weights), vreinterpretq_s8_u8(activations));
            // Pairs of columns, then of pairs: |w| <= 128 times |x| <= 127 fits 16 bits, and so do not two of them.
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(weights), vget_low_s8(activations)));
            let high = vpaddlq_s16(vmull_high_s8(weights, activations));
            vaddq_s32(partial, vpaddq_s32(low, high))
        }
    }
}

impl Simd for NeonDotprod {
    common!();

    #[inline(always)]
    unsafe fn dot<const BITS: usize>(partial: int32x4_t, weights: uint8x16_t, activations: uint8x16_t) -> int32x4_t {
        let mut sum = partial;
        // SAFETY: as above. The intrinsic is unstable; the instruction is what `dotprod` means.
        unsafe {
            std::arch::asm!(
                "sdot {sum:v}.4s, {weights:v}.16b, {activations:v}.16b",
                sum = inout(vreg) sum,
                weights = in(vreg) weights,
                activations = in(vreg) activations,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }
}

// 4 tiles x 2 rows of integer sums and as many float sums leave 16 of the 32 registers for operands; 4 x 5 float sums
// leave 12. Streaming, 2 tiles x 4 rows have a sum per term each: 16.
compile_kernels!(Neon, crate::simd::F32x4, "neon", stream_tiles 2, tiles 4, rows 2, rows_f32 5);
compile_kernels!(NeonDotprod, crate::simd::F32x4, "neon,dotprod", stream_tiles 2, tiles 4, rows 2, rows_f32 5);
