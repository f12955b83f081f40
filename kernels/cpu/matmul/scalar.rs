//! The plain version of every product: the readable reference that all others are tested against.

use super::{
    drive::{Item, Rows, STREAM_ROWS},
    layout::TileLayout,
    matrix::{Format, scale_and_bias},
};
use crate::{Matrix, Precision};

/// Computes one item row by row.
pub(crate) fn run(item: &mut Item<'_>, precision: Precision, rows: Rows<'_>) {
    let outputs = item.weight.out_features();
    let (mut result, mut gate_result) = (vec![0.0; outputs], vec![0.0; outputs]);
    for (row, output) in item.output.chunks_exact_mut(outputs).enumerate() {
        let x = &rows.x[row * rows.stride..][..item.weight.in_features()];
        let largest_code = if precision == Precision::OneTerm && rows.count > STREAM_ROWS { 127.0 } else { 32512.0 };
        product(precision, item.weight, x, largest_code, &mut result);
        if let Some((gate, activation)) = item.gate {
            product(precision, gate, x, largest_code, &mut gate_result);
            for (up, gate) in result.iter_mut().zip(&gate_result) {
                *up *= activation.apply(*gate);
            }
        }
        for (index, (target, value)) in output.iter_mut().zip(&result).enumerate() {
            let value = item.activation.apply(value + item.bias.map_or(0.0, |bias| bias[index]));
            *target = if item.accumulate { *target + value } else { value };
        }
    }
}

fn product(precision: Precision, weight: &Matrix, x: &[f32], largest_code: f32, output: &mut [f32]) {
    match precision {
        Precision::Exact => product_exact(weight, x, output),
        Precision::Fast | Precision::OneTerm => product_fast(weight, x, largest_code, output),
    }
}

/// A row of activations, quantized per group of consecutive elements.
pub(crate) struct QuantizedRow {
    pub(crate) codes: Vec<i32>,
    pub(crate) scales: Vec<f32>,
}

/// Quantizes a row: `scale = max |x| * (1/largest code)` (32512, or 127 with one term), `code = round(x / scale)` to nearest, ties to even. (That a code is
/// written as two 8-bit terms elsewhere does not change its value.)
pub(crate) fn quantize_row(x: &[f32], group: usize, largest_code: f32) -> QuantizedRow {
    let mut row = QuantizedRow { codes: Vec::with_capacity(x.len()), scales: Vec::with_capacity(x.len() / group) };
    for part in x.chunks(group) {
        let largest = part.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let inverse = if largest > 0.0 { largest_code / largest } else { 0.0 };
        row.scales.push(largest * (1.0 / largest_code));
        row.codes.extend(part.iter().map(|value| (value * inverse).round_ties_even() as i32));
    }
    row
}

/// `output[o] = sum over i of weight[o, i] * x[i]`, in single precision.
pub(crate) fn product_exact(weight: &Matrix, x: &[f32], output: &mut [f32]) {
    let mut row = vec![0.0; weight.in_features()];
    for (index, result) in output.iter_mut().enumerate() {
        weight.dequantize_row(index, &mut row);
        *result = row.iter().zip(x).map(|(weight, value)| weight * value).sum();
    }
}

/// The same product with quantized activations: integer sums within each group, then
/// `scale * activation_scale * sum(code * x) + bias * activation_scale * sum(x)`.
pub(crate) fn product_fast(weight: &Matrix, x: &[f32], largest_code: f32, output: &mut [f32]) {
    let Format::Quantized(layout) = weight.format() else { return product_exact(weight, x, output) };
    let x = quantize_row(x, layout.group, largest_code);
    for (index, result) in output.iter_mut().enumerate() {
        *result = row_fast(weight, layout, &x, index);
    }
}

fn row_fast(weight: &Matrix, layout: &TileLayout, x: &QuantizedRow, row: usize) -> f32 {
    let tile = &weight.data()[row / layout.lanes * layout.tile_bytes()..][..layout.tile_bytes()];
    let lane = row % layout.lanes;
    let mut total = 0.0f32;
    for (group, record) in tile.chunks_exact(layout.record_bytes()).enumerate() {
        let codes = &x.codes[group * layout.group..][..layout.group];
        let mut dot = 0i32;
        let mut sum = 0i32;
        for (column, &code) in codes.iter().enumerate() {
            dot += i32::from(layout.code(record, lane, column)) * code;
            sum += code;
        }
        let (scale, bias) = scale_and_bias(layout, record, lane);
        total += x.scales[group] * (scale * dot as f32 + bias * sum as f32);
    }
    total
}
