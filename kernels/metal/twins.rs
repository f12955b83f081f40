//! The plain references of the Metal kernels against the CPU kernels, which were written from another specification.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    AffineRows, DecodeAttention, Element, GREEDY_NONE, Gate, GatedMatvec, GreedyPlan, LaunchError,
    decode_attention_reference, gated_reference, greedy_reference, log_sum_exp, round_to,
};
use crate::{
    Activation, AffineWeight, AttentionOptions, AttentionRow, Context, FloatSlice, Matrix, PAGE_TOKENS, Page,
    PageGeometry, Precision, append, argmax, attention, matmul_gated,
};

fn floats(random: &mut StdRng, count: usize, size: f32) -> Vec<f32> {
    (0..count).map(|_| random.random_range(-size..size)).collect()
}

struct Affine {
    codes: Vec<u32>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Affine {
    /// Scales and biases are such that every value is a half-precision number: a few bits over 1024.
    fn new(random: &mut StdRng, rows: usize, columns: usize, bits: usize, group: usize) -> Affine {
        let groups = rows * columns / group;
        let (scale, bias) = if bits == 4 { (8, 16.0) } else { (2, 256.0) };
        let numbers = |random: &mut StdRng, limit: i32, unit: f32| {
            (0..groups).map(|_| random.random_range(1 - limit..limit) as f32 * unit / 1024.0).collect::<Vec<_>>()
        };
        Affine {
            codes: (0..rows * columns * bits / 32).map(|_| random.random()).collect(),
            scales: numbers(random, scale, 1.0),
            biases: numbers(random, 7, bias),
        }
    }

    fn rows(&self, columns: usize, bits: usize, group: usize) -> AffineRows<'_> {
        AffineRows { codes: &self.codes, scales: &self.scales, biases: &self.biases, columns, bits, group }
    }
}

fn bytes<T: Copy, const N: usize>(values: &[T], convert: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| convert(value)).collect()
}

#[test]
fn gated_reference_agrees_with_the_cpu_kernel() {
    let mut random = StdRng::seed_from_u64(1);
    let context = Context::new(1);
    for (rows, columns, outputs, group) in [(1, 64, 8, 32), (3, 256, 20, 64), (4, 128, 33, 128)] {
        let x = floats(&mut random, rows * columns, 2.0);
        let weights = [(); 2].map(|()| Affine::new(&mut random, outputs, columns, 4, group));
        let matrices = weights.each_ref().map(|weight| {
            let weight = AffineWeight {
                out_features: outputs,
                in_features: columns,
                bits: 4,
                group_size: group,
                packed: &bytes(&weight.codes, u32::to_le_bytes),
                scales: FloatSlice::F32(&bytes(&weight.scales, f32::to_le_bytes)),
                biases: FloatSlice::F32(&bytes(&weight.biases, f32::to_le_bytes)),
            };
            Matrix::from_affine(&context, weight).unwrap()
        });
        for (gate, activation) in [(Gate::Silu, Activation::Silu), (Gate::GeluTanh, Activation::GeluTanh)] {
            let [gate_rows, up_rows] = weights.each_ref().map(|weight| weight.rows(columns, 4, group));
            let got = gated_reference(&x, &gate_rows, &up_rows, gate, Element::F32);
            let mut expected = vec![0.0; rows * outputs];
            let [gate_matrix, up_matrix] = &matrices;
            matmul_gated(&context, Precision::Exact, &x, rows, gate_matrix, up_matrix, activation, &mut expected)
                .unwrap();
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{gate:?}: {got}, not {expected}");
            }
        }
    }
}

#[test]
fn attention_reference_agrees_with_the_cpu_kernel() {
    let mut random = StdRng::seed_from_u64(2);
    for (head_dim, bits, group, heads, kv_heads, length, window) in
        [(64, 4, 32, 6, 2, 70, 0), (80, 8, 32, 2, 2, 5, 0), (128, 4, 64, 8, 1, 130, 100), (256, 8, 64, 3, 1, 33, 7)]
    {
        let figures = DecodeAttention { rows: 1, heads, kv_heads, head_dim, bits, group, element: Element::F32 };
        let columns = figures.columns();
        let queries = floats(&mut random, heads * head_dim, 1.0);
        let [keys, values] = [(); 2].map(|()| Affine::new(&mut random, kv_heads * length, columns, bits, group));
        let [keys, values] = [keys.rows(columns, bits, group), values.rows(columns, bits, group)];
        let scale = 1.0 / (head_dim as f32).sqrt();
        let got = decode_attention_reference(&figures, &queries, &keys, &values, &[[0, length as i32]], window, scale);

        let geometry = PageGeometry { kv_heads, head_dim };
        let mut pages = vec![vec![0u16; geometry.elements()]; length.div_ceil(PAGE_TOKENS)];
        for token in 0..length {
            let row = |rows: &AffineRows<'_>| -> Vec<f32> {
                let lines = (0..kv_heads).map(|head| head * length + token);
                lines.flat_map(|line| (0..head_dim).map(move |i| rows.value(line, i))).collect()
            };
            append(geometry, &mut pages[token / PAGE_TOKENS], token % PAGE_TOKENS, &row(&keys), &row(&values), 1);
        }
        let pages: Vec<Page<'_>> = pages.iter().map(|page| Page::from(page.as_slice())).collect();
        let mut expected = vec![0.0; queries.len()];
        let options = AttentionOptions {
            heads,
            geometry,
            scale,
            window: (window > 0).then_some(window as usize),
            softcap: None,
            sinks: None,
        };
        let row = AttentionRow {
            query: &queries,
            output: &mut expected,
            start: length - 1,
            length: 1,
            pages: &pages,
            first_position: 0,
        };
        attention(&Context::new(1), &options, &mut [row]).unwrap();
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() <= 1e-5, "{figures:?}: {got}, not {expected}");
        }
    }
}

#[test]
fn greedy_reference_is_argmax_unless_scores_tie() {
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..200 {
        let logits = floats(&mut random, 300, 10.0);
        // In single precision scores of random logits do not tie.
        assert_eq!(greedy_reference(&logits, log_sum_exp(&logits) as f32, Element::F32), argmax(&logits) as u32);
    }
    // 16.0 and 16.0625 are bfloat16 numbers, and both lie 70 below zero once log_sum is taken off.
    let tied = [1.0, 16.0, 16.0625, 16.0];
    assert_eq!(argmax(&tied), 2);
    assert_eq!(greedy_reference(&tied, 86.0, Element::Bf16), 1);
    assert_eq!(round_to(Element::Bf16, 16.0 - 86.0), round_to(Element::Bf16, 16.0625 - 86.0));
}

#[test]
fn greedy_reference_selects_nothing_where_there_is_no_distribution() {
    let select = |logits: &[f32]| greedy_reference(logits, log_sum_exp(logits) as f32, Element::F32);
    assert_eq!(select(&[f32::NEG_INFINITY, 1.0, 2.0]), 2);
    for logits in [&[f32::NAN, 1.0, 2.0][..], &[1.0, f32::INFINITY], &[f32::NEG_INFINITY; 3], &[]] {
        assert_eq!(select(logits), GREEDY_NONE, "{logits:?}");
    }
}

#[test]
fn figures_that_no_kernel_is_written_for_are_refused() {
    let gated = GatedMatvec { rows: 1, columns: 64, outputs: 8, group: 32, element: Element::F16, gate: Gate::Silu };
    assert!(gated.launch().is_ok());
    let message = |error: LaunchError| error.to_string();
    assert_eq!(
        message(GatedMatvec { rows: 5, ..gated }.launch().unwrap_err()),
        "linnet_gated_matvec does not do rows 5: it does 1 to 4; use the composed form"
    );
    assert_eq!(
        message(GatedMatvec { columns: 96, group: 64, ..gated }.launch().unwrap_err()),
        "linnet_gated_matvec: columns 96 is not a multiple of the group size 64"
    );
    for wrong in [
        GatedMatvec { group: 16, ..gated },
        GatedMatvec { outputs: 7, ..gated },
        GatedMatvec { columns: 0, ..gated },
        GatedMatvec { element: Element::I32, ..gated },
    ] {
        assert!(wrong.launch().is_err(), "{wrong:?}");
    }

    let attention =
        DecodeAttention { rows: 2, heads: 8, kv_heads: 2, head_dim: 64, bits: 4, group: 32, element: Element::Bf16 };
    assert!(attention.launch().is_ok() && attention.launch_parts(64).is_ok());
    for wrong in [
        DecodeAttention { heads: 7, ..attention },
        DecodeAttention { heads: 0, ..attention },
        DecodeAttention { kv_heads: 0, ..attention },
        DecodeAttention { rows: 0, ..attention },
        DecodeAttention { head_dim: 264, ..attention },
        DecodeAttention { head_dim: 60, ..attention },
        DecodeAttention { bits: 6, ..attention },
        DecodeAttention { group: 16, ..attention },
        DecodeAttention { element: Element::U32, ..attention },
    ] {
        assert!(wrong.launch().is_err() && wrong.launch_parts(2).is_err(), "{wrong:?}");
    }
    assert!(attention.launch_parts(0).is_err() && attention.launch_parts(65).is_err());

    assert!(GreedyPlan::new(0, 10, Element::F32).is_err());
    assert!(GreedyPlan::new(1, 0, Element::F32).is_err());
    assert!(GreedyPlan::new(1, 10, Element::U32).is_err());
}

#[test]
fn long_contexts_are_divided_until_the_gpu_is_busy() {
    let one =
        DecodeAttention { rows: 1, heads: 8, kv_heads: 2, head_dim: 64, bits: 4, group: 32, element: Element::F16 };
    assert_eq!([0, 1, 256, 257, 4096, 1 << 20].map(|keys| one.parts(keys)), [1, 1, 1, 2, 16, 64]);
    assert_eq!(DecodeAttention { rows: 16, kv_heads: 8, heads: 64, ..one }.parts(1 << 20), 2);
    assert_eq!(DecodeAttention { rows: 600, ..one }.parts(1 << 20), 1);
}
