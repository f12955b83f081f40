//! A provider of one model.

use std::future::ready;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::{
    LoadedCard, ModelCard, ModelLease, ModelProvider, ModelResidency, ModelState, ResidencyStatus, ServedModel,
};
use crate::error::ApiError;
use crate::residency::ModelFacts;

/// A provider of one model that is already in memory and stays there.
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
        let facts = ModelFacts { id: model.id.clone(), created, context_length, ..ModelFacts::default() };
        let residency = ModelResidency { state: ModelState::Ready, pinned: true, ..ModelResidency::default() };
        Self { model: Arc::new(model), card: ModelCard { facts, residency }, aliases: Vec::new() }
    }

    /// Lets requests name the model by `alias` too; the list of models does not show it.
    #[must_use]
    pub fn with_alias(mut self, alias: impl Into<String>) -> Self {
        self.aliases.push(alias.into());
        self
    }

    fn check(&self, name: &str) -> Result<(), ApiError> {
        let id = &self.model.id;
        let short = id.rsplit('/').next().unwrap_or(id);
        let mut names = self.aliases.iter().map(String::as_str).chain([id.as_str(), short]);
        if names.any(|known| known.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        Err(ApiError::model_not_found(name, vec![id.clone()]))
    }

    fn fixed(&self, name: &str) -> Result<ModelCard, ApiError> {
        self.check(name)?;
        let problem = "this server was started with one model, which stays in memory".to_owned();
        Err(ApiError::Unsupported { field: "model".to_owned(), problem })
    }
}

impl ModelProvider for SingleModel {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ModelCard>, ApiError>> {
        Box::pin(ready(Ok(vec![self.card.clone()])))
    }

    fn card<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<ModelCard, ApiError>> {
        Box::pin(ready(self.check(name).map(|()| self.card.clone())))
    }

    fn loaded(&self) -> Vec<LoadedCard> {
        vec![LoadedCard { model: Arc::clone(&self.model), residency: self.card.residency }]
    }

    fn get<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<ModelLease, ApiError>> {
        let checked = name.map_or(Ok(()), |name| self.check(name));
        Box::pin(ready(checked.map(|()| ModelLease::new(Arc::clone(&self.model)))))
    }

    fn residency(&self) -> ResidencyStatus {
        ResidencyStatus { loads: 1, ..ResidencyStatus::default() }
    }

    fn unload<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<ModelCard, ApiError>> {
        Box::pin(ready(self.fixed(name)))
    }

    fn pin<'a>(&'a self, name: &'a str, _pinned: bool) -> BoxFuture<'a, Result<ModelCard, ApiError>> {
        Box::pin(ready(self.fixed(name)))
    }
}
