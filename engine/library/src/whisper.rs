//! Whisper models in the forms that others store them in, as sources of an import: what each holds becomes a list of
//! [`Part`]s under our names, and one plan is made from it (docs/decisions/whisper-folder.md).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use half::f16;

use crate::affine::Affine;
use crate::config::Quantization;
use crate::convert::{Conversion, Job, Source, read_dense};
use crate::error::{IoContext as _, LibraryError};
use crate::gguf::GgufTensor;
use crate::gguf::tensor_type::{Mapping, TensorType};
use crate::import::folder::quantized_tensors;
use crate::import::gguf::scan_tensor;
use crate::import::{ImportOptions, Prepared, detect};
use crate::weights::Dtype;
use crate::weights::write::NewTensor;

pub(crate) mod dimensions;
mod folder;
pub(crate) mod ggml;
mod names;
mod npz;
#[cfg(test)]
mod tests;
mod tokenizer;

use dimensions::Dimensions;
use tokenizer::Tokenizer;

/// Bytes that are looked at together when types are chosen.
const SCAN_BYTES: u64 = 4 << 20;

/// A form that Whisper models are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A folder whose `config.json` says `whisper`: our own, mlx-whisper's or Hugging Face's.
    Folder,
    /// A file of whisper.cpp.
    Ggml,
}

/// Opens and checks a model of that form.
pub(crate) fn open(form: Form, path: &Path) -> Result<WhisperModel, LibraryError> {
    match form {
        Form::Folder => folder::open(path),
        Form::Ggml => ggml::open(path),
    }
}

/// A place in one of a model's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) file: usize,
    /// Of the first byte.
    pub(crate) offset: u64,
}

/// What a part's elements are.
#[derive(Clone, Debug)]
pub(crate) enum Element {
    /// Numbers.
    Dense(Dtype),
    /// ggml's blocks.
    Blocks(TensorType),
    /// MLX's packed integers, whose scales and biases of that type lie elsewhere.
    Affine { affine: Affine, scales: Place, biases: Place, dtype: Dtype },
}

impl Element {
    /// For people.
    pub(crate) fn name(&self) -> String {
        match self {
            Element::Dense(dtype) => dtype.name().to_owned(),
            Element::Blocks(kind) => kind.name(),
            Element::Affine { affine, .. } => affine.to_string(),
        }
    }

    /// Bits of an element, scales not counted.
    pub(crate) fn bits(&self) -> u32 {
        match self {
            Element::Dense(dtype) => dtype.size() as u32 * 8,
            Element::Blocks(kind) => kind.bits(),
            Element::Affine { affine, .. } => affine.bits,
        }
    }
}

/// A tensor of ours, as the source has it.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Our name.
    pub(crate) name: String,
    /// The source's name.
    pub(crate) from: String,
    pub(crate) place: Place,
    /// Our shape, unpacked.
    pub(crate) shape: Vec<u64>,
    pub(crate) element: Element,
    /// Whether it is a convolution whose rows are `[in, kernel]`, as PyTorch has them, rather than `[kernel, in]`.
    pub(crate) kernels_last: bool,
}

impl Part {
    /// Number of weights.
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes in the source, without an affine part's scales and biases.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.element {
            Element::Dense(dtype) => self.elements() * dtype.size(),
            Element::Blocks(kind) => {
                kind.layout().map_or(0, |layout| self.elements() / layout.elements as u64 * layout.bytes as u64)
            }
            Element::Affine { affine, .. } => self.elements() * u64::from(affine.bits) / 8,
        }
    }

    /// The weight of a linear layer or of the embedding: what may be quantized.
    fn is_matrix(&self) -> bool {
        self.shape.len() == 2 && self.name.ends_with(".weight")
    }

    /// Rows and columns as they are converted: the first axis, and all others together; a vector is one row.
    fn rows_and_columns(&self) -> (u64, usize) {
        match self.shape.as_slice() {
            [] => (1, 1),
            [only] => (1, *only as usize),
            [rows, rest @ ..] => (*rows, rest.iter().product::<u64>() as usize),
        }
    }

    fn layer(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }
}

/// A Whisper model that has been opened.
pub(crate) struct WhisperModel {
    pub(crate) path: PathBuf,
    /// "mlx", "huggingface" or "ggml".
    pub(crate) format: &'static str,
    pub(crate) dimensions: Dimensions,
    /// (layer, head) of the decoder's cross attention; empty where nobody names them.
    pub(crate) alignment_heads: Vec<(u64, u64)>,
    pub(crate) files: Vec<(PathBuf, File)>,
    pub(crate) parts: Vec<Part>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) notes: Vec<String>,
}

impl WhisperModel {
    /// Checks the model in full and plans its import.
    pub(crate) fn prepare(&self, options: &ImportOptions<'_>) -> Result<Prepared<'_>, LibraryError> {
        self.dimensions.check(&self.path)?;
        let found: BTreeMap<&str, &[u64]> =
            self.parts.iter().map(|part| (part.name.as_str(), part.shape.as_slice())).collect();
        self.dimensions.check_tensors(&self.path, &found)?;
        let companions = self.tokenizer.companions(&self.path, &self.dimensions)?;
        let dense = self.dense_type()?;
        let mut prepared = Prepared {
            name: detect::default_name(&self.path),
            format: self.format,
            config: self.dimensions.config(&self.alignment_heads),
            companions,
            tensors: Vec::new(),
            jobs: Vec::new(),
            notes: self.notes.clone(),
        };
        if self.alignment_heads.is_empty() {
            let note = "nobody says which attention heads follow the audio in time: times of words are less exact";
            prepared.notes.push(note.into());
        }
        let is_quantized = self.parts.iter().any(|part| !matches!(part.element, Element::Dense(_)));
        if is_quantized && options.quantize.is_some() {
            return Err(LibraryError::Quantize {
                path: self.path.clone(),
                reason: "it is quantized already; import it as it is, or start from the model's dense weights".into(),
            });
        }
        let mut kinds = Vec::new();
        for part in &self.parts {
            let affine = self.add(&mut prepared, part, dense, options.quantize)?;
            if part.is_matrix() {
                kinds.push((part.layer().to_owned(), affine, part.elements()));
            }
        }
        if let Some(quantization) = Quantization::from_layers(kinds) {
            prepared.config.insert("quantization".into(), quantization.to_json());
        }
        Ok(prepared)
    }

    /// The kind of tokenizer, for people.
    pub(crate) fn tokenizer_kind(&self) -> Result<&'static str, LibraryError> {
        self.tokenizer.companions(&self.path, &self.dimensions).map(|_| "byte-level BPE (whisper)")
    }

    fn source(&self, place: Place) -> Result<Source<'_>, LibraryError> {
        let (path, file) = self
            .files
            .get(place.file)
            .ok_or_else(|| LibraryError::malformed(&self.path, "a tensor lies in a file that was not opened"))?;
        Ok(Source { path, file, offset: place.offset })
    }

    /// The type that all dense tensors get: the one they have; where they differ, f16 if it holds all of them exactly,
    /// else f32. (whisper.cpp's f16 files have biases in f32 that are f16 numbers.)
    fn dense_type(&self) -> Result<Dtype, LibraryError> {
        let mut types: Vec<Dtype> = Vec::new();
        for part in &self.parts {
            if let Element::Dense(dtype) = part.element
                && !types.contains(&dtype)
            {
                types.push(dtype);
            }
        }
        match types.as_slice() {
            [only] => return Ok(*only),
            _ if types.contains(&Dtype::Bf16) => return Ok(Dtype::F32),
            _ => {}
        }
        for part in &self.parts {
            if matches!(part.element, Element::Dense(Dtype::F32)) && !self.holds_halves(part)? {
                return Ok(Dtype::F32);
            }
        }
        Ok(Dtype::F16)
    }

    /// Whether f16 holds all numbers of a part in f32.
    fn holds_halves(&self, part: &Part) -> Result<bool, LibraryError> {
        let source = self.source(part.place)?;
        let (mut offset, mut bytes, mut values) = (0, Vec::new(), Vec::new());
        while offset < part.bytes() {
            bytes.resize(SCAN_BYTES.min(part.bytes() - offset) as usize, 0);
            source.file.read_exact_at(&mut bytes, source.offset + offset).at("read", source.path)?;
            values.resize(bytes.len() / 4, 0.0);
            read_dense(Dtype::F32, &bytes, &mut values);
            if values.iter().any(|&value: &f32| f16::from_f32(value).to_f32() != value) {
                return Ok(false);
            }
            offset += SCAN_BYTES;
        }
        Ok(true)
    }

    /// Adds what fills one of our tensors; returns how it is quantized.
    fn add<'a>(
        &'a self,
        prepared: &mut Prepared<'a>,
        part: &'a Part,
        dense: Dtype,
        wish: Option<Affine>,
    ) -> Result<Option<Affine>, LibraryError> {
        let source = self.source(part.place)?;
        let (rows, columns) = part.rows_and_columns();
        let first = prepared.tensors.len();
        let fits = |affine: &Affine| part.is_matrix() && columns.is_multiple_of(affine.group_size as usize);
        let (conversion, affine, scales) = match &part.element {
            Element::Affine { affine, scales, biases, dtype } => {
                let [weight, scale, bias] = quantized_tensors(part.layer(), rows, columns, *affine, *dtype);
                for (tensor, place) in [(weight, part.place), (scale, *scales), (bias, *biases)] {
                    self.add_copy(prepared, &part.from, place, tensor)?;
                }
                return Ok(Some(*affine));
            }
            Element::Blocks(kind) => {
                let scales = scales_type(part, *kind, source, dense)?;
                match kind.mapping().filter(|_| part.is_matrix()) {
                    Some(Mapping::Exact(affine)) => (Conversion::Blocks(*kind, affine, scales), Some(affine), scales),
                    Some(Mapping::Requantized(affine)) => {
                        (Conversion::Requantize(*kind, affine, scales), Some(affine), scales)
                    }
                    None => {
                        return Err(LibraryError::UnsupportedFeature {
                            path: self.path.clone(),
                            feature: format!("the element type {} in tensor \"{}\"", kind.name(), part.from),
                            remedy: "use a file of the model in f16, q8_0, q5_1, q5_0, q4_1 or q4_0".into(),
                        });
                    }
                }
            }
            Element::Dense(from) if part.kernels_last => {
                let kernel = part.shape.get(1).copied().unwrap_or(1) as usize;
                (Conversion::Kernels(*from, dense, kernel), None, dense)
            }
            Element::Dense(from) => match wish.filter(fits) {
                Some(affine) => (Conversion::Quantize(*from, affine), Some(affine), *from),
                None if *from == dense => (Conversion::Copy(from.size()), None, dense),
                None => (Conversion::Cast(*from, dense), None, dense),
            },
        };
        let outputs = match affine {
            Some(affine) => {
                prepared.tensors.extend(quantized_tensors(part.layer(), rows, columns, affine, scales));
                vec![first, first + 1, first + 2]
            }
            None => {
                let shape = part.shape.clone();
                prepared.tensors.push(NewTensor { name: part.name.clone(), dtype: dense, shape });
                vec![first]
            }
        };
        prepared.jobs.push(Job {
            name: part.from.clone(),
            source: Some(source),
            rows,
            columns,
            rope_heads: None,
            conversion,
            outputs,
        });
        Ok(affine)
    }

    /// Adds a tensor whose bytes stay as they are.
    fn add_copy<'a>(
        &'a self,
        prepared: &mut Prepared<'a>,
        from: &str,
        place: Place,
        tensor: NewTensor,
    ) -> Result<(), LibraryError> {
        let columns = tensor.shape.last().copied().unwrap_or(1).max(1);
        prepared.jobs.push(Job {
            name: from.to_owned(),
            source: Some(self.source(place)?),
            rows: tensor.shape.iter().product::<u64>() / columns,
            columns: columns as usize,
            rope_heads: None,
            conversion: Conversion::Copy(tensor.dtype.size()),
            outputs: vec![prepared.tensors.len()],
        });
        prepared.tensors.push(tensor);
        Ok(())
    }
}

/// The type of a quantized tensor's scales: that of the dense tensors, where it holds them.
fn scales_type(part: &Part, kind: TensorType, source: Source<'_>, dense: Dtype) -> Result<Dtype, LibraryError> {
    let tensor = GgufTensor {
        name: part.from.clone(),
        kind,
        shape: part.shape.clone(),
        offset: source.offset,
        bytes: part.bytes(),
    };
    let range = scan_tensor(source.path, source.file, &tensor)?;
    Ok(if range.too_large || range.rounded { Dtype::F32 } else { dense })
}
