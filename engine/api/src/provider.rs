//! Where a server's models come from.

mod lease;
mod single;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use linnet_models::{ChatTemplate, Tokenizer};
use linnet_runtime::Engine;

use crate::error::ApiError;
use crate::residency::ModelFacts;
use crate::sampling::SamplingOverrides;

pub use lease::ModelLease;
pub use single::SingleModel;

/// A model that can be named in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCard {
    /// What it is.
    pub facts: ModelFacts,
    /// Whether it is in memory.
    pub residency: ModelResidency,
}

/// A model's place in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelResidency {
    /// How far it is loaded.
    pub state: ModelState,
    /// Whether it stays until it is unpinned.
    pub pinned: bool,
    /// Requests that use it or wait for it.
    pub requests: usize,
    /// Bytes that it takes and has been promised.
    pub memory_bytes: u64,
    /// How long nobody has used it.
    pub idle_for: Duration,
}

/// How far a model is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModelState {
    /// On disk only.
    #[default]
    OnDisk,
    /// On its way into memory.
    Loading,
    /// In memory.
    Ready,
    /// On its way out.
    Unloading,
}

impl ModelState {
    /// The state's name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDisk => "on_disk",
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Unloading => "unloading",
        }
    }
}

impl fmt::Display for ModelState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What the models in memory take together, and how they came and went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResidencyStatus {
    /// Bytes that models may take in all; `None` where nothing limits them.
    pub budget_bytes: Option<u64>,
    /// Bytes that they take and have been promised.
    pub used_bytes: u64,
    /// Bytes that the process takes, as measured.
    pub process_bytes: Option<u64>,
    /// Bytes that the machine could still give.
    pub available_bytes: Option<u64>,
    /// Models loaded since the start.
    pub loads: u64,
    /// Loads that failed or were refused.
    pub failed_loads: u64,
    /// Models unloaded because others needed the room.
    pub evictions: u64,
    /// Models unloaded because nobody used them.
    pub idle_unloads: u64,
}

/// A model in memory, with all that a request needs of it.
#[derive(Debug)]
pub struct ServedModel {
    /// The name that requests use.
    pub id: String,
    /// The thread that runs it.
    pub engine: Engine,
    /// Text to tokens.
    pub tokenizer: Tokenizer,
    /// Messages to text; base models have none.
    pub template: Option<ChatTemplate>,
    /// The sampling values that the model's makers recommend.
    pub sampling: SamplingOverrides,
    /// Bytes of the longest token: no text has fewer tokens than its bytes divided by this.
    longest_token: usize,
}

impl ServedModel {
    /// A model that goes by `id`.
    #[must_use]
    pub fn new(
        id: impl Into<String>,
        engine: Engine,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        sampling: SamplingOverrides,
    ) -> Self {
        let ids = 0..u32::try_from(tokenizer.vocabulary_size()).unwrap_or(u32::MAX);
        let longest_token = ids.filter_map(|id| tokenizer.token_bytes(id)).map(|bytes| bytes.len()).max().unwrap_or(1);
        Self { id: id.into(), engine, tokenizer, template, sampling, longest_token: longest_token.max(1) }
    }

    /// How many tokens a text of so many bytes has at least.
    pub(crate) fn fewest_tokens(&self, bytes: usize) -> usize {
        bytes / self.longest_token
    }
}

/// A server's models: a single one, or a store that loads them on demand.
pub trait ModelProvider: Send + Sync {
    /// The models that can be asked for, in memory or not.
    fn list(&self) -> BoxFuture<'_, Result<Vec<ModelCard>, ApiError>>;

    /// The card of the model that goes by that name in requests, whether it is in memory or not.
    fn card<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<ModelCard, ApiError>>;

    /// The models in memory. Must not block.
    fn loaded(&self) -> Vec<LoadedCard>;

    /// The model of that name, loaded if need be; `None` asks for the default model. It stays in memory for as long as the
    /// lease lives. A name that is not on the list must be refused with [`ApiError::ModelNotFound`] before anything is
    /// loaded.
    fn get<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<ModelLease, ApiError>>;

    /// What the models take together. Must not block for long.
    fn residency(&self) -> ResidencyStatus;

    /// Takes a model out of memory.
    ///
    /// # Errors
    /// When requests use it, or this provider's models are fixed.
    fn unload<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<ModelCard, ApiError>>;

    /// Keeps a model in memory, loading it if need be, or lets it go again when its time comes.
    ///
    /// # Errors
    /// When it cannot be loaded, or this provider's models are fixed.
    fn pin<'a>(&'a self, name: &'a str, pinned: bool) -> BoxFuture<'a, Result<ModelCard, ApiError>>;
}

/// A model in memory.
#[derive(Debug, Clone)]
pub struct LoadedCard {
    /// The model.
    pub model: Arc<ServedModel>,
    /// Its place in memory.
    pub residency: ModelResidency,
}
