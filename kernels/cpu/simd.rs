//! Kernels written once over a vector type and compiled for each instruction set.
//!
//! A kernel is a struct that borrows its operands and implements [`Kernel`]; [`dispatch`] calls its body inside a
//! function that has the instruction set's features enabled. The body must be `#[inline(always)]`, as must everything it
//! calls that takes a [`Vector`]: only what is inlined into the enabled function is compiled with its features.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exp;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::F32x8;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::F32x16;
pub(crate) use exp::{ExpConstants, exp, tanh};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::F32x4;

use crate::Isa;

/// The most lanes of any vector type.
pub(crate) const MAX_LANES: usize = 16;

/// A register of f32 lanes. A value exists only where its instruction set does (the constructors are unsafe), which is
/// why the arithmetic is safe.
pub(crate) trait Vector: Copy {
    /// f32 elements.
    const LANES: usize;
    /// Architectural registers, which bound the size of register tiles.
    const REGISTERS: usize;

    /// All lanes `value`.
    ///
    /// # Safety
    /// The machine must have this vector's instruction set.
    unsafe fn splat(value: f32) -> Self;
    /// Reads `LANES` elements.
    ///
    /// # Safety
    /// As [`Vector::splat`], and `source` must be readable for `LANES` elements.
    unsafe fn load(source: *const f32) -> Self;
    /// Reads and widens `LANES` f16 values.
    ///
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load_f16(source: *const u16) -> Self;
    /// Reads `LANES` bytes as unsigned numbers.
    ///
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load_bytes(source: *const u8) -> Self;
    /// The low halves of `LANES` bytes as unsigned numbers.
    ///
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load_low_nibbles(source: *const u8) -> Self;
    /// The high halves of `LANES` bytes, likewise.
    ///
    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load_high_nibbles(source: *const u8) -> Self;
    /// Writes `LANES` elements.
    ///
    /// # Safety
    /// `target` must be writable for `LANES` elements.
    unsafe fn store(self, target: *mut f32);
    /// Rounds to f16 (to nearest, ties to even) and writes `LANES` elements.
    ///
    /// # Safety
    /// As [`Vector::store`].
    unsafe fn store_f16(self, target: *mut u16);

    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The larger of each lane; NaN in `self` is kept.
    fn max(self, other: Self) -> Self;
    /// The smaller of each lane; NaN in `self` is kept.
    fn min(self, other: Self) -> Self;
    /// The absolute value.
    fn abs(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copy_sign(self, sign: Self) -> Self;
    /// The nearest integer, ties to even.
    fn round(self) -> Self;
    /// `self * 2^exponent` for integral exponents of -126 to 128 (128 gives infinity).
    fn scale_by_power_of_two(self, exponent: Self) -> Self;
    /// `self` where `x >= limit` or `x` is NaN, else 0.
    fn zero_where_below(self, x: Self, limit: Self) -> Self;
    /// Lanes 0 and 1 swapped, 2 and 3 swapped, and so on.
    fn swap_pairs(self) -> Self;
    /// The sum of all lanes.
    fn reduce_add(self) -> f32;
    /// The largest lane.
    fn reduce_max(self) -> f32;
}

/// A computation written over a vector type.
pub(crate) trait VectorKernel {
    /// What it returns.
    type Output;

    /// The computation, `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine must have `V`'s instruction set.
    unsafe fn vector<V: Vector>(self) -> Self::Output;
}

/// A computation that has a plain version too: the reference.
pub(crate) trait Kernel: VectorKernel {
    /// The plain version.
    fn scalar(self) -> Self::Output;
}

/// Runs `kernel` on `isa`, which must come from a [`crate::Context`] (it holds only levels that this machine has).
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match dispatch_vector(isa, kernel) {
        Ok(output) => output,
        Err(kernel) => kernel.scalar(),
    }
}

/// [`dispatch`] for kernels without a plain version: on [`Isa::Scalar`] the kernel comes back.
pub(crate) fn dispatch_vector<K: VectorKernel>(isa: Isa, kernel: K) -> Result<K::Output, K> {
    match isa {
        // SAFETY: a context never holds a level that this machine lacks.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => Ok(unsafe { avx2::call(kernel) }),
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 => Ok(unsafe { avx512::call(kernel) }),
        // SAFETY: NEON is part of every aarch64 target that we build for.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => Ok(unsafe { neon::call(kernel) }),
        _ => Err(kernel),
    }
}

/// The level to use for rows that must be whole vectors: `isa`, or on AVX-512 the 8-lane level where `elements` is no
/// multiple of 16, or the scalar level where it is no multiple of 8.
pub(crate) fn level_for_multiple(isa: Isa, elements: usize) -> Isa {
    match isa {
        _ if !elements.is_multiple_of(8) => Isa::Scalar,
        Isa::Avx512Vnni | Isa::Avx512Bf16 if !elements.is_multiple_of(16) => Isa::Avx2,
        level => level,
    }
}

/// `x = operation(x)` over a slice; the tail is computed in a padded vector.
///
/// # Safety
/// The machine must have `V`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn map_in_place<V: Vector>(x: &mut [f32], operation: impl Fn(V) -> V) {
    let mut chunks = x.chunks_exact_mut(V::LANES);
    for chunk in &mut chunks {
        // SAFETY: the chunk has LANES elements; the instruction set is the caller's promise.
        unsafe { operation(V::load(chunk.as_ptr())).store(chunk.as_mut_ptr()) };
    }
    let tail = chunks.into_remainder();
    if !tail.is_empty() {
        let mut padded = [0.0; MAX_LANES];
        padded[..tail.len()].copy_from_slice(tail);
        // SAFETY: the buffer has MAX_LANES elements.
        unsafe { operation(V::load(padded.as_ptr())).store(padded.as_mut_ptr()) };
        tail.copy_from_slice(&padded[..tail.len()]);
    }
}

/// `a = operation(a, b)` over two slices; `b` must be at least as long as `a`.
///
/// # Safety
/// The machine must have `V`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn zip_in_place<V: Vector>(a: &mut [f32], b: &[f32], operation: impl Fn(V, V) -> V) {
    let b = &b[..a.len()];
    let mut chunks = a.chunks_exact_mut(V::LANES);
    let mut others = b.chunks_exact(V::LANES);
    for (chunk, other) in (&mut chunks).zip(&mut others) {
        // SAFETY: both chunks have LANES elements; the instruction set is the caller's promise.
        unsafe { operation(V::load(chunk.as_ptr()), V::load(other.as_ptr())).store(chunk.as_mut_ptr()) };
    }
    let (tail, other) = (chunks.into_remainder(), others.remainder());
    if !tail.is_empty() {
        let (mut padded, mut padded_other) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
        padded[..tail.len()].copy_from_slice(tail);
        padded_other[..tail.len()].copy_from_slice(other);
        // SAFETY: the buffers have MAX_LANES elements.
        unsafe { operation(V::load(padded.as_ptr()), V::load(padded_other.as_ptr())).store(padded.as_mut_ptr()) };
        tail.copy_from_slice(&padded[..tail.len()]);
    }
}

/// The sum of `term(x)` over a slice in four independent accumulators; the tail is summed plainly by `tail_term`.
///
/// # Safety
/// The machine must have `V`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn sum<V: Vector>(x: &[f32], add: impl Fn(V, V) -> V, tail_term: impl Fn(f32) -> f32) -> f32 {
    const UNROLL: usize = 4;
    // SAFETY: the instruction set is the caller's promise; loads stay inside chunks of their length.
    unsafe {
        let mut sums = [V::splat(0.0); UNROLL];
        let mut blocks = x.chunks_exact(UNROLL * V::LANES);
        for block in &mut blocks {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = add(*sum, V::load(block.as_ptr().add(index * V::LANES)));
            }
        }
        let mut chunks = blocks.remainder().chunks_exact(V::LANES);
        for chunk in &mut chunks {
            sums[0] = add(sums[0], V::load(chunk.as_ptr()));
        }
        let tail: f32 = chunks.remainder().iter().map(|&value| tail_term(value)).sum();
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).reduce_add() + tail
    }
}

#[cfg(test)]
mod tests;
