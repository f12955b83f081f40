//! Between the half-precision formats and f32.

#![allow(unsafe_code)]

use half::{bf16, f16};

use crate::{
    Isa,
    simd::{Kernel, Vector, VectorKernel, dispatch},
};

/// Widens f16 to f32, exactly.
///
/// # Panics
/// If the slices differ in length.
pub fn f16_to_f32(source: &[f16], out: &mut [f32]) {
    assert_eq!(source.len(), out.len(), "f16_to_f32: lengths differ");
    source.iter().zip(out).for_each(|(value, out)| *out = value.to_f32());
}

/// Rounds f32 to f16, to nearest, ties to even; values beyond f16's range become infinite.
///
/// # Panics
/// If the slices differ in length.
pub fn f32_to_f16(source: &[f32], out: &mut [f16]) {
    assert_eq!(source.len(), out.len(), "f32_to_f16: lengths differ");
    source.iter().zip(out).for_each(|(&value, out)| *out = f16::from_f32(value));
}

/// Widens bf16 to f32, exactly.
///
/// # Panics
/// If the slices differ in length.
pub fn bf16_to_f32(source: &[bf16], out: &mut [f32]) {
    assert_eq!(source.len(), out.len(), "bf16_to_f32: lengths differ");
    source.iter().zip(out).for_each(|(value, out)| *out = value.to_f32());
}

/// Rounds f32 to bf16, to nearest, ties to even.
///
/// # Panics
/// If the slices differ in length.
pub fn f32_to_bf16(source: &[f32], out: &mut [bf16]) {
    assert_eq!(source.len(), out.len(), "f32_to_bf16: lengths differ");
    source.iter().zip(out).for_each(|(&value, out)| *out = bf16::from_f32(value));
}

/// Widens the bits of f16 values on a level of a context.
pub(crate) fn widen_f16_bits(isa: Isa, source: &[u16], out: &mut [f32]) {
    assert_eq!(source.len(), out.len(), "widen_f16_bits: lengths differ");
    dispatch(isa, WidenF16 { source, out });
}

struct WidenF16<'a> {
    source: &'a [u16],
    out: &'a mut [f32],
}

impl Kernel for WidenF16<'_> {
    fn scalar(self) {
        self.source.iter().zip(self.out).for_each(|(&bits, out)| *out = f16::from_bits(bits).to_f32());
    }
}

impl VectorKernel for WidenF16<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        let mut sources = self.source.chunks_exact(V::LANES);
        let mut targets = self.out.chunks_exact_mut(V::LANES);
        for (source, target) in (&mut sources).zip(&mut targets) {
            // SAFETY: both chunks have LANES elements; the instruction set is the caller's promise.
            unsafe { V::load_f16(source.as_ptr()).store(target.as_mut_ptr()) };
        }
        Kernel::scalar(WidenF16 { source: sources.remainder(), out: targets.into_remainder() });
    }
}
