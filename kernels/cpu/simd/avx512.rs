//! Sixteen lanes: AVX-512 F and DQ.

use std::arch::x86_64::{
    __m512, _CMP_NLT_UQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm256_loadu_si256,
    _mm256_storeu_si256, _mm512_abs_ps, _mm512_add_ps, _mm512_and_ps, _mm512_and_si512, _mm512_cmp_ps_mask,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_div_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_or_ps, _mm512_permute_ps,
    _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::{Vector, VectorKernel};

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Runs a kernel with the features enabled.
///
/// # Safety
/// The machine must have AVX-512 F, BW, VL and DQ.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn call<K: VectorKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise.
    unsafe { kernel.vector::<F32x16>() }
}

/// Sixteen f32 lanes.
#[derive(Clone, Copy)]
pub(crate) struct F32x16(__m512);

/// Safe methods whose body is one expression of intrinsics.
macro_rules! lanewise {
    ($($name:ident($self:ident $(, $argument:ident)*) $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($self $(, $argument: Self)*) -> Self {
            // SAFETY: a value of this type exists only on a machine with AVX-512.
            Self(unsafe { $body })
        }
    )*};
}

impl Vector for F32x16 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_loadu_ps(source) })
    }

    #[inline(always)]
    unsafe fn load_f16(source: *const u16) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(source.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bytes(source: *const u8) -> Self {
        // SAFETY: the caller's promise; sixteen bytes are read.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()))) })
    }

    #[inline(always)]
    unsafe fn load_low_nibbles(source: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()));
            Self(_mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(0xf))))
        }
    }

    #[inline(always)]
    unsafe fn load_high_nibbles(source: *const u8) -> Self {
        // SAFETY: as above.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()));
            Self(_mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(target, self.0) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, target: *mut u16) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(target.cast(), _mm512_cvtps_ph::<NEAREST>(self.0)) }
    }

    lanewise! {
        add(self, other) _mm512_add_ps(self.0, other.0);
        sub(self, other) _mm512_sub_ps(self.0, other.0);
        mul(self, other) _mm512_mul_ps(self.0, other.0);
        div(self, other) _mm512_div_ps(self.0, other.0);
        mul_add(self, factor, addend) _mm512_fmadd_ps(self.0, factor.0, addend.0);
        // The instruction returns its second operand where either is NaN.
        max(self, other) _mm512_max_ps(other.0, self.0);
        min(self, other) _mm512_min_ps(other.0, self.0);
        abs(self) _mm512_abs_ps(self.0);
        copy_sign(self, sign) _mm512_or_ps(_mm512_abs_ps(self.0), _mm512_and_ps(_mm512_set1_ps(-0.0), sign.0));
        round(self) _mm512_roundscale_ps::<NEAREST>(self.0);
        scale_by_power_of_two(self, exponent) _mm512_scalef_ps(self.0, exponent.0);
        zero_where_below(self, x, limit) {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, limit.0), self.0)
        };
        swap_pairs(self) _mm512_permute_ps::<0b10_11_00_01>(self.0);
    }

    #[inline(always)]
    fn reduce_add(self) -> f32 {
        // SAFETY: a value of this type exists only on a machine with AVX-512.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        // SAFETY: as for the sum.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}
