//! Folders with a `config.json` of a Whisper model: our own, mlx-whisper's (`weights.safetensors` or `weights.npz`,
//! without a tokenizer) and Hugging Face's.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::dimensions::Dimensions;
use super::tokenizer::Tokenizer;
use super::{Element, Part, Place, WhisperModel, names, npz};
use crate::config::{Config, Quantization};
use crate::disk;
use crate::error::{IoContext as _, LibraryError};
use crate::weights::Dtype;
use crate::weights::folder::Weights;
use crate::weights::read::SafetensorsFile;

/// mlx-whisper's name of its weights.
const MLX_WEIGHTS: &str = "weights.safetensors";
const MLX_ARRAYS: &str = "weights.npz";
/// Where Hugging Face keeps what decoding needs.
const GENERATION: &str = "generation_config.json";
const GENERATION_LIMIT: u64 = 8 << 20;
/// No model names more heads.
const HEADS_LIMIT: u64 = 1 << 12;

/// A tensor of the source.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) file: usize,
    pub(super) offset: u64,
}

impl Found {
    fn place(&self) -> Place {
        Place { file: self.file, offset: self.offset }
    }
}

/// Opens a folder and checks its weights' table.
pub(super) fn open(path: &Path) -> Result<WhisperModel, LibraryError> {
    let config = Config::read(path)?;
    let quantization = config.quantization()?;
    let is_huggingface = config.field("d_model").is_some();
    let dimensions = if is_huggingface { huggingface_dimensions(&config)? } else { own_dimensions(&config)? };
    let (files, found) = tensors(path)?;
    let alignment_heads = alignment_heads(path, &config, &files, &found, &dimensions)?;
    let rename = if is_huggingface { names::from_huggingface } else { names::from_openai };
    let parts = parts(path, &found, quantization.as_ref(), rename)?;
    Ok(WhisperModel {
        path: path.to_owned(),
        format: if is_huggingface { "huggingface" } else { "mlx" },
        dimensions,
        alignment_heads,
        files,
        parts,
        tokenizer: Tokenizer::Folder,
        notes: Vec::new(),
    })
}

fn own_dimensions(config: &Config) -> Result<Dimensions, LibraryError> {
    Ok(Dimensions {
        n_mels: config.needed("n_mels")?,
        n_audio_ctx: config.needed("n_audio_ctx")?,
        n_audio_state: config.needed("n_audio_state")?,
        n_audio_head: config.needed("n_audio_head")?,
        n_audio_layer: config.needed("n_audio_layer")?,
        n_vocab: config.needed("n_vocab")?,
        n_text_ctx: config.needed("n_text_ctx")?,
        n_text_state: config.needed("n_text_state")?,
        n_text_head: config.needed("n_text_head")?,
        n_text_layer: config.needed("n_text_layer")?,
    })
}

fn huggingface_dimensions(config: &Config) -> Result<Dimensions, LibraryError> {
    let state = config.needed("d_model")?;
    for part in ["encoder", "decoder"] {
        let field = format!("{part}_ffn_dim");
        if config.integer(&field).is_some_and(|width| width != 4 * state) {
            return Err(LibraryError::UnsupportedFeature {
                path: config.path.clone(),
                feature: format!("{field} other than four times d_model"),
                remedy: "use a model of OpenAI's shapes".into(),
            });
        }
    }
    Ok(Dimensions {
        n_mels: config.needed("num_mel_bins")?,
        n_audio_ctx: config.needed("max_source_positions")?,
        n_audio_state: state,
        n_audio_head: config.needed("encoder_attention_heads")?,
        n_audio_layer: config.needed("encoder_layers")?,
        n_vocab: config.needed("vocab_size")?,
        n_text_ctx: config.needed("max_target_positions")?,
        n_text_state: state,
        n_text_head: config.needed("decoder_attention_heads")?,
        n_text_layer: config.needed("decoder_layers")?,
    })
}

/// Open files with their paths.
type Files = Vec<(PathBuf, File)>;

/// All tensors of the folder, and the files that hold them.
fn tensors(path: &Path) -> Result<(Files, Vec<Found>), LibraryError> {
    let is_there = |name: &str| path.join(name).symlink_metadata().is_ok();
    if is_there(MLX_ARRAYS) && !is_there(MLX_WEIGHTS) && !is_there("model.safetensors") {
        let arrays = path.join(MLX_ARRAYS);
        let (file, found) = npz::open(&arrays)?;
        return Ok((vec![(arrays, file)], found));
    }
    let opened = if is_there(MLX_WEIGHTS) && !is_there("model.safetensors") {
        vec![SafetensorsFile::open(&path.join(MLX_WEIGHTS))?]
    } else {
        Weights::open(path)?.files
    };
    let mut found = Vec::new();
    let mut files = Vec::new();
    for (index, file) in opened.into_iter().enumerate() {
        found.extend(file.tensors.into_iter().map(|tensor| Found {
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            file: index,
            offset: tensor.offset,
        }));
        files.push((file.path, file.file));
    }
    Ok((files, found))
}

/// Brings the tensors under our names; weights with scales and biases become one part.
fn parts(
    path: &Path,
    found: &[Found],
    quantization: Option<&Quantization>,
    rename: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Part>, LibraryError> {
    let by_name: BTreeMap<&str, &Found> = found.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut parts = Vec::new();
    for tensor in found {
        let layer = |suffix: &str| tensor.name.strip_suffix(suffix);
        let belongs_to = layer(".scales").or_else(|| layer(".biases"));
        if belongs_to.is_some_and(|layer| by_name.contains_key(format!("{layer}.weight").as_str())) {
            continue;
        }
        let Some(name) = rename(&tensor.name) else { continue };
        let stem = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
        let scales = by_name.get(format!("{stem}.scales").as_str());
        let biases = by_name.get(format!("{stem}.biases").as_str());
        let (shape, element) = match (scales, biases) {
            (Some(scales), Some(biases)) if tensor.dtype == Dtype::U32 => {
                quantized(path, tensor, scales, biases, quantization.and_then(|known| known.of(stem)))?
            }
            _ if tensor.dtype.is_dense_weight() => (tensor.shape.clone(), Element::Dense(tensor.dtype)),
            _ => {
                return Err(LibraryError::UnsupportedFeature {
                    path: path.to_owned(),
                    feature: format!("the element type {} (tensor \"{}\")", tensor.dtype.name(), tensor.name),
                    remedy: "use a copy of the model in BF16, F16 or F32".into(),
                });
            }
        };
        let (shape, kernels_last) = match shape.as_slice() {
            // PyTorch has the kernel last, MLX in the middle; it is three wide, and no mel or width is.
            [out, inputs, 3] if *inputs != 3 => (vec![*out, 3, *inputs], true),
            _ => (shape, false),
        };
        parts.push(Part { name, from: tensor.name.clone(), place: tensor.place(), shape, element, kernels_last });
    }
    Ok(parts)
}

/// The unpacked shape of a quantized weight, if its three tensors fit each other and config.json.
fn quantized(
    path: &Path,
    weight: &Found,
    scales: &Found,
    biases: &Found,
    affine: Option<crate::affine::Affine>,
) -> Result<(Vec<u64>, Element), LibraryError> {
    let affine = affine.ok_or_else(|| {
        let reason = format!("the weights are quantized ({}), but config.json does not say how", weight.name);
        LibraryError::malformed(path, reason)
    })?;
    let (rows, groups) = match scales.shape.as_slice() {
        [rows, groups] => (*rows, *groups),
        _ => (0, 0),
    };
    let columns = groups.saturating_mul(u64::from(affine.group_size));
    let packed = columns.saturating_mul(u64::from(affine.bits)) / 32;
    let fits = weight.shape == [rows, packed]
        && biases.shape == scales.shape
        && biases.dtype == scales.dtype
        && scales.dtype.is_dense_weight();
    if !fits {
        return Err(LibraryError::Shape {
            path: path.to_owned(),
            tensor: weight.name.clone(),
            found: weight.shape.clone(),
            expected: vec![rows, packed],
        });
    }
    let (scales_place, biases_place, dtype) = (scales.place(), biases.place(), scales.dtype);
    let element = Element::Affine { affine, scales: scales_place, biases: biases_place, dtype };
    Ok((vec![rows, columns], element))
}

/// The heads that follow the audio in time: from config.json, from generation_config.json, from a tensor beside the
/// weights, or as OpenAI's models are known to have them.
fn alignment_heads(
    path: &Path,
    config: &Config,
    files: &[(PathBuf, File)],
    found: &[Found],
    dimensions: &Dimensions,
) -> Result<Vec<(u64, u64)>, LibraryError> {
    let stored = match config.field("alignment_heads") {
        Some(heads) => Some((config.path.clone(), heads.clone())),
        None => {
            let path = path.join(GENERATION);
            let generation = if path.is_file() { disk::read_json(&path, GENERATION_LIMIT)? } else { Value::Null };
            generation.get("alignment_heads").filter(|heads| !heads.is_null()).cloned().map(|heads| (path, heads))
        }
    };
    if let Some((path, heads)) = stored {
        let wrong = || LibraryError::malformed(&path, "alignment_heads is not a list of pairs of layer and head");
        let pairs = heads.as_array().ok_or_else(wrong)?;
        let pair = |value: &Value| Some((value.get(0)?.as_u64()?, value.get(1)?.as_u64()?));
        return checked(
            &path,
            pairs.iter().map(|value| pair(value).ok_or_else(wrong)).collect::<Result<_, _>>()?,
            dimensions,
        );
    }
    let tensor = found.iter().find(|tensor| tensor.name == "alignment_heads");
    if let Some(tensor) = tensor
        && let Some((path, file)) = files.get(tensor.file)
        && let [count, 2] = *tensor.shape.as_slice()
        && count <= HEADS_LIMIT
        && matches!(tensor.dtype, Dtype::I32 | Dtype::U32 | Dtype::I64 | Dtype::U64)
    {
        let size = tensor.dtype.size() as usize;
        let mut bytes = vec![0; count as usize * 2 * size];
        file.read_exact_at(&mut bytes, tensor.offset).at("read", path)?;
        let number = |word: &[u8]| word.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let pairs = bytes.chunks_exact(2 * size).map(|pair| (number(&pair[..size]), number(&pair[size..]))).collect();
        return checked(path, pairs, dimensions);
    }
    Ok(dimensions.known_alignment_heads(&disk::file_name_text(path)))
}

fn checked(path: &Path, heads: Vec<(u64, u64)>, dimensions: &Dimensions) -> Result<Vec<(u64, u64)>, LibraryError> {
    let (layers, count) = (dimensions.n_text_layer, dimensions.n_text_head);
    match heads.iter().find(|(layer, head)| *layer >= layers || *head >= count) {
        None => Ok(heads),
        Some((layer, head)) => Err(LibraryError::malformed(
            path,
            format!("it names the alignment head {head} of layer {layer}; there are {layers} layers of {count} heads"),
        )),
    }
}
