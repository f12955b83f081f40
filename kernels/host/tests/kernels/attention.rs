//! Decode attention over quantized keys and values on the host runner.

use linnet_kernels::metal::{DecodeAttention, Element, decode_attention_reference};
use linnet_metal_host::{Argument, Device, HostError};
use rand::{SeedableRng, rngs::StdRng};

use crate::support::{Affine, each_device, floats, one_device, rounding};

#[derive(Clone)]
struct Case {
    figures: DecodeAttention,
    capacity: usize,
    spans: Vec<[i32; 2]>,
    window: i32,
    queries: Vec<f32>,
    keys: Affine,
    values: Affine,
}

impl Case {
    /// A random case. What no row may see holds NaN.
    fn random(random: &mut StdRng, figures: DecodeAttention, capacity: usize, spans: &[[i32; 2]], window: i32) -> Case {
        let DecodeAttention { rows, heads, kv_heads, head_dim, bits, group, element } = figures;
        assert_eq!(rows, spans.len());
        let lines = rows * kv_heads * capacity;
        let columns = figures.columns();
        let mut stored = || Affine::random(random, element, [lines, columns], bits, group, 1.0);
        let (mut keys, mut values) = (stored(), stored());
        for line in 0..lines {
            let (row, key) = (line / (kv_heads * capacity), (line % capacity) as i32);
            let [padding, end] = spans[row];
            let begin = if window > 0 { padding.max(end - window) } else { padding };
            if key < begin || key >= end {
                for index in line * columns / group..(line + 1) * columns / group {
                    for part in [&mut keys.scales, &mut keys.biases, &mut values.scales, &mut values.biases] {
                        part[index] = f32::NAN;
                    }
                }
            }
        }
        let queries = floats(random, element, rows * heads * head_dim, 3.0);
        Case { figures, capacity, spans: spans.to_vec(), window, queries, keys, values }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.figures.head_dim as f32).sqrt()
    }

    fn inputs(&self) -> Vec<Argument> {
        let DecodeAttention { rows, heads, kv_heads, head_dim, element, .. } = self.figures;
        let mut inputs = vec![Argument::floats(element, &[rows, heads, 1, head_dim], &self.queries)];
        inputs.extend(self.keys.arguments(element, &[rows, kv_heads, self.capacity]));
        inputs.extend(self.values.arguments(element, &[rows, kv_heads, self.capacity]));
        inputs.push(Argument::i32(&[rows, 2], self.spans.as_flattened()));
        inputs.push(Argument::i32(&[], &[self.window]));
        inputs.push(Argument::scalar(self.scale()));
        inputs
    }

    /// Runs in one pass, or in parts.
    fn run(&self, device: &dyn Device, parts: Option<usize>) -> Result<Vec<f32>, HostError> {
        self.run_on(device, parts, &self.inputs())
    }

    fn run_on(&self, device: &dyn Device, parts: Option<usize>, inputs: &[Argument]) -> Result<Vec<f32>, HostError> {
        let outputs = match parts {
            None => device.run(&self.figures.launch().unwrap(), inputs)?,
            Some(parts) => {
                let (first, second) = self.figures.launch_parts(parts).unwrap();
                device.run(&second, &device.run(&first, inputs)?)?
            }
        };
        Ok(outputs[0].to_f32())
    }

    fn expected(&self) -> Vec<f32> {
        let Case { figures, queries, spans, window, .. } = self;
        decode_attention_reference(
            figures,
            queries,
            &self.keys.rows(),
            &self.values.rows(),
            spans,
            *window,
            self.scale(),
        )
    }

    fn assert_close(&self, got: &[f32], parts: Option<usize>) {
        let expected = self.expected();
        let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        for (index, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
            let bound = 2e-5 * largest + rounding(self.figures.element) * expected.abs();
            let agree = (got - expected).abs() <= bound || (got.is_nan() && expected.is_nan());
            assert!(agree, "{:?}, parts {parts:?}, element {index}: {got}, not {expected}", self.figures);
        }
    }
}

const FIGURES: DecodeAttention =
    DecodeAttention { rows: 1, heads: 4, kv_heads: 2, head_dim: 64, bits: 4, group: 32, element: Element::F16 };

#[test]
fn every_head_size_width_and_group() {
    let mut random = StdRng::seed_from_u64(21);
    let cases = [
        (FIGURES, 40),
        (DecodeAttention { head_dim: 80, bits: 8, element: Element::F32, ..FIGURES }, 19),
        (DecodeAttention { head_dim: 96, heads: 6, element: Element::Bf16, ..FIGURES }, 33),
        (DecodeAttention { head_dim: 128, heads: 7, kv_heads: 1, group: 64, bits: 8, ..FIGURES }, 21),
        (DecodeAttention { head_dim: 256, heads: 8, group: 64, element: Element::Bf16, ..FIGURES }, 11),
        (DecodeAttention { head_dim: 80, heads: 2, group: 64, element: Element::Bf16, ..FIGURES }, 9),
    ];
    let cases = cases.map(|(figures, keys)| Case::random(&mut random, figures, keys + 3, &[[0, keys as i32]], 0));
    each_device(|device| {
        for case in &cases {
            for parts in [None, Some(3)] {
                case.assert_close(&case.run(device, parts).unwrap(), parts);
            }
        }
    });
}

#[test]
fn ragged_rows_left_padding_and_windows() {
    let mut random = StdRng::seed_from_u64(22);
    let figures = DecodeAttention { rows: 5, heads: 3, kv_heads: 1, ..FIGURES };
    // A row with nothing cached, one key, only its last key visible, all of the buffer, a middle piece.
    let spans = [[0, 0], [0, 1], [36, 37], [0, 40], [5, 30]];
    let cases = [0, 7].map(|window| Case::random(&mut random, figures, 40, &spans, window));
    each_device(|device| {
        for case in &cases {
            for parts in [None, Some(1), Some(4)] {
                let got = case.run(device, parts).unwrap();
                assert!(got[..3 * 64].iter().all(|&value| value == 0.0), "a row without keys");
                case.assert_close(&got, parts);
            }
        }
    });
}

#[test]
fn spans_beyond_the_buffer_stay_inside() {
    let mut random = StdRng::seed_from_u64(23);
    let figures = DecodeAttention { rows: 3, heads: 2, ..FIGURES };
    let mut case = Case::random(&mut random, figures, 20, &[[0, 20], [0, 20], [0, 20]], 0);
    case.spans = vec![[-3, 25], [30, 20], [0, -1]];
    one_device(|device| case.assert_close(&case.run(device, None).unwrap(), None));
}

#[test]
fn arrays_cut_out_of_larger_ones() {
    let mut random = StdRng::seed_from_u64(26);
    let figures = DecodeAttention { rows: 2, heads: 4, ..FIGURES };
    let case = Case::random(&mut random, figures, 20, &[[0, 12], [3, 12]], 0);
    // The first twelve tokens of a buffer of twenty, and queries whose rows lie apart.
    let mut inputs = case.inputs();
    inputs[1..7].iter_mut().for_each(|array| *array = array.sliced(2, 0..12));
    let apart: Vec<f32> = case.queries.chunks(4 * 64).flat_map(|row| [row, &[f32::NAN; 128]].concat()).collect();
    inputs[0] = Argument::floats(figures.element, &[2, 6, 1, 64], &apart).sliced(1, 0..4);
    one_device(|device| {
        for parts in [None, Some(2)] {
            case.assert_close(&case.run_on(device, parts, &inputs).unwrap(), parts);
        }
    });
}

#[test]
fn parts_without_keys_count_nothing() {
    let mut random = StdRng::seed_from_u64(24);
    let case = Case::random(&mut random, FIGURES, 8, &[[2, 5]], 0);
    one_device(|device| case.assert_close(&case.run(device, Some(64)).unwrap(), Some(64)));
}

#[test]
fn extreme_scores() {
    let mut random = StdRng::seed_from_u64(25);
    let figures = DecodeAttention { heads: 2, element: Element::F32, ..FIGURES };
    let base = Case::random(&mut random, figures, 24, &[[0, 24]], 0);
    one_device(|device| {
        for size in [0.0, 1e-38, 1e-30, 1e4, 1e18] {
            let mut case = base.clone();
            case.queries.iter_mut().for_each(|query| *query *= size);
            for parts in [None, Some(2)] {
                let got = case.run(device, parts).unwrap();
                assert!(got.iter().all(|value| value.is_finite()), "queries times {size}: {got:?}");
                case.assert_close(&got, parts);
            }
        }
        // A visible NaN makes its head NaN. Neither it nor an infinity touches the other KV head's heads.
        for value in [f32::NAN, f32::INFINITY] {
            let mut case = base.clone();
            case.keys.scales[10] = value;
            let got = case.run(device, None).unwrap();
            assert!(got[64..].iter().all(|value| value.is_finite()), "{got:?}");
            assert!(value.is_infinite() || got[..64].iter().all(|value| value.is_nan()), "{got:?}");
        }
    });
}
