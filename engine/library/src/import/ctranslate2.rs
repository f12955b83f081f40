//! Whisper as CTranslate2 has it (faster-whisper's folders): fused rows are cut apart, convolutions turned to MLX's order.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Companion, Prepared, detect};
use crate::config::CONFIG_NAME;
use crate::convert::{Conversion, Job, Source};
use crate::ctranslate2::{Ct2File, Ct2Tensor, ElementType, MODEL_NAME};
use crate::disk;
use crate::error::{IoContext as _, LibraryError};
use crate::tokenizer_files::TOKENIZER;
use crate::weights::Dtype;
use crate::weights::write::NewTensor;
use crate::whisper::dimensions::{Dimensions, MODEL_TYPE};

/// The kind of model in `model.bin`.
const SPEC: &str = "WhisperSpec";
const CONFIG_LIMIT: u64 = 1 << 20;
/// Every Whisper's encoder gives so many positions; the file holds them only where they were not left out as computable.
const AUDIO_POSITIONS: u64 = 1500;
/// Every Whisper's heads have so many elements.
const HEAD_DIM: u64 = 64;

/// A CTranslate2 folder of a Whisper model.
pub(crate) struct Ct2Whisper {
    folder: PathBuf,
    model: Ct2File,
}

/// Whether a folder is CTranslate2's.
pub(crate) fn is_folder(folder: &Path) -> bool {
    let names = [MODEL_NAME, CONFIG_NAME];
    names.into_iter().all(|name| folder.join(name).is_file())
        && disk::read_json(&folder.join(CONFIG_NAME), CONFIG_LIMIT)
            .is_ok_and(|config| config.get("model_type").is_none())
}

impl Ct2Whisper {
    /// Opens a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, LibraryError> {
        Ok(Self { folder: folder.to_owned(), model: Ct2File::open(&folder.join(MODEL_NAME))? })
    }

    /// Its tensors, for inspection.
    pub(crate) fn tensors(&self) -> &BTreeMap<String, Ct2Tensor> {
        &self.model.tensors
    }

    /// Checks the model and plans its import.
    pub(crate) fn prepare(&self) -> Result<Prepared<'_>, LibraryError> {
        let path = &self.model.path;
        if self.model.spec != SPEC {
            return Err(LibraryError::UnsupportedFeature {
                path: path.clone(),
                feature: format!("a {} model in CTranslate2's format", self.model.spec),
                remedy: "only Whisper is read from it; use the model's safetensors or GGUF".into(),
            });
        }
        let mut plan = Plan {
            model: &self.model,
            taken: BTreeSet::new(),
            prepared: Prepared {
                name: detect::default_name(&self.folder),
                format: "ctranslate2",
                config: Map::new(),
                companions: Vec::new(),
                tensors: Vec::new(),
                jobs: Vec::new(),
                notes: Vec::new(),
            },
        };
        let dimensions = plan.add_all()?;
        plan.refuse_what_is_left()?;
        let mut prepared = plan.prepared;
        prepared.config = self.config(dimensions)?;
        let tokenizer = self.folder.join(TOKENIZER);
        if !tokenizer.is_file() {
            return Err(LibraryError::Tokenizer {
                path: self.folder.clone(),
                reason: "tokenizer.json is missing; fetch it from the page of the same Whisper model into the folder"
                    .into(),
            });
        }
        prepared.companions.push((TOKENIZER.into(), Companion::Copy(tokenizer)));
        Ok(prepared)
    }

    /// The configuration as mlx-whisper names it.
    fn config(&self, dimensions: Dimensions) -> Result<Map<String, Value>, LibraryError> {
        let theirs = disk::read_json(&self.folder.join(CONFIG_NAME), CONFIG_LIMIT)?;
        let mut config = dimensions.config(&[]);
        if let Some(heads) = theirs.get("alignment_heads").filter(|heads| !heads.is_null()) {
            config.insert("alignment_heads".into(), heads.clone());
        }
        Ok(config)
    }
}

/// An import under way.
struct Plan<'a> {
    model: &'a Ct2File,
    taken: BTreeSet<String>,
    prepared: Prepared<'a>,
}

/// Settings that CTranslate2 keeps among the tensors, and positions that the engine computes.
fn is_setting(name: &str, tensor: &Ct2Tensor) -> bool {
    tensor.shape.is_empty() || name == "encoder/position_encodings/encodings"
}

impl<'a> Plan<'a> {
    /// Adds every tensor of the model and gives its sizes.
    fn add_all(&mut self) -> Result<Dimensions, LibraryError> {
        let convolution = self.find("encoder/conv1/weight")?;
        let [state, mels, _] = self.shape("encoder/conv1/weight", convolution)?;
        for number in [1, 2] {
            self.add_convolution(number)?;
        }
        let mut layers = [0; 2];
        for (count, side) in layers.iter_mut().zip(["encoder", "decoder"]) {
            *count = self.layers(side);
            for number in 0..*count {
                self.add_layer(side, number, state)?;
            }
            let target = if side == "encoder" { "encoder.ln_post" } else { "decoder.ln" };
            self.add_norm(&format!("{side}/layer_norm"), target)?;
        }
        self.add("decoder/embeddings/weight", "decoder.token_embedding.weight")?;
        self.add("decoder/position_encodings/encodings", "decoder.positional_embedding")?;
        // The output head is the embedding; files without aliases hold it a second time.
        self.taken.insert("decoder/projection/weight".into());
        let embedding = self.find("decoder/embeddings/weight")?;
        let [vocabulary, text_state] = self.shape("decoder/embeddings/weight", embedding)?;
        let positions = self.find("decoder/position_encodings/encodings")?;
        let [context, _] = self.shape("decoder/position_encodings/encodings", positions)?;
        Ok(Dimensions {
            n_mels: mels,
            n_audio_ctx: AUDIO_POSITIONS,
            n_audio_state: state,
            n_audio_head: state / HEAD_DIM,
            n_audio_layer: layers[0],
            n_vocab: vocabulary,
            n_text_ctx: context,
            n_text_state: text_state,
            n_text_head: text_state / HEAD_DIM,
            n_text_layer: layers[1],
        })
    }

    fn layers(&self, side: &str) -> u64 {
        let prefix = format!("{side}/layer_");
        let number = |name: &String| name.strip_prefix(&prefix)?.split('/').next()?.parse::<u64>().ok();
        self.model.tensors.keys().filter_map(number).max().map_or(0, |last| last + 1)
    }

    fn add_layer(&mut self, side: &str, number: u64, state: u64) -> Result<(), LibraryError> {
        let (from, to) = (format!("{side}/layer_{number}"), format!("{side}.blocks.{number}"));
        let own = format!("{from}/self_attention");
        self.add_fused(&format!("{own}/linear_0"), &format!("{to}.attn"), &["query", "key", "value"], state)?;
        self.add_linear(&format!("{own}/linear_1"), &format!("{to}.attn.out"))?;
        self.add_norm(&format!("{own}/layer_norm"), &format!("{to}.attn_ln"))?;
        if side == "decoder" {
            let cross = format!("{from}/attention");
            self.add_linear(&format!("{cross}/linear_0"), &format!("{to}.cross_attn.query"))?;
            self.add_fused(&format!("{cross}/linear_1"), &format!("{to}.cross_attn"), &["key", "value"], state)?;
            self.add_linear(&format!("{cross}/linear_2"), &format!("{to}.cross_attn.out"))?;
            self.add_norm(&format!("{cross}/layer_norm"), &format!("{to}.cross_attn_ln"))?;
        }
        self.add_norm(&format!("{from}/ffn/layer_norm"), &format!("{to}.mlp_ln"))?;
        self.add_linear(&format!("{from}/ffn/linear_0"), &format!("{to}.mlp1"))?;
        self.add_linear(&format!("{from}/ffn/linear_1"), &format!("{to}.mlp2"))
    }

    fn add_linear(&mut self, from: &str, to: &str) -> Result<(), LibraryError> {
        self.add(&format!("{from}/weight"), &format!("{to}.weight"))?;
        self.add(&format!("{from}/bias"), &format!("{to}.bias"))
    }

    fn add_norm(&mut self, from: &str, to: &str) -> Result<(), LibraryError> {
        self.add(&format!("{from}/gamma"), &format!("{to}.weight"))?;
        self.add(&format!("{from}/beta"), &format!("{to}.bias"))
    }

    fn add(&mut self, from: &str, to: &str) -> Result<(), LibraryError> {
        let tensor = self.find(from)?;
        self.taken.insert(from.to_owned());
        self.part(from, tensor, to, 0..tensor.shape[0])
    }

    /// Rows of several layers in one tensor, `state` of each. Keys have no bias: CTranslate2 writes zeros.
    fn add_fused(&mut self, from: &str, to: &str, parts: &[&str], state: u64) -> Result<(), LibraryError> {
        for kind in ["weight", "bias"] {
            let name = format!("{from}/{kind}");
            let tensor = self.find(&name)?;
            self.taken.insert(name.clone());
            if tensor.shape[0] != state * parts.len() as u64 {
                return Err(self.wrong_shape(&name, tensor, &[state * parts.len() as u64]));
            }
            for (index, part) in parts.iter().enumerate() {
                let rows = index as u64 * state..(index as u64 + 1) * state;
                if kind == "bias" && *part == "key" {
                    self.check_zero(&name, tensor, rows)?;
                } else {
                    self.part(&name, tensor, &format!("{to}.{part}.{kind}"), rows)?;
                }
            }
        }
        Ok(())
    }

    /// A convolution's weight, `[out, in, kernel]` there and `[out, kernel, in]` here, and its bias.
    fn add_convolution(&mut self, number: usize) -> Result<(), LibraryError> {
        let name = format!("encoder/conv{number}/weight");
        let tensor = self.find(&name)?;
        self.taken.insert(name.clone());
        let [outputs, inputs, kernel] = self.shape(&name, tensor)?;
        let dtype = self.dtype(&name, tensor)?;
        let shape = vec![outputs, kernel, inputs];
        let target = format!("encoder.conv{number}.weight");
        let columns = (inputs * kernel) as usize;
        let conversion = Conversion::Kernels(dtype, dtype, kernel as usize);
        self.job(&name, tensor.offset, (outputs, columns), conversion, NewTensor { name: target, dtype, shape });
        self.add(&format!("encoder/conv{number}/bias"), &format!("encoder.conv{number}.bias"))
    }

    /// Plans to copy some rows of a tensor.
    fn part(
        &mut self,
        from: &str,
        tensor: &Ct2Tensor,
        to: &str,
        rows: std::ops::Range<u64>,
    ) -> Result<(), LibraryError> {
        let dtype = self.dtype(from, tensor)?;
        let columns = tensor.shape[1..].iter().product::<u64>();
        let count = rows.end - rows.start;
        let mut shape = tensor.shape.clone();
        shape[0] = count;
        let offset = tensor.offset + rows.start * columns * dtype.size();
        let new = NewTensor { name: to.to_owned(), dtype, shape };
        self.job(from, offset, (count, columns as usize), Conversion::Copy(dtype.size()), new);
        Ok(())
    }

    fn job(&mut self, from: &str, offset: u64, (rows, columns): (u64, usize), conversion: Conversion, new: NewTensor) {
        self.prepared.jobs.push(Job {
            name: from.to_owned(),
            source: Some(Source { path: &self.model.path, file: &self.model.file, offset }),
            rows,
            columns,
            rope_heads: None,
            conversion,
            outputs: vec![self.prepared.tensors.len()],
        });
        self.prepared.tensors.push(new);
    }

    fn find(&self, name: &str) -> Result<&'a Ct2Tensor, LibraryError> {
        let missing = || LibraryError::MissingTensor {
            path: self.model.path.clone(),
            tensor: name.to_owned(),
            architecture: MODEL_TYPE.into(),
        };
        let tensor = self.model.tensors.get(name).ok_or_else(missing)?;
        if tensor.shape.is_empty() || tensor.shape.contains(&0) {
            return Err(self.wrong_shape(name, tensor, &[]));
        }
        Ok(tensor)
    }

    fn shape<const N: usize>(&self, name: &str, tensor: &Ct2Tensor) -> Result<[u64; N], LibraryError> {
        tensor.shape.as_slice().try_into().map_err(|_| self.wrong_shape(name, tensor, &[]))
    }

    fn wrong_shape(&self, name: &str, tensor: &Ct2Tensor, expected: &[u64]) -> LibraryError {
        LibraryError::Shape {
            path: self.model.path.clone(),
            tensor: name.to_owned(),
            found: tensor.shape.clone(),
            expected: expected.to_vec(),
        }
    }

    fn dtype(&self, name: &str, tensor: &Ct2Tensor) -> Result<Dtype, LibraryError> {
        match tensor.kind {
            ElementType::Float(dtype) => Ok(dtype),
            ElementType::Integer(_) => Err(LibraryError::UnsupportedFeature {
                path: self.model.path.clone(),
                feature: format!("weights in {} (tensor \"{name}\")", tensor.kind.name()),
                remedy: "use the model in float16; Linnet rounds to 8 bits itself when it loads it".into(),
            }),
        }
    }

    fn check_zero(&self, name: &str, tensor: &Ct2Tensor, rows: std::ops::Range<u64>) -> Result<(), LibraryError> {
        let size = self.dtype(name, tensor)?.size();
        let mut bytes = vec![0; ((rows.end - rows.start) * size) as usize];
        let path = &self.model.path;
        self.model.file.read_exact_at(&mut bytes, tensor.offset + rows.start * size).at("read", path)?;
        // The sign of a zero is its last byte's highest bit.
        let is_zero = |element: &[u8]| {
            element.iter().rev().skip(1).all(|&byte| byte == 0) && element.last().is_none_or(|last| last & 0x7f == 0)
        };
        if bytes.chunks_exact(size as usize).all(is_zero) {
            return Ok(());
        }
        Err(LibraryError::UnsupportedFeature {
            path: path.clone(),
            feature: format!("a bias of keys (tensor \"{name}\")"),
            remedy: "Whisper's keys have none; convert OpenAI's model, or one that was trained from it".into(),
        })
    }

    fn refuse_what_is_left(&self) -> Result<(), LibraryError> {
        const NAMES_SHOWN: usize = 4;
        let unknown = |(name, tensor): &(&String, &Ct2Tensor)| !self.taken.contains(*name) && !is_setting(name, tensor);
        let left: Vec<&String> = self.model.tensors.iter().filter(unknown).map(|(name, _)| name).collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(LibraryError::UnexpectedTensors {
            path: self.model.path.clone(),
            architecture: MODEL_TYPE.into(),
            count: left.len(),
            names: left.into_iter().take(NAMES_SHOWN).cloned().collect(),
        })
    }
}

#[cfg(test)]
#[path = "ctranslate2_tests.rs"]
mod tests;
