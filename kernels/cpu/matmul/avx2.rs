//! AVX2 with FMA and F16C, and the same with the 256-bit VNNI byte products.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::simd::{Simd, compile_kernels};

/// AVX2, FMA, F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// [`Avx2`] with `avxvnni`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Vnni;

/// What both share: all but the byte products.
macro_rules! common {
    () => {
        const LANES: usize = 8;
        type Floats = __m256;
        type Ints = __m256i;
        type Bytes = __m256i;

        #[inline(always)]
        unsafe fn zero() -> __m256 {
            // SAFETY: the instruction set is available (the trait's condition), here and below; pointers are valid for
            // a vector.
            unsafe { _mm256_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn splat(value: f32) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, value: __m256) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(to, value) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn load_f16(from: *const u8) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u8) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn ints_zero() -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_setzero_si256() }
        }
        #[inline(always)]
        unsafe fn splat_int(value: i32) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_set1_epi32(value) }
        }
        #[inline(always)]
        unsafe fn add_ints(a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_add_epi32(a, b) }
        }
        #[inline(always)]
        unsafe fn ints_to_floats(value: __m256i) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtepi32_ps(value) }
        }
        #[inline(always)]
        unsafe fn load_bytes(from: *const u8) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }
        #[inline(always)]
        unsafe fn store_bytes(to: *mut u8, value: __m256i) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_si256(to.cast(), value) }
        }
        #[inline(always)]
        unsafe fn splat_byte(value: u8) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_set1_epi8(value as i8) }
        }
        #[inline(always)]
        unsafe fn splat_quad(from: *const i8) -> __m256i {
            // SAFETY: as above; the four bytes are read unaligned.
            unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_and_si256(a, b) }
        }
        #[inline(always)]
        unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_or_si256(a, b) }
        }
        #[inline(always)]
        unsafe fn shift_right(value: __m256i, count: usize) -> __m256i {
            // SAFETY: as above.
            unsafe {
                match count {
                    0 => value,
                    1 => _mm256_srli_epi16::<1>(value),
                    2 => _mm256_srli_epi16::<2>(value),
                    3 => _mm256_srli_epi16::<3>(value),
                    4 => _mm256_srli_epi16::<4>(value),
                    5 => _mm256_srli_epi16::<5>(value),
                    6 => _mm256_srli_epi16::<6>(value),
                    _ => _mm256_srli_epi16::<7>(value),
                }
            }
        }
        #[inline(always)]
        unsafe fn shift_left(value: __m256i, count: usize) -> __m256i {
            // SAFETY: as above.
            unsafe {
                match count {
                    0 => value,
                    1 => _mm256_slli_epi16::<1>(value),
                    2 => _mm256_slli_epi16::<2>(value),
                    3 => _mm256_slli_epi16::<3>(value),
                    4 => _mm256_slli_epi16::<4>(value),
                    5 => _mm256_slli_epi16::<5>(value),
                    6 => _mm256_slli_epi16::<6>(value),
                    _ => _mm256_slli_epi16::<7>(value),
                }
            }
        }
        #[inline(always)]
        unsafe fn byte_to_floats(value: __m256i, index: usize) -> __m256 {
            // SAFETY: as above.
            unsafe {
                let byte = _mm256_set1_epi32(0xff);
                _mm256_cvtepi32_ps(match index {
                    0 => _mm256_and_si256(value, byte),
                    1 => _mm256_and_si256(_mm256_srli_epi32::<8>(value), byte),
                    2 => _mm256_and_si256(_mm256_srli_epi32::<16>(value), byte),
                    _ => _mm256_srli_epi32::<24>(value),
                })
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const u8) {
            // SAFETY: a hint; any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
    };
}

impl Simd for Avx2 {
    common!();

    /// Codes are words here, and those are taken as they are.
    const ZERO_POINT: i32 = 0;
    const WIDE: bool = true;
    type Partial = __m256i;

    #[inline(always)]
    unsafe fn recode(codes: __m256i) -> __m256i {
        codes
    }
    #[inline(always)]
    unsafe fn partial_zero() -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    fn flush_interval(_bits: usize) -> usize {
        usize::MAX
    }
    /// Never called: codes are words.
    #[inline(always)]
    unsafe fn dot<const BITS: usize>(partial: __m256i, _weights: __m256i, _activations: __m256i) -> __m256i {
        partial
    }
    /// Never called, likewise.
    #[inline(always)]
    unsafe fn flush(sum: __m256i, _partial: __m256i, _term: usize) -> __m256i {
        sum
    }
    #[inline(always)]
    unsafe fn splat_word(value: u16) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_set1_epi16(value as i16) }
    }
    #[inline(always)]
    unsafe fn shift_word_right(value: __m256i, count: usize) -> __m256i {
        // SAFETY: as above.
        unsafe {
            match count {
                0..8 => Self::shift_right(value, count),
                8 => _mm256_srli_epi16::<8>(value),
                9 => _mm256_srli_epi16::<9>(value),
                10 => _mm256_srli_epi16::<10>(value),
                11 => _mm256_srli_epi16::<11>(value),
                12 => _mm256_srli_epi16::<12>(value),
                13 => _mm256_srli_epi16::<13>(value),
                14 => _mm256_srli_epi16::<14>(value),
                _ => _mm256_srli_epi16::<15>(value),
            }
        }
    }
    /// A lane of the sum takes two products of at most `255 * 32512`; 64 of those, as a group of 128 columns has, stay
    /// below 2^31.
    #[inline(always)]
    unsafe fn dot_words(sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { add_products(sum, codes, activations) }
    }
}

/// `sum` plus pairs of products. Written as instructions because the compiler would otherwise add the products of several
/// columns to each other first, keep them all, and send the sums to memory for want of registers: a fifth slower.
///
/// # Safety
/// The machine must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_products(mut sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
    // SAFETY: registers only.
    unsafe {
        std::arch::asm!(
            "vpmaddwd {products}, {codes}, {activations}",
            "vpaddd {sum}, {sum}, {products}",
            products = out(ymm_reg) _,
            codes = in(ymm_reg) codes,
            activations = in(ymm_reg) activations,
            sum = inout(ymm_reg) sum,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

impl Simd for Avx2Vnni {
    common!();

    const ZERO_POINT: i32 = 0;
    type Partial = __m256i;

    #[inline(always)]
    unsafe fn recode(codes: __m256i) -> __m256i {
        codes
    }
    #[inline(always)]
    unsafe fn partial_zero() -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    fn flush_interval(_bits: usize) -> usize {
        usize::MAX
    }
    #[inline(always)]
    unsafe fn dot<const BITS: usize>(partial: __m256i, weights: __m256i, activations: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_dpbusd_avx_epi32(partial, weights, activations) }
    }
    #[inline(always)]
    unsafe fn flush(sum: __m256i, partial: __m256i, term: usize) -> __m256i {
        // SAFETY: as above. Times 255 is times 256 less once.
        unsafe {
            let weighed = if term == 0 { _mm256_sub_epi32(_mm256_slli_epi32::<8>(partial), partial) } else { partial };
            _mm256_add_epi32(sum, weighed)
        }
    }
}

// Streaming, 2 tiles x 4 rows of sums leave 8 of the 16 registers for operands. In a panel, 2 tiles x 3 rows of integer
// sums and as many float sums fill them; 2 x 6 float sums likewise.
compile_kernels!(Avx2, crate::simd::F32x8, "avx2,fma,f16c", stream_tiles 2, tiles 2, rows 3, rows_f32 6);
// Streaming, each tile and row has a sum per term: 1 x 4.
compile_kernels!(Avx2Vnni, crate::simd::F32x8, "avx2,fma,f16c,avxvnni", stream_tiles 1, tiles 2, rows 3, rows_f32 6);
