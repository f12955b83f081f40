//! Folders in MLX's or Hugging Face's layout. For the llama family the two have the same tensor names; only what the
//! engine computes itself is left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Companion, ImportOptions, Prepared, chat_templates, detect};
use crate::affine::Affine;
use crate::config::{Config, Quantization};
use crate::convert::{Conversion, Job, Source, groups};
use crate::disk;
use crate::error::LibraryError;
use crate::layers::{self, Layer};
use crate::store::ModelKind;
use crate::tokenizer_files::{self, TOKENIZER};
use crate::weights::Dtype;
use crate::weights::folder::Weights;
use crate::weights::read::{SafetensorsFile, TensorInfo};
use crate::weights::write::NewTensor;

/// Whether a file's name is that of a licence.
pub(crate) fn is_legal(name: &str) -> bool {
    LEGAL.iter().any(|start| name.starts_with(start))
}

/// Files beside the weights, and beside the chat templates, that the engine or a person may need.
const COMPANIONS: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "README.md",
];
/// Licence texts have many names that begin with these.
const LEGAL: [&str; 4] = ["LICENSE", "LICENCE", "NOTICE", "USE_POLICY"];
/// The largest tokenizer.json files have some 40 MB.
const TOKENIZER_LIMIT: u64 = 256 << 20;

/// A folder that has been opened and checked.
pub(crate) struct FolderSource {
    path: PathBuf,
    pub(crate) config: Config,
    pub(crate) quantization: Option<Quantization>,
    pub(crate) weights: Weights,
    pub(crate) layers: BTreeMap<String, Layer>,
}

impl FolderSource {
    /// Opens a folder; weights and configuration must fit each other.
    pub(crate) fn open(path: &Path) -> Result<Self, LibraryError> {
        let config = Config::read(path)?;
        let quantization = config.quantization()?;
        let weights = Weights::open(path)?;
        let layers = layers::layers(&config, &weights, quantization.as_ref())?;
        Ok(FolderSource { path: path.to_owned(), config, quantization, weights, layers })
    }

    /// Refuses what the engine does not run, then plans the import.
    pub(crate) fn prepare(&self, options: &ImportOptions<'_>) -> Result<Prepared<'_>, LibraryError> {
        check_architecture(&self.config, &self.path, options)?;
        layers::check_shapes(&self.config, &self.weights, &self.layers)?;
        self.check_tokenizer()?;
        self.check_wish(options.quantize)?;

        let mut prepared = Prepared {
            name: detect::default_name(&self.path),
            format: if self.quantization.is_some() { "mlx" } else { "huggingface" },
            config: self.config.fields.clone(),
            companions: self.companions()?,
            tensors: Vec::new(),
            jobs: Vec::new(),
            notes: Vec::new(),
        };
        let has_template = self.has_chat_template();
        if !has_template {
            prepared.notes.push("the model has no chat template: chat falls back to the engine's plain one".into());
        }
        let tied = self.is_tied();
        prepared.config.insert("tie_word_embeddings".into(), tied.into());
        let mut kinds = Vec::new();
        let mut dropped = Vec::new();
        for (file, tensor) in self.weights.iter() {
            if layers::is_computed(&tensor.name) || (tied && tensor.name.starts_with("lm_head.")) {
                dropped.push(tensor.name.as_str());
                continue;
            }
            self.check_element_type(file, tensor)?;
            let wish = options.quantize.filter(|_| self.quantization.is_none());
            match wish.filter(|affine| is_quantizable(tensor, *affine)) {
                Some(affine) => {
                    add_quantized(&mut prepared, file, tensor, affine);
                    kinds.push((layer_name(&tensor.name).to_owned(), Some(affine), tensor.elements()));
                }
                None => {
                    add_copy(&mut prepared, file, tensor);
                    if wish.is_some() && is_matrix(tensor) {
                        kinds.push((layer_name(&tensor.name).to_owned(), None, tensor.elements()));
                        prepared.notes.push(format!(
                            "{} stays dense: its rows of {} elements cannot be cut into whole groups",
                            tensor.name,
                            tensor.shape.last().copied().unwrap_or(0)
                        ));
                    }
                }
            }
        }
        if let Some(quantization) = Quantization::from_layers(kinds) {
            prepared.config.insert("quantization".into(), quantization.to_json());
            // mlx-lm writes both names, so that transformers sees that the weights are quantized.
            prepared.config.insert("quantization_config".into(), quantization.to_json());
        }
        if !dropped.is_empty() {
            prepared.notes.push(format!(
                "{} tensors that the engine computes itself were left out ({})",
                dropped.len(),
                dropped.first().copied().unwrap_or_default()
            ));
        }
        Ok(prepared)
    }

    /// Whether the head shares the embedding's weights; where the configuration does not say, the weights do.
    fn is_tied(&self) -> bool {
        self.config
            .field("tie_word_embeddings")
            .and_then(Value::as_bool)
            .unwrap_or_else(|| self.weights.find("lm_head.weight").is_none())
    }

    fn check_tokenizer(&self) -> Result<(), LibraryError> {
        let refuse = |reason: String| Err(LibraryError::Tokenizer { path: self.path.clone(), reason });
        if let Err(reason) = tokenizer_files::check_folder(&self.path) {
            return refuse(reason);
        }
        let path = self.path.join(TOKENIZER);
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        let tokenizer = disk::read_json(&path, TOKENIZER_LIMIT)?;
        if !tokenizer["model"].is_object() {
            return refuse("tokenizer.json has no model; fetch it again".into());
        }
        Ok(())
    }

    pub(crate) fn has_chat_template(&self) -> bool {
        chat_templates::are_there(&self.path)
    }

    /// The kind of model in tokenizer.json, for people.
    pub(crate) fn tokenizer_kind(&self) -> Option<String> {
        let tokenizer = disk::read_json(&self.path.join(TOKENIZER), TOKENIZER_LIMIT).ok()?;
        Some(tokenizer["model"]["type"].as_str().unwrap_or("unnamed").to_owned())
    }

    fn check_wish(&self, wish: Option<Affine>) -> Result<(), LibraryError> {
        match (&self.quantization, wish) {
            (Some(quantization), Some(wish)) if quantization.default != wish => Err(LibraryError::Quantize {
                path: self.path.clone(),
                reason: format!(
                    "it is quantized already ({}); import it as it is, or start from the model's dense weights",
                    quantization.describe()
                ),
            }),
            _ => Ok(()),
        }
    }

    fn check_element_type(&self, file: &SafetensorsFile, tensor: &TensorInfo) -> Result<(), LibraryError> {
        let is_packed = self.quantization.is_some()
            && self.layers.get(&tensor.name).is_some_and(|layer| layer.affine.is_some())
            && tensor.dtype == Dtype::U32;
        if is_packed || tensor.dtype.is_dense_weight() {
            return Ok(());
        }
        Err(LibraryError::UnsupportedFeature {
            path: file.path.clone(),
            feature: format!("the element type {} (tensor \"{}\")", tensor.dtype.name(), tensor.name),
            remedy: "use a copy of the model in BF16, F16 or F32".into(),
        })
    }

    fn companions(&self) -> Result<Vec<(String, Companion)>, LibraryError> {
        let mut companions = Vec::new();
        for path in disk::files_of(&self.path)? {
            let name = disk::file_name_text(&path);
            let is_wanted = COMPANIONS.contains(&name.as_str()) || is_legal(&name);
            if is_wanted && path.is_file() {
                companions.push((name, Companion::Copy(path)));
            }
        }
        let templates = chat_templates::files(&self.path)?;
        companions.extend(templates.into_iter().map(|(name, path)| (name, Companion::Copy(path))));
        Ok(companions)
    }
}

/// Refuses what the engine does not run.
fn check_architecture(config: &Config, path: &Path, options: &ImportOptions<'_>) -> Result<(), LibraryError> {
    let model_type = config.model_type()?;
    if options.supported.contains(&model_type) || ModelKind::of(model_type) == ModelKind::Speech {
        return Ok(());
    }
    Err(LibraryError::UnsupportedArchitecture {
        path: path.to_owned(),
        architecture: model_type.to_owned(),
        supported: options.supported.iter().map(|name| (*name).to_owned()).collect(),
    })
}

/// Refuses what config.json alone decides, so that no weights need be there yet.
pub(crate) fn check_config(folder: &Path, options: &ImportOptions<'_>) -> Result<(), LibraryError> {
    let config = Config::read(folder)?;
    config.quantization()?;
    check_architecture(&config, folder, options)
}

fn layer_name(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").unwrap_or(tensor)
}

/// The weight of a linear layer or of an embedding.
fn is_matrix(tensor: &TensorInfo) -> bool {
    tensor.shape.len() == 2 && tensor.name.ends_with(".weight") && !tensor.name.contains("norm")
}

/// What mlx-lm quantizes: matrices whose rows are whole groups.
fn is_quantizable(tensor: &TensorInfo, affine: Affine) -> bool {
    is_matrix(tensor) && tensor.shape.last().is_some_and(|columns| columns % u64::from(affine.group_size) == 0)
}

fn source_of<'a>(file: &'a SafetensorsFile, tensor: &TensorInfo) -> Source<'a> {
    Source { path: &file.path, file: &file.file, offset: tensor.offset }
}

fn add_copy<'a>(prepared: &mut Prepared<'a>, file: &'a SafetensorsFile, tensor: &TensorInfo) {
    let columns = tensor.shape.last().copied().unwrap_or(1).max(1);
    prepared.jobs.push(Job {
        name: tensor.name.clone(),
        source: Some(source_of(file, tensor)),
        rows: tensor.elements() / columns,
        columns: columns as usize,
        rope_heads: None,
        conversion: Conversion::Copy(tensor.dtype.size()),
        outputs: vec![prepared.tensors.len()],
    });
    prepared.tensors.push(NewTensor { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone() });
}

fn add_quantized<'a>(prepared: &mut Prepared<'a>, file: &'a SafetensorsFile, tensor: &TensorInfo, affine: Affine) {
    let (rows, columns) = (tensor.shape[0], tensor.shape[1] as usize);
    let first = prepared.tensors.len();
    prepared.tensors.extend(quantized_tensors(layer_name(&tensor.name), rows, columns, affine, tensor.dtype));
    prepared.jobs.push(Job {
        name: tensor.name.clone(),
        source: Some(source_of(file, tensor)),
        rows,
        columns,
        rope_heads: None,
        conversion: Conversion::Quantize(tensor.dtype, affine),
        outputs: vec![first, first + 1, first + 2],
    });
}

/// Weight, scales and biases of a quantized layer.
pub(crate) fn quantized_tensors(
    layer: &str,
    rows: u64,
    columns: usize,
    affine: Affine,
    scales: Dtype,
) -> [NewTensor; 3] {
    let words = affine.packed_row_bytes(columns) as u64 / 4;
    let groups = groups(affine, columns) as u64;
    let tensor = |suffix: &str, dtype, columns| NewTensor {
        name: format!("{layer}.{suffix}"),
        dtype,
        shape: vec![rows, columns],
    };
    [tensor("weight", Dtype::U32, words), tensor("scales", scales, groups), tensor("biases", scales, groups)]
}
