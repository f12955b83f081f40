//! What the manager knows of the models on disk.

use linnet_runtime::MemoryEstimate;

use crate::error::ApiError;
use crate::provider::ServedModel;

/// What a model does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModelKind {
    /// Text to text.
    #[default]
    Text,
    /// Speech to text.
    Speech,
}

impl ModelKind {
    /// The kind's name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Speech => "speech",
        }
    }
}

/// Facts about a model on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// The name that requests use.
    pub id: String,
    /// What it does.
    pub kind: ModelKind,
    /// When it was installed, in seconds since 1970.
    pub created: u64,
    /// How many tokens a conversation can hold, where that is known without loading the model.
    pub context_length: Option<usize>,
    /// The family it belongs to.
    pub architecture: Option<String>,
    /// How its weights are held, for people.
    pub quantization: Option<String>,
    /// How many weights it has.
    pub parameters: Option<u64>,
    /// Bytes of its files.
    pub size_on_disk: Option<u64>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// The models on disk. All calls may block; they are made on threads that may.
pub trait ModelSource: Send + Sync + 'static {
    /// All models, usable or not.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn list(&self) -> Result<Vec<ModelFacts>, ApiError>;

    /// The model that goes by `name` in requests; `None` asks for the default model. Only names may find a model: a
    /// request must not reach a folder by its path.
    ///
    /// # Errors
    /// [`ApiError::ModelNotFound`], or what is wrong with the model.
    fn find(&self, name: Option<&str>) -> Result<ModelFacts, ApiError>;

    /// What the model will take in memory.
    ///
    /// # Errors
    /// When its files do not say.
    fn estimate(&self, id: &str) -> Result<MemoryEstimate, ApiError>;

    /// Loads the model.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    fn load(&self, id: &str) -> Result<ServedModel, ApiError>;
}
