//! Cuts products into tasks and runs the kernels of one instruction set on them.
#![allow(unsafe_code)]

mod pass;

use std::{mem::MaybeUninit, ops::Range};

use super::{
    buffers::QuantizedActivations,
    finish::Finish,
    layout::TileLayout,
    matrix::Format,
    quantize::{GroupMeta, TERMS},
    simd::Kernels,
};
use crate::{Activation, Context, Matrix, Precision};
use pass::{Panel, Part, is_alike, one_pass, pass, stream_rows};

/// Up to this many rows byte products use the weights straight from memory; above, unpacking them into a panel first is
/// cheaper. Products of words always stream: taking four rows along costs less than storing words and reading them back.
pub(crate) const STREAM_ROWS: usize = 16;
/// Bytes of activations that the row block of a task may take: it should stay in the second-level cache.
const ROW_BLOCK_BYTES: usize = 192 << 10;
/// Rows of a task: multiples of every register block.
const ROW_BLOCK_STEP: usize = 12;
const ROW_BLOCK_MIN: usize = 48;
const ROW_BLOCK_MAX: usize = 192;
/// The most lanes and the most numbers per panel row (tiles times lanes) of any instruction set.
const MAX_LANES: usize = 16;
const MAX_WIDTH: usize = 32;
/// Weight bytes of a streaming task: enough to hide the cost of claiming it, little enough to share evenly.
const STREAM_TASK_BYTES: (usize, usize) = (8 << 10, 128 << 10);
/// Multiply-accumulates of a panel task at least (some ten microseconds).
const PANEL_TASK_PRODUCTS: usize = 1 << 20;

/// One product to compute: `output = [activation(x * gate^T) *] x * weight^T [+ bias] [+ output]`.
pub(crate) struct Item<'a> {
    pub(crate) weight: &'a Matrix,
    pub(crate) gate: Option<(&'a Matrix, Activation)>,
    pub(crate) output: &'a mut [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) accumulate: bool,
    /// Applied after the bias.
    pub(crate) activation: Activation,
}

/// Rows of activations, all as long as the weights have columns.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) count: usize,
    /// From the start of one row to the next.
    pub(crate) stride: usize,
}

/// The output of an item, written by many threads at places that do not overlap.
struct Target(*mut f32);

// SAFETY: each task writes its own rows and columns only; the slice behind it is borrowed for the whole region.
unsafe impl Sync for Target {}

/// An item cut into tasks: row blocks times spans of tiles (streaming) or of panels.
struct Plan<'a> {
    weight: &'a Matrix,
    gate: Option<(&'a Matrix, Activation)>,
    target: Target,
    bias: Option<&'a [f32]>,
    accumulate: bool,
    activation: Activation,
    stream: bool,
    row_block: usize,
    /// Tiles or panels of the item, and of one task.
    units: usize,
    units_per_task: usize,
    first_task: usize,
    tasks: usize,
}

/// What all tasks share.
struct Region<'a> {
    precision: Precision,
    x: &'a [f32],
    rows: usize,
    /// From the start of one row of `x` to the next.
    stride: usize,
    columns: usize,
    /// 8-bit terms of an activation.
    terms: usize,
    quantized: Vec<QuantizedActivations>,
}

/// Whether this matrix, laid out for `lanes` rows per tile, can be used by a kernel set.
pub(crate) fn lanes_of(matrix: &Matrix) -> usize {
    match matrix.format() {
        Format::Quantized(layout) => layout.lanes,
        Format::Dense { lanes, .. } => *lanes,
    }
}

/// Computes all items in one parallel region (and one before it to quantize many rows).
///
/// # Safety
/// The instruction set of `K` must be available. All matrices have tiles of `K::LANES` rows and as many columns as each
/// other; the rows and the outputs hold as many rows; biases have the length of a row of their output. Rows that are not
/// one behind the other go only to dense matrices.
pub(crate) unsafe fn run<K: Kernels>(context: &Context, precision: Precision, rows: Rows<'_>, items: &mut [Item<'_>]) {
    let Some(columns) = items.first().map(|item| item.weight.in_features()) else { return };
    if rows.count == 0 {
        return;
    }
    let Rows { x, count, stride } = rows;
    // Few rows wait for weights, not for arithmetic.
    let one_term = precision == Precision::OneTerm && !K::WIDE && count > STREAM_ROWS;
    let terms = if one_term { 1 } else { TERMS };
    let mut region = Region { precision, x, rows: count, stride, columns, terms, quantized: Vec::new() };
    for item in items.iter() {
        for matrix in item.gate.map(|(gate, _)| gate).into_iter().chain([item.weight]) {
            if let Some(layout) = region.integer_layout(matrix)
                && !region.quantized.iter().any(|quantized| quantized.group == layout.group)
            {
                // SAFETY: the instruction set is available (the caller's promise).
                let quantized = unsafe { quantize::<K>(context, &region, layout.group) };
                region.quantized.push(quantized);
            }
        }
    }
    let mut plans: Vec<Plan<'_>> = Vec::with_capacity(items.len());
    let mut tasks = 0;
    for item in items {
        let plan = Plan::new::<K>(item, &region, context.pool().threads(), tasks);
        tasks += plan.tasks;
        plans.push(plan);
    }
    context.pool().for_each(tasks, &|task| {
        if let Some(plan) = plans.iter().rev().find(|plan| plan.first_task <= task) {
            // SAFETY: the caller's promise, and every task writes other elements than all others.
            unsafe { plan.run::<K>(&region, task - plan.first_task) };
        }
    });
    for quantized in region.quantized {
        context.buffers().give_back(quantized);
    }
}

/// Quantizes all rows for one group size, on all threads if there are many.
unsafe fn quantize<K: Kernels>(context: &Context, region: &Region<'_>, group: usize) -> QuantizedActivations {
    const ROWS_PER_TASK: usize = 16;
    let (rows, columns) = (region.rows, region.columns);
    let groups = columns / group;
    let mut quantized = context.buffers().take();
    quantized.reserve(group, rows, columns, K::WIDE);
    let (row_codes, row_wide) = if K::WIDE { (0, columns) } else { (region.terms * columns, 0) };
    let mut codes = Lines::new(&mut quantized.codes, row_codes);
    let mut wide = Lines::new(&mut quantized.wide, row_wide);
    let parts = region.x.chunks(ROWS_PER_TASK * columns).zip(quantized.meta.chunks_mut(ROWS_PER_TASK * groups));
    let parts = parts.map(|(x, meta)| {
        let rows = x.len() / columns;
        (x, codes.next(rows), wide.next(rows), meta)
    });
    let row_by_row = |x: &[f32], codes: &mut [i8], wide: &mut [i16], meta: &mut [GroupMeta]| {
        let (mut codes, mut wide) = (Lines::new(codes, row_codes), Lines::new(wide, row_wide));
        for (x, meta) in x.chunks_exact(columns).zip(meta.chunks_exact_mut(groups)) {
            // SAFETY: the caller's promise.
            unsafe { K::quantize(x, group, region.terms, codes.next(1), wide.next(1), meta) };
        }
    };
    if rows <= ROWS_PER_TASK {
        parts.for_each(|(x, codes, wide, meta)| row_by_row(x, codes, wide, meta));
    } else {
        // A lock per part hands each thread its own mutable pieces; none is ever contended.
        let parts: Vec<_> = parts.map(std::sync::Mutex::new).collect();
        context.pool().for_each(parts.len(), &|task| {
            let mut part = parts[task].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let (x, codes, wide, meta) = &mut *part;
            row_by_row(x, codes, wide, meta);
        });
    }
    quantized
}

/// Lines of a buffer, handed out from the front; lines may be empty.
struct Lines<'a, T> {
    rest: &'a mut [T],
    width: usize,
}

impl<'a, T> Lines<'a, T> {
    fn new(buffer: &'a mut [T], width: usize) -> Self {
        Self { rest: buffer, width }
    }

    fn next(&mut self, count: usize) -> &'a mut [T] {
        let (lines, rest) = std::mem::take(&mut self.rest).split_at_mut(count * self.width);
        self.rest = rest;
        lines
    }
}

impl Region<'_> {
    /// The layout of a matrix that is multiplied in integers; None for the others.
    fn integer_layout<'m>(&self, matrix: &'m Matrix) -> Option<&'m TileLayout> {
        match (self.precision, matrix.format()) {
            (Precision::Fast | Precision::OneTerm, Format::Quantized(layout)) => Some(layout),
            _ => None,
        }
    }

    /// Both kinds of codes and the group facts from `row` on, quantized for `group`.
    fn quantized(&self, group: usize, row: usize) -> (&[i8], &[i16], &[GroupMeta]) {
        // Every group size in use was quantized before the region began.
        self.quantized.iter().find(|quantized| quantized.group == group).map_or((&[], &[], &[]), |quantized| {
            let at = row * self.columns;
            // One of the two kinds of codes is empty.
            let (codes, wide) = (quantized.codes.get(self.terms * at..), quantized.wide.get(at..));
            (codes.unwrap_or_default(), wide.unwrap_or_default(), &quantized.meta[at / group..])
        })
    }
}

impl<'a> Plan<'a> {
    fn new<K: Kernels>(item: &'a mut Item<'_>, region: &Region<'_>, threads: usize, first_task: usize) -> Self {
        let (weight, gate) = (item.weight, item.gate);
        let matrices = || gate.map(|(gate, _)| gate).into_iter().chain([weight]);
        let integer = matrices().all(|matrix| region.integer_layout(matrix).is_some());
        let stream = integer && (K::WIDE || region.rows <= STREAM_ROWS);
        let row_bytes = region.columns * if integer { region.terms } else { 4 };
        let most = (ROW_BLOCK_BYTES / row_bytes).clamp(ROW_BLOCK_MIN, ROW_BLOCK_MAX);
        // Equal blocks, so that the last one is no crumb.
        let blocks = region.rows.div_ceil(most);
        let row_block = region.rows.div_ceil(blocks).next_multiple_of(ROW_BLOCK_STEP).min(ROW_BLOCK_MAX);
        let tiles = weight.out_features().div_ceil(K::LANES);
        let (units, units_per_task) = if stream {
            let bytes: usize = matrices().map(Matrix::bytes).sum();
            let (least, most) = STREAM_TASK_BYTES;
            let task_bytes = (bytes * blocks / (threads * 12)).clamp(least, most);
            (tiles, (task_bytes / (bytes / tiles).max(1)).max(1))
        } else {
            let tiles_per_panel = if gate.is_some() { K::TILES / 2 } else { K::TILES };
            let panels = tiles.div_ceil(tiles_per_panel);
            let products = row_block.min(region.rows) * K::TILES * K::LANES * region.columns;
            let fair = (panels * region.rows.div_ceil(row_block)).div_ceil(threads * 4);
            (panels, PANEL_TASK_PRODUCTS.div_ceil(products).min(fair).max(1))
        };
        let tasks = region.rows.div_ceil(row_block) * units.div_ceil(units_per_task);
        let target = Target(item.output.as_mut_ptr());
        let (bias, accumulate, activation) = (item.bias, item.accumulate, item.activation);
        Self {
            weight,
            gate,
            target,
            bias,
            accumulate,
            activation,
            stream,
            row_block,
            units,
            units_per_task,
            first_task,
            tasks,
        }
    }

    /// Runs one task of the plan.
    unsafe fn run<K: Kernels>(&self, region: &Region<'_>, task: usize) {
        let spans = self.units.div_ceil(self.units_per_task);
        let first_row = task / spans * self.row_block;
        let rows = self.row_block.min(region.rows - first_row);
        let first = task % spans * self.units_per_task;
        let units = first..(first + self.units_per_task).min(self.units);
        // SAFETY: the caller's promise.
        unsafe {
            if self.stream {
                self.stream_tiles::<K>(region, first_row..first_row + rows, units);
            } else {
                let mut panel = MaybeUninit::<Panel>::uninit();
                for unit in units {
                    self.panel::<K>(region, &mut panel, unit, first_row, rows);
                }
            }
        }
    }

    /// Some rows against some tiles (of both matrices, if gated).
    unsafe fn stream_tiles<K: Kernels>(&self, region: &Region<'_>, rows: Range<usize>, tiles: Range<usize>) {
        let mut sums = MaybeUninit::<[f32; ROW_BLOCK_MAX * 2 * MAX_LANES]>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        let (first, count, lanes) = (rows.start, rows.len(), K::LANES);
        // SAFETY: the caller's promise; `sums` has room for all rows of a streaming product against two tiles, and what
        // is read of it was written by `stream_rows`.
        unsafe {
            if let Some((gate, activation)) = self.gate {
                for tile in tiles {
                    let both = [(gate, tile), (self.weight, tile)];
                    if K::STREAM_TILES == 2 && is_alike(region, gate, self.weight) {
                        stream_rows::<K>(region, rows.clone(), &both, sums, 2 * lanes);
                    } else {
                        stream_rows::<K>(region, rows.clone(), &both[..1], sums, 2 * lanes);
                        stream_rows::<K>(region, rows.clone(), &both[1..], sums.add(lanes), 2 * lanes);
                    }
                    K::gate(activation, std::slice::from_raw_parts_mut(sums, count * 2 * lanes), 2 * lanes);
                    self.finish::<K>(first, count, tile * lanes, sums, 2 * lanes, lanes);
                }
                return;
            }
            let mut tile = tiles.start;
            while tile < tiles.end {
                let both = [(self.weight, tile), (self.weight, tile + 1)];
                // With one row memory is the limit, and one stream is read faster than two.
                let side_by_side = if count == 1 { 1 } else { K::STREAM_TILES.min(tiles.end - tile) };
                stream_rows::<K>(region, rows.clone(), &both[..side_by_side], sums, side_by_side * lanes);
                self.finish::<K>(first, count, tile * lanes, sums, side_by_side * lanes, side_by_side * lanes);
                tile += side_by_side;
            }
        }
    }

    /// A block of rows against one panel.
    unsafe fn panel<K: Kernels>(
        &self,
        region: &Region<'_>,
        panel: &mut MaybeUninit<Panel>,
        unit: usize,
        first_row: usize,
        rows: usize,
    ) {
        let width = K::TILES * K::LANES;
        self.prefetch::<K>(first_row, rows, unit * if self.gate.is_some() { width / 2 } else { width }, width);
        // SAFETY: the caller's promise; every part of the panel is written before it is read.
        unsafe {
            let panel = panel.as_mut_ptr();
            let out = (&raw mut (*panel).out).cast::<f32>();
            out.write_bytes(0, rows * width);
            let columns = if let Some((gate, activation)) = self.gate {
                let half = K::TILES / 2;
                let part = |matrix, first_slot| Part { matrix, first_tile: unit * half, first_slot, slots: half };
                let parts = [part(gate, 0), part(self.weight, half)];
                if one_pass(region, gate, self.weight) {
                    pass::<K>(region, &parts, panel, first_row, rows);
                } else {
                    pass::<K>(region, &parts[..1], panel, first_row, rows);
                    pass::<K>(region, &parts[1..], panel, first_row, rows);
                }
                K::gate(activation, std::slice::from_raw_parts_mut(out, rows * width), width);
                width / 2
            } else {
                let part = Part { matrix: self.weight, first_tile: unit * K::TILES, first_slot: 0, slots: K::TILES };
                pass::<K>(region, &[part], panel, first_row, rows);
                width
            };
            self.finish::<K>(first_row, rows, unit * columns, out, width, columns);
        }
    }

    /// Asks for the places of the output that a panel's sums will go to: rows lie far apart, and waiting for each would cost a
    /// tenth of a product.
    fn prefetch<K: Kernels>(&self, first_row: usize, rows: usize, first: usize, columns: usize) {
        const LINE: usize = 64 / size_of::<f32>();
        let outputs = self.weight.out_features();
        for row in first_row..first_row + rows {
            for column in (first..(first + columns).min(outputs)).step_by(LINE) {
                // SAFETY: a hint; the instruction set is the promise of the caller's caller.
                unsafe { K::prefetch(self.target.0.wrapping_add(row * outputs + column).cast()) };
            }
        }
    }

    /// Puts `columns` sums of each row into the output from column `first` on, as far as it has columns.
    unsafe fn finish<K: Kernels>(
        &self,
        first_row: usize,
        rows: usize,
        first: usize,
        values: *mut f32,
        stride: usize,
        columns: usize,
    ) {
        let outputs = self.weight.out_features();
        if first >= outputs {
            return;
        }
        let count = columns.min(outputs - first);
        let mut bias = self.bias.map(|bias| &bias[first..first + count]);
        // SAFETY: the rows and columns lie within the output; no other task writes these elements. The sums are this
        // task's own.
        unsafe {
            if self.activation != Activation::Identity {
                for row in 0..rows {
                    let sums = std::slice::from_raw_parts_mut(values.add(row * stride), count);
                    K::activate(self.activation, sums, bias);
                }
                bias = None;
            }
            K::finish(&Finish {
                values,
                stride,
                count,
                rows,
                output: self.target.0.add(first_row * outputs + first),
                output_stride: outputs,
                bias,
                accumulate: self.accumulate,
            });
        }
    }
}
