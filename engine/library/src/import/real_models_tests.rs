//! Imports of two real files, which `make test-models` fetches before it runs these tests.

use std::path::PathBuf;

use super::*;
use crate::inspect::{Verdict, inspect};
use crate::layers;
use crate::store::Store;
use crate::test_support::{original, put_back, weights_of};
use crate::weights::folder::Weights;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
const SUPPORTED: [&str; 1] = ["llama"];

fn real_file(name: &str) -> PathBuf {
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-models");
    let folder = std::env::var_os("LINNET_TEST_MODELS").map_or_else(|| PathBuf::from(workspace), PathBuf::from);
    let path = folder.join(name);
    assert!(path.is_file(), "{} is not there; `make test-models` fetches it", path.display());
    path
}

fn check_tokens(tokenizer: &std::path::Path, model: &str, kind: &str, add_special: bool) {
    let golden: Value = serde_json::from_str(include_str!("../../tests/fixtures/tokens.json")).unwrap();
    let tokenizer = tokenizers::Tokenizer::from_file(tokenizer).unwrap();
    let texts = golden["texts"].as_array().unwrap();
    for (text, expected) in texts.iter().zip(golden[model][kind].as_array().unwrap()) {
        let text = text.as_str().unwrap();
        let expected: Vec<u32> = expected.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let encoded = tokenizer.encode(text, add_special).unwrap();
        assert_eq!(encoded.get_ids(), expected, "{model}, {kind}: {text:?} became {:?}", encoded.get_tokens());
        if !add_special {
            // SentencePiece itself cannot tell its own sign for a space from a space.
            let text = if model == "gemma3" { text.replace('\u{2581}', " ") } else { text.to_owned() };
            assert_eq!(tokenizer.decode(&expected, false).unwrap(), text, "{model}: decoding {text:?}");
        }
    }
}

#[test]
#[ignore = "needs two files of 350 MB; `make test-models` fetches them"]
fn smollm2_is_imported_with_every_weight_as_it_was() {
    let path = real_file(SMOLLM2);
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let options = ImportOptions { supported: &SUPPORTED, ..ImportOptions::default() };
    let mut last = 0;
    let imported = super::super::import(&store, &path, &options, &mut |progress| {
        assert!(progress.done >= last && progress.done <= progress.total.max(progress.done));
        last = progress.done;
    })
    .unwrap();
    assert!(last > 90_000_000, "{last} bytes were reported");

    let entry = &imported.entry;
    assert_eq!(entry.name, "SmolLM2-135M-Instruct.Q4_1");
    assert_eq!(entry.problem, None);
    assert_eq!(entry.architecture.as_deref(), Some("llama"));
    assert_eq!(entry.parameters, Some(134_515_008));
    assert_eq!(entry.context_length, Some(8192));
    assert_eq!(entry.quantization.as_deref(), Some("4-bit, group 32 (1 layer: 8-bit, group 32)"));
    assert!(
        imported.notes.iter().any(|note| note.contains("210 tensors of Q4_1 kept exactly")),
        "{:?}",
        imported.notes
    );

    let folder = &entry.path;
    let config = crate::config::Config::read(folder).unwrap();
    assert_eq!(config.fields["rms_norm_eps"], 1e-5);
    assert_eq!(config.fields["rope_theta"], 100_000.0);
    assert_eq!(config.fields["tie_word_embeddings"], true);
    let weights = Weights::open(folder).unwrap();
    let quantization = config.quantization().unwrap();
    let layers = layers::layers(&config, &weights, quantization.as_ref()).unwrap();
    layers::check_shapes(&config, &weights, &layers).unwrap();

    let file = GgufFile::open(&path).unwrap();
    let mut pairs = vec![
        ("token_embd".to_owned(), "model.embed_tokens".to_owned(), None),
        ("output_norm".to_owned(), "model.norm".to_owned(), None),
    ];
    for layer in [0, 17, 29] {
        for (from, to, heads) in [
            ("attn_q", "self_attn.q_proj", Some(9)),
            ("attn_k", "self_attn.k_proj", Some(3)),
            ("attn_v", "self_attn.v_proj", None),
            ("attn_output", "self_attn.o_proj", None),
            ("ffn_gate", "mlp.gate_proj", None),
            ("ffn_up", "mlp.up_proj", None),
            ("ffn_down", "mlp.down_proj", None),
            ("attn_norm", "input_layernorm", None),
            ("ffn_norm", "post_attention_layernorm", None),
        ] {
            pairs.push((format!("blk.{layer}.{from}"), format!("model.layers.{layer}.{to}"), heads));
        }
    }
    for (from, to, heads) in pairs {
        let mut expected = original(&file, &format!("{from}.weight"));
        if let Some(heads) = heads {
            expected = put_back(&expected, heads, 576);
        }
        let found = weights_of(&weights, quantization.as_ref(), &to);
        assert!(found == expected, "{to} differs from {from}");
    }

    check_tokens(&folder.join("tokenizer.json"), "smollm2", "plain", false);
    check_tokens(&folder.join("tokenizer.json"), "smollm2", "special", true);
    let tokenizer_config = crate::disk::read_json(&folder.join("tokenizer_config.json"), 1 << 20).unwrap();
    assert_eq!(tokenizer_config["eos_token"], "<|im_end|>");
    assert_eq!(tokenizer_config["bos_token"], "<|im_start|>");
    assert!(tokenizer_config["chat_template"].as_str().unwrap().contains("<|im_start|>assistant"));
    let generation = crate::disk::read_json(&folder.join("generation_config.json"), 1 << 20).unwrap();
    assert_eq!(generation["eos_token_id"], json!([2, 0]));
}

/// One vocabulary under the rules of many families: the fixture is llama.cpp's own answer (`make_pre_tokenizers.py`).
#[test]
#[ignore = "needs two files of 350 MB; `make test-models` fetches them"]
fn words_are_cut_as_llama_cpp_cuts_them_for_every_family() {
    let path = real_file(SMOLLM2);
    let golden: Value = serde_json::from_str(include_str!("../../tests/fixtures/pre_tokenizers.json")).unwrap();
    let mut file = GgufFile::open(&path).unwrap();
    let mut differences = Vec::new();
    for (name, lists) in golden["names"].as_object().unwrap() {
        file.metadata.insert("tokenizer.ggml.pre".into(), crate::gguf::value::Value::Text(name.clone()));
        let rebuilt = tokenizer::rebuild(&file, 49_152).unwrap();
        let tokenizer: tokenizers::Tokenizer = rebuilt.tokenizer.to_string().parse().unwrap();
        for (text, expected) in golden["texts"].as_array().unwrap().iter().zip(lists.as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let encoded = tokenizer.encode(text, false).unwrap();
            if json!(encoded.get_ids()) != *expected {
                differences.push(format!("{name}: {text:?} became {:?}, expected {expected}", encoded.get_tokens()));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
#[ignore = "needs two files of 350 MB; `make test-models` fetches them"]
fn gemma3_is_refused_by_name() {
    let path = real_file(GEMMA3);
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let options = ImportOptions { supported: &SUPPORTED, ..ImportOptions::default() };
    let error = super::super::import(&store, &path, &options, &mut |_| {}).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("\"gemma3\"") && text.contains("supported: llama"), "{text}");
    assert!(store.list().unwrap().is_empty());

    let inspection = inspect(&store, path.to_str().unwrap(), &options).unwrap();
    assert!(matches!(inspection.verdict, Verdict::Refused { reason } if reason.contains("gemma3")));
    assert_eq!(inspection.architecture.as_deref(), Some("gemma3"));
    assert_eq!(inspection.context_length, Some(32768));
    assert_eq!(inspection.tokenizer.as_deref(), Some("SentencePiece BPE"));
    assert_eq!(inspection.types["Q4_K"], 27);
    assert_eq!(inspection.weights_by_bits.keys().copied().collect::<Vec<_>>(), [4, 5, 6, 8, 32]);
}

#[test]
#[ignore = "needs two files of 350 MB; `make test-models` fetches them"]
fn the_sentencepiece_vocabulary_of_gemma3_tokenizes_like_llama_cpp() {
    let path = real_file(GEMMA3);
    let file = GgufFile::open(&path).unwrap();
    let rebuilt = tokenizer::rebuild(&file, 262_144).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    crate::disk::write_json(&path, &rebuilt.tokenizer).unwrap();
    check_tokens(&path, "gemma3", "plain", false);
    check_tokens(&path, "gemma3", "special", true);
    assert_eq!(rebuilt.beginning, Some(2));
    assert_eq!(rebuilt.ends.first(), Some(&1));
}

/// The engine does not run gemma3 yet, but its blocks are real ones: every tensor goes through the import's own
/// conversion and is compared with ggml's values.
#[test]
#[ignore = "needs two files of 350 MB; `make test-models` fetches them"]
fn the_blocks_of_gemma3_keep_their_values_or_say_how_far_they_moved() {
    let path = real_file(GEMMA3);
    let file = GgufFile::open(&path).unwrap();
    let targets: Vec<Target> = file
        .tensors
        .values()
        // The embedding's Q8_0 is proven by smaller tensors of the same type.
        .filter(|tensor| tensor.elements() < 10_000_000)
        .map(|tensor| Target {
            source: Some(tensor.name.clone()),
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            quantizable: tensor.shape.len() == 2,
            rope_heads: None,
        })
        .collect();
    let mut prepared = Prepared {
        name: "test".into(),
        format: "gguf",
        config: Map::new(),
        companions: Vec::new(),
        tensors: Vec::new(),
        jobs: Vec::new(),
        notes: Vec::new(),
    };
    let options = ImportOptions::default();
    let ranges = scan(&file, &targets).unwrap();
    let mut kinds = Vec::new();
    for (target, range) in targets.iter().zip(ranges) {
        let affine = add(&mut prepared, &file, target, range, &options).unwrap();
        kinds.push((target.name.strip_suffix(".weight").unwrap().to_owned(), affine, 1));
    }
    let quantization = Quantization::from_layers(kinds);
    let folder = tempfile::tempdir().unwrap();
    let writer = crate::weights::write::WeightsWriter::create(
        folder.path(),
        prepared.tensors,
        u64::MAX,
        &crate::weights::write::create_file,
    )
    .unwrap();
    let deviations = crate::convert::run(&prepared.jobs, &writer, &mut |_, _| {}).unwrap();
    writer.finish().unwrap();

    let weights = Weights::open(folder.path()).unwrap();
    let mut seen = std::collections::BTreeMap::new();
    for (job, deviation) in prepared.jobs.iter().zip(deviations) {
        let kind = file.tensors[&job.name].kind;
        let expected = original(&file, &job.name);
        let found = weights_of(&weights, quantization.as_ref(), job.name.strip_suffix(".weight").unwrap());
        let relative = deviation.relative();
        match kind.mapping() {
            Some(Mapping::Requantized(_)) => {
                let norm: f64 = expected.iter().map(|value| f64::from(*value).powi(2)).sum();
                let error: f64 = expected.iter().zip(&found).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                let measured = (error / norm).sqrt();
                assert!((measured - relative).abs() < 1e-9, "{}: {measured} was reported as {relative}", job.name);
                assert!(relative < 0.01, "{} moved by {relative}", job.name);
            }
            _ => assert!(found == expected && relative == 0.0, "{} ({}) differs", job.name, kind.name()),
        }
        *seen.entry(kind.name()).or_insert(0) += 1;
    }
    let counts: Vec<(String, i32)> = seen.into_iter().collect();
    let expected = [("F32", 109), ("Q4_K", 27), ("Q5_0", 81), ("Q6_K", 9), ("Q8_0", 9)];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
}
