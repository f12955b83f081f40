//! CTranslate2's `model.bin`: names, shapes and types of its tensors, and where their bytes lie.
//!
//! The format is that of CTranslate2's `Model::load` and of its Python `ModelSpec`: little-endian, texts with their length
//! in 16 bits and a zero at the end, tensors one after the other with their headers before their bytes, aliases last.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::bytes::Reader;
use crate::error::{IoContext as _, LibraryError};
use crate::weights::Dtype;

/// Name of the file.
pub(crate) const MODEL_NAME: &str = "model.bin";
/// The versions of the container whose headers are read: since 2019, and the newest.
const VERSIONS: std::ops::RangeInclusive<u32> = 4..=6;
/// Tensors of a file; large Whisper models have some thousand.
const TENSOR_LIMIT: u32 = 1 << 17;
const DIMENSION_LIMIT: u8 = 8;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementType {
    /// A float that safetensors have too.
    Float(Dtype),
    /// A whole number of so many bytes: quantized weights and settings.
    Integer(u64),
}

impl ElementType {
    fn of(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::Float(Dtype::F32),
            1 => Self::Integer(1),
            2 => Self::Integer(2),
            3 => Self::Integer(4),
            4 => Self::Float(Dtype::F16),
            5 => Self::Float(Dtype::Bf16),
            _ => return None,
        })
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Float(dtype) => dtype.size(),
            Self::Integer(bytes) => bytes,
        }
    }

    /// For people.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Float(dtype) => dtype.name().to_owned(),
            Self::Integer(bytes) => format!("INT{}", 8 * bytes),
        }
    }
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ct2Tensor {
    pub(crate) shape: Vec<u64>,
    pub(crate) kind: ElementType,
    /// Of its first byte in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// An open `model.bin`.
#[derive(Debug)]
pub(crate) struct Ct2File {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// What the model was converted as: `WhisperSpec` and others.
    pub(crate) spec: String,
    /// By name; second names of a tensor are left out.
    pub(crate) tensors: BTreeMap<String, Ct2Tensor>,
}

impl Ct2File {
    /// Reads the headers of a file.
    pub(crate) fn open(path: &Path) -> Result<Self, LibraryError> {
        let file = File::open(path).at("open", path)?;
        let mut reader = Reader::new(path, &file)?;
        let version = reader.u32("the version")?;
        if !VERSIONS.contains(&version) {
            return Err(LibraryError::UnsupportedFeature {
                path: path.to_owned(),
                feature: format!("version {version} of CTranslate2's format"),
                remedy: "convert the model again with CTranslate2 4 (ct2-transformers-converter)".into(),
            });
        }
        let spec = text(&mut reader, path, "the kind of model")?;
        reader.u32("the revision")?;
        let count = reader.count("the number of tensors", TENSOR_LIMIT)?;
        let mut tensors = BTreeMap::new();
        for _ in 0..count {
            let (name, tensor) = tensor(&mut reader, path)?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(LibraryError::malformed(path, format!("it has the tensor \"{name}\" twice")));
            }
        }
        drop(reader);
        Ok(Self { path: path.to_owned(), file, spec, tensors })
    }
}

/// A text and the zero behind it.
fn text(reader: &mut Reader<'_>, path: &Path, what: &str) -> Result<String, LibraryError> {
    let length = u16::from_le_bytes(reader.array(what)?);
    let text = reader.take(u64::from(length), what)?;
    let text = text.strip_suffix(&[0]).unwrap_or(&text);
    String::from_utf8(text.to_vec())
        .map_err(|_| LibraryError::malformed(path, format!("{what} is no text; it is not CTranslate2's format")))
}

fn tensor(reader: &mut Reader<'_>, path: &Path) -> Result<(String, Ct2Tensor), LibraryError> {
    let name = text(reader, path, "a tensor's name")?;
    let [rank] = reader.array("a tensor's shape")?;
    if rank > DIMENSION_LIMIT {
        return Err(reader.malformed(format!("tensor \"{name}\" has {rank} dimensions")));
    }
    let mut shape = Vec::with_capacity(usize::from(rank));
    for _ in 0..rank {
        shape.push(u64::from(reader.u32("a tensor's shape")?));
    }
    let [id] = reader.array("a tensor's type")?;
    let kind =
        ElementType::of(id).ok_or_else(|| reader.malformed(format!("tensor \"{name}\" has the unknown type {id}")))?;
    let bytes = u64::from(reader.u32("a tensor's size")?);
    let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    if elements.and_then(|elements| elements.checked_mul(kind.bytes())) != Some(bytes) {
        return Err(reader.malformed(format!("tensor \"{name}\" of shape {shape:?} has {bytes} bytes")));
    }
    let offset = reader.position();
    reader.skip(bytes, &format!("tensor \"{name}\""))?;
    Ok((name, Ct2Tensor { shape, kind, offset, bytes }))
}
