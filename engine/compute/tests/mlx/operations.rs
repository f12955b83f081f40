//! Rope and gated activations.

use crate::fixture::{self, array, assert_same_bits, bare_store, names, step_of};
use linnet_compute::{
    Activation, Backend, KvStore, Outputs, RopeScaling, RopeSpec, Row,
    mlx::{MlxBackend, MlxOptions},
};

const HEAD_DIM: usize = 8;

fn spec(kind: &str) -> RopeSpec {
    let scaling = match kind {
        "linear" => RopeScaling::Linear { factor: 3.3 },
        "dynamic" => RopeScaling::Dynamic { factor: 2.5, max_position: 128 },
        "llama3" => RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_max_position: 8192.0,
        },
        "yarn" => RopeScaling::Yarn {
            factor: 4.0,
            original_max_position: 64.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 0.3,
        },
        "longrope" => RopeScaling::LongRope {
            long_factor: vec![1.1, 1.3, 2.7, 5.9],
            max_position: 128.0,
            original_max_position: 32.0,
        },
        "proportional" => RopeScaling::Proportional { rotated_dims: 4, factor: 2.0 },
        _ => RopeScaling::None,
    };
    let base = if matches!(kind, "traditional" | "llama3") { 500_000.0 } else { 10_000.0 };
    let dims = if kind == "partial" { 4 } else { HEAD_DIM };
    RopeSpec { dims, traditional: kind == "traditional", base, scaling }
}

/// `[rows, heads, tokens, head_dim]` as lines of one token each.
fn by_token(values: &[f32], [rows, heads, tokens]: [usize; 3]) -> Vec<f32> {
    let mut lines = Vec::with_capacity(values.len());
    for row in 0..rows {
        for token in 0..tokens {
            for head in 0..heads {
                let first = ((row * heads + head) * tokens + token) * HEAD_DIM;
                lines.extend_from_slice(&values[first..first + HEAD_DIM]);
            }
        }
    }
    lines
}

#[test]
fn every_rope_turns_two_sequences_at_once_to_the_reference_s_bits() {
    let cases: Vec<String> =
        names("rope.").into_iter().filter_map(|name| Some(name.strip_suffix(".x")?.to_owned())).collect();
    assert_eq!(cases.len(), 27);
    for case in cases {
        let backend = MlxBackend::new(MlxOptions::default()).unwrap();
        let (x, y) = (array(&format!("rope.{case}.x")), array(&format!("rope.{case}.y")));
        let shape = [2, 3, 2];
        let table = fixture::Stored {
            dtype: linnet_compute::Dtype::F32,
            shape: vec![4, 3 * HEAD_DIM],
            bytes: by_token(&x.floats(), shape).iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        let table = table.to_type(x.dtype).matrix(&backend, 3 * HEAD_DIM);
        let mut kv = bare_store(&backend);
        let slots = [kv.open(), kv.open()];
        let row = |slot, start, length, outputs| Row { slot, start, length, outputs };
        let filled = [row(slots[0], 0, 5, Outputs::None), row(slots[1], 0, 200, Outputs::None)];
        backend.step(&mut kv, &filled, &backend.tokens(&[0; 205]).unwrap()).unwrap();
        let rows = [row(slots[0], 5, 2, Outputs::All), row(slots[1], 200, 2, Outputs::All)];
        let step = backend.step(&mut kv, &rows, &backend.tokens(&[0, 1, 2, 3]).unwrap()).unwrap();
        let kind = case.split('.').next().unwrap();
        let rope = backend.rope(&spec(kind), HEAD_DIM).unwrap();
        let turned = backend.apply_rope(backend.embed(&table, &step).unwrap(), &rope, &step).unwrap();
        let mut found = Vec::new();
        backend.read(&backend.outputs(&turned, &step).unwrap(), &mut found).unwrap();
        assert_same_bits(&case, &found, &by_token(&y.floats(), shape));
    }
}

#[test]
fn gated_activations_have_the_reference_s_bits() {
    let cases: Vec<String> =
        names("gated.").into_iter().filter_map(|name| Some(name.strip_suffix(".y")?.to_owned())).collect();
    assert_eq!(cases.len(), 9);
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    for case in cases {
        let activation = match case.split('.').next().unwrap() {
            "silu" => Activation::Silu,
            "gelu_tanh" => Activation::GeluTanh,
            _ => Activation::Gelu,
        };
        let mut kv = bare_store(&backend);
        let step = step_of(&backend, &mut kv, 3);
        let tensor = |part: &str| {
            let table = array(&format!("gated.{case}.{part}")).matrix(&backend, 40);
            backend.embed(&table, &step).unwrap()
        };
        let mut found = Vec::new();
        backend.read(&backend.gated(tensor("gate"), &tensor("up"), activation).unwrap(), &mut found).unwrap();
        assert_same_bits(&case, &found, &array(&format!("gated.{case}.y")).floats());
    }
}
