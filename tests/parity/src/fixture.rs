//! A fixture on disk.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

/// What a reference computed with a tiny model.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// The folder: the model's, with the reference beside it.
    pub folder: PathBuf,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// How many of them each prefill step took, in order.
    pub chunks: Vec<usize>,
    /// The tokens decoded greedily after the prompt.
    pub tokens: Vec<u32>,
    /// The positions whose logits are kept, rising.
    pub rows: Vec<usize>,
    /// The kept logits, one row after the other, computed in f32.
    pub logits: Vec<f32>,
    /// The same, with keys and values rounded to f16 where they are kept.
    pub rounded_kv_logits: Vec<f32>,
}

/// A fixture that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FixtureError {
    /// A file or folder could not be read.
    #[error("{path}: {source}; `make fixtures` makes the fixtures again")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The reference is not a safetensors file, or lacks a tensor.
    #[error("{path}: {source}; `make fixtures` makes the fixtures again")]
    Reference {
        /// The file.
        path: PathBuf,
        /// Why.
        source: safetensors::SafeTensorError,
    },
    /// A tensor holds something else than a fixture should.
    #[error("{path}: {problem}; `make fixtures` makes the fixtures again")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl Fixture {
    /// The committed fixtures of an architecture family, by name.
    ///
    /// # Errors
    /// When the folder or a fixture in it cannot be read, or there is none.
    pub fn family(family: &str) -> Result<Vec<Self>, FixtureError> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(family);
        folders(&folder)?.iter().map(|folder| Self::open(folder)).collect()
    }

    /// Reads the fixture in `folder`.
    ///
    /// # Errors
    /// When the reference is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, FixtureError> {
        let path = folder.join("reference.safetensors");
        let bytes = fs::read(&path).map_err(|source| FixtureError::Read { path: path.clone(), source })?;
        let reader = Reader::new(&path, &bytes)?;
        let fixture = Self {
            folder: folder.to_owned(),
            prompt: reader.numbers("prompt")?,
            chunks: reader.numbers("chunks")?,
            tokens: reader.numbers("tokens")?,
            rows: reader.numbers("rows")?,
            logits: reader.floats("logits")?,
            rounded_kv_logits: reader.floats("kv16.logits")?,
        };
        let positions = fixture.prompt.len() + fixture.tokens.len();
        let sound = fixture.chunks.iter().sum::<usize>() == fixture.prompt.len()
            && !fixture.rows.is_empty()
            && fixture.rows.is_sorted_by(|a, b| a < b)
            && fixture.rows.iter().all(|&row| row < positions)
            && fixture.logits.len().is_multiple_of(fixture.rows.len())
            && fixture.logits.len() == fixture.rounded_kv_logits.len();
        if sound { Ok(fixture) } else { Err(reader.content("its parts do not fit together".to_owned())) }
    }

    /// The fixture's name: its folder's.
    #[must_use]
    pub fn name(&self) -> String {
        self.folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Which of the kept rows was computed at `position`.
    #[must_use]
    pub fn row_at(&self, position: usize) -> Option<usize> {
        self.rows.binary_search(&position).ok()
    }

    /// How many logits a row has.
    #[must_use]
    pub fn vocabulary_size(&self) -> usize {
        self.logits.len() / self.rows.len()
    }
}

/// What is in a folder of fixtures, by name.
pub(crate) fn folders(folder: &Path) -> Result<Vec<PathBuf>, FixtureError> {
    let read_error = |source| FixtureError::Read { path: folder.to_owned(), source };
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).map_err(read_error)? {
        folders.push(entry.map_err(read_error)?.path());
    }
    folders.sort();
    if folders.is_empty() {
        return Err(FixtureError::Content { path: folder.to_owned(), problem: "there is no fixture here".to_owned() });
    }
    Ok(folders)
}

struct Reader<'a> {
    path: &'a Path,
    tensors: SafeTensors<'a>,
}

impl<'a> Reader<'a> {
    fn new(path: &'a Path, bytes: &'a [u8]) -> Result<Self, FixtureError> {
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|source| FixtureError::Reference { path: path.to_owned(), source })?;
        Ok(Self { path, tensors })
    }

    fn content(&self, problem: String) -> FixtureError {
        FixtureError::Content { path: self.path.to_owned(), problem }
    }

    /// The four-byte elements of a tensor.
    fn words(&self, name: &str, dtype: Dtype) -> Result<impl Iterator<Item = [u8; 4]> + use<'_>, FixtureError> {
        let tensor = self
            .tensors
            .tensor(name)
            .map_err(|source| FixtureError::Reference { path: self.path.to_owned(), source })?;
        if tensor.dtype() != dtype {
            return Err(self.content(format!("`{name}` is {:?}, not {dtype:?}", tensor.dtype())));
        }
        Ok(tensor.data().as_chunks::<4>().0.iter().copied())
    }

    fn numbers<T: TryFrom<i32>>(&self, name: &str) -> Result<Vec<T>, FixtureError> {
        self.words(name, Dtype::I32)?
            .map(i32::from_le_bytes)
            .map(|value| T::try_from(value).map_err(|_| self.content(format!("`{name}` holds {value}"))))
            .collect()
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, FixtureError> {
        Ok(self.words(name, Dtype::F32)?.map(f32::from_le_bytes).collect())
    }
}
