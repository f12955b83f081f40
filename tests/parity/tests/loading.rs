//! Which model folders load: what mlx-lm refuses (`load_weights` with `strict`) is refused, what its `sanitize` drops is
//! dropped.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use linnet_compute::cpu::{CpuBackend, CpuOptions};
use linnet_models::ModelError;
use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use serde_json::{Value, json};

/// Loads a copy of a fixture with changed fields of its configuration and further tensors of zeros.
fn load(fixture: &str, fields: &[(&str, Value)], further: &[(&str, &[usize])]) -> Result<(), ModelError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/llama").join(fixture);
    let scratch = tempfile::tempdir().unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    for (name, value) in fields {
        config[*name] = value.clone();
    }
    fs::write(scratch.path().join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let zeros = vec![0; 1 << 20];
    let mut tensors = stored.tensors();
    for (name, shape) in further {
        let size = shape.iter().product::<usize>() * 4;
        tensors.push(((*name).to_owned(), TensorView::new(Dtype::F32, shape.to_vec(), &zeros[..size]).unwrap()));
    }
    serialize_to_file(tensors, None, &scratch.path().join("model.safetensors")).unwrap();
    let backend = CpuBackend::new(CpuOptions { threads: 1, exact: true });
    linnet_models::load(&backend, scratch.path()).map(drop)
}

fn refusal(fixture: &str, fields: &[(&str, Value)], further: &[(&str, &[usize])]) -> String {
    load(fixture, fields, further).unwrap_err().to_string()
}

#[test]
fn biases_that_the_configuration_does_not_have_are_refused_and_not_added() {
    load("biases", &[], &[]).unwrap();
    let text = refusal("biases", &[("attention_bias", json!(false))], &[]);
    assert!(text.contains("8 weights") && text.contains("model.layers.0.self_attn.k_proj.bias"), "{text}");
    let text = refusal("biases", &[("mlp_bias", Value::Null)], &[]);
    assert!(text.contains("6 weights") && text.contains("mlp.down_proj.bias"), "{text}");
    let text = refusal("dense-f32", &[], &[("lm_head.bias", &[256])]);
    assert!(text.contains("1 weights") && text.contains("lm_head.bias"), "{text}");
}

#[test]
fn weights_of_another_architecture_are_refused_and_not_left_out() {
    let text = refusal("dense-f32", &[], &[("model.layers.1.self_attn.q_norm.weight", &[16])]);
    assert!(text.contains("model.layers.1.self_attn.q_norm.weight"), "{text}");
    let text = refusal("dense-f32", &[("num_hidden_layers", json!(1))], &[]);
    assert!(text.contains("9 weights") && text.contains("model.layers.1.") && text.contains("..."), "{text}");
    let text = refusal("affine-4bit-g32", &[("tie_word_embeddings", json!(true))], &[("model.norm.scales", &[1])]);
    assert!(text.contains("model.norm.scales"), "{text}");
}

#[test]
fn what_the_engine_computes_or_shares_itself_is_left_out() {
    let frequencies = ("model.layers.0.self_attn.rotary_emb.inv_freq", [8].as_slice());
    load("dense-f16", &[], &[frequencies, ("lm_head.weight", &[256, 64])]).unwrap();
}
