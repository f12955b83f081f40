//! Every instruction set against double precision (exact path) and against the scalar integer path (fast path).

use std::ops::Range;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{matrix::packed_code, scalar, *};
use crate::{FloatSlice, Isa};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Scales {
    F32,
    F16,
    BF16,
}

/// A random affine weight in file form, at an odd address.
struct Sample {
    out_features: usize,
    in_features: usize,
    bits: usize,
    group: usize,
    kind: Scales,
    packed: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

fn encode(kind: Scales, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xa5];
    for value in values {
        match kind {
            Scales::F32 => bytes.extend(value.to_le_bytes()),
            Scales::F16 => bytes.extend(half::f16::from_f32(*value).to_le_bytes()),
            Scales::BF16 => bytes.extend(half::bf16::from_f32(*value).to_le_bytes()),
        }
    }
    bytes
}

fn slice(kind: Scales, bytes: &[u8]) -> FloatSlice<'_> {
    match kind {
        Scales::F32 => FloatSlice::F32(&bytes[1..]),
        Scales::F16 => FloatSlice::F16(&bytes[1..]),
        Scales::BF16 => FloatSlice::BF16(&bytes[1..]),
    }
}

impl Sample {
    fn new(rng: &mut StdRng, shape: (usize, usize), bits: usize, group: usize, kind: Scales, symmetric: bool) -> Self {
        let (out_features, in_features) = shape;
        let mut packed = vec![0u8; 1 + out_features * in_features * bits / 8];
        rng.fill(&mut packed[..]);
        let count = out_features * in_features / group;
        let scales: Vec<f32> = (0..count)
            .map(|_| {
                let value: f32 = rng.random_range(0.002..0.05) * if rng.random() { 1.0 } else { -1.0 };
                half::bf16::from_f32(value).to_f32() // exact in every type
            })
            .collect();
        let center = (1 << (bits - 1)) as f32;
        let biases: Vec<f32> = scales
            .iter()
            .map(|s| if symmetric { -center * s } else { -center * s + rng.random_range(-0.2..0.2) })
            .collect();
        let (scales, biases) = (encode(kind, &scales), encode(kind, &biases));
        Self { out_features, in_features, bits, group, kind, packed, scales, biases }
    }

    fn weight(&self) -> AffineWeight<'_> {
        AffineWeight {
            out_features: self.out_features,
            in_features: self.in_features,
            bits: self.bits as u32,
            group_size: self.group,
            packed: &self.packed[1..],
            scales: slice(self.kind, &self.scales),
            biases: slice(self.kind, &self.biases),
        }
    }

    /// `[out_features, in_features]`, straight from the file form.
    fn dequantized(&self) -> Vec<f64> {
        let weight = self.weight();
        let row_bytes = self.in_features * self.bits / 8;
        let groups = self.in_features / self.group;
        let mut values = Vec::new();
        for row in 0..self.out_features {
            for column in 0..self.in_features {
                let code = packed_code(&weight.packed[row * row_bytes..(row + 1) * row_bytes], column, self.bits);
                let at = row * groups + column / self.group;
                values.push(f64::from(weight.scales.get(at)) * f64::from(code) + f64::from(weight.biases.get(at)));
            }
        }
        values
    }
}

fn random(rng: &mut StdRng, count: usize) -> Vec<f32> {
    // A few outliers, as activations of language models have.
    (0..count).map(|_| rng.random_range(-1.0f32..1.0) * if rng.random_bool(0.02) { 20.0 } else { 1.0 }).collect()
}

/// `x * w^T` in double precision, and the sum of magnitudes that rounding errors are measured against.
fn reference(w: &[f64], x: &[f32], rows: usize, outputs: usize, inputs: usize) -> (Vec<f64>, Vec<f64>) {
    let mut values = Vec::new();
    let mut magnitudes = Vec::new();
    for row in 0..rows {
        for output in 0..outputs {
            let pairs = w[output * inputs..][..inputs].iter().zip(&x[row * inputs..][..inputs]);
            let terms = pairs.map(|(w, x)| w * f64::from(*x));
            let (sum, magnitude) =
                terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()));
            values.push(sum);
            magnitudes.push(magnitude);
        }
    }
    (values, magnitudes)
}

/// Single-precision sums of `inputs` terms: a few units in the last place of the sum of magnitudes.
fn tolerance(magnitude: f64) -> f64 {
    4e-6 * magnitude + 1e-6
}

fn compare(what: &str, got: &[f32], expected: &[f64], magnitudes: &[f64]) {
    for (index, ((got, expected), magnitude)) in got.iter().zip(expected).zip(magnitudes).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= tolerance(*magnitude), "{what}: element {index} is {got}, expected {expected}");
    }
}

/// Shapes that meet every tail: outputs around the tile heights, several groups, rows around each register block.
const SHAPES: [(usize, usize); 7] = [(1, 128), (7, 256), (8, 384), (17, 128), (33, 640), (40, 1536), (100, 128)];
const ROWS: [usize; 23] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 24, 31, 32, 33, 150];

#[test]
fn packed_codes_are_read_low_bits_first() {
    // 3 bits: 1, 2, 3, 4, 5, 6, 7, 0 -> bits 001 010 011 100 101 110 111 000 from the low end up.
    let packed = [0b1101_0001, 0b0101_1000, 0b0001_1111];
    let codes: Vec<u8> = (0..8).map(|index| packed_code(&packed, index, 3)).collect();
    assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 0]);
}

#[test]
fn rows_read_back_are_the_weights_of_the_file() {
    let mut rng = StdRng::seed_from_u64(1);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        for bits in [2, 3, 4, 5, 6, 8] {
            for (group, kind, symmetric) in
                [(32, Scales::F16, true), (64, Scales::BF16, false), (128, Scales::F32, false), (32, Scales::F32, true)]
            {
                let sample = Sample::new(&mut rng, (21, 256), bits, group, kind, symmetric);
                let matrix = Matrix::from_affine(&context, sample.weight()).unwrap();
                let expected = sample.dequantized();
                let mut row = vec![0.0; 256];
                for index in 0..21 {
                    matrix.dequantize_row(index, &mut row);
                    for (got, expected) in row.iter().zip(&expected[index * 256..]) {
                        assert!((f64::from(*got) - expected).abs() < 1e-6, "{isa:?} {bits} bits: {got} for {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn weights_keep_their_width_in_memory() {
    let mut rng = StdRng::seed_from_u64(2);
    let context = Context::new(1);
    for bits in [2, 3, 4, 5, 6, 8] {
        for (symmetric, scales_per_group) in [(true, 1), (false, 2)] {
            let sample = Sample::new(&mut rng, (64, 256), bits, 32, Scales::F16, symmetric);
            let matrix = Matrix::from_affine(&context, sample.weight()).unwrap();
            assert_eq!(matrix.bytes(), 64 * 256 * bits / 8 + 64 * 8 * 2 * scales_per_group);
        }
    }
}

#[test]
fn exact_products_agree_with_double_precision() {
    let mut rng = StdRng::seed_from_u64(3);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        for bits in [2, 3, 4, 5, 6, 8] {
            for (index, shape) in SHAPES.into_iter().enumerate() {
                let group = [32, 64, 128][index % 3];
                let kind = [Scales::F16, Scales::BF16, Scales::F32][(index + bits) % 3];
                let sample = Sample::new(&mut rng, shape, bits, group, kind, index % 2 == 0);
                let matrix = Matrix::from_affine(&context, sample.weight()).unwrap();
                let rows = ROWS[(index * 5 + bits) % ROWS.len()];
                let x = random(&mut rng, rows * shape.1);
                let (expected, magnitudes) = reference(&sample.dequantized(), &x, rows, shape.0, shape.1);
                let mut output = vec![f32::NAN; rows * shape.0];
                matmul(&context, Precision::Exact, &x, rows, &mut [Product::new(&matrix, &mut output)]).unwrap();
                compare(&format!("{isa:?} {bits} bits {shape:?} {rows} rows"), &output, &expected, &magnitudes);
            }
        }
    }
}

#[test]
fn fast_products_agree_with_the_scalar_integer_path() {
    let mut rng = StdRng::seed_from_u64(4);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        for bits in [2, 3, 4, 5, 6, 8] {
            for (index, shape) in SHAPES.into_iter().enumerate() {
                for symmetric in [false, true] {
                    let group = [32, 64, 128][(index + usize::from(symmetric)) % 3];
                    let kind = [Scales::F16, Scales::BF16, Scales::F32][(index + bits) % 3];
                    let sample = Sample::new(&mut rng, shape, bits, group, kind, symmetric);
                    let matrix = Matrix::from_affine(&context, sample.weight()).unwrap();
                    let rows = ROWS[(index * 5 + bits * 2 + usize::from(symmetric)) % ROWS.len()];
                    let x = random(&mut rng, rows * shape.1);
                    let (_, magnitudes) = reference(&sample.dequantized(), &x, rows, shape.0, shape.1);
                    let mut expected = vec![0.0; rows * shape.0];
                    for (x, output) in x.chunks_exact(shape.1).zip(expected.chunks_exact_mut(shape.0)) {
                        scalar::product_fast(&matrix, x, 32512.0, output);
                    }
                    let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
                    let mut output = vec![f32::NAN; rows * shape.0];
                    matmul(&context, Precision::Fast, &x, rows, &mut [Product::new(&matrix, &mut output)]).unwrap();
                    let what = format!(
                        "{isa:?} {bits} bits {shape:?} group {group} {kind:?} symmetric {symmetric} {rows} rows"
                    );
                    compare(&what, &output, &expected, &magnitudes);
                }
            }
        }
    }
}

#[test]
fn fast_products_stay_near_double_precision() {
    let mut rng = StdRng::seed_from_u64(5);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        for bits in [2, 3, 4, 5, 6, 8] {
            let sample = Sample::new(&mut rng, (64, 1024), bits, 32, Scales::F16, true);
            let matrix = Matrix::from_affine(&context, sample.weight()).unwrap();
            let x: Vec<f32> = (0..3 * 1024).map(|_| rng.random_range(-1.0f32..1.0)).collect();
            let (expected, _) = reference(&sample.dequantized(), &x, 3, 64, 1024);
            let mut output = vec![0.0; 3 * 64];
            matmul(&context, Precision::Fast, &x, 3, &mut [Product::new(&matrix, &mut output)]).unwrap();
            let error: f64 =
                output.iter().zip(&expected).map(|(got, expected)| (f64::from(*got) - expected).powi(2)).sum();
            let power: f64 = expected.iter().map(|expected| expected * expected).sum();
            // Two terms hold 15 bits of the largest of 32 uniform values; one term alone would be off by 0.4%.
            assert!((error / power).sqrt() < 1e-4, "{isa:?} {bits} bits: {}", (error / power).sqrt());
        }
    }
}

#[test]
fn one_term_agrees_with_the_scalar_integer_path_where_it_is_used_and_few_rows_keep_two() {
    let mut rng = StdRng::seed_from_u64(6);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        for (index, bits) in [2, 3, 4, 5, 6, 8].into_iter().enumerate() {
            for symmetric in [false, true] {
                let group = [32, 64, 128][(index + usize::from(symmetric)) % 3];
                let sample = Sample::new(&mut rng, (40, 1536), bits, group, Scales::F16, symmetric);
                let matrix = Matrix::from_affine(&context, sample.weight()).unwrap();
                for rows in [16, 17, 150] {
                    let x = random(&mut rng, rows * 1536);
                    let (_, magnitudes) = reference(&sample.dequantized(), &x, rows, 40, 1536);
                    let of_terms = |largest_code: f32| {
                        let mut expected = vec![0.0; rows * 40];
                        for (x, output) in x.chunks_exact(1536).zip(expected.chunks_exact_mut(40)) {
                            scalar::product_fast(&matrix, x, largest_code, output);
                        }
                        expected.into_iter().map(f64::from).collect::<Vec<f64>>()
                    };
                    // Products of words take activations whole.
                    let words = isa == Isa::Avx2;
                    let expected = of_terms(if rows > 16 && !words { 127.0 } else { 32512.0 });
                    let mut output = vec![f32::NAN; rows * 40];
                    matmul(&context, Precision::OneTerm, &x, rows, &mut [Product::new(&matrix, &mut output)]).unwrap();
                    let what = format!("{isa:?} {bits} bits group {group} symmetric {symmetric} {rows} rows");
                    compare(&what, &output, &expected, &magnitudes);
                }
            }
        }
    }
}

#[test]
fn the_largest_codes_and_activations_do_not_saturate() {
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 1);
        for bits in [2usize, 3, 4, 5, 6, 8] {
            for code_byte in [0xffu8, 0x00] {
                for sign in [1.0f32, -1.0] {
                    for group in [32, 128] {
                        let (outputs, inputs) = (16, 256);
                        let packed = vec![code_byte; outputs * inputs * bits / 8];
                        let count = outputs * inputs / group;
                        let center = (1u32 << (bits - 1)) as f32;
                        let scales: Vec<u8> = (0..count).flat_map(|_| 1.0f32.to_le_bytes()).collect();
                        let biases: Vec<u8> = (0..count).flat_map(|_| (-center).to_le_bytes()).collect();
                        let weight = AffineWeight {
                            out_features: outputs,
                            in_features: inputs,
                            bits: bits as u32,
                            group_size: group,
                            packed: &packed,
                            scales: FloatSlice::F32(&scales),
                            biases: FloatSlice::F32(&biases),
                        };
                        let matrix = Matrix::from_affine(&context, weight).unwrap();
                        let code = if code_byte == 0 { 0.0 } else { 2.0 * center - 1.0 };
                        let expected = (code - center) * sign * 127.0 * inputs as f32;
                        for (rows, precision) in [(1, Precision::Fast), (40, Precision::Fast), (40, Precision::OneTerm)]
                        {
                            let x = vec![127.0 * sign; rows * inputs];
                            let mut output = vec![0.0; rows * outputs];
                            matmul(&context, precision, &x, rows, &mut [Product::new(&matrix, &mut output)]).unwrap();
                            assert!(
                                output.iter().all(|&value| value == expected),
                                "{isa:?} {bits} bits: {} for {expected}",
                                output[0]
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn dense_products_agree_with_double_precision() {
    let mut rng = StdRng::seed_from_u64(6);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        for kind in [Scales::F32, Scales::F16, Scales::BF16] {
            // Dense columns need not be a multiple of anything.
            for (index, (outputs, inputs)) in [(1, 1), (7, 33), (8, 64), (50, 301), (33, 1000)].into_iter().enumerate()
            {
                for rows in [ROWS[index], ROWS[ROWS.len() - 1 - index]] {
                    let values: Vec<f32> = (0..outputs * inputs).map(|_| rng.random_range(-1.0..1.0)).collect();
                    let bytes = encode(kind, &values);
                    let data = slice(kind, &bytes);
                    let w: Vec<f64> = (0..data.len()).map(|index| f64::from(data.get(index))).collect();
                    let weight = DenseWeight { out_features: outputs, in_features: inputs, data };
                    let matrix = Matrix::from_dense(&context, weight).unwrap();
                    let x = random(&mut rng, rows * inputs);
                    let (expected, magnitudes) = reference(&w, &x, rows, outputs, inputs);
                    for precision in [Precision::Exact, Precision::Fast] {
                        let mut output = vec![f32::NAN; rows * outputs];
                        matmul(&context, precision, &x, rows, &mut [Product::new(&matrix, &mut output)]).unwrap();
                        compare(
                            &format!("{isa:?} {kind:?} {outputs}x{inputs} {rows} rows"),
                            &output,
                            &expected,
                            &magnitudes,
                        );
                    }
                    let mut row = vec![0.0; inputs];
                    matrix.dequantize_row(outputs - 1, &mut row);
                    assert!(
                        row.iter()
                            .zip(&w[(outputs - 1) * inputs..])
                            .all(|(got, expected)| f64::from(*got) == *expected)
                    );
                }
            }
        }
    }
}

#[test]
fn several_products_share_one_input_with_bias_and_residual() {
    let mut rng = StdRng::seed_from_u64(7);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        for rows in [1, 3, 6, 40] {
            let inputs = 256;
            // Different widths and group sizes in one call, as mixed-precision models have them.
            let samples = [
                Sample::new(&mut rng, (70, inputs), 4, 32, Scales::F16, true),
                Sample::new(&mut rng, (24, inputs), 8, 64, Scales::BF16, false),
                Sample::new(&mut rng, (9, inputs), 6, 32, Scales::F32, false),
            ];
            let matrices: Vec<Matrix> =
                samples.iter().map(|sample| Matrix::from_affine(&context, sample.weight()).unwrap()).collect();
            let x = random(&mut rng, rows * inputs);
            for precision in [Precision::Exact, Precision::Fast] {
                let biases: Vec<Vec<f32>> =
                    samples.iter().map(|sample| random(&mut rng, sample.out_features)).collect();
                let initial: Vec<Vec<f32>> =
                    samples.iter().map(|sample| random(&mut rng, rows * sample.out_features)).collect();
                let mut outputs = initial.clone();
                let mut alone: Vec<Vec<f32>> = initial.iter().map(|values| vec![0.0; values.len()]).collect();
                for (matrix, output) in matrices.iter().zip(&mut alone) {
                    matmul(&context, precision, &x, rows, &mut [Product::new(matrix, output)]).unwrap();
                }
                let mut products: Vec<Product<'_>> = Vec::new();
                for (index, (matrix, output)) in matrices.iter().zip(&mut outputs).enumerate() {
                    let product = Product::new(matrix, output);
                    products.push(match index {
                        0 => product.with_bias(Some(&biases[0])).accumulate(),
                        1 => product.accumulate(),
                        _ => product.with_bias(Some(&biases[2])),
                    });
                }
                matmul(&context, precision, &x, rows, &mut products).unwrap();
                for index in 0..3 {
                    let width = samples[index].out_features;
                    for at in 0..rows * width {
                        let expected = alone[index][at]
                            + if index != 1 { biases[index][at % width] } else { 0.0 }
                            + if index != 2 { initial[index][at] } else { 0.0 };
                        let got = outputs[index][at];
                        assert!(
                            (got - expected).abs() <= 2e-5 * expected.abs().max(1.0),
                            "{isa:?} product {index}: {got} for {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn gated_products_agree_with_their_parts() {
    let mut rng = StdRng::seed_from_u64(8);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        for rows in [1, 2, 5, 9, 33] {
            for (bits, up_bits, group) in [(4, 4, 32), (4, 6, 64), (8, 8, 32), (5, 5, 128)] {
                let gate = Sample::new(&mut rng, (52, 256), bits, group, Scales::F16, bits == 4);
                let up = Sample::new(&mut rng, (52, 256), up_bits, group, Scales::BF16, false);
                let gate = Matrix::from_affine(&context, gate.weight()).unwrap();
                let up = Matrix::from_affine(&context, up.weight()).unwrap();
                let x = random(&mut rng, rows * 256);
                for precision in [Precision::Exact, Precision::Fast] {
                    let (mut gated, mut upped, mut output) =
                        (vec![0.0; rows * 52], vec![0.0; rows * 52], vec![f32::NAN; rows * 52]);
                    let mut products = [Product::new(&gate, &mut gated), Product::new(&up, &mut upped)];
                    matmul(&context, precision, &x, rows, &mut products).unwrap();
                    for activation in
                        [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::ReluSquared]
                    {
                        matmul_gated(&context, precision, &x, rows, &gate, &up, activation, &mut output).unwrap();
                        for at in 0..rows * 52 {
                            let expected = activation.apply(gated[at]) * upped[at];
                            let scale = expected.abs().max(upped[at].abs()).max(1.0);
                            assert!(
                                (output[at] - expected).abs() <= 2e-5 * scale,
                                "{isa:?} {activation:?}: {} for {expected}",
                                output[at]
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_gives_the_same_bits_in_any_company_and_on_any_number_of_threads() {
    let mut rng = StdRng::seed_from_u64(9);
    let (outputs, inputs, most) = (75, 512, 40);
    let x = random(&mut rng, most * inputs);
    for isa in Isa::available() {
        let contexts = [1, 2, 3].map(|threads| Context::with_isa(isa, threads));
        for (bits, group, symmetric) in [
            (4, 32, false),
            (4, 64, true),
            (8, 32, true),
            (8, 64, false),
            (2, 64, false),
            (3, 128, false),
            (5, 32, true),
            (6, 128, false),
            (0, 0, false),
        ] {
            let matrix = |rng: &mut StdRng| {
                if bits == 0 {
                    let bytes = encode(Scales::F16, &random(rng, outputs * inputs));
                    let data = slice(Scales::F16, &bytes);
                    let weight = DenseWeight { out_features: outputs, in_features: inputs, data };
                    return Matrix::from_dense(&contexts[0], weight).unwrap();
                }
                let sample = Sample::new(rng, (outputs, inputs), bits, group, Scales::F16, symmetric);
                Matrix::from_affine(&contexts[0], sample.weight()).unwrap()
            };
            let (gate, up) = (matrix(&mut rng), matrix(&mut rng));
            for precision in [Precision::Fast, Precision::Exact] {
                let run = |context: &Context, rows: Range<usize>| {
                    let x = &x[rows.start * inputs..rows.end * inputs];
                    let (mut plain, mut gated) = (vec![0.0; rows.len() * outputs], vec![0.0; rows.len() * outputs]);
                    let silu = Activation::Silu;
                    matmul(context, precision, x, rows.len(), &mut [Product::new(&up, &mut plain)]).unwrap();
                    matmul_gated(context, precision, x, rows.len(), &gate, &up, silu, &mut gated).unwrap();
                    (plain, gated)
                };
                let what = format!("{isa:?} {precision:?}, {bits} bits, groups of {group}, symmetric {symmetric}");
                let together = run(&contexts[1], 0..most);
                assert!(run(&contexts[0], 0..most) == together, "{what}: one thread");
                // The plain version takes row after row: little can go wrong there, and it is slow.
                let most_tried = if isa == Isa::Scalar { 2 } else { 17 };
                for count in (1..=most_tried).chain([24]) {
                    // Not always the same neighbours.
                    let first = count * 7 % (most - count);
                    let (plain, gated) = run(&contexts[count % 3], first..first + count);
                    let same = |part: &[f32], all: &[f32]| part == &all[first * outputs..(first + count) * outputs];
                    assert!(
                        same(&plain, &together.0) && same(&gated, &together.1),
                        "{what}: {count} rows from {first}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_matrix_laid_out_for_another_instruction_set_still_multiplies() {
    let mut rng = StdRng::seed_from_u64(10);
    let sample = Sample::new(&mut rng, (20, 128), 4, 64, Scales::F16, false);
    let x = random(&mut rng, 2 * 128);
    let (expected, magnitudes) = reference(&sample.dequantized(), &x, 2, 20, 128);
    for laid in Isa::available() {
        let matrix = Matrix::from_affine(&Context::with_isa(laid, 1), sample.weight()).unwrap();
        for used in Isa::available() {
            let mut output = vec![0.0; 2 * 20];
            matmul(&Context::with_isa(used, 1), Precision::Exact, &x, 2, &mut [Product::new(&matrix, &mut output)])
                .unwrap();
            compare(&format!("{laid:?} on {used:?}"), &output, &expected, &magnitudes);
        }
    }
}

#[test]
fn zero_rows_and_zero_activations_are_fine() {
    let mut rng = StdRng::seed_from_u64(11);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        let sample = Sample::new(&mut rng, (20, 128), 4, 64, Scales::F16, false);
        let matrix = Matrix::from_affine(&context, sample.weight()).unwrap();
        matmul(&context, Precision::Fast, &[], 0, &mut [Product::new(&matrix, &mut [])]).unwrap();
        let mut output = vec![f32::NAN; 5 * 20];
        matmul(&context, Precision::Fast, &[0.0; 5 * 128], 5, &mut [Product::new(&matrix, &mut output)]).unwrap();
        assert!(output.iter().all(|value| *value == 0.0));
    }
}

#[test]
fn wrong_shapes_are_refused_with_figures() {
    let context = Context::new(1);
    let weight = |bits, group_size, in_features| AffineWeight {
        out_features: 8,
        in_features,
        bits,
        group_size,
        packed: &[0; 8 * 64],
        scales: FloatSlice::F16(&[0; 8 * 4 * 2]),
        biases: FloatSlice::F16(&[0; 8 * 4 * 2]),
    };
    assert_eq!(
        Matrix::from_affine(&context, weight(7, 32, 128)).unwrap_err(),
        MatrixError::UnsupportedBits { bits: 7 }
    );
    assert_eq!(
        Matrix::from_affine(&context, weight(4, 48, 96)).unwrap_err(),
        MatrixError::UnsupportedGroup { group_size: 48 }
    );
    assert_eq!(
        Matrix::from_affine(&context, weight(4, 64, 96)).unwrap_err(),
        MatrixError::TornGroup { in_features: 96, group_size: 64 }
    );
    let error = Matrix::from_affine(&context, weight(8, 32, 128)).unwrap_err();
    assert_eq!(error.to_string(), "packed codes of a 8 x 128 weight has 512 bytes, expected 1024");
    let matrix = Matrix::from_affine(&context, weight(4, 32, 128)).unwrap();
    let mut output = [0.0; 16];
    let mut product = |x: &[f32], rows, width: usize, bias: Option<&[f32]>| {
        matmul(&context, Precision::Fast, x, rows, &mut [Product::new(&matrix, &mut output[..width]).with_bias(bias)])
            .unwrap_err()
    };
    assert_eq!(product(&[0.0; 100], 1, 8, None), MatrixError::WrongInput { found: 100, rows: 1, in_features: 128 });
    assert_eq!(product(&[0.0; 128], 1, 9, None), MatrixError::WrongOutput { found: 9, rows: 1, out_features: 8 });
    assert_eq!(product(&[0.0; 128], 1, 8, Some(&[0.0; 7])), MatrixError::WrongBias { found: 7, out_features: 8 });
    let dense = DenseWeight { out_features: 2, in_features: 3, data: FloatSlice::F32(&[0; 23]) };
    assert!(matches!(Matrix::from_dense(&context, dense), Err(MatrixError::WrongSize { .. })));
    let empty = DenseWeight { out_features: 0, in_features: 3, data: FloatSlice::F32(&[]) };
    assert!(matches!(Matrix::from_dense(&context, empty), Err(MatrixError::BadShape { .. })));
}

#[test]
fn an_activation_follows_the_bias_and_precedes_what_the_output_holds() {
    let mut rng = StdRng::seed_from_u64(30);
    let (outputs, inputs) = (37, 128);
    let weight = random(&mut rng, outputs * inputs);
    let bytes: Vec<u8> = weight.iter().flat_map(|value| value.to_le_bytes()).collect();
    let sample = Sample::new(&mut rng, (outputs, inputs), 8, 32, Scales::F16, false);
    let bias = random(&mut rng, outputs);
    for isa in Isa::available() {
        let context = Context::with_isa(isa, 2);
        let dense = DenseWeight { out_features: outputs, in_features: inputs, data: FloatSlice::F32(&bytes) };
        let dense = Matrix::from_dense(&context, dense).unwrap();
        let affine = Matrix::from_affine(&context, sample.weight()).unwrap();
        for matrix in [&dense, &affine] {
            for rows in [1, 3, 13, 40] {
                let x = random(&mut rng, rows * inputs);
                let mut plain = vec![0.0; rows * outputs];
                let product = Product::new(matrix, &mut plain).with_bias(Some(&bias));
                matmul(&context, Precision::Fast, &x, rows, &mut [product]).unwrap();
                let mut activated = vec![0.25; rows * outputs];
                let product = Product::new(matrix, &mut activated).with_bias(Some(&bias));
                let product = product.with_activation(Activation::Gelu).accumulate();
                matmul(&context, Precision::Fast, &x, rows, &mut [product]).unwrap();
                for (plain, activated) in plain.iter().zip(&activated) {
                    let expected = Activation::Gelu.apply(*plain) + 0.25;
                    assert!((activated - expected).abs() < 2e-6 * expected.abs().max(1.0), "{isa:?} {rows} rows");
                }
            }
        }
    }
}
