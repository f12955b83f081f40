//! Attention without a mask against double precision, on every level of this machine.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    CrossAttentionError, CrossMemory, CrossRow, HeadLayout, MemoryFormat, coarse_full_attention, cross_attention,
    cross_scores, full_attention,
};
use crate::{Context, Isa};

fn random(rng: &mut StdRng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-1.5f32..1.5)).collect()
}

/// The scaled scores of a head, `[tokens, lines]`, from the definition.
fn scores_of(layout: HeadLayout, scale: f64, query: &[f32], keys: &[f32], head: usize) -> Vec<Vec<f64>> {
    let (width, head_dim) = (layout.width(), layout.head_dim);
    let part = |line: &[f32]| line[head * head_dim..(head + 1) * head_dim].to_vec();
    query
        .chunks_exact(width)
        .map(|query| {
            let dot = |key: &[f32]| -> f64 {
                part(query).iter().zip(part(key)).map(|(query, key)| f64::from(*query) * f64::from(key)).sum()
            };
            keys.chunks_exact(width).map(|key| scale * dot(key)).collect()
        })
        .collect()
}

fn expected(layout: HeadLayout, scale: f64, query: &[f32], keys: &[f32], values: &[f32]) -> Vec<f64> {
    let (width, head_dim) = (layout.width(), layout.head_dim);
    let mut output = vec![0.0; query.len()];
    for head in 0..layout.heads {
        for (token, scores) in scores_of(layout, scale, query, keys, head).into_iter().enumerate() {
            let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - maximum).exp()).sum();
            for (score, value) in scores.iter().zip(values.chunks_exact(width)) {
                for dim in 0..head_dim {
                    output[token * width + head * head_dim + dim] +=
                        (score - maximum).exp() / sum * f64::from(value[head * head_dim + dim]);
                }
            }
        }
    }
    output
}

fn close(what: &str, got: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(*got) - expected).abs() < bound, "{what}: element {index} is {got}, expected {expected}");
    }
}

/// Layouts, queries and keys that meet every tail: of register tiles, pages, blocks and tasks.
const SHAPES: [(usize, usize, usize, usize); 8] = [
    (1, 64, 1, 1),
    (2, 64, 5, 64),
    (6, 64, 7, 65),
    (3, 64, 50, 300),
    (2, 80, 13, 257),
    (2, 24, 9, 130),
    (1, 8, 3, 17),
    (2, 6, 4, 70),
];

#[test]
fn every_line_sees_all_lines_on_every_level() {
    let mut rng = StdRng::seed_from_u64(90);
    for (heads, head_dim, tokens, lines) in SHAPES {
        let layout = HeadLayout { heads, head_dim };
        let scale = (head_dim as f32).powf(-0.5);
        let query = random(&mut rng, tokens * layout.width());
        let (keys, values) = (random(&mut rng, lines * layout.width()), random(&mut rng, lines * layout.width()));
        let expected = expected(layout, f64::from(scale), &query, &keys, &values);
        for isa in Isa::available() {
            let ctx = Context::with_isa(isa, 2);
            // Twice: the second call finds memory that the first one used.
            for _ in 0..2 {
                let mut output = vec![f32::NAN; query.len()];
                full_attention(&ctx, layout, scale, &query, &keys, &values, &mut output).unwrap();
                close(&format!("{isa:?} {layout:?} {tokens} x {lines}"), &output, &expected, 5e-6);
                output.fill(f32::NAN);
                coarse_full_attention(&ctx, layout, scale, &query, &keys, &values, &mut output).unwrap();
                // Three numbers of 8 bits are multiplied; what is random in their rounding mostly cancels out.
                close(&format!("coarse {isa:?} {layout:?} {tokens} x {lines}"), &output, &expected, 1.5e-2);
            }
        }
    }
}

#[test]
fn rows_listen_to_their_own_memories_with_the_same_bits_alone_and_together() {
    let mut rng = StdRng::seed_from_u64(91);
    let layout = HeadLayout { heads: 2, head_dim: 64 };
    let (width, scale) = (layout.width(), 0.125);
    let windows: Vec<(Vec<f32>, Vec<f32>)> =
        [150, 301].map(|lines| (random(&mut rng, lines * width), random(&mut rng, lines * width))).into();
    // Beams of two windows, interleaved, and a row of several tokens.
    let rows = [(0usize, 1usize), (1, 1), (0, 1), (0, 4), (1, 1), (0, 1), (0, 1)];
    let queries: Vec<Vec<f32>> = rows.iter().map(|(_, tokens)| random(&mut rng, tokens * width)).collect();
    for isa in Isa::available() {
        let ctx = Context::with_isa(isa, 2);
        for (format, bound) in [(MemoryFormat::F32, 5e-6), (MemoryFormat::F16, 1.5e-3)] {
            let memories: Vec<CrossMemory> = windows
                .iter()
                .map(|(keys, values)| CrossMemory::new(&ctx, layout, keys, values, format).unwrap())
                .collect();
            let mut outputs: Vec<Vec<f32>> = queries.iter().map(|query| vec![f32::NAN; query.len()]).collect();
            let mut together: Vec<CrossRow<'_>> = rows
                .iter()
                .zip(&queries)
                .zip(&mut outputs)
                .map(|((&(window, _), query), output)| CrossRow { query, output, memory: &memories[window] })
                .collect();
            cross_attention(&ctx, scale, &mut together).unwrap();
            for (((window, _), query), output) in rows.iter().zip(&queries).zip(&outputs) {
                let (keys, values) = &windows[*window];
                let expected = expected(layout, f64::from(scale), query, keys, values);
                close(&format!("{isa:?} {format:?}"), output, &expected, bound);
                let mut alone = vec![f32::NAN; query.len()];
                let row = CrossRow { query, output: &mut alone, memory: &memories[*window] };
                cross_attention(&Context::with_isa(isa, 1), scale, &mut [row]).unwrap();
                assert_eq!(&alone, output, "{isa:?} {format:?}");
            }
        }
    }
}

#[test]
fn scores_are_those_before_the_softmax() {
    let mut rng = StdRng::seed_from_u64(92);
    for (heads, head_dim, lines) in [(4, 64, 150), (3, 24, 65), (3, 6, 10)] {
        let layout = HeadLayout { heads, head_dim };
        let query = random(&mut rng, 3 * layout.width());
        let (keys, values) = (random(&mut rng, lines * layout.width()), random(&mut rng, lines * layout.width()));
        for isa in Isa::available() {
            let ctx = Context::with_isa(isa, 2);
            for (format, bound) in [(MemoryFormat::F32, 1e-5), (MemoryFormat::F16, 4e-3)] {
                let memory = CrossMemory::new(&ctx, layout, &keys, &values, format).unwrap();
                let chosen = [1, 2];
                let mut scores = vec![f32::NAN; chosen.len() * 3 * lines];
                cross_scores(&ctx, 0.3, &memory, &query, &chosen, &mut scores).unwrap();
                let expected: Vec<f64> =
                    chosen.iter().flat_map(|&head| scores_of(layout, 0.3, &query, &keys, head).concat()).collect();
                close(&format!("{isa:?} {format:?} {layout:?}"), &scores, &expected, bound);
            }
        }
    }
}

#[test]
fn an_outlier_beyond_f16_does_not_make_a_line_nan() {
    let layout = HeadLayout { heads: 1, head_dim: 64 };
    let ctx = Context::new(1);
    let (keys, mut values) = (vec![0.1; 64 * 3], vec![0.5; 64 * 3]);
    values[70] = 1e6;
    let memory = CrossMemory::new(&ctx, layout, &keys, &values, MemoryFormat::F16).unwrap();
    assert_eq!((memory.lines(), memory.bytes(), memory.layout()), (3, 2 * 64 * 64 * 2, layout));
    let (query, mut output) = (vec![0.2; 64], vec![f32::NAN; 64]);
    cross_attention(&ctx, 1.0, &mut [CrossRow { query: &query, output: &mut output, memory: &memory }]).unwrap();
    assert!((output[6] - 65504.0 / 3.0).abs() < 1.0 && (output[5] - 0.5).abs() < 1e-5, "{output:?}");
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let ctx = Context::new(1);
    let layout = HeadLayout { heads: 2, head_dim: 8 };
    let lines = [0.0; 32];
    let mut output = [0.0; 32];
    let none = HeadLayout { heads: 0, head_dim: 8 };
    let full = |layout, query: &[f32], keys: &[f32], values: &[f32], output: &mut [f32]| {
        full_attention(&ctx, layout, 1.0, query, keys, values, output).unwrap_err()
    };
    assert!(matches!(full(none, &lines, &lines, &lines, &mut output), CrossAttentionError::Layout { .. }));
    assert_eq!(full(layout, &lines, &[], &[], &mut output), CrossAttentionError::NoKeys);
    for (query, keys, values, outputs) in [(31, 32, 32, 31), (32, 31, 31, 32), (32, 32, 16, 32), (32, 32, 32, 16)] {
        let error = full(layout, &lines[..query], &lines[..keys], &lines[..values], &mut output[..outputs]);
        assert!(matches!(error, CrossAttentionError::Length { .. }), "{error}");
    }
    let f32 = CrossMemory::new(&ctx, layout, &lines, &lines, MemoryFormat::F32).unwrap();
    let f16 = CrossMemory::new(&ctx, layout, &lines, &lines, MemoryFormat::F16).unwrap();
    let (mut first, mut second) = ([0.0; 16], [0.0; 16]);
    let mut rows = [
        CrossRow { query: &lines[..16], output: &mut first, memory: &f32 },
        CrossRow { query: &lines[..16], output: &mut second, memory: &f16 },
    ];
    assert_eq!(cross_attention(&ctx, 1.0, &mut rows), Err(CrossAttentionError::Mixed { row: 1 }));
    let error = cross_scores(&ctx, 1.0, &f32, &lines, &[2], &mut output);
    assert_eq!(error, Err(CrossAttentionError::NoSuchHead { head: 2, heads: 2 }));
    assert!(cross_scores(&ctx, 1.0, &f32, &lines, &[1], &mut output).is_err());
}
