//! What is known about one model of the store.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::origin::Origin;
use super::record::Record;
use crate::config::Config;
use crate::disk;
use crate::error::LibraryError;
use crate::layers;
use crate::tokenizer_files;
use crate::weights::Dtype;
use crate::weights::folder::Weights;

/// What a model is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// It answers with text: chat and completions.
    #[default]
    Text,
    /// It hears speech: transcription and dictation.
    Speech,
}

impl ModelKind {
    /// The `model_type`s of speech models.
    const SPEECH: [&str; 1] = ["whisper"];

    /// What a model of this `model_type` is for; whatever is not known to hear is taken for a text model.
    pub fn of(model_type: &str) -> Self {
        if Self::SPEECH.contains(&model_type) { Self::Speech } else { Self::Text }
    }
}

/// A model of the store. Everything but name, path and size may be unknown for a broken folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelEntry {
    /// `model` or `organisation/model`.
    pub name: String,
    /// The model's folder.
    pub path: PathBuf,
    /// What it is for; [`ModelKind::Text`] where config.json does not say.
    pub kind: ModelKind,
    /// `model_type` of its config.json.
    pub architecture: Option<String>,
    /// Number of weights, unpacked.
    pub parameters: Option<u64>,
    /// Bytes of all its files.
    pub size_on_disk: u64,
    /// For people: "4-bit, group 64", "bf16".
    pub quantization: Option<String>,
    /// Tokens of context that the model was trained for.
    pub context_length: Option<u64>,
    /// Where it came from.
    pub source: Option<Origin>,
    /// When it was imported: seconds since 1970 in UTC.
    pub created: Option<u64>,
    /// What the import changed or lost.
    pub notes: Vec<String>,
    /// Why the model cannot be used.
    pub problem: Option<String>,
}

impl ModelEntry {
    /// Reads what a folder says about itself; only headers are read.
    pub(crate) fn read(name: &str, path: &Path) -> Self {
        let record = Record::read(path);
        let mut entry = ModelEntry {
            name: name.to_owned(),
            path: path.to_owned(),
            kind: ModelKind::default(),
            architecture: None,
            parameters: None,
            size_on_disk: disk::size_of_folder(path),
            quantization: None,
            context_length: None,
            source: record.as_ref().map(|record| record.source.clone()),
            created: record.as_ref().map(|record| record.created),
            notes: record.map(|record| record.notes).unwrap_or_default(),
            problem: None,
        };
        entry.problem = entry.fill().err().map(|error| error.to_string());
        entry
    }

    fn fill(&mut self) -> Result<(), LibraryError> {
        let config = Config::read(&self.path)?;
        self.architecture = Some(config.model_type()?.to_owned());
        self.kind = ModelKind::of(config.model_type()?);
        self.context_length = config.integer("max_position_embeddings");
        let quantization = config.quantization()?;
        let weights = Weights::open(&self.path)?;
        let layers = layers::layers(&config, &weights, quantization.as_ref())?;
        self.parameters = Some(layers::parameters(&layers));
        self.quantization = Some(match quantization {
            Some(quantization) => quantization.describe(),
            None => dense_name(&weights),
        });
        tokenizer_files::check_folder(&self.path)
            .map_err(|reason| LibraryError::Tokenizer { path: self.path.clone(), reason })?;
        Ok(())
    }
}

/// The element type that most bytes of a dense model have.
pub(crate) fn dense_name(weights: &Weights) -> String {
    let bytes = |dtype: Dtype| -> u64 {
        weights.iter().filter(|(_, tensor)| tensor.dtype == dtype).map(|(_, tensor)| tensor.bytes).sum()
    };
    let widest = [Dtype::Bf16, Dtype::F16, Dtype::F32].into_iter().max_by_key(|dtype| bytes(*dtype));
    widest.map_or_else(String::new, |dtype| dtype.name().to_lowercase())
}
