//! Rows of activations against tiles read straight from memory, a few rows to each pass over a tile: what decoding does,
//! where memory is the limit with one row, and each weight taken apart should serve several rows before it is forgotten.
//! With products of words ([`Simd::WIDE`]) this is the quickest for many rows too.
#![allow(unsafe_code)]
// Rows and tiles index several register arrays at once; iterators would hide which.
#![allow(clippy::needless_range_loop)]

use super::{
    decode::{dot_quad, for_quads, group_dot, load_scales, words},
    layout::{BLOCK, QUAD, ScaleKind},
    quantize::{GroupMeta, TERMS},
    simd::Simd,
};

/// How far ahead of the weights in use the cache is asked for more, in bytes of each tile; in short tiles as far as the
/// same place of the tile that is used next.
const PREFETCH: usize = 4096;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Operands of [`stream`].
pub(crate) struct Stream {
    /// As many tiles as the kernel takes, alike in all that follows.
    pub(crate) tiles: [*const u8; 2],
    /// Bytes of a tile, and how far behind the end of each the tile that is used next in its place begins.
    pub(crate) tile_bytes: usize,
    pub(crate) gap: usize,
    pub(crate) groups: usize,
    pub(crate) blocks_per_group: usize,
    pub(crate) scale_kind: ScaleKind,
    /// Biases are stored behind the scales.
    pub(crate) affine: bool,
    /// See [`super::decode::correction`].
    pub(crate) correction: i32,
    /// Quantized activations: `[rows, TERMS, columns]`. Not read where [`Simd::WIDE`].
    pub(crate) codes: *const i8,
    /// The same, both terms in one number: `[rows, columns]`. Read where [`Simd::WIDE`].
    pub(crate) wide: *const i16,
    pub(crate) columns: usize,
    /// `[rows, groups]`
    pub(crate) meta: *const GroupMeta,
    /// `[rows][tiles][lanes]` sums, rows `out_stride` apart; written.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
}

/// `ROWS` rows of quantized activations against `TILES` tiles.
///
/// # Safety
/// The pointers must be valid for the shapes of [`Stream`]; the instruction set of `S` must be available.
#[inline(always)]
pub(crate) unsafe fn stream<S: Simd, const BITS: usize, const TILES: usize, const ROWS: usize>(arguments: &Stream) {
    // Groups of one block need no second set of sums: worth a copy of the kernel. With words no group does.
    // SAFETY: the caller's promise.
    unsafe {
        if !S::WIDE && arguments.blocks_per_group == 1 {
            stream_groups::<S, BITS, TILES, ROWS>(arguments, 1);
        } else {
            stream_groups::<S, BITS, TILES, ROWS>(arguments, arguments.blocks_per_group);
        }
    }
}

#[inline(always)]
unsafe fn stream_groups<S: Simd, const BITS: usize, const TILES: usize, const ROWS: usize>(
    arguments: &Stream,
    blocks_per_group: usize,
) {
    let block_bytes = BITS * S::LANES * QUAD;
    let scales_bytes = S::LANES * arguments.scale_kind.bytes();
    // SAFETY: every offset stays within the tiles (their group records in order), the activations and the output.
    unsafe {
        let mut at = [arguments.tiles[0]; TILES];
        at.copy_from_slice(&arguments.tiles[..TILES]);
        let mut column = 0;
        let mut total = [[S::zero(); TILES]; ROWS];
        for group in 0..arguments.groups {
            let mut ahead = PREFETCH.min(arguments.tile_bytes);
            if at[0].addr() + ahead >= arguments.tiles[0].addr() + arguments.tile_bytes {
                ahead += arguments.gap;
            }
            let sums = if S::WIDE {
                group_words::<S, BITS, TILES, ROWS>(arguments, at, column, blocks_per_group, ahead)
            } else {
                group_bytes::<S, BITS, TILES, ROWS>(arguments, at, column, blocks_per_group, ahead)
            };
            column += blocks_per_group * BLOCK;
            let mut scales = [S::zero(); TILES];
            for tile in 0..TILES {
                at[tile] = at[tile].add(blocks_per_group * block_bytes);
                scales[tile] = load_scales::<S>(arguments.scale_kind, at[tile]);
                at[tile] = at[tile].add(scales_bytes);
            }
            for row in 0..ROWS {
                let meta = &*arguments.meta.add(row * arguments.groups + group);
                let scale = S::splat(meta.scale);
                for tile in 0..TILES {
                    let dot = group_dot::<S>(sums[row][tile], arguments.correction, meta);
                    total[row][tile] = S::mul_add(dot, S::mul(scales[tile], scale), total[row][tile]);
                }
            }
            if arguments.affine {
                let mut biases = [S::zero(); TILES];
                for tile in 0..TILES {
                    biases[tile] = load_scales::<S>(arguments.scale_kind, at[tile]);
                    at[tile] = at[tile].add(scales_bytes);
                }
                for row in 0..ROWS {
                    let meta = &*arguments.meta.add(row * arguments.groups + group);
                    let scaled_sum = S::splat(meta.scaled_sum);
                    for tile in 0..TILES {
                        total[row][tile] = S::mul_add(biases[tile], scaled_sum, total[row][tile]);
                    }
                }
            }
        }
        for row in 0..ROWS {
            for tile in 0..TILES {
                S::store(arguments.out.add(row * arguments.out_stride + tile * S::LANES), total[row][tile]);
            }
        }
    }
}

/// Where block `block` of each tile's group begins; what lies `ahead` bytes behind it is asked for. (A loop: closures
/// are not always inlined, and then not compiled for the instruction set of the caller.)
#[inline(always)]
unsafe fn block_starts<S: Simd, const BITS: usize, const TILES: usize>(
    mut at: [*const u8; TILES],
    block: usize,
    ahead: usize,
) -> [*const u8; TILES] {
    let bytes = BITS * S::LANES * QUAD;
    for tile in 0..TILES {
        // SAFETY: the block lies within the group; prefetching is a hint.
        unsafe {
            at[tile] = at[tile].add(block * bytes);
            for line in 0..bytes.div_ceil(LINE) {
                S::prefetch(at[tile].wrapping_add(ahead + line * LINE));
            }
        }
    }
    at
}

/// The integer sums of the group at `at`, whose first column is `column`, by byte products.
#[inline(always)]
unsafe fn group_bytes<S: Simd, const BITS: usize, const TILES: usize, const ROWS: usize>(
    arguments: &Stream,
    at: [*const u8; TILES],
    column: usize,
    blocks: usize,
    ahead: usize,
) -> [[S::Ints; TILES]; ROWS] {
    let flush = S::flush_interval(BITS);
    // SAFETY: as in `stream_groups`.
    unsafe {
        let mut sum = [[S::ints_zero(); TILES]; ROWS];
        let mut partial = [[[S::partial_zero(); TERMS]; TILES]; ROWS];
        for block in 0..blocks {
            let at = block_starts::<S, BITS, TILES>(at, block, ahead);
            let codes = arguments.codes.add(column + block * BLOCK);
            for_quads!(Q, {
                let mut weights = [S::splat_byte(0); TILES];
                for tile in 0..TILES {
                    weights[tile] = dot_quad::<S, BITS>(at[tile], Q);
                }
                for row in 0..ROWS {
                    for term in 0..TERMS {
                        let activations = S::splat_quad(codes.add((row * TERMS + term) * arguments.columns + Q * QUAD));
                        for tile in 0..TILES {
                            let (sum, partial) = (&mut sum[row][tile], &mut partial[row][tile][term]);
                            *partial = S::dot::<BITS>(*partial, weights[tile], activations);
                            if flush <= 8 && (Q + 1usize).is_multiple_of(flush) {
                                *sum = S::flush(*sum, *partial, term);
                                *partial = S::partial_zero();
                            }
                        }
                    }
                }
            });
        }
        if flush > 8 {
            for row in 0..ROWS {
                for tile in 0..TILES {
                    for term in 0..TERMS {
                        sum[row][tile] = S::flush(sum[row][tile], partial[row][tile][term], term);
                    }
                }
            }
        }
        sum
    }
}

/// [`group_bytes`] by products of 16-bit words.
#[inline(always)]
unsafe fn group_words<S: Simd, const BITS: usize, const TILES: usize, const ROWS: usize>(
    arguments: &Stream,
    at: [*const u8; TILES],
    column: usize,
    blocks: usize,
    ahead: usize,
) -> [[S::Ints; TILES]; ROWS] {
    // SAFETY: as in `stream_groups`.
    unsafe {
        // Few sums would wait for themselves: each then gets a second one.
        let ways = if ROWS * TILES <= 2 { 2 } else { 1 };
        let mut sums = [[[S::ints_zero(); 2]; TILES]; ROWS];
        for block in 0..blocks {
            let at = block_starts::<S, BITS, TILES>(at, block, ahead);
            let wide = arguments.wide.add(column + block * BLOCK);
            for_quads!(Q, {
                let mut codes = [[S::splat_byte(0); 2]; TILES];
                for tile in 0..TILES {
                    codes[tile] = words::<S, BITS>(at[tile], Q);
                }
                for half in 0..2 {
                    for row in 0..ROWS {
                        let pair = wide.add(row * arguments.columns + Q * QUAD + half * 2);
                        let activations = S::splat_quad(pair.cast());
                        for tile in 0..TILES {
                            let sum = &mut sums[row][tile][half % ways];
                            *sum = S::dot_words(*sum, codes[tile][half], activations);
                        }
                    }
                }
            });
        }
        let mut joined = [[S::ints_zero(); TILES]; ROWS];
        for row in 0..ROWS {
            for tile in 0..TILES {
                let [first, second] = sums[row][tile];
                joined[row][tile] = if ways == 2 { S::add_ints(first, second) } else { first };
            }
        }
        joined
    }
}
