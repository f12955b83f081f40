//! What a vector instruction set must offer for the products to be written once for all of them.
#![allow(unsafe_code)]

use super::{
    finish::Finish,
    panel::{PanelFast, UnpackFast},
    quantize::GroupMeta,
    single::{PanelF32, UnpackF32},
    stream::Stream,
};
use crate::Activation;

/// Vectors of one instruction set: `LANES` 32-bit lanes, used as floats, as integers, or as `4 * LANES` bytes.
///
/// # Safety
/// Every function must only be called where the instruction set is available, from code compiled for it. Pointers must
/// be valid for the vector read or written; no alignment is needed.
pub(crate) trait Simd: Copy + 'static {
    /// 32-bit lanes of a vector, which is the height of a tile.
    const LANES: usize;
    /// What [`Simd::dot`] subtracts from 8-bit codes: 128 where the instruction wants signed weights.
    const ZERO_POINT: i32;
    /// Whether codes are multiplied as 16-bit words with whole activations ([`Simd::dot_words`]): where byte products
    /// have 16-bit sums, which must be emptied all the time, and nothing is lost by the wider ones.
    const WIDE: bool = false;

    type Floats: Copy;
    type Ints: Copy;
    type Bytes: Copy;
    /// Sums of one term: narrower than 32 bits, and flushed often, on some instruction sets.
    type Partial: Copy;

    unsafe fn zero() -> Self::Floats;
    unsafe fn splat(value: f32) -> Self::Floats;
    unsafe fn load(from: *const f32) -> Self::Floats;
    unsafe fn store(to: *mut f32, value: Self::Floats);
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, fused.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn load_f16(from: *const u8) -> Self::Floats;
    unsafe fn load_bf16(from: *const u8) -> Self::Floats;

    unsafe fn ints_zero() -> Self::Ints;
    unsafe fn splat_int(value: i32) -> Self::Ints;
    unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn ints_to_floats(value: Self::Ints) -> Self::Floats;

    unsafe fn load_bytes(from: *const u8) -> Self::Bytes;
    unsafe fn store_bytes(to: *mut u8, value: Self::Bytes);
    unsafe fn splat_byte(value: u8) -> Self::Bytes;
    /// The four bytes at `from` in every lane.
    unsafe fn splat_quad(from: *const i8) -> Self::Bytes;
    unsafe fn and(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts right by `count` (0 to 7; a constant after inlining), in lanes of any width: bits that cross into a byte
    /// are masked off afterwards.
    unsafe fn shift_right(value: Self::Bytes, count: usize) -> Self::Bytes;
    /// Shifts left, likewise.
    unsafe fn shift_left(value: Self::Bytes, count: usize) -> Self::Bytes;
    /// Byte `index` (0 to 3; a constant after inlining) of every lane, as an unsigned number.
    unsafe fn byte_to_floats(value: Self::Bytes, index: usize) -> Self::Floats;
    /// 8-bit codes as [`Simd::dot`] wants them: unsigned, or with 128 subtracted.
    unsafe fn recode(codes: Self::Bytes) -> Self::Bytes;

    unsafe fn partial_zero() -> Self::Partial;
    /// After how many quads of `bits`-wide codes the partial sums must be flushed: 1, 2, 4 or 8. More than 8 stands for
    /// the end of the group.
    fn flush_interval(bits: usize) -> usize;
    /// Adds the products of four codes and four activations in each lane.
    unsafe fn dot<const BITS: usize>(
        partial: Self::Partial,
        weights: Self::Bytes,
        activations: Self::Bytes,
    ) -> Self::Partial;
    /// Adds the partial sums of term `term`, times [`super::quantize::TERM_WEIGHTS`] of it, to the full ones.
    unsafe fn flush(sum: Self::Ints, partial: Self::Partial, term: usize) -> Self::Ints;
    /// `value` in every 16 bits. This and what follows is called only where [`Simd::WIDE`].
    unsafe fn splat_word(_value: u16) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { Self::splat_byte(0) }
    }
    /// Shifts 16-bit words right by `count` (0 to 15; a constant after inlining).
    unsafe fn shift_word_right(value: Self::Bytes, _count: usize) -> Self::Bytes {
        value
    }
    /// Adds the products of two 16-bit codes and two 16-bit activations in each lane.
    unsafe fn dot_words(sum: Self::Ints, _codes: Self::Bytes, _activations: Self::Bytes) -> Self::Ints {
        sum
    }
    /// Asks for the cache line at `at`, which need not be valid.
    unsafe fn prefetch(at: *const u8);
}

/// The kernels compiled for one instruction set, by [`compile_kernels`].
///
/// # Safety
/// Every function must only be called where the instruction set is available; the pointers in the arguments must be
/// valid for what the kernel of the same name reads and writes.
pub(crate) trait Kernels: Simd {
    /// Tiles of a panel.
    const TILES: usize;
    /// Tiles that are streamed side by side: 1 or 2.
    const STREAM_TILES: usize;

    /// `ROWS` rows against [`Kernels::STREAM_TILES`] tiles.
    unsafe fn stream<const BITS: usize, const ROWS: usize>(arguments: &Stream);
    /// `ROWS` rows against one tile.
    unsafe fn stream_one<const BITS: usize, const ROWS: usize>(arguments: &Stream);
    unsafe fn unpack_fast<const BITS: usize>(arguments: &UnpackFast);
    unsafe fn unpack_affine_f32<const BITS: usize>(arguments: &UnpackF32);
    unsafe fn unpack_dense_f32(arguments: &UnpackF32);
    /// Multiplies a panel with as many rows as one register block takes and returns how many: at most `rows`.
    unsafe fn panel_fast<const BITS: usize, const TERMS: usize>(arguments: &PanelFast, rows: usize) -> usize;
    /// Likewise in single precision.
    unsafe fn panel_f32(arguments: &PanelF32, rows: usize) -> usize;
    /// Quantizes a row into `wide` where [`Simd::WIDE`], into `codes` of so many terms elsewhere.
    unsafe fn quantize(
        x: &[f32],
        group: usize,
        terms: usize,
        codes: &mut [i8],
        wide: &mut [i16],
        meta: &mut [GroupMeta],
    );
    /// In each of the rows of `width` sums, the first half becomes `activation(first half) * second half`.
    unsafe fn gate(activation: Activation, rows: &mut [f32], width: usize);
    /// `sums = activation(sums + bias)`, of one length.
    unsafe fn activate(activation: Activation, sums: &mut [f32], bias: Option<&[f32]>);
    unsafe fn finish(arguments: &Finish<'_>);
}

/// Compiles the generic kernels for one instruction set: its target features, the tiles that are streamed side by side,
/// the tiles of a panel, and the rows of the integer and the single-precision register blocks.
macro_rules! compile_kernels {
    (
        $set:ty, $vector:ty, $features:literal, stream_tiles $stream_tiles:literal, tiles $tiles:literal,
        rows $rows:literal, rows_f32 $rows_f32:literal
    ) => {
        impl crate::matmul::simd::Kernels for $set {
            const TILES: usize = $tiles;
            const STREAM_TILES: usize = $stream_tiles;

            #[target_feature(enable = $features)]
            unsafe fn stream<const BITS: usize, const ROWS: usize>(arguments: &crate::matmul::stream::Stream) {
                // SAFETY: the caller's promise, here and below.
                unsafe { crate::matmul::stream::stream::<Self, BITS, $stream_tiles, ROWS>(arguments) }
            }

            #[target_feature(enable = $features)]
            unsafe fn stream_one<const BITS: usize, const ROWS: usize>(arguments: &crate::matmul::stream::Stream) {
                // SAFETY: as above.
                unsafe { crate::matmul::stream::stream::<Self, BITS, 1, ROWS>(arguments) }
            }

            #[target_feature(enable = $features)]
            unsafe fn unpack_fast<const BITS: usize>(arguments: &crate::matmul::panel::UnpackFast) {
                // SAFETY: as above.
                unsafe { crate::matmul::panel::unpack_fast::<Self, BITS>(arguments) }
            }

            #[target_feature(enable = $features)]
            unsafe fn unpack_affine_f32<const BITS: usize>(arguments: &crate::matmul::single::UnpackF32) {
                // SAFETY: as above.
                unsafe { crate::matmul::single::unpack_affine_f32::<Self, BITS>(arguments) }
            }

            #[target_feature(enable = $features)]
            unsafe fn unpack_dense_f32(arguments: &crate::matmul::single::UnpackF32) {
                // SAFETY: as above.
                unsafe { crate::matmul::single::unpack_dense_f32::<Self>(arguments) }
            }

            #[target_feature(enable = $features)]
            unsafe fn panel_fast<const BITS: usize, const TERMS: usize>(
                arguments: &crate::matmul::panel::PanelFast,
                rows: usize,
            ) -> usize {
                use crate::matmul::panel::panel_fast;
                // SAFETY: as above.
                unsafe {
                    if rows >= $rows {
                        panel_fast::<Self, BITS, TERMS, $tiles, $rows>(arguments);
                        $rows
                    } else if rows >= 2 {
                        panel_fast::<Self, BITS, TERMS, $tiles, 2>(arguments);
                        2
                    } else {
                        panel_fast::<Self, BITS, TERMS, $tiles, 1>(arguments);
                        1
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn panel_f32(arguments: &crate::matmul::single::PanelF32, rows: usize) -> usize {
                use crate::matmul::single::panel_f32;
                // SAFETY: as above.
                unsafe {
                    if rows >= $rows_f32 {
                        panel_f32::<Self, $tiles, $rows_f32, 1>(arguments);
                        $rows_f32
                    } else if rows >= 4 {
                        panel_f32::<Self, $tiles, 4, 1>(arguments);
                        4
                    } else if rows >= 2 {
                        panel_f32::<Self, $tiles, 2, 2>(arguments);
                        2
                    } else {
                        panel_f32::<Self, $tiles, 1, 4>(arguments);
                        1
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn quantize(
                x: &[f32],
                group: usize,
                terms: usize,
                codes: &mut [i8],
                wide: &mut [i16],
                meta: &mut [crate::matmul::quantize::GroupMeta],
            ) {
                use crate::matmul::{
                    quantize::{quantize_one_term, quantize_terms, quantize_words},
                    simd::Simd,
                };
                if <Self as Simd>::WIDE {
                    quantize_words(x, group, wide, meta);
                } else if terms == 1 {
                    quantize_one_term(x, group, codes, meta);
                } else {
                    quantize_terms(x, group, codes, meta);
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn gate(activation: crate::Activation, rows: &mut [f32], width: usize) {
                for row in rows.chunks_exact_mut(width) {
                    let (gate, up) = row.split_at_mut(width / 2);
                    // SAFETY: as above; the vector type is one of this instruction set.
                    unsafe { crate::activation::gate::<$vector>(activation, gate, up) };
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn activate(activation: crate::Activation, sums: &mut [f32], bias: Option<&[f32]>) {
                // SAFETY: as above; the vector type is one of this instruction set.
                unsafe { crate::activation::activate_with_bias::<$vector>(activation, sums, bias) }
            }

            #[target_feature(enable = $features)]
            unsafe fn finish(arguments: &crate::matmul::finish::Finish<'_>) {
                // SAFETY: as above.
                unsafe { crate::matmul::finish::finish::<Self>(arguments) }
            }
        }
    };
}
pub(crate) use compile_kernels;
