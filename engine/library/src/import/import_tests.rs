use super::*;
use crate::config::Config;
use crate::test_support::{hugging_face_folder, weights_of};
use crate::weights::Dtype;
use crate::weights::folder::Weights;
use crate::weights::write::PositionedWrite;
use serde_json::json;
use std::os::unix::fs::symlink;

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

    fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    fn import(&self, source: &Path, options: ImportOptions<'_>) -> Result<Imported, LibraryError> {
        import(&self.store, source, &ImportOptions { supported: &SUPPORTED, ..options }, &mut |_| {})
    }

    /// The text of the refusal; nothing may be left behind.
    fn refusal(&self, source: &Path) -> String {
        let text = self.import(source, ImportOptions::default()).unwrap_err().to_string();
        self.assert_untouched();
        text
    }

    fn assert_untouched(&self) {
        assert!(self.store.list().unwrap().is_empty());
        let left: Vec<String> = std::fs::read_dir(self.store.models_folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != ".lock")
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn numbers(folder: &Path, layer: &str) -> Vec<f32> {
    let config = Config::read(folder).unwrap();
    weights_of(&Weights::open(folder).unwrap(), config.quantization().unwrap().as_ref(), layer)
}

#[test]
fn a_dense_folder_keeps_every_weight_and_loses_only_what_is_computed() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let fixture = Fixture::new();
        hugging_face_folder(&fixture.source(), dtype, |_, shapes| {
            shapes.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), vec![32]);
            shapes.insert("lm_head.weight".into(), vec![40, 256]);
        });
        let mut stages = Vec::new();
        let options = ImportOptions { supported: &SUPPORTED, ..ImportOptions::default() };
        let imported =
            import(&fixture.store, &fixture.source(), &options, &mut |progress| stages.push(progress)).unwrap();
        assert_eq!(stages.first().unwrap().stage, Stage::Checking);
        let last = stages.last().unwrap();
        assert!(last.stage == Stage::Finishing && last.done == last.total && last.total > 0);

        let entry = &imported.entry;
        assert_eq!((entry.name.as_str(), entry.problem.as_ref()), ("source", None));
        assert_eq!(entry.quantization.as_deref(), Some(dtype.name().to_lowercase().as_str()));
        assert_eq!(entry.context_length, Some(128));
        assert!(entry.created.is_some_and(|created| created > 1_700_000_000));
        let weights = Weights::open(&entry.path).unwrap();
        assert!(weights.find("model.layers.0.self_attn.rotary_emb.inv_freq").is_none());
        assert!(weights.find("lm_head.weight").is_none(), "a tied head is the embedding");
        assert!(imported.notes.iter().any(|note| note.contains("2 tensors that the engine computes itself")));
        for layer in ["model.embed_tokens", "model.layers.1.mlp.down_proj", "model.norm"] {
            assert_eq!(numbers(&entry.path, layer), numbers(&fixture.source(), layer));
        }
        assert!(entry.path.join("LICENSE").is_file());
        assert!(!entry.path.join("training_args.bin").exists());
        assert_eq!(Record::read(&entry.path).unwrap().format, "huggingface");
    }
}

/// Writes a text file below a folder, and the folders above it.
fn put(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn no_chat_template_is_left_behind_wherever_the_folder_keeps_it() {
    for (field, extra) in [
        (json!("{{ messages }}"), vec!["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]),
        (json!("own.jinja"), vec!["own.jinja"]),
        (json!("./templates/own.jinja"), vec!["templates/own.jinja"]),
        (json!({ "default": "a.jinja", "tool_use": "{{ tools }}" }), vec!["a.jinja"]),
        (json!([{ "name": "default", "template": "kept/a.jinja" }]), vec!["kept/a.jinja"]),
    ] {
        for file in ["tokenizer_config.json", "chat_template.json"] {
            let fixture = Fixture::new();
            hugging_face_folder(&fixture.source(), Dtype::F16, |_, _| {});
            std::fs::remove_file(fixture.source().join("tokenizer_config.json")).unwrap();
            put(&fixture.source(), file, &json!({ "chat_template": field }).to_string());
            put(&fixture.source(), "additional_chat_templates/notes.txt", "not needed");
            for name in &extra {
                put(&fixture.source(), name, &format!("{{# {name} #}}"));
            }
            let imported = fixture.import(&fixture.source(), ImportOptions::default()).unwrap();
            for name in &extra {
                let text = std::fs::read_to_string(imported.entry.path.join(name)).unwrap_or_default();
                assert_eq!(text, format!("{{# {name} #}}"), "{file}: {field}");
            }
            assert!(!imported.entry.path.join("additional_chat_templates/notes.txt").exists());
        }
    }
}

#[test]
fn a_template_that_leads_out_of_the_folder_is_not_copied() {
    let fixture = Fixture::new();
    hugging_face_folder(&fixture.source(), Dtype::F16, |_, _| {});
    put(fixture.folder.path(), "secret.jinja", "secret");
    let outside = fixture.folder.path().join("secret.jinja");
    for name in ["../secret.jinja", outside.to_str().unwrap()] {
        put(&fixture.source(), "tokenizer_config.json", &json!({ "chat_template": name }).to_string());
        let options = ImportOptions { replace: true, ..ImportOptions::default() };
        fixture.import(&fixture.source(), options).unwrap();
    }
    assert!(!fixture.store.models_folder().join("secret.jinja").exists());
}

#[test]
fn a_dense_folder_is_quantized_as_mlx_lm_does() {
    let fixture = Fixture::new();
    hugging_face_folder(&fixture.source(), Dtype::Bf16, |_, _| {});
    let options = ImportOptions { quantize: Some(Affine::default()), ..ImportOptions::default() };
    let imported = fixture.import(&fixture.source(), options).unwrap();
    let config = Config::read(&imported.entry.path).unwrap();
    assert_eq!(config.fields["quantization"], json!({ "group_size": 64, "bits": 4 }));
    let weights = Weights::open(&imported.entry.path).unwrap();
    assert_eq!(weights.find("model.embed_tokens.weight").unwrap().1.shape, [40, 32]);
    assert_eq!(weights.find("model.embed_tokens.scales").unwrap().1.dtype, Dtype::Bf16);
    assert_eq!(weights.find("model.norm.weight").unwrap().1.dtype, Dtype::Bf16);
    let layer = "model.layers.0.self_attn.v_proj";
    for (group, original) in
        numbers(&imported.entry.path, layer).chunks(64).zip(numbers(&fixture.source(), layer).chunks(64))
    {
        let (low, high) = original.iter().fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        let step = (high - low) / 15.0;
        // Half a step, and up to another one at the far end, because the scale is bent to meet zero.
        assert!(group.iter().zip(original).all(|(a, b)| (a - b).abs() < 1.1 * step));
    }

    // What comes out is an MLX folder that can be imported again as it is.
    let again = ImportOptions { name: Some("again".into()), ..ImportOptions::default() };
    let copy = fixture.import(&imported.entry.path, again).unwrap();
    assert_eq!(copy.entry.quantization.as_deref(), Some("4-bit, group 64"));
    assert_eq!(numbers(&copy.entry.path, layer), numbers(&imported.entry.path, layer));
    assert_eq!(Record::read(&copy.entry.path).unwrap().format, "mlx");
    let other = ImportOptions {
        name: Some("other".into()),
        quantize: Some(Affine { bits: 8, group_size: 64 }),
        ..ImportOptions::default()
    };
    let text = fixture.import(&imported.entry.path, other).unwrap_err().to_string();
    assert!(text.contains("quantized already (4-bit, group 64)"), "{text}");
}

#[test]
fn rows_that_are_no_whole_groups_stay_dense() {
    let fixture = Fixture::new();
    hugging_face_folder(&fixture.source(), Dtype::F32, |config, shapes| {
        config["intermediate_size"] = json!(96);
        for layer in 0..2 {
            for name in ["gate_proj", "up_proj"] {
                shapes.insert(format!("model.layers.{layer}.mlp.{name}.weight"), vec![96, 256]);
            }
            shapes.insert(format!("model.layers.{layer}.mlp.down_proj.weight"), vec![256, 96]);
        }
    });
    let options = ImportOptions { quantize: Some(Affine::default()), ..ImportOptions::default() };
    let imported = fixture.import(&fixture.source(), options).unwrap();
    let config = Config::read(&imported.entry.path).unwrap();
    assert_eq!(config.fields["quantization"]["model.layers.1.mlp.down_proj"], false);
    assert!(imported.notes.iter().any(|note| note.contains("rows of 96 elements")), "{:?}", imported.notes);
    assert_eq!(imported.entry.problem, None);
}

#[test]
fn sources_that_do_not_fit_are_refused_by_name() {
    let broken = |change: fn(&mut Value, &mut std::collections::BTreeMap<String, Vec<u64>>)| {
        let fixture = Fixture::new();
        hugging_face_folder(&fixture.source(), Dtype::Bf16, change);
        fixture.refusal(&fixture.source())
    };
    let text = broken(|config, _| config["model_type"] = json!("mamba9"));
    assert!(text.contains("\"mamba9\"") && text.contains("supported: llama"), "{text}");
    let text = broken(|_, shapes| {
        shapes.insert("model.layers.1.self_attn.k_proj.weight".into(), vec![64, 256]);
    });
    assert!(text.contains("k_proj") && text.contains("[64, 256]") && text.contains("[128, 256]"), "{text}");
    let text = broken(|_, shapes| {
        shapes.remove("model.layers.1.mlp.up_proj.weight");
    });
    assert!(text.contains("no tensor \"model.layers.1.mlp.up_proj.weight\""), "{text}");
    let text = broken(|config, _| config["tie_word_embeddings"] = json!(false));
    assert!(text.contains("lm_head.weight"), "{text}");
    let text = broken(|config, _| config["mlp_bias"] = json!(true));
    assert!(text.contains("no tensor \"model.layers.0.mlp.gate_proj.bias\""), "{text}");
    // What the engine would not read, it would answer without.
    let text = broken(|_, shapes| {
        shapes.insert("model.layers.0.self_attn.q_proj.bias".into(), vec![256]);
        shapes.insert("model.layers.0.self_attn.q_norm.weight".into(), vec![64]);
    });
    assert!(text.contains("2 tensors") && text.contains("q_norm.weight") && text.contains("q_proj.bias"), "{text}");
    let text = broken(|config, _| config["quantization_config"] = json!({ "quant_method": "gptq", "bits": 4 }));
    assert!(text.contains("gptq"), "{text}");
    let text = broken(|config, _| config["quantization"] = json!({ "mode": "mxfp4", "bits": 4, "group_size": 32 }));
    assert!(text.contains("mxfp4"), "{text}");
    let text = broken(|config, _| config["quantization"] = json!({ "bits": 7, "group_size": 32 }));
    assert!(text.contains("7-bit"), "{text}");
    let text = broken(|config, _| config["hidden_size"] = json!("big"));
    assert!(text.contains("hidden_size"), "{text}");
    let text = broken(|config, _| config["head_dim"] = json!(u64::MAX));
    assert!(text.contains("cannot share"), "{text}");
}

#[test]
fn damaged_folders_are_refused_by_name() {
    let fixture = Fixture::new();
    let source = fixture.source();
    hugging_face_folder(&source, Dtype::Bf16, |_, _| {});
    let weights = source.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 3]).unwrap();
    assert!(fixture.refusal(&source).contains("(3 missing)"));
    std::fs::write(&weights, &bytes).unwrap();

    let index = source.join("model.safetensors.index.json");
    std::fs::write(&index, json!({ "weight_map": { "x": "../../secret.safetensors" } }).to_string()).unwrap();
    assert!(fixture.refusal(&source).contains("leads out of the folder"));
    std::fs::remove_file(&index).unwrap();

    let tokenizer = std::fs::read(source.join("tokenizer.json")).unwrap();
    std::fs::remove_file(source.join("tokenizer.json")).unwrap();
    assert!(fixture.refusal(&source).contains("tokenizer.json is missing"));
    std::fs::write(source.join("tokenizer.model"), "x").unwrap();
    assert!(fixture.refusal(&source).contains("save_pretrained"));
    std::fs::write(source.join("tokenizer.json"), "{}").unwrap();
    assert!(fixture.refusal(&source).contains("has no model"));
    std::fs::write(source.join("tokenizer.json"), tokenizer).unwrap();

    std::fs::remove_file(&weights).unwrap();
    std::fs::write(source.join("pytorch_model.bin"), "x").unwrap();
    assert!(fixture.refusal(&source).contains("pytorch_model.bin"));
    assert!(fixture.refusal(&fixture.folder.path().join("nowhere")).contains("nowhere"));
}

#[test]
fn values_that_are_no_numbers_are_not_quantized() {
    let fixture = Fixture::new();
    let source = fixture.source();
    hugging_face_folder(&source, Dtype::F32, |_, _| {});
    let path = source.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let place = {
        let weights = Weights::open(&source).unwrap();
        weights.find("model.layers.0.mlp.up_proj.weight").unwrap().1.offset as usize
    };
    bytes[place..place + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let options = ImportOptions { quantize: Some(Affine::default()), ..ImportOptions::default() };
    let text = fixture.import(&source, options).unwrap_err().to_string();
    assert!(text.contains("up_proj") && text.contains("not finite"), "{text}");
    fixture.assert_untouched();
}

#[test]
fn paths_in_any_script_and_behind_links_work() {
    // Composed and decomposed umlauts, Han, an emoji, a space and a quote.
    for name in ["Öl", "O\u{308}l", "模型 🙂", "it's \"quoted\""] {
        let fixture = Fixture::new();
        let source = fixture.folder.path().join(name);
        hugging_face_folder(&source, Dtype::F16, |_, _| {});
        let imported = fixture.import(&source, ImportOptions::default()).unwrap();
        assert_eq!(imported.entry.name, name);
        assert_eq!(fixture.store.find(name).unwrap().problem, None);
        assert!(fixture.store.remove(name).unwrap().bytes_freed > 100_000);
    }

    // The layout of a hub cache: a snapshot of links to blobs, reached through a link to a folder.
    let fixture = Fixture::new();
    let snapshot = fixture.folder.path().join("models--org--small/snapshots/abc");
    hugging_face_folder(&snapshot, Dtype::F16, |_, _| {});
    let blobs = fixture.folder.path().join("models--org--small/blobs");
    std::fs::create_dir(&blobs).unwrap();
    for file in disk::files_of(&snapshot).unwrap() {
        let blob = blobs.join(file.file_name().unwrap());
        std::fs::rename(&file, &blob).unwrap();
        symlink(Path::new("../../blobs").join(file.file_name().unwrap()), &file).unwrap();
    }
    let link = fixture.folder.path().join("link");
    symlink(&snapshot, &link).unwrap();
    let imported = fixture.import(&link, ImportOptions::default()).unwrap();
    assert_eq!(imported.entry.name, "org/small");
    assert!(!imported.entry.path.join("tokenizer.json").is_symlink());
    fixture.store.remove("org/small").unwrap();
    assert!(blobs.join("model.safetensors").is_file(), "the source stays");
}

#[test]
fn a_taken_name_is_refused_before_anything_is_read() {
    let fixture = Fixture::new();
    hugging_face_folder(&fixture.source(), Dtype::F16, |_, _| {});
    fixture.import(&fixture.source(), ImportOptions::default()).unwrap();
    let text = fixture.import(&fixture.source(), ImportOptions::default()).unwrap_err().to_string();
    assert!(text.contains("already"), "{text}");
    let named = ImportOptions { name: Some("source".into()), ..ImportOptions::default() };
    let missing = fixture.folder.path().join("missing");
    assert!(matches!(fixture.import(&missing, named), Err(LibraryError::NameTaken { .. })));
    let odd = ImportOptions { name: Some("../source".into()), ..ImportOptions::default() };
    assert!(matches!(fixture.import(&fixture.source(), odd), Err(LibraryError::InvalidName { .. })));
    let replace = ImportOptions { replace: true, quantize: Some(Affine::default()), ..ImportOptions::default() };
    fixture.import(&fixture.source(), replace).unwrap();
    let entries = fixture.store.list().unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].quantization.as_deref(), Some("4-bit, group 64"));
}

/// A file on a disk that is full after some bytes.
struct FullDisk(std::fs::File);

impl PositionedWrite for FullDisk {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        const ROOM: u64 = 300_000;
        if offset + bytes.len() as u64 > ROOM {
            return Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
        }
        PositionedWrite::write_at(&self.0, bytes, offset)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.0.sync_all()
    }
}

#[test]
fn a_disk_that_becomes_full_leaves_nothing_half_imported() {
    let fixture = Fixture::new();
    hugging_face_folder(&fixture.source(), Dtype::F32, |_, _| {});
    let options = ImportOptions { supported: &SUPPORTED, ..ImportOptions::default() };
    let create = |path: &Path| -> std::io::Result<Box<dyn PositionedWrite>> {
        Ok(Box::new(FullDisk(std::fs::File::create_new(path)?)))
    };
    let error = import_with(&fixture.store, &fixture.source(), &options, &mut |_| {}, &create).unwrap_err();
    assert!(matches!(&error, LibraryError::DiskFull { path } if path.ends_with("model.safetensors")), "{error}");
    assert!(error.to_string().contains("free some space"));
    fixture.assert_untouched();
}

#[test]
fn an_inspection_tells_what_an_import_would_do_and_imports_nothing() {
    let fixture = Fixture::new();
    hugging_face_folder(&fixture.source(), Dtype::Bf16, |_, _| {});
    let options =
        ImportOptions { supported: &SUPPORTED, quantize: Some(Affine::default()), ..ImportOptions::default() };
    let reference = fixture.source().display().to_string();
    let inspection = crate::inspect(&fixture.store, &reference, &options).unwrap();
    assert_eq!(inspection.verdict, crate::Verdict::Ready);
    assert_eq!(inspection.format, "huggingface");
    assert_eq!(inspection.types["BF16"], 20);
    assert!(inspection.imported_bytes.unwrap() < inspection.weight_bytes);
    assert!(inspection.plan.iter().any(|line| line.contains("quantized to 4-bit, group 64")), "{:?}", inspection.plan);
    assert!(inspection.has_chat_template);
    fixture.assert_untouched();

    let imported = fixture.import(&fixture.source(), options).unwrap();
    let inside =
        crate::inspect(&fixture.store, "source", &ImportOptions { supported: &SUPPORTED, ..ImportOptions::default() })
            .unwrap();
    assert_eq!((inside.format.as_str(), inside.parameters), ("mlx", inspection.parameters));
    assert_eq!(Some(inside.parameters), imported.entry.parameters);
    let unsupported = crate::inspect(&fixture.store, "source", &ImportOptions::default()).unwrap();
    assert!(matches!(unsupported.verdict, crate::Verdict::Refused { reason } if reason.contains("llama")));
}
