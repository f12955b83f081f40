use std::fs;
use std::path::Path;

use super::super::{ImportOptions, import};
use super::is_folder;
use crate::error::LibraryError;
use crate::store::{ModelKind, Store};
use crate::weights::folder::Weights;

/// A file in CTranslate2's format under construction.
struct Writer {
    tensors: Vec<(String, Vec<u32>, u8, Vec<u8>)>,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16 + 1).to_le_bytes());
    out.extend(text.as_bytes());
    out.push(0);
}

/// Numbers that tell where they were.
fn floats(count: u32, begin: f32) -> Vec<u8> {
    (0..count).flat_map(|index| (begin + index as f32).to_le_bytes()).collect()
}

impl Writer {
    fn add(&mut self, name: &str, shape: &[u32], begin: f32) {
        self.tensors.push((name.to_owned(), shape.to_vec(), 0, floats(shape.iter().product(), begin)));
    }

    fn linear(&mut self, name: &str, outputs: u32, inputs: u32) {
        self.add(&format!("{name}/weight"), &[outputs, inputs], 0.0);
        self.add(&format!("{name}/bias"), &[outputs], 1.0);
    }

    fn norm(&mut self, name: &str, width: u32) {
        self.add(&format!("{name}/gamma"), &[width], 0.0);
        self.add(&format!("{name}/beta"), &[width], 0.0);
    }

    /// Whisper with one layer on either side, 64 wide, of four tokens.
    fn whisper() -> Self {
        let mut file = Writer { tensors: Vec::new() };
        let width = 64;
        for (number, inputs) in [(1, 80), (2, width)] {
            file.add(&format!("encoder/conv{number}/weight"), &[width, inputs, 3], 0.0);
            file.add(&format!("encoder/conv{number}/bias"), &[width], 0.0);
        }
        file.add("encoder/position_encodings/encodings", &[1500, width], 0.0);
        file.tensors.push(("encoder/num_heads".into(), vec![], 2, vec![1, 0]));
        for side in ["encoder", "decoder"] {
            let layer = format!("{side}/layer_0");
            file.fused(&format!("{layer}/self_attention/linear_0"), width, 3, 0);
            file.linear(&format!("{layer}/self_attention/linear_1"), width, width);
            file.norm(&format!("{layer}/self_attention/layer_norm"), width);
            if side == "decoder" {
                file.linear(&format!("{layer}/attention/linear_0"), width, width);
                file.fused(&format!("{layer}/attention/linear_1"), width, 2, 1);
                file.linear(&format!("{layer}/attention/linear_2"), width, width);
                file.norm(&format!("{layer}/attention/layer_norm"), width);
            }
            file.norm(&format!("{layer}/ffn/layer_norm"), width);
            file.linear(&format!("{layer}/ffn/linear_0"), 4 * width, width);
            file.linear(&format!("{layer}/ffn/linear_1"), width, 4 * width);
            file.norm(&format!("{side}/layer_norm"), width);
        }
        file.add("decoder/embeddings/weight", &[4, width], 0.0);
        file.add("decoder/position_encodings/encodings", &[448, width], 0.0);
        file
    }

    /// Rows of `parts` layers; the key's bias, second of three or first of two, is zero.
    fn fused(&mut self, name: &str, width: u32, parts: u32, before_value: u32) {
        self.add(&format!("{name}/weight"), &[parts * width, width], 0.0);
        let mut bias = floats(parts * width, 1.0);
        let key = (1 - before_value) as usize * width as usize * 4;
        bias[key..key + width as usize * 4].fill(0);
        self.tensors.push((format!("{name}/bias"), vec![parts * width], 0, bias));
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = 6u32.to_le_bytes().to_vec();
        text(&mut out, "WhisperSpec");
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u32).to_le_bytes());
        for (name, shape, kind, bytes) in &self.tensors {
            text(&mut out, name);
            out.push(shape.len() as u8);
            shape.iter().for_each(|size| out.extend(size.to_le_bytes()));
            out.push(*kind);
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(bytes);
        }
        out.extend(1u32.to_le_bytes());
        text(&mut out, "decoder/projection/weight");
        text(&mut out, "decoder/embeddings/weight");
        out
    }
}

fn folder_of(bytes: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.bin"), bytes).unwrap();
    fs::write(folder.path().join("config.json"), r#"{"alignment_heads": [[0, 0]], "lang_ids": [50259]}"#).unwrap();
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    folder
}

fn imported(source: &Path) -> Result<(tempfile::TempDir, crate::ModelEntry), LibraryError> {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path())?;
    let options = ImportOptions { name: Some("w".into()), ..ImportOptions::default() };
    let imported = import(&store, source, &options, &mut |_| {})?;
    Ok((home, imported.entry))
}

fn values(entry: &crate::ModelEntry, name: &str) -> (Vec<u64>, Vec<f32>) {
    let weights = Weights::open(&entry.path).unwrap();
    let (file, tensor) = weights.find(name).unwrap();
    let bytes = fs::read(&file.path).unwrap();
    let at = tensor.offset as usize;
    let bytes = &bytes[at..at + tensor.bytes as usize];
    (tensor.shape.clone(), bytes.chunks_exact(4).map(|part| f32::from_le_bytes(part.try_into().unwrap())).collect())
}

#[test]
fn fused_rows_are_cut_and_convolutions_turned() {
    let folder = folder_of(&Writer::whisper().bytes());
    assert!(is_folder(folder.path()));
    let (_home, entry) = imported(folder.path()).unwrap();
    assert_eq!((entry.kind, entry.problem.as_deref()), (ModelKind::Speech, None));
    let config: serde_json::Value = serde_json::from_slice(&fs::read(entry.path.join("config.json")).unwrap()).unwrap();
    for (field, value) in
        [("n_mels", 80), ("n_audio_state", 64), ("n_audio_head", 1), ("n_vocab", 4), ("n_text_ctx", 448)]
    {
        assert_eq!(config[field], value, "{field}");
    }
    assert_eq!(config["alignment_heads"], serde_json::json!([[0, 0]]));

    let (shape, key) = values(&entry, "encoder.blocks.0.attn.key.weight");
    assert_eq!((shape, key[0]), (vec![64, 64], 64.0 * 64.0));
    let (_, value) = values(&entry, "decoder.blocks.0.cross_attn.value.bias");
    assert_eq!((value.len(), value[0]), (64, 65.0));
    let (shape, convolution) = values(&entry, "encoder.conv1.weight");
    // Element [output 1, input 2, tap 1] of [64, 80, 3].
    assert_eq!((shape, convolution[240 + 80 + 2]), (vec![64, 3, 80], (240 + 2 * 3 + 1) as f32));
    let weights = Weights::open(&entry.path).unwrap();
    assert!(weights.find("encoder.blocks.0.attn.key.bias").is_none() && weights.find("decoder.ln.bias").is_some());
}

#[test]
fn a_torn_file_is_refused_wherever_it_is_torn() {
    let bytes = Writer::whisper().bytes();
    // Aliases are not needed: whatever comes before them is.
    for length in (0..bytes.len() - 80).step_by(3_001).chain([1, 3, 5, 20]) {
        let folder = folder_of(&bytes[..length]);
        let error = imported(folder.path()).unwrap_err();
        assert!(matches!(error, LibraryError::Truncated { .. }), "{length}: {error}");
    }
}

#[test]
fn what_no_whisper_has_is_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut Writer)| {
        let mut file = Writer::whisper();
        change(&mut file);
        imported(folder_of(&file.bytes()).path()).unwrap_err().to_string()
    };
    let extra = refusal(&|file| file.add("decoder/extra/weight", &[2, 2], 0.0));
    assert!(extra.contains("decoder/extra/weight"), "{extra}");
    let missing = refusal(&|file| file.tensors.retain(|tensor| tensor.0 != "decoder/layer_norm/gamma"));
    assert!(missing.contains("decoder/layer_norm/gamma"), "{missing}");
    let biased = refusal(&|file| {
        file.tensors.iter_mut().for_each(|tensor| {
            if tensor.0 == "encoder/layer_0/self_attention/linear_0/bias" {
                tensor.3.iter_mut().for_each(|byte| *byte |= 1);
            }
        })
    });
    assert!(biased.contains("bias of keys"), "{biased}");
    let integers = refusal(&|file| {
        file.tensors.iter_mut().for_each(|tensor| {
            if tensor.0 == "decoder/embeddings/weight" {
                tensor.2 = 1;
                tensor.3.truncate(4 * 64);
            }
        })
    });
    assert!(integers.contains("INT8") && integers.contains("float16"), "{integers}");
}

#[test]
fn another_model_or_version_and_a_missing_tokenizer_are_named() {
    let mut bytes = Writer::whisper().bytes();
    bytes[6..17].copy_from_slice(b"TransfoSpec");
    assert!(imported(folder_of(&bytes).path()).unwrap_err().to_string().contains("TransfoSpec"));
    let mut bytes = Writer::whisper().bytes();
    bytes[0] = 3;
    assert!(imported(folder_of(&bytes).path()).unwrap_err().to_string().contains("version 3"));
    let folder = folder_of(&Writer::whisper().bytes());
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(imported(folder.path()).unwrap_err().to_string().contains("tokenizer.json"));
}
