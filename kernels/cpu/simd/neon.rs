//! Four lanes: Arm NEON.

// NEON is enabled everywhere on aarch64, where newer compilers call its register intrinsics safe.
#![allow(unused_unsafe)]

use std::arch::{
    aarch64::{
        float32x4_t, uint16x4_t, uint32x4_t, vabsq_f32, vaddq_f32, vaddq_s32, vaddvq_f32, vandq_u32, vbslq_f32,
        vcltq_f32, vcreate_u8, vcvtq_f32_u32, vcvtq_s32_f32, vdivq_f32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u32,
        vfmaq_f32, vget_low_u16, vld1_u16, vld1q_f32, vmaxq_f32, vmaxvq_f32, vminq_f32, vmovl_u8, vmovl_u16, vmulq_f32,
        vmvnq_u32, vreinterpretq_f32_s32, vreinterpretq_f32_u32, vreinterpretq_u32_f32, vrev64q_f32, vrndnq_f32,
        vshlq_n_s32, vshrq_n_u32, vst1_u16, vst1q_f32, vsubq_f32,
    },
    asm,
};

use super::{Vector, VectorKernel};

/// Runs a kernel with the features enabled.
///
/// # Safety
/// The machine must have NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn call<K: VectorKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise.
    unsafe { kernel.vector::<F32x4>() }
}

/// Four f32 lanes.
#[derive(Clone, Copy)]
pub(crate) struct F32x4(float32x4_t);

/// Safe methods whose body is one expression of intrinsics.
macro_rules! lanewise {
    ($($name:ident($self:ident $(, $argument:ident)*) $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($self $(, $argument: Self)*) -> Self {
            // SAFETY: a value of this type exists only on a machine with NEON.
            Self(unsafe { $body })
        }
    )*};
}

/// Four bytes as four unsigned numbers.
///
/// # Safety
/// `source` must be readable for four bytes.
#[inline(always)]
unsafe fn widen_bytes(source: *const u8) -> uint32x4_t {
    // SAFETY: the caller's promise; read unaligned.
    unsafe {
        let bytes = vcreate_u8(u64::from(source.cast::<u32>().read_unaligned()));
        vmovl_u16(vget_low_u16(vmovl_u8(bytes)))
    }
}

impl Vector for F32x4 {
    const LANES: usize = 4;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { vdupq_n_f32(value) })
    }

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { vld1q_f32(source) })
    }

    #[inline(always)]
    unsafe fn load_f16(source: *const u16) -> Self {
        // SAFETY: the caller's promise for the load; the conversion is part of NEON and touches registers only.
        // It is written in assembly because the f16 vector types are not stable.
        unsafe {
            let half: uint16x4_t = vld1_u16(source);
            let wide: float32x4_t;
            asm!("fcvtl {wide:v}.4s, {half:v}.4h", wide = lateout(vreg) wide, half = in(vreg) half,
                options(pure, nomem, nostack, preserves_flags));
            Self(wide)
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(source: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(vcvtq_f32_u32(widen_bytes(source))) }
    }

    #[inline(always)]
    unsafe fn load_low_nibbles(source: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { Self(vcvtq_f32_u32(vandq_u32(widen_bytes(source), vdupq_n_u32(0xf)))) }
    }

    #[inline(always)]
    unsafe fn load_high_nibbles(source: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { Self(vcvtq_f32_u32(vshrq_n_u32::<4>(widen_bytes(source)))) }
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_f32(target, self.0) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, target: *mut u16) {
        // SAFETY: as for the load.
        unsafe {
            let half: uint16x4_t;
            asm!("fcvtn {half:v}.4h, {wide:v}.4s", half = lateout(vreg) half, wide = in(vreg) self.0,
                options(pure, nomem, nostack, preserves_flags));
            vst1_u16(target, half);
        }
    }

    lanewise! {
        add(self, other) vaddq_f32(self.0, other.0);
        sub(self, other) vsubq_f32(self.0, other.0);
        mul(self, other) vmulq_f32(self.0, other.0);
        div(self, other) vdivq_f32(self.0, other.0);
        mul_add(self, factor, addend) vfmaq_f32(addend.0, self.0, factor.0);
        max(self, other) vmaxq_f32(self.0, other.0);
        min(self, other) vminq_f32(self.0, other.0);
        abs(self) vabsq_f32(self.0);
        copy_sign(self, sign) vbslq_f32(vdupq_n_u32(0x8000_0000), sign.0, self.0);
        round(self) vrndnq_f32(self.0);
        scale_by_power_of_two(self, exponent) {
            let biased = vaddq_s32(vcvtq_s32_f32(exponent.0), vdupq_n_s32(127));
            vmulq_f32(self.0, vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased)))
        };
        zero_where_below(self, x, limit) {
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(self.0), vmvnq_u32(vcltq_f32(x.0, limit.0))))
        };
        swap_pairs(self) vrev64q_f32(self.0);
    }

    #[inline(always)]
    fn reduce_add(self) -> f32 {
        // SAFETY: a value of this type exists only on a machine with NEON.
        unsafe { vaddvq_f32(self.0) }
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        // SAFETY: as for the sum.
        unsafe { vmaxvq_f32(self.0) }
    }
}
