//! AVX-512 with VNNI: sixteen rows to a tile.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::simd::{Simd, compile_kernels};

/// AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

impl Simd for Avx512 {
    const LANES: usize = 16;
    /// `vpdpbusd` takes unsigned weights as they are.
    const ZERO_POINT: i32 = 0;
    type Floats = __m512;
    type Ints = __m512i;
    type Bytes = __m512i;
    type Partial = __m512i;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the instruction set is available (the trait's condition), here and below; pointers are valid for a
        // vector.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn ints_zero() -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn splat_int(value: i32) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn add_ints(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn ints_to_floats(value: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, value: __m512i) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }
    #[inline(always)]
    unsafe fn splat_byte(value: u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi8(value as i8) }
    }
    #[inline(always)]
    unsafe fn splat_quad(from: *const i8) -> __m512i {
        // SAFETY: as above; the four bytes are read unaligned.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shift_right(value: __m512i, count: usize) -> __m512i {
        // SAFETY: as above.
        unsafe {
            match count {
                0 => value,
                1 => _mm512_srli_epi16::<1>(value),
                2 => _mm512_srli_epi16::<2>(value),
                3 => _mm512_srli_epi16::<3>(value),
                4 => _mm512_srli_epi16::<4>(value),
                5 => _mm512_srli_epi16::<5>(value),
                6 => _mm512_srli_epi16::<6>(value),
                _ => _mm512_srli_epi16::<7>(value),
            }
        }
    }
    #[inline(always)]
    unsafe fn shift_left(value: __m512i, count: usize) -> __m512i {
        // SAFETY: as above.
        unsafe {
            match count {
                0 => value,
                1 => _mm512_slli_epi16::<1>(value),
                2 => _mm512_slli_epi16::<2>(value),
                3 => _mm512_slli_epi16::<3>(value),
                4 => _mm512_slli_epi16::<4>(value),
                5 => _mm512_slli_epi16::<5>(value),
                6 => _mm512_slli_epi16::<6>(value),
                _ => _mm512_slli_epi16::<7>(value),
            }
        }
    }
    #[inline(always)]
    unsafe fn byte_to_floats(value: __m512i, index: usize) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let byte = _mm512_set1_epi32(0xff);
            _mm512_cvtepi32_ps(match index {
                0 => _mm512_and_si512(value, byte),
                1 => _mm512_and_si512(_mm512_srli_epi32::<8>(value), byte),
                2 => _mm512_and_si512(_mm512_srli_epi32::<16>(value), byte),
                _ => _mm512_srli_epi32::<24>(value),
            })
        }
    }
    #[inline(always)]
    unsafe fn recode(codes: __m512i) -> __m512i {
        codes
    }
    #[inline(always)]
    unsafe fn partial_zero() -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    fn flush_interval(_bits: usize) -> usize {
        usize::MAX
    }
    #[inline(always)]
    unsafe fn dot<const BITS: usize>(partial: __m512i, weights: __m512i, activations: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_dpbusd_epi32(partial, weights, activations) }
    }
    #[inline(always)]
    unsafe fn flush(sum: __m512i, partial: __m512i, term: usize) -> __m512i {
        // SAFETY: as above. Times 255 is times 256 less once.
        unsafe {
            let weighed = if term == 0 { _mm512_sub_epi32(_mm512_slli_epi32::<8>(partial), partial) } else { partial };
            _mm512_add_epi32(sum, weighed)
        }
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a hint; any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

// 2 tiles x 6 rows of integer sums and as many float sums leave 8 of the 32 registers for operands; 2 x 12 float sums
// likewise. Streaming, 2 tiles x 4 rows have a sum per term each: 16.
compile_kernels!(
    Avx512,
    crate::simd::F32x16,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c",
    stream_tiles 2, tiles 2, rows 6, rows_f32 12
);
