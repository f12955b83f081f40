//! Between the half-precision formats and f32.

use half::{bf16, f16};

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
