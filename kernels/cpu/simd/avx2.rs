//! Eight lanes: AVX2 with FMA and F16C.

use std::arch::x86_64::{
    __m256, _CMP_NLT_UQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32,
    _mm_loadl_epi64, _mm_loadu_si128, _mm_max_ps, _mm_max_ss, _mm_movehl_ps, _mm_shuffle_ps, _mm_storeu_si128,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256, _mm256_andnot_ps, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32,
    _mm256_cvtps_ph, _mm256_div_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps,
    _mm256_min_ps, _mm256_mul_ps, _mm256_or_ps, _mm256_permute_ps, _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

use super::{Vector, VectorKernel};

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Runs a kernel with the features enabled.
///
/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn call<K: VectorKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise.
    unsafe { kernel.vector::<F32x8>() }
}

/// Eight f32 lanes.
#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

/// Safe methods whose body is one expression of intrinsics.
macro_rules! lanewise {
    ($($name:ident($self:ident $(, $argument:ident)*) $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($self $(, $argument: Self)*) -> Self {
            // SAFETY: a value of this type exists only on a machine with AVX2, FMA and F16C.
            Self(unsafe { $body })
        }
    )*};
}

impl Vector for F32x8 {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm256_loadu_ps(source) })
    }

    #[inline(always)]
    unsafe fn load_f16(source: *const u16) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(source.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bytes(source: *const u8) -> Self {
        // SAFETY: the caller's promise; eight bytes are read.
        Self(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast()))) })
    }

    #[inline(always)]
    unsafe fn load_low_nibbles(source: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast()));
            Self(_mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(0xf))))
        }
    }

    #[inline(always)]
    unsafe fn load_high_nibbles(source: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast()));
            Self(_mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(bytes)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(target, self.0) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, target: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { _mm_storeu_si128(target.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }

    lanewise! {
        add(self, other) _mm256_add_ps(self.0, other.0);
        sub(self, other) _mm256_sub_ps(self.0, other.0);
        mul(self, other) _mm256_mul_ps(self.0, other.0);
        div(self, other) _mm256_div_ps(self.0, other.0);
        mul_add(self, factor, addend) _mm256_fmadd_ps(self.0, factor.0, addend.0);
        // The instruction returns its second operand where either is NaN.
        max(self, other) _mm256_max_ps(other.0, self.0);
        min(self, other) _mm256_min_ps(other.0, self.0);
        abs(self) _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0);
        copy_sign(self, sign) _mm256_or_ps(
            _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0),
            _mm256_and_ps(_mm256_set1_ps(-0.0), sign.0),
        );
        round(self) _mm256_round_ps::<NEAREST>(self.0);
        scale_by_power_of_two(self, exponent) {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent.0), _mm256_set1_epi32(127));
            _mm256_mul_ps(self.0, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
        };
        zero_where_below(self, x, limit) _mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, limit.0));
        swap_pairs(self) _mm256_permute_ps::<0b10_11_00_01>(self.0);
    }

    #[inline(always)]
    fn reduce_add(self) -> f32 {
        // SAFETY: a value of this type exists only on a machine with AVX2, FMA and F16C.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        // SAFETY: as for the sum.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}
