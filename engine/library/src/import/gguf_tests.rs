use super::*;
use crate::config::Config;
use crate::import::{Imported, import};
use crate::layers;
use crate::store::{Origin, Store};
use crate::test_support::{
    GgufBuilder, Meta, Random, dense_bytes, gguf_bytes, original, put_back, small_gguf, weights_of,
};
use crate::weights::folder::Weights;

const SUPPORTED: [&str; 1] = ["llama"];

struct Fixture {
    folder: tempfile::TempDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("home")).unwrap();
        Fixture { folder, store }
    }

    fn import_with(&self, builder: &GgufBuilder, options: ImportOptions<'_>) -> Result<Imported, LibraryError> {
        let path = self.folder.path().join("small.gguf");
        std::fs::write(&path, builder.bytes()).unwrap();
        let result = import(&self.store, &path, &ImportOptions { supported: &SUPPORTED, ..options }, &mut |_| {});
        if result.is_err() {
            assert!(self.store.list().unwrap().is_empty(), "a failed import left something visible");
        }
        result
    }

    fn import(&self, builder: &GgufBuilder) -> Result<Imported, LibraryError> {
        self.import_with(builder, ImportOptions::default())
    }

    fn refusal(&self, builder: &GgufBuilder) -> String {
        self.import(builder).unwrap_err().to_string()
    }

    fn original(&self) -> GgufFile {
        GgufFile::open(&self.folder.path().join("small.gguf")).unwrap()
    }
}

/// Number in `enum ggml_type`, exact or not, bits.
const TYPES: [(u32, bool, Option<u32>); 13] = [
    (0, true, None),
    (1, true, None),
    (30, true, None),
    (2, true, Some(4)),
    (3, true, Some(4)),
    (6, true, Some(5)),
    (7, true, Some(5)),
    (8, true, Some(8)),
    (12, true, Some(4)),
    (13, true, Some(5)),
    (10, false, Some(4)),
    (11, false, Some(5)),
    (14, false, Some(8)),
];

#[test]
fn every_type_arrives_with_its_values_or_with_its_error_told() {
    for (number, exact, bits) in TYPES {
        let fixture = Fixture::new();
        let imported = fixture.import(&small_gguf(number)).unwrap();
        assert_eq!(imported.entry.problem, None);
        let folder = &imported.entry.path;
        let config = Config::read(folder).unwrap();
        let quantization = config.quantization().unwrap();
        assert_eq!(quantization.as_ref().map(|quantization| quantization.default.bits), bits);
        let weights = Weights::open(folder).unwrap();
        let layers = layers::layers(&config, &weights, quantization.as_ref()).unwrap();
        layers::check_shapes(&config, &weights, &layers).unwrap();
        let file = fixture.original();
        for (from, to, heads) in [
            ("token_embd", "model.embed_tokens", None),
            ("blk.1.attn_q", "model.layers.1.self_attn.q_proj", Some(4)),
            ("blk.0.attn_k", "model.layers.0.self_attn.k_proj", Some(2)),
            ("blk.0.ffn_down", "model.layers.0.mlp.down_proj", None),
            ("blk.1.attn_norm", "model.layers.1.input_layernorm", None),
        ] {
            let mut expected = original(&file, &format!("{from}.weight"));
            if let Some(heads) = heads {
                expected = put_back(&expected, heads, 256);
            }
            let found = weights_of(&weights, quantization.as_ref(), to);
            let norm: f64 = expected.iter().map(|value| f64::from(*value).powi(2)).sum();
            let error: f64 = expected.iter().zip(&found).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let relative = (error / norm).sqrt();
            if exact || !from.contains("attn_q") {
                assert!(relative == 0.0 || !exact, "type {number}: {to} moved by {relative}");
            }
            assert!(relative < 0.12, "type {number}: {to} moved by {relative}");
        }
        let notes = imported.notes.join("\n");
        assert_eq!(notes.contains("quantized anew") && notes.contains("relative error"), !exact, "{notes}");
        if let Some(bits) = bits {
            assert!(notes.contains(&format!("{bits}-bit")), "{notes}");
        }
    }
}

#[test]
fn six_bits_in_narrow_groups_lose_next_to_nothing_in_eight() {
    let fixture = Fixture::new();
    let notes = fixture.import(&small_gguf(14)).unwrap().notes.join("\n");
    let percent = notes.split("relative error ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(percent.parse::<f64>().unwrap() < 1.0, "{notes}");
}

#[test]
fn product_scales_are_kept_in_32_bits_or_rounded_on_request() {
    let fixture = Fixture::new();
    let exact = fixture.import(&small_gguf(12)).unwrap();
    assert!(
        exact.notes.iter().any(|note| note.contains("Q4_K kept exactly") && note.contains("f32 scales")),
        "{exact:?}"
    );
    let options = ImportOptions { compact_scales: true, name: Some("compact".into()), ..ImportOptions::default() };
    let compact = fixture.import_with(&small_gguf(12), options).unwrap();
    let note = compact.notes.iter().find(|note| note.contains("rounded to f16")).unwrap();
    let percent: f64 = note.split("relative error ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(percent > 0.0 && percent < 0.1, "{note}");
    assert!(compact.entry.size_on_disk < exact.entry.size_on_disk);
}

#[test]
fn a_bias_too_large_for_16_bits_makes_the_scales_wider() {
    let fixture = Fixture::new();
    let mut builder = small_gguf(8);
    let tensor = builder.tensor("blk.0.ffn_up.weight");
    // -128 * 600 is beyond f16.
    tensor.3[..2].copy_from_slice(&f16::from_f32(600.0).to_le_bytes());
    let imported = fixture.import(&builder).unwrap();
    let weights = Weights::open(&imported.entry.path).unwrap();
    assert_eq!(weights.find("model.layers.0.mlp.up_proj.scales").unwrap().1.dtype, Dtype::F32);
    assert_eq!(weights.find("model.layers.1.mlp.up_proj.scales").unwrap().1.dtype, Dtype::F16);
    let quantization = Config::read(&imported.entry.path).unwrap().quantization().unwrap();
    let found = weights_of(&weights, quantization.as_ref(), "model.layers.0.mlp.up_proj");
    assert_eq!(found, original(&fixture.original(), "blk.0.ffn_up.weight"));
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let fixture = Fixture::new();
    let mut builder = small_gguf(2);
    builder.tensor("blk.0.ffn_up.weight").3[..2].copy_from_slice(&f16::NAN.to_le_bytes());
    let text = fixture.refusal(&builder);
    assert!(text.contains("blk.0.ffn_up.weight") && text.contains("not finite"), "{text}");
}

#[test]
fn mixed_types_become_overrides_per_layer_as_mlx_lm_writes_them() {
    let fixture = Fixture::new();
    let mut builder = small_gguf(2);
    let mut random = Random::new(3);
    for (name, number) in [("token_embd.weight", 8), ("blk.1.ffn_down.weight", 1)] {
        let tensor = builder.tensor(name);
        tensor.2 = number;
        tensor.3 = gguf_bytes(TensorType::from_number(number), tensor.1.iter().product(), &mut random);
    }
    let imported = fixture.import(&builder).unwrap();
    let config = Config::read(&imported.entry.path).unwrap();
    let expected = json!({
        "group_size": 32, "bits": 4,
        "model.embed_tokens": { "group_size": 32, "bits": 8 },
        "model.layers.1.mlp.down_proj": false,
    });
    assert_eq!(config.fields["quantization"], expected);
    assert_eq!(config.fields["quantization_config"], expected);
    assert_eq!(imported.entry.problem, None);
}

#[test]
fn dense_files_are_quantized_on_request() {
    let fixture = Fixture::new();
    let options = ImportOptions { quantize: Some(Affine::default()), ..ImportOptions::default() };
    let imported = fixture.import_with(&small_gguf(1), options).unwrap();
    assert_eq!(imported.entry.quantization.as_deref(), Some("4-bit, group 64"));
    assert!(
        imported.notes.iter().any(|note| note.contains("f16 quantized to 4-bit, group 64")),
        "{:?}",
        imported.notes
    );
}

#[test]
fn biases_move_with_their_rows_and_missing_ones_become_zeros() {
    let fixture = Fixture::new();
    let mut builder = small_gguf(0);
    let values: Vec<f32> = (0..256).map(|n| n as f32).collect();
    builder.tensors.push(("blk.0.attn_q.bias".into(), vec![256], 0, dense_bytes(&values, Dtype::F32)));
    let imported = fixture.import(&builder).unwrap();
    let config = Config::read(&imported.entry.path).unwrap();
    assert_eq!(config.fields["attention_bias"], true);
    assert_eq!(config.fields["mlp_bias"], false);
    let weights = Weights::open(&imported.entry.path).unwrap();
    let read = |name: &str| {
        let (file, tensor) = weights.find(name).unwrap();
        let mut bytes = vec![0; tensor.bytes as usize];
        file.file.read_exact_at(&mut bytes, tensor.offset).unwrap();
        let mut values = vec![0f32; tensor.elements() as usize];
        crate::convert::read_dense(Dtype::F32, &bytes, &mut values);
        values
    };
    assert_eq!(read("model.layers.0.self_attn.q_proj.bias"), put_back(&values, 4, 1));
    assert_eq!(read("model.layers.1.self_attn.o_proj.bias"), vec![0.0; 256]);
    assert!(imported.notes.iter().any(|note| note.contains("7 biases")), "{:?}", imported.notes);
}

#[test]
fn a_bias_in_blocks_is_refused_by_name_where_its_entries_must_move() {
    for number in [2, 8] {
        let fixture = Fixture::new();
        let mut builder = small_gguf(0);
        let mut random = Random::new(1);
        for (layer, name, length) in [(0, "q", 256), (0, "k", 128), (0, "v", 128), (1, "q", 256)] {
            let bytes = gguf_bytes(TensorType::from_number(number), length, &mut random);
            builder.tensors.push((format!("blk.{layer}.attn_{name}.bias"), vec![length], number, bytes));
        }
        let text = fixture.refusal(&builder);
        assert!(text.contains("attn_q.bias") && text.contains("F32"), "{text}");
    }
}

#[test]
fn the_configuration_says_what_the_metadata_says() {
    let fixture = Fixture::new();
    let mut builder = small_gguf(0);
    builder.set("llama.rope.freq_base", Meta::F32(500_000.0));
    builder.set("llama.rope.scaling.type", Meta::Text("linear".into()));
    builder.set("llama.rope.scaling.factor", Meta::F32(4.0));
    let mut head = builder.tensor("token_embd.weight").clone();
    head.0 = "output.weight".into();
    builder.tensors.push(head);
    let imported = fixture.import(&builder).unwrap();
    let config = Config::read(&imported.entry.path).unwrap().fields;
    assert_eq!(config["rope_theta"], 500_000.0);
    assert_eq!(config["rope_scaling"]["factor"], 4.0);
    assert_eq!(config["tie_word_embeddings"], false);
    assert_eq!(config["head_dim"], 64);
    assert_eq!(config["eos_token_id"], 1);
    assert!(matches!(&imported.entry.source, Some(Origin::Path { path }) if path.ends_with("small.gguf")));
}

#[test]
fn a_byte_level_tokenizer_follows_its_family() {
    let fixture = Fixture::new();
    let mut builder = small_gguf(0);
    builder.set("tokenizer.ggml.merges", Meta::Texts(vec!["a b".into(), "\u{120} a".into()]));
    let imported = fixture.import(&builder).unwrap();
    let tokenizer = tokenizers::Tokenizer::from_file(imported.entry.path.join("tokenizer.json")).unwrap();
    // llama-bpe begins with the beginning token and takes a whole token ("abc") that no merge leads to.
    assert_eq!(tokenizer.encode("abc ab</s>", true).unwrap().get_ids(), [0, 6, 7, 5, 1]);
    let text = "abc ab";
    let ids = tokenizer.encode(text, false).unwrap();
    assert_eq!(tokenizer.decode(ids.get_ids(), true).unwrap(), text);
}

#[test]
fn a_sentencepiece_tokenizer_puts_a_space_before_the_text_and_takes_it_away_again() {
    let fixture = Fixture::new();
    let mut builder = small_gguf(0);
    let pieces = ["<unk>", "<s>", "</s>", "\u{2581}", "a", "b", "\u{2581}a", "ab", "\u{2581}ab"].map(str::to_owned);
    builder.set("tokenizer.ggml.model", Meta::Text("llama".into()));
    builder.set("tokenizer.ggml.tokens", Meta::Texts(pieces.to_vec()));
    builder.set("tokenizer.ggml.token_type", Meta::I32s(vec![2, 3, 3, 1, 1, 1, 1, 1, 1]));
    builder.set("tokenizer.ggml.scores", Meta::F32s(vec![0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0]));
    builder.set("tokenizer.ggml.bos_token_id", Meta::U32(1));
    builder.set("tokenizer.ggml.eos_token_id", Meta::U32(2));
    let imported = fixture.import(&builder).unwrap();
    assert!(imported.notes.iter().any(|note| note.contains("no byte tokens")), "{:?}", imported.notes);
    let tokenizer = tokenizers::Tokenizer::from_file(imported.entry.path.join("tokenizer.json")).unwrap();
    let encoded = tokenizer.encode("ab a?b", true).unwrap();
    assert_eq!(encoded.get_ids(), [1, 8, 6, 0, 5]);
    assert_eq!(tokenizer.decode(&[8, 6, 5], true).unwrap(), "ab ab");
}

#[test]
fn what_is_no_plain_llama_is_refused_by_name() {
    let fixture = Fixture::new();
    let with = |key: &str, value: Meta| {
        let mut builder = small_gguf(0);
        builder.set(key, value);
        fixture.refusal(&builder)
    };
    assert!(with("general.architecture", Meta::Text("gemma3".into())).contains("\"gemma3\""));
    assert!(with("llama.expert_count", Meta::U32(8)).contains("8 experts"));
    assert!(with("split.count", Meta::U32(3)).contains("--merge"));
    assert!(with("llama.rope.dimension_count", Meta::U32(32)).contains("32 of 64"));
    assert!(with("llama.attention.head_count_kv", Meta::I32s(vec![2, 1])).contains("differ by layer"));
    assert!(with("llama.rope.scaling.type", Meta::Text("longrope".into())).contains("longrope"));
    assert!(with("llama.attention.head_count_kv", Meta::U32(3)).contains("cannot be"));
    assert!(with("llama.attention.key_length", Meta::U32(u32::MAX)).contains("cannot be"));
    assert!(with("llama.feed_forward_length", Meta::U32(512)).contains("[512, 256]"));

    let mut builder = small_gguf(0);
    builder.tensors.retain(|tensor| tensor.0 != "blk.1.ffn_up.weight");
    assert!(fixture.refusal(&builder).contains("no tensor \"blk.1.ffn_up.weight\""));
    let mut builder = small_gguf(0);
    let mut odd = builder.tensor("blk.0.ffn_up.weight").clone();
    odd.0 = "blk.0.ffn_gate_exps.weight".into();
    builder.tensors.push(odd);
    assert!(fixture.refusal(&builder).contains("blk.0.ffn_gate_exps.weight"));
    let mut builder = small_gguf(0);
    builder.tensor("blk.0.ffn_up.weight").2 = 20;
    let text = fixture.refusal(&builder);
    assert!(text.contains("IQ4_NL") && text.contains("blk.0.ffn_up.weight"), "{text}");
}

#[test]
fn a_missing_or_unknown_tokenizer_is_refused_by_name() {
    let fixture = Fixture::new();
    let without = |key: &str| {
        let mut builder = small_gguf(0);
        builder.remove(key);
        fixture.refusal(&builder)
    };
    assert!(without("tokenizer.ggml.model").contains("tokenizer.ggml.model"));
    assert!(without("tokenizer.ggml.tokens").contains("tokenizer.ggml.tokens"));
    assert!(without("tokenizer.ggml.merges").contains("tokenizer.ggml.merges"));
    let with = |key: &str, value: Meta| {
        let mut builder = small_gguf(0);
        builder.set(key, value);
        fixture.refusal(&builder)
    };
    assert!(with("tokenizer.ggml.pre", Meta::Text("martian".into())).contains("\"martian\""));
    assert!(with("tokenizer.ggml.model", Meta::Text("t5".into())).contains("\"t5\""));
    assert!(with("tokenizer.ggml.model", Meta::Text("llama".into())).contains("tokenizer.ggml.scores"));
    assert!(with("tokenizer.ggml.eos_token_id", Meta::U32(99)).contains("99"));
    assert!(with("tokenizer.ggml.token_type", Meta::I32s(vec![1])).contains("1 entries"));
    let many: Vec<String> = (0..41).map(|n| n.to_string()).collect();
    assert!(with("tokenizer.ggml.tokens", Meta::Texts(many)).contains("41 tokens for an embedding of 40 rows"));
}

#[test]
fn repeated_tokens_and_useless_merges_are_noted() {
    let fixture = Fixture::new();
    let mut builder = small_gguf(0);
    let mut tokens: Vec<String> =
        ["<s>", "</s>", "a", "b", "c", "ab", "abc", "\u{120}", "\u{120}a", "1"].map(str::to_owned).to_vec();
    tokens.push("a".into());
    builder.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
    builder.set("tokenizer.ggml.merges", Meta::Texts(vec!["a b".into(), "x y".into()]));
    let imported = fixture.import(&builder).unwrap();
    let notes = imported.notes.join("\n");
    assert!(notes.contains("1 tokens repeat") && notes.contains("1 of 2 merges"), "{notes}");
    assert!(tokenizers::Tokenizer::from_file(imported.entry.path.join("tokenizer.json")).is_ok());
}
