//! Between the half-precision formats and f32.

#![allow(unsafe_code)]

use half::{bf16, f16, slice::HalfFloatSliceExt};

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
    source.convert_to_f32_slice(out);
}

/// Rounds f32 to f16, to nearest, ties to even; values beyond f16's range become infinite.
///
/// # Panics
/// If the slices differ in length.
pub fn f32_to_f16(source: &[f32], out: &mut [f16]) {
    assert_eq!(source.len(), out.len(), "f32_to_f16: lengths differ");
    out.convert_from_f32_slice(source);
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
    source.iter().zip(out).for_each(|(&value, out)| *out = round_to_bf16(value));
}

/// bf16 is the upper half of f32. Without branches, unlike the library's version, so that loops become vector code.
#[inline(always)]
fn round_to_bf16(value: f32) -> bf16 {
    const QUIET: u32 = 0x0040_0000;
    let bits = value.to_bits();
    // Half a unit of the last kept place, less one where that place is even: ties go to even.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let bits = if value.is_nan() { bits | QUIET } else { rounded };
    bf16::from_bits((bits >> 16) as u16)
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

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, widen_f16_bits};
    use crate::Isa;

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    #[test]
    fn every_half_precision_value_widens_exactly() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let mut out = vec![0.0; bits.len()];
        let halves: Vec<f16> = bits.iter().map(|&bits| f16::from_bits(bits)).collect();
        f16_to_f32(&halves, &mut out);
        assert!(out.iter().zip(&halves).all(|(&got, half)| same(got, half.to_f32_const())));
        for isa in Isa::available() {
            let mut out = vec![0.0; bits.len() - 3];
            widen_f16_bits(isa, &bits[3..], &mut out);
            assert!(out.iter().zip(&halves[3..]).all(|(&got, half)| same(got, half.to_f32_const())), "{isa:?}");
        }
        let brains: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
        bf16_to_f32(&brains, &mut out);
        assert!(out.iter().zip(&brains).all(|(&got, brain)| same(got, brain.to_f32_const())));
    }

    #[test]
    fn rounding_goes_to_nearest_and_ties_to_even() {
        // All upper halves with lower halves around the ties.
        let lower = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
        let x: Vec<f32> =
            (0..=0xffffu32).flat_map(|upper| lower.map(|lower| f32::from_bits(upper << 16 | lower))).collect();
        let mut brains = vec![bf16::ZERO; x.len()];
        f32_to_bf16(&x, &mut brains);
        let mut halves = vec![f16::ZERO; x.len()];
        f32_to_f16(&x, &mut halves);
        for (index, &x) in x.iter().enumerate() {
            assert!(same(brains[index].to_f32_const(), bf16::from_f32_const(x).to_f32_const()), "bf16 of {x:e}");
            assert!(same(halves[index].to_f32_const(), f16::from_f32_const(x).to_f32_const()), "f16 of {x:e}");
        }
    }
}
