//! One task's work on tiles: some rows against a few of them, streamed or through a panel.
#![allow(unsafe_code)]

use std::ops::Range;

use super::{MAX_WIDTH, ROW_BLOCK_MAX, Region};
use crate::{
    Matrix,
    matmul::{
        decode::correction,
        layout::{BLOCK, QUAD, ScaleKind, TileLayout},
        matrix::{DenseKind, Format},
        panel::{PanelFast, UnpackFast},
        quantize::TERMS,
        simd::Kernels,
        single::{PanelF32, UnpackF32},
        stream::Stream,
    },
};

/// The most rows that one pass over a tile takes.
const STREAM_BLOCK: usize = 4;

/// Columns of an integer panel: 16 to 32 KiB of codes, so that it stays in the first-level cache.
const PANEL_COLUMNS: usize = 1024;

/// Columns of a single-precision panel, likewise. A multiple of every group size.
const PANEL_COLUMNS_F32: usize = 256;

/// Calls a kernel with the width of the codes as a constant, and after it any further constants.
macro_rules! with_bits {
    ($bits:expr, $kernel:ident :: $name:ident ( $($argument:expr),* ) $(; $constant:tt)?) => {
        match $bits {
            2 => $kernel::$name::<2 $(, $constant)?>($($argument),*),
            3 => $kernel::$name::<3 $(, $constant)?>($($argument),*),
            4 => $kernel::$name::<4 $(, $constant)?>($($argument),*),
            5 => $kernel::$name::<5 $(, $constant)?>($($argument),*),
            6 => $kernel::$name::<6 $(, $constant)?>($($argument),*),
            _ => $kernel::$name::<8 $(, $constant)?>($($argument),*),
        }
    };
}

/// Some rows of the region against one tile, or two that are alike: `lanes` sums per row and tile, rows `stride` apart.
pub(super) unsafe fn stream_rows<K: Kernels>(
    region: &Region<'_>,
    rows: Range<usize>,
    tiles: &[(&Matrix, usize)],
    out: *mut f32,
    stride: usize,
) {
    let Some(layout) = tiles.first().and_then(|(matrix, _)| region.integer_layout(matrix)) else { return };
    let mut starts = [std::ptr::null(); 2];
    for (start, (matrix, tile)) in starts.iter_mut().zip(tiles) {
        *start = matrix.data()[tile * layout.tile_bytes()..].as_ptr();
    }
    // Two tiles of one matrix are followed by the next two, tiles of different matrices each by its neighbour.
    let same = tiles.iter().skip(1).filter(|(matrix, _)| std::ptr::eq(*matrix, tiles[0].0)).count();
    let gap = same * layout.tile_bytes();
    let passes = rows.len().div_ceil(STREAM_BLOCK);
    let mut row = rows.start;
    for pass in 0..passes {
        // Passes of even size: 5 rows are 3 and 2, not 4 and 1.
        let count = (rows.end - row).div_ceil(passes - pass);
        let (codes, wide, meta) = region.quantized(layout.group, row);
        let arguments = Stream {
            tiles: starts,
            tile_bytes: layout.tile_bytes(),
            gap,
            groups: layout.groups,
            blocks_per_group: layout.group / BLOCK,
            scale_kind: layout.scale_kind,
            affine: !layout.symmetric,
            correction: correction::<K>(layout.bits, layout.symmetric),
            codes: codes.as_ptr(),
            wide: wide.as_ptr(),
            columns: region.columns,
            meta: meta.as_ptr(),
            out: out.wrapping_add((row - rows.start) * stride),
            out_stride: stride,
        };
        // SAFETY: the tiles lie within their matrices; the quantized activations hold `count` rows from `row` on, and so
        // does `out`.
        unsafe {
            match (tiles.len(), count) {
                (2, 1) => with_bits!(layout.bits, K::stream(&arguments); 1),
                (2, 2) => with_bits!(layout.bits, K::stream(&arguments); 2),
                (2, 3) => with_bits!(layout.bits, K::stream(&arguments); 3),
                (2, _) => with_bits!(layout.bits, K::stream(&arguments); { STREAM_BLOCK }),
                (_, 1) => with_bits!(layout.bits, K::stream_one(&arguments); 1),
                (_, 2) => with_bits!(layout.bits, K::stream_one(&arguments); 2),
                (_, 3) => with_bits!(layout.bits, K::stream_one(&arguments); 3),
                _ => with_bits!(layout.bits, K::stream_one(&arguments); { STREAM_BLOCK }),
            }
        }
        row += count;
    }
}

/// A matrix's share of a panel.
pub(super) struct Part<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) first_tile: usize,
    pub(super) first_slot: usize,
    pub(super) slots: usize,
}

/// The working memory of a panel task, on the stack of its thread.
#[repr(C, align(64))]
pub(super) struct Panel {
    weights: [u8; MAX_WIDTH * PANEL_COLUMNS],
    scales: [f32; MAX_WIDTH * (PANEL_COLUMNS / BLOCK)],
    biases: [f32; MAX_WIDTH * (PANEL_COLUMNS / BLOCK)],
    pub(super) out: [f32; MAX_WIDTH * ROW_BLOCK_MAX],
}

// The single-precision panel uses the memory of the codes.
const _: () = assert!(PANEL_COLUMNS_F32 * 4 <= PANEL_COLUMNS);

/// Whether tiles of two matrices can be streamed side by side.
pub(super) fn is_alike(region: &Region<'_>, a: &Matrix, b: &Matrix) -> bool {
    region.integer_layout(a).is_some() && region.integer_layout(a) == region.integer_layout(b)
}

/// Whether two matrices can stand in one panel.
pub(super) fn one_pass(region: &Region<'_>, a: &Matrix, b: &Matrix) -> bool {
    match (region.integer_layout(a), region.integer_layout(b)) {
        (Some(a), Some(b)) => (a.bits, a.group, a.symmetric) == (b.bits, b.group, b.symmetric),
        (None, None) => true,
        _ => false,
    }
}

/// Adds the products of a block of rows with the parts of a panel to the panel's `out`. The parts are alike in what
/// [`one_pass`] looks at; slots that belong to none give zero.
pub(super) unsafe fn pass<K: Kernels>(
    region: &Region<'_>,
    parts: &[Part<'_>],
    panel: *mut Panel,
    first_row: usize,
    rows: usize,
) {
    let Some(first) = parts.first() else { return };
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match region.integer_layout(first.matrix) {
            Some(layout) => pass_fast::<K>(region, layout, parts, panel, first_row, rows),
            None => pass_f32::<K>(region, parts, panel, first_row, rows),
        }
    }
}

/// The part and tile that fill slot `slot`, if any.
fn occupant<'p, 'm>(parts: &'p [Part<'m>], slot: usize, lanes: usize) -> Option<(&'p Part<'m>, usize)> {
    let part = parts.iter().find(|part| (part.first_slot..part.first_slot + part.slots).contains(&slot))?;
    let tile = part.first_tile + slot - part.first_slot;
    (tile < part.matrix.out_features().div_ceil(lanes)).then_some((part, tile))
}

unsafe fn pass_fast<K: Kernels>(
    region: &Region<'_>,
    layout: &TileLayout,
    parts: &[Part<'_>],
    panel: *mut Panel,
    first_row: usize,
    rows: usize,
) {
    let blocks_per_group = layout.group / BLOCK;
    let (vector, groups_at_once) = (layout.vector(), PANEL_COLUMNS / layout.group);
    // SAFETY: the panel has room for `groups_at_once` groups of `MAX_WIDTH` rows, all of which are written before the
    // product reads them; tiles, activations and output are within bounds as in `stream_rows`.
    unsafe {
        let weights = (&raw mut (*panel).weights).cast::<u8>();
        let scales = (&raw mut (*panel).scales).cast::<f32>();
        let biases = (&raw mut (*panel).biases).cast::<f32>();
        let out = (&raw mut (*panel).out).cast::<f32>();
        for group in (0..layout.groups).step_by(groups_at_once) {
            let groups = groups_at_once.min(layout.groups - group);
            for slot in 0..K::TILES {
                if let Some((part, tile)) = occupant(parts, slot, K::LANES) {
                    // The layouts of two parts may differ in how scales are stored.
                    let Some(layout) = region.integer_layout(part.matrix) else { continue };
                    let arguments = UnpackFast {
                        record: part.matrix.data()[tile * layout.tile_bytes() + group * layout.record_bytes()..]
                            .as_ptr(),
                        groups,
                        blocks_per_group,
                        scale_kind: layout.scale_kind,
                        affine: !layout.symmetric,
                        tiles: K::TILES,
                        codes: weights.add(slot * vector),
                        scales: scales.add(slot * K::LANES),
                        biases: biases.add(slot * K::LANES),
                    };
                    with_bits!(layout.bits, K::unpack_fast(&arguments));
                } else {
                    for quad in 0..groups * layout.group / QUAD {
                        weights.add((quad * K::TILES + slot) * vector).write_bytes(0, vector);
                    }
                    for group in 0..groups {
                        scales.add((group * K::TILES + slot) * K::LANES).write_bytes(0, K::LANES);
                        biases.add((group * K::TILES + slot) * K::LANES).write_bytes(0, K::LANES);
                    }
                }
            }
            let mut row = 0;
            while row < rows {
                let (codes, _, meta) = region.quantized(layout.group, first_row + row);
                let arguments = PanelFast {
                    weights,
                    scales,
                    biases,
                    affine: !layout.symmetric,
                    correction: correction::<K>(layout.bits, layout.symmetric),
                    groups,
                    blocks_per_group,
                    codes: codes[group * layout.group..].as_ptr(),
                    columns: region.columns,
                    meta: meta[group..].as_ptr(),
                    meta_stride: layout.groups,
                    out: out.add(row * K::TILES * K::LANES),
                };
                row += if region.terms == 1 {
                    panel_of_bits::<K, 1>(layout.bits, &arguments, rows - row)
                } else {
                    panel_of_bits::<K, TERMS>(layout.bits, &arguments, rows - row)
                };
            }
        }
    }
}

/// [`Kernels::panel_fast`] for codes of a width.
unsafe fn panel_of_bits<K: Kernels, const TERMS: usize>(bits: usize, arguments: &PanelFast, rows: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        match bits {
            // Unpacked codes of up to four bits are all alike.
            2..=4 => K::panel_fast::<4, TERMS>(arguments, rows),
            5 => K::panel_fast::<5, TERMS>(arguments, rows),
            6 => K::panel_fast::<6, TERMS>(arguments, rows),
            _ => K::panel_fast::<8, TERMS>(arguments, rows),
        }
    }
}

unsafe fn pass_f32<K: Kernels>(
    region: &Region<'_>,
    parts: &[Part<'_>],
    panel: *mut Panel,
    first_row: usize,
    rows: usize,
) {
    // SAFETY: as in `pass_fast`; the memory of the codes holds PANEL_COLUMNS_F32 columns of floats, suitably aligned.
    unsafe {
        let weights = (&raw mut (*panel).weights).cast::<f32>();
        let out = (&raw mut (*panel).out).cast::<f32>();
        for column in (0..region.columns).step_by(PANEL_COLUMNS_F32) {
            let columns = PANEL_COLUMNS_F32.min(region.columns - column);
            for slot in 0..K::TILES {
                let slot_out = weights.add(slot * K::LANES);
                match occupant(parts, slot, K::LANES) {
                    Some((part, tile)) => unpack_f32::<K>(part.matrix, tile, column, columns, slot_out),
                    None => {
                        for column in 0..columns {
                            slot_out.add(column * K::TILES * K::LANES).write_bytes(0, K::LANES);
                        }
                    }
                }
            }
            let mut row = 0;
            while row < rows {
                let arguments = PanelF32 {
                    weights,
                    columns,
                    x: region.x[(first_row + row) * region.stride + column..].as_ptr(),
                    stride: region.stride,
                    out: out.add(row * K::TILES * K::LANES),
                };
                row += K::panel_f32(&arguments, rows - row);
            }
        }
    }
}

/// Columns of one tile as single-precision numbers into a slot of a panel.
unsafe fn unpack_f32<K: Kernels>(matrix: &Matrix, tile: usize, column: usize, columns: usize, out: *mut f32) {
    // SAFETY: the caller's promise; the range lies within the matrix.
    unsafe {
        match *matrix.format() {
            Format::Quantized(layout) => {
                let at = tile * layout.tile_bytes() + column / layout.group * layout.record_bytes();
                let arguments = UnpackF32 {
                    from: matrix.data()[at..].as_ptr(),
                    count: columns / layout.group,
                    blocks_per_group: layout.group / BLOCK,
                    scale_kind: layout.scale_kind,
                    center: layout.symmetric.then(|| layout.center()),
                    dense_kind: DenseKind::F32,
                    tiles: K::TILES,
                    out,
                };
                with_bits!(layout.bits, K::unpack_affine_f32(&arguments));
            }
            Format::Dense { lanes, kind } => {
                let at = (tile * matrix.in_features() + column) * lanes * kind.bytes();
                let arguments = UnpackF32 {
                    from: matrix.data()[at..].as_ptr(),
                    count: columns,
                    blocks_per_group: 0,
                    scale_kind: ScaleKind::F32,
                    center: None,
                    dense_kind: kind,
                    tiles: K::TILES,
                    out,
                };
                K::unpack_dense_f32(&arguments);
            }
        }
    }
}
