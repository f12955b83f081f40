//! Where a server's models come from.

use std::sync::Arc;

use futures::future::BoxFuture;
use linnet_models::{ChatTemplate, Tokenizer};
use linnet_runtime::Engine;

use crate::error::ApiError;
use crate::quote::shortened;
use crate::sampling::SamplingOverrides;

/// A model that can be named in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCard {
    /// The name that requests use.
    pub id: String,
    /// When it was installed, in seconds since 1970.
    pub created: u64,
    /// How many tokens a conversation can hold, where that is known without loading the model.
    pub context_length: Option<usize>,
    /// Whether it is in memory.
    pub loaded: bool,
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
    /// The models that can be asked for.
    fn list(&self) -> Vec<ModelCard>;

    /// The card of the model that goes by that name in requests, whether it is loaded or not.
    fn card(&self, name: &str) -> Option<ModelCard> {
        self.list().into_iter().find(|card| card.id == name)
    }

    /// The models in memory.
    fn loaded(&self) -> Vec<Arc<ServedModel>>;

    /// The model of that name, loaded if need be; `None` asks for the default model. A name that is not on the list
    /// must be refused with [`ApiError::ModelNotFound`] before anything is loaded.
    fn get<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Arc<ServedModel>, ApiError>>;
}

/// A provider of one model that is already in memory.
///
/// Requests may also name it by an alias, in other letter case, or without its organisation.
#[derive(Debug, Clone)]
pub struct SingleModel {
    model: Arc<ServedModel>,
    card: ModelCard,
    aliases: Vec<String>,
}

impl SingleModel {
    /// Serves `model`, which was installed at `created` seconds since 1970.
    #[must_use]
    pub fn new(model: ServedModel, created: u64) -> Self {
        let context_length = Some(model.engine.context_length());
        let card = ModelCard { id: model.id.clone(), created, context_length, loaded: true };
        Self { model: Arc::new(model), card, aliases: Vec::new() }
    }

    /// Lets requests name the model by `alias` too; the list of models does not show it.
    #[must_use]
    pub fn with_alias(mut self, alias: impl Into<String>) -> Self {
        self.aliases.push(alias.into());
        self
    }

    fn is_named(&self, name: &str) -> bool {
        let id = &self.model.id;
        let short = id.rsplit('/').next().unwrap_or(id);
        let mut names = self.aliases.iter().map(String::as_str).chain([id.as_str(), short]);
        names.any(|known| known.eq_ignore_ascii_case(name))
    }
}

impl ModelProvider for SingleModel {
    fn list(&self) -> Vec<ModelCard> {
        vec![self.card.clone()]
    }

    fn card(&self, name: &str) -> Option<ModelCard> {
        self.is_named(name).then(|| self.card.clone())
    }

    fn loaded(&self) -> Vec<Arc<ServedModel>> {
        vec![Arc::clone(&self.model)]
    }

    fn get<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Arc<ServedModel>, ApiError>> {
        let result = match name {
            Some(name) if !self.is_named(name) => {
                Err(ApiError::ModelNotFound { model: shortened(name), available: vec![self.model.id.clone()] })
            }
            _ => Ok(Arc::clone(&self.model)),
        };
        Box::pin(std::future::ready(result))
    }
}
