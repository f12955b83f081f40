//! What the metadata and the tensor names of each GGUF architecture mean in MLX's terms: one file per architecture,
//! and one line in [`ARCHITECTURES`].

use serde_json::{Map, Value};

use super::GgufFile;
use crate::error::LibraryError;

mod llama;

/// A GGUF architecture that can be imported.
pub(crate) struct Architecture {
    /// `general.architecture`.
    pub(crate) name: &'static str,
    /// `model_type` of the resulting `config.json`.
    pub(crate) model_type: &'static str,
    /// Makes the plan of an import out of the metadata and the table of tensors.
    pub(crate) layout: fn(&GgufFile) -> Result<Layout, LibraryError>,
}

const ARCHITECTURES: &[Architecture] = &[llama::ARCHITECTURE];

/// What an import will make.
pub(crate) struct Layout {
    /// `config.json` without quantization and token ids.
    pub(crate) config: Map<String, Value>,
    /// The tensors to be written, in the order of the model's layers.
    pub(crate) targets: Vec<Target>,
    /// Remarks for the user.
    pub(crate) notes: Vec<String>,
}

/// A tensor of the resulting model.
pub(crate) struct Target {
    /// The tensor it comes from; `None` is filled with zeros.
    pub(crate) source: Option<String>,
    /// Its name in MLX's layout.
    pub(crate) name: String,
    /// Outermost dimension first.
    pub(crate) shape: Vec<u64>,
    /// Whether it is the weight of a linear layer or of an embedding, which may be quantized.
    pub(crate) quantizable: bool,
    /// Rows of so many heads lie interleaved for rope and must be put back.
    pub(crate) rope_heads: Option<u64>,
}

/// The architecture of a file, if it can be imported and the engine runs it.
pub(crate) fn find(file: &GgufFile, supported: &[&str]) -> Result<&'static Architecture, LibraryError> {
    let name = file.architecture()?;
    ARCHITECTURES
        .iter()
        .find(|architecture| architecture.name == name && supported.contains(&architecture.model_type))
        .ok_or_else(|| LibraryError::UnsupportedArchitecture {
            path: file.path.clone(),
            architecture: name.to_owned(),
            supported: ARCHITECTURES
                .iter()
                .filter(|architecture| supported.contains(&architecture.model_type))
                .map(|architecture| architecture.name.to_owned())
                .collect(),
        })
}
