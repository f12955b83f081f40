//! GGUF files: metadata, the table of tensors, block formats, and what an architecture's names mean.
//!
//! Layout (ggml's `docs/gguf.md`): magic, version, counts, key-value pairs, tensor table, padding, tensor data.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::LibraryError;

pub(crate) mod architectures;
pub(crate) mod blocks;
pub(crate) mod parse;
pub(crate) mod tensor_type;
pub(crate) mod tokenizer;
pub(crate) mod value;

use tensor_type::TensorType;
use value::Value;

/// One tensor of a GGUF file.
#[derive(Clone, Debug)]
pub(crate) struct GgufTensor {
    pub(crate) name: String,
    pub(crate) kind: TensorType,
    /// Outermost dimension first, as in safetensors (the file itself has the innermost first).
    pub(crate) shape: Vec<u64>,
    /// Offset of the first byte in the file.
    pub(crate) offset: u64,
    /// Length in bytes; zero where the type is not known.
    pub(crate) bytes: u64,
}

impl GgufTensor {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements of a row: the innermost dimension.
    pub(crate) fn columns(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.elements() / self.columns().max(1)
    }
}

/// An open GGUF file whose metadata and table of tensors have been checked.
#[derive(Debug)]
pub(crate) struct GgufFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) metadata: BTreeMap<String, Value>,
    pub(crate) tensors: BTreeMap<String, GgufTensor>,
}

impl GgufFile {
    /// Opens and checks a file.
    pub(crate) fn open(path: &Path) -> Result<Self, LibraryError> {
        parse::open(path)
    }

    /// The text at a key.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.metadata.get(key)?.as_text()
    }

    /// The whole, non-negative number at a key.
    pub(crate) fn integer(&self, key: &str) -> Option<u64> {
        self.metadata.get(key)?.as_integer()
    }

    /// The number at a key.
    pub(crate) fn float(&self, key: &str) -> Option<f32> {
        self.metadata.get(key)?.as_float()
    }

    /// The truth value at a key.
    pub(crate) fn boolean(&self, key: &str) -> Option<bool> {
        self.metadata.get(key)?.as_boolean()
    }

    /// The array at a key.
    pub(crate) fn array(&self, key: &str) -> Option<&[Value]> {
        self.metadata.get(key)?.as_array()
    }

    /// `general.architecture`.
    pub(crate) fn architecture(&self) -> Result<&str, LibraryError> {
        self.text("general.architecture")
            .ok_or_else(|| LibraryError::malformed(&self.path, "its metadata lacks general.architecture"))
    }
}
