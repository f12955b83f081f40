//! CTranslate2's `model.bin`: names, shapes and types of its tensors, and where their bytes lie.
//!
//! The format is that of CTranslate2's `Model::load` and of its Python `ModelSpec`: little-endian, texts with their length
//! in 16 bits and a zero at the end, tensors one after the other with their headers before their bytes, aliases last.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

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
        let length = file.metadata().at("read", path)?.len();
        let mut reader = Reader { path, input: BufReader::new(&file), position: 0, length };
        let version = u32::from_le_bytes(reader.bytes("the version")?);
        if !VERSIONS.contains(&version) {
            return Err(LibraryError::UnsupportedFeature {
                path: path.to_owned(),
                feature: format!("version {version} of CTranslate2's format"),
                remedy: "convert the model again with CTranslate2 4 (ct2-transformers-converter)".into(),
            });
        }
        let spec = reader.text("the kind of model")?;
        reader.bytes::<4>("the revision")?;
        let count = u32::from_le_bytes(reader.bytes("the number of tensors")?);
        if count > TENSOR_LIMIT {
            return Err(LibraryError::malformed(path, format!("it claims to have {count} tensors")));
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..count {
            let (name, tensor) = reader.tensor()?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(LibraryError::malformed(path, format!("it has the tensor \"{name}\" twice")));
            }
        }
        drop(reader);
        Ok(Self { path: path.to_owned(), file, spec, tensors })
    }
}

struct Reader<'a> {
    path: &'a Path,
    input: BufReader<&'a File>,
    position: u64,
    length: u64,
}

impl Reader<'_> {
    /// Refuses to read beyond the end, before any memory is set aside.
    fn reserve(&self, bytes: u64, what: &str) -> Result<(), LibraryError> {
        let needed = self.position.saturating_add(bytes);
        if needed <= self.length {
            return Ok(());
        }
        Err(LibraryError::Truncated { path: self.path.to_owned(), what: what.to_owned(), needed, actual: self.length })
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], LibraryError> {
        self.reserve(N as u64, what)?;
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).at("read", self.path)?;
        self.position += N as u64;
        Ok(bytes)
    }

    fn text(&mut self, what: &str) -> Result<String, LibraryError> {
        let length = u16::from_le_bytes(self.bytes(what)?);
        self.reserve(u64::from(length), what)?;
        let mut text = vec![0; usize::from(length)];
        self.input.read_exact(&mut text).at("read", self.path)?;
        self.position += u64::from(length);
        let text = text.strip_suffix(&[0]).unwrap_or(&text);
        String::from_utf8(text.to_vec()).map_err(|_| {
            LibraryError::malformed(self.path, format!("{what} is no text; it is not CTranslate2's format"))
        })
    }

    fn tensor(&mut self) -> Result<(String, Ct2Tensor), LibraryError> {
        let name = self.text("a tensor's name")?;
        let [rank] = self.bytes("a tensor's shape")?;
        if rank > DIMENSION_LIMIT {
            return Err(LibraryError::malformed(self.path, format!("tensor \"{name}\" has {rank} dimensions")));
        }
        let mut shape = Vec::with_capacity(usize::from(rank));
        for _ in 0..rank {
            shape.push(u64::from(u32::from_le_bytes(self.bytes("a tensor's shape")?)));
        }
        let [id] = self.bytes("a tensor's type")?;
        let kind = ElementType::of(id).ok_or_else(|| {
            LibraryError::malformed(self.path, format!("tensor \"{name}\" has the unknown type {id}"))
        })?;
        let bytes = u64::from(u32::from_le_bytes(self.bytes("a tensor's size")?));
        let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        if elements.and_then(|elements| elements.checked_mul(kind.bytes())) != Some(bytes) {
            let reason = format!("tensor \"{name}\" of shape {shape:?} has {bytes} bytes");
            return Err(LibraryError::malformed(self.path, reason));
        }
        self.reserve(bytes, &format!("tensor \"{name}\""))?;
        let tensor = Ct2Tensor { shape, kind, offset: self.position, bytes };
        self.input.seek_relative(i64::from(bytes as u32)).at("read", self.path)?;
        self.position += bytes;
        Ok((name, tensor))
    }
}
