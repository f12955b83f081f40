//! What several tests need: small models in every source format, and weights read back as numbers.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use half::{bf16, f16};
use serde_json::{Value, json};

use crate::config::Quantization;
use crate::convert::{dequantize_row, read_dense};
use crate::gguf::GgufFile;
use crate::gguf::tensor_type::TensorType;
use crate::weights::Dtype;
use crate::weights::folder::Weights;
use crate::weights::read::TensorInfo;

/// Reads one weight of an imported model back as f32, row by row.
pub(crate) fn weights_of(weights: &Weights, quantization: Option<&Quantization>, layer: &str) -> Vec<f32> {
    let read = |suffix: &str| {
        let (file, tensor) = weights.find(&format!("{layer}.{suffix}"))?;
        let mut bytes = vec![0; tensor.bytes as usize];
        file.file.read_exact_at(&mut bytes, tensor.offset).unwrap();
        Some((bytes, tensor.clone()))
    };
    let numbers = |(bytes, tensor): &(Vec<u8>, TensorInfo)| {
        let mut values = vec![0f32; tensor.elements() as usize];
        read_dense(tensor.dtype, bytes, &mut values);
        values
    };
    let weight = read("weight").unwrap();
    let Some(scales) = read("scales") else { return numbers(&weight) };
    let affine = quantization.unwrap().of(layer).unwrap();
    let (scales, biases) = (numbers(&scales), numbers(&read("biases").unwrap()));
    let mut quantized = vec![0; scales.len() * affine.group_size as usize];
    affine.unpack(&weight.0, &mut quantized);
    quantized
        .iter()
        .enumerate()
        .map(|(index, &q)| {
            let group = index / affine.group_size as usize;
            f32::from(q) * scales[group] + biases[group]
        })
        .collect()
}

/// Reads one tensor of a GGUF file as f32.
pub(crate) fn original(file: &GgufFile, name: &str) -> Vec<f32> {
    let tensor = &file.tensors[name];
    let mut bytes = vec![0; tensor.bytes as usize];
    file.file.read_exact_at(&mut bytes, tensor.offset).unwrap();
    let mut values = vec![0f32; tensor.elements() as usize];
    dequantize_row(tensor.kind, &bytes, &mut values);
    values
}

/// The order of rows that MLX's rope expects, written down independently of the importer: ggml's row pairs of a head
/// are the two halves of MLX's head.
pub(crate) fn put_back(values: &[f32], heads: usize, columns: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks_exact(columns).collect();
    rows.chunks_exact(rows.len() / heads)
        .flat_map(|head| head.iter().step_by(2).chain(head.iter().skip(1).step_by(2)).copied().collect::<Vec<_>>())
        .flatten()
        .copied()
        .collect()
}

/// Numbers that look random and are always the same.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between -1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// The sizes of a small llama: hidden 256, 4 heads, 2 key-value heads, 2 layers, vocabulary 40.
pub(crate) fn small_shapes() -> BTreeMap<String, Vec<u64>> {
    let mut shapes = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![40, 256]),
        ("model.norm.weight".to_owned(), vec![256]),
    ]);
    for layer in 0..2 {
        for (name, shape) in [
            ("self_attn.q_proj.weight", vec![256, 256]),
            ("self_attn.k_proj.weight", vec![128, 256]),
            ("self_attn.v_proj.weight", vec![128, 256]),
            ("self_attn.o_proj.weight", vec![256, 256]),
            ("mlp.gate_proj.weight", vec![256, 256]),
            ("mlp.up_proj.weight", vec![256, 256]),
            ("mlp.down_proj.weight", vec![256, 256]),
            ("input_layernorm.weight", vec![256]),
            ("post_attention_layernorm.weight", vec![256]),
        ] {
            shapes.insert(format!("model.layers.{layer}.{name}"), shape);
        }
    }
    shapes
}

pub(crate) fn small_config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128, "tie_word_embeddings": true,
    })
}

/// Dense elements as bytes of a type.
pub(crate) fn dense_bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| match dtype {
            Dtype::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        })
        .collect()
}

/// Writes a small Hugging Face folder; `change` sees its configuration and shapes before.
pub(crate) fn hugging_face_folder(
    folder: &Path,
    dtype: Dtype,
    change: impl FnOnce(&mut Value, &mut BTreeMap<String, Vec<u64>>),
) {
    std::fs::create_dir_all(folder).unwrap();
    let (mut config, mut shapes) = (small_config(), small_shapes());
    change(&mut config, &mut shapes);
    let mut random = Random::new(5);
    let kind = match dtype {
        Dtype::F16 => safetensors::Dtype::F16,
        Dtype::Bf16 => safetensors::Dtype::BF16,
        _ => safetensors::Dtype::F32,
    };
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let count: u64 = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|_| random.unit() * 0.1).collect();
            (name, shape.into_iter().map(|size| size as usize).collect(), dense_bytes(&values, dtype))
        })
        .collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        (name.as_str(), safetensors::tensor::TensorView::new(kind, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let tokenizer = json!({ "version": "1.0", "model": { "type": "BPE", "vocab": {}, "merges": [] } });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), r#"{"chat_template":"{{ messages }}"}"#).unwrap();
    std::fs::write(folder.join("LICENSE"), "free").unwrap();
    std::fs::write(folder.join("training_args.bin"), "not needed").unwrap();
}

/// A metadata value to be written.
#[derive(Clone)]
pub(crate) enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// A type number and the bytes that follow it.
    Raw(u32, Vec<u8>),
}

/// A GGUF file to be written.
#[derive(Clone)]
pub(crate) struct GgufBuilder {
    pub(crate) version: u32,
    pub(crate) metadata: Vec<(String, Meta)>,
    /// Name, shape (outermost first), type number, bytes.
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl GgufBuilder {
    pub(crate) fn set(&mut self, key: &str, value: Meta) {
        self.metadata.retain(|entry| entry.0 != key);
        self.metadata.push((key.to_owned(), value));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.metadata.retain(|entry| entry.0 != key);
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut (String, Vec<u64>, u32, Vec<u8>) {
        self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            let array = |out: &mut Vec<u8>, kind: u32, count: usize| {
                out.extend(9u32.to_le_bytes());
                out.extend(kind.to_le_bytes());
                out.extend((count as u64).to_le_bytes());
            };
            match value {
                Meta::U32(number) => out.extend([&4u32.to_le_bytes()[..], &number.to_le_bytes()].concat()),
                Meta::F32(number) => out.extend([&6u32.to_le_bytes()[..], &number.to_le_bytes()].concat()),
                Meta::Bool(truth) => out.extend([&7u32.to_le_bytes()[..], &[u8::from(*truth)]].concat()),
                Meta::Text(text) => {
                    out.extend(8u32.to_le_bytes());
                    put_text(&mut out, text);
                }
                Meta::Texts(texts) => {
                    array(&mut out, 8, texts.len());
                    texts.iter().for_each(|text| put_text(&mut out, text));
                }
                Meta::I32s(numbers) => {
                    array(&mut out, 5, numbers.len());
                    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
                }
                Meta::F32s(numbers) => {
                    array(&mut out, 6, numbers.len());
                    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
                }
                Meta::Raw(kind, bytes) => out.extend([&kind.to_le_bytes()[..], bytes].concat()),
            }
        }
        let mut offset = 0u64;
        for (name, shape, kind, bytes) in &self.tensors {
            put_text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|size| out.extend(size.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + bytes.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, bytes) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(bytes);
        }
        out
    }
}

/// Offsets of the f16 numbers in a block.
fn halves(kind: TensorType) -> &'static [usize] {
    match kind {
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
        TensorType::Q2K => &[80, 82],
        TensorType::Q3K => &[108],
        TensorType::Q6K => &[208],
        _ => &[0],
    }
}

/// Random weights of any type.
pub(crate) fn gguf_bytes(kind: TensorType, elements: u64, random: &mut Random) -> Vec<u8> {
    match kind {
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 => {
            let values: Vec<f32> = (0..elements).map(|_| random.unit() * 0.1).collect();
            let dtype = match kind {
                TensorType::F16 => Dtype::F16,
                TensorType::Bf16 => Dtype::Bf16,
                _ => Dtype::F32,
            };
            dense_bytes(&values, dtype)
        }
        _ => {
            let layout = kind.layout().unwrap();
            let mut bytes: Vec<u8> =
                (0..elements as usize / layout.elements * layout.bytes).map(|_| random.next() as u8).collect();
            for block in bytes.chunks_exact_mut(layout.bytes) {
                for &offset in halves(kind) {
                    block[offset..offset + 2].copy_from_slice(&f16::from_f32(random.unit() * 0.01).to_le_bytes());
                }
            }
            bytes
        }
    }
}

/// A small llama as GGUF, its matrices in the type with this number, everything else in f32.
pub(crate) fn small_gguf(number: u32) -> GgufBuilder {
    let kind = TensorType::from_number(number);
    let mut random = Random::new(u64::from(number) + 1);
    let mut tensors = Vec::new();
    for (name, shape) in small_shapes() {
        let name = name
            .replace("model.embed_tokens", "token_embd")
            .replace("model.norm", "output_norm")
            .replace("model.layers", "blk")
            .replace("self_attn.o_proj", "attn_output")
            .replace("self_attn.", "attn_")
            .replace("mlp.", "ffn_")
            .replace("input_layernorm", "attn_norm")
            .replace("post_attention_layernorm", "ffn_norm")
            .replace("_proj", "");
        let elements = shape.iter().product();
        let (kind, number) = if shape.len() == 2 { (kind, number) } else { (TensorType::F32, 0) };
        tensors.push((name, shape, number, gguf_bytes(kind, elements, &mut random)));
    }
    let tokens = ["<s>", "</s>", "a", "b", "c", "ab", "abc", "\u{120}", "\u{120}a", "1", "2"].map(str::to_owned);
    let mut builder = GgufBuilder { version: 3, metadata: Vec::new(), tensors };
    for (key, value) in [
        ("general.architecture", Meta::Text("llama".into())),
        ("llama.block_count", Meta::U32(2)),
        ("llama.context_length", Meta::U32(128)),
        ("llama.embedding_length", Meta::U32(256)),
        ("llama.feed_forward_length", Meta::U32(256)),
        ("llama.attention.head_count", Meta::U32(4)),
        ("llama.attention.head_count_kv", Meta::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        ("tokenizer.ggml.model", Meta::Text("gpt2".into())),
        ("tokenizer.ggml.pre", Meta::Text("llama-bpe".into())),
        ("tokenizer.ggml.tokens", Meta::Texts(tokens.to_vec())),
        ("tokenizer.ggml.token_type", Meta::I32s(vec![3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1])),
        ("tokenizer.ggml.merges", Meta::Texts(vec!["a b".into(), "ab c".into(), "\u{120} a".into()])),
        ("tokenizer.ggml.bos_token_id", Meta::U32(0)),
        ("tokenizer.ggml.eos_token_id", Meta::U32(1)),
        ("tokenizer.chat_template", Meta::Text("{{ messages }}".into())),
    ] {
        builder.set(key, value);
    }
    builder
}
