//! What a model is, what an import would do with it, and what it would lose: without importing it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::LibraryError;
use crate::gguf::{GgufFile, tokenizer};
use crate::import::ctranslate2::Ct2Whisper;
use crate::import::detect::{self, Detected};
use crate::import::folder::FolderSource;
use crate::import::{self, ImportOptions, Prepared};
use crate::layers;
use crate::store::Store;
use crate::weights::write::NewTensor;
use crate::whisper;

/// Whether a model can be imported or run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Verdict {
    /// It can.
    Ready,
    /// It cannot.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
}

/// Everything that the headers of a model say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// The file or folder.
    pub path: PathBuf,
    /// "mlx", "huggingface", "gguf", "ggml" or "ctranslate2".
    pub format: String,
    /// Whether it can be imported (or run, if it is in the store).
    pub verdict: Verdict,
    /// `model_type` or `general.architecture`.
    pub architecture: Option<String>,
    /// Number of tensors in the files.
    pub tensors: usize,
    /// Number of tensors by element or block type.
    pub types: BTreeMap<String, usize>,
    /// Number of weights by the bits of their integers, without scales (16 and 32 are dense, 0 is not known).
    pub weights_by_bits: BTreeMap<u32, u64>,
    /// Number of weights, unpacked.
    pub parameters: u64,
    /// Bytes of the weights in the files.
    pub weight_bytes: u64,
    /// Bytes of the weights after an import.
    pub imported_bytes: Option<u64>,
    /// Tokens of context that the model was trained for.
    pub context_length: Option<u64>,
    /// The kind of tokenizer, where there is one.
    pub tokenizer: Option<String>,
    /// Whether the model brings a chat template.
    pub has_chat_template: bool,
    /// What an import would do, line by line, and what it would lose.
    pub plan: Vec<String>,
}

/// Looks at a model of the store (by name) or at a file or folder (by path).
///
/// # Errors
/// When the path is no model at all, or its files are damaged. A sound model that cannot be imported is no error: the
/// verdict says why.
pub fn inspect(store: &Store, reference: &str, options: &ImportOptions<'_>) -> Result<Inspection, LibraryError> {
    let path = Path::new(reference);
    match store.find(reference) {
        Ok(entry) => inspect_path(&entry.path, options),
        Err(_) if path.exists() => inspect_path(path, options),
        Err(error) => Err(error),
    }
}

fn inspect_path(path: &Path, options: &ImportOptions<'_>) -> Result<Inspection, LibraryError> {
    match detect::detect(path)? {
        Detected::Folder(path) => inspect_folder(&path, options),
        Detected::Ctranslate2(path) => inspect_ctranslate2(&path),
        Detected::Gguf(path) => inspect_gguf(&path, options),
        Detected::Whisper(form, path) => inspect_whisper(form, &path, options),
    }
}

fn inspect_folder(path: &Path, options: &ImportOptions<'_>) -> Result<Inspection, LibraryError> {
    let source = FolderSource::open(path)?;
    let mut types = BTreeMap::new();
    let (mut tensors, mut weight_bytes) = (0, 0);
    for (_, tensor) in source.weights.iter() {
        tensors += 1;
        weight_bytes += tensor.bytes;
        *types.entry(tensor.dtype.name().to_owned()).or_insert(0) += 1;
    }
    let mut weights_by_bits = BTreeMap::new();
    for (name, layer) in &source.layers {
        let dense = source.weights.find(name).map_or(16, |(_, tensor)| tensor.dtype.size() as u32 * 8);
        let bits = layer.affine.map_or(dense, |affine| affine.bits);
        *weights_by_bits.entry(bits).or_insert(0) += layer.shape.iter().product::<u64>();
    }
    let (verdict, plan, imported_bytes) = judge(source.prepare(options));
    Ok(Inspection {
        path: path.to_owned(),
        format: if source.quantization.is_some() { "mlx" } else { "huggingface" }.into(),
        verdict,
        architecture: source.config.model_type().ok().map(str::to_owned),
        tensors,
        types,
        weights_by_bits,
        parameters: layers::parameters(&source.layers),
        weight_bytes,
        imported_bytes,
        context_length: source.config.integer("max_position_embeddings"),
        tokenizer: source.tokenizer_kind(),
        has_chat_template: source.has_chat_template(),
        plan,
    })
}

fn inspect_gguf(path: &Path, options: &ImportOptions<'_>) -> Result<Inspection, LibraryError> {
    let file = GgufFile::open(path)?;
    let architecture = file.architecture().ok().map(str::to_owned);
    let mut types = BTreeMap::new();
    let mut weights_by_bits = BTreeMap::new();
    for tensor in file.tensors.values() {
        *types.entry(tensor.kind.name()).or_insert(0) += 1;
        *weights_by_bits.entry(tensor.kind.bits()).or_insert(0) += tensor.elements();
    }
    let context_length =
        architecture.as_ref().and_then(|architecture| file.integer(&format!("{architecture}.context_length")));
    let rebuilt = tokenizer::rebuild(&file, u64::MAX).ok();
    let (verdict, plan, imported_bytes) = judge(import::gguf::prepare(&file, options));
    Ok(Inspection {
        path: path.to_owned(),
        format: "gguf".into(),
        verdict,
        architecture,
        tensors: file.tensors.len(),
        types,
        weights_by_bits,
        parameters: file.tensors.values().map(|tensor| tensor.elements()).sum(),
        weight_bytes: file.tensors.values().map(|tensor| tensor.bytes).sum(),
        imported_bytes,
        context_length,
        tokenizer: rebuilt.as_ref().map(|rebuilt| rebuilt.description.clone()),
        has_chat_template: rebuilt.is_some_and(|rebuilt| rebuilt.has_chat_template),
        plan,
    })
}

fn inspect_whisper(form: whisper::Form, path: &Path, options: &ImportOptions<'_>) -> Result<Inspection, LibraryError> {
    let model = whisper::open(form, path)?;
    let mut types = BTreeMap::new();
    let mut weights_by_bits = BTreeMap::new();
    for part in &model.parts {
        *types.entry(part.element.name()).or_insert(0) += 1;
        *weights_by_bits.entry(part.element.bits()).or_insert(0) += part.elements();
    }
    let (verdict, plan, imported_bytes) = judge(model.prepare(options));
    Ok(Inspection {
        path: path.to_owned(),
        format: model.format.into(),
        verdict,
        architecture: Some(whisper::dimensions::MODEL_TYPE.into()),
        tensors: model.parts.len(),
        types,
        weights_by_bits,
        parameters: model.parts.iter().map(whisper::Part::elements).sum(),
        weight_bytes: model.parts.iter().map(whisper::Part::bytes).sum(),
        imported_bytes,
        context_length: Some(model.dimensions.n_text_ctx),
        tokenizer: model.tokenizer_kind().ok().map(str::to_owned),
        has_chat_template: false,
        plan,
    })
}

fn inspect_ctranslate2(path: &Path) -> Result<Inspection, LibraryError> {
    let source = Ct2Whisper::open(path)?;
    let mut types = BTreeMap::new();
    let mut weights_by_bits = BTreeMap::new();
    let (mut parameters, mut weight_bytes) = (0, 0);
    let tensors: Vec<_> = source.tensors().values().filter(|tensor| !tensor.shape.is_empty()).collect();
    for tensor in &tensors {
        let elements: u64 = tensor.shape.iter().product();
        *types.entry(tensor.kind.name()).or_insert(0) += 1;
        *weights_by_bits.entry((tensor.bytes * 8 / elements.max(1)) as u32).or_insert(0) += elements;
        parameters += elements;
        weight_bytes += tensor.bytes;
    }
    let (verdict, plan, imported_bytes) = judge(source.prepare());
    Ok(Inspection {
        path: path.to_owned(),
        format: "ctranslate2".into(),
        verdict,
        architecture: Some(whisper::dimensions::MODEL_TYPE.into()),
        tensors: tensors.len(),
        types,
        weights_by_bits,
        parameters,
        weight_bytes,
        imported_bytes,
        context_length: None,
        tokenizer: None,
        has_chat_template: false,
        plan,
    })
}

/// Turns a plan, or its refusal, into what is shown.
fn judge(prepared: Result<Prepared<'_>, LibraryError>) -> (Verdict, Vec<String>, Option<u64>) {
    match prepared {
        Err(error) => (Verdict::Refused { reason: error.to_string() }, Vec::new(), None),
        Ok(prepared) => {
            let mut plan = import::conversion_notes(&prepared.jobs, None);
            let copied = prepared.jobs.iter().filter(|job| job.is_copy()).count();
            if copied > 0 {
                plan.insert(0, format!("{copied} tensors copied as they are"));
            }
            plan.extend(prepared.notes);
            (Verdict::Ready, plan, Some(prepared.tensors.iter().map(NewTensor::bytes).sum()))
        }
    }
}
