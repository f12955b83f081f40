//! The store's models, as the server's manager wants them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use linnet_api::{ApiError, ModelFacts, ModelSource, SamplingOverrides, ServedModel};
use linnet_library::{LibraryError, ModelEntry, ModelKind, STARTER, Store};
use linnet_runtime::ssd::SsdTier;
use linnet_runtime::{EngineOptions, LoadOptions, LoadedModel, MemoryEstimate, estimate_memory, load_model};

use crate::models::{self, ChoiceError, RunArguments};

/// The store, and how its models are run.
pub(crate) struct StoreSource {
    store: Store,
    /// Models that were named when the server was started, wherever they lie; the first is the default model.
    named: Vec<ModelEntry>,
    run: RunArguments,
    engine: EngineOptions,
    /// Where all models keep what is to survive a restart.
    disk: Option<Arc<SsdTier>>,
}

impl StoreSource {
    /// A source of the models of `store` and of those that were `named`.
    pub(crate) fn new(
        store: Store,
        named: Vec<ModelEntry>,
        run: RunArguments,
        engine: EngineOptions,
        disk: Option<Arc<SsdTier>>,
    ) -> Self {
        Self { store, named, run, engine, disk }
    }

    fn load_options(&self, entry: &ModelEntry) -> LoadOptions {
        LoadOptions { disk: self.disk.clone(), ..models::load_options(entry, &self.run, self.engine) }
    }

    /// The text models of the store, then those that lie elsewhere.
    fn entries(&self) -> Result<Vec<ModelEntry>, ApiError> {
        let mut entries = self.store.list().map_err(|error| broken("the models", &error))?;
        entries.retain(|entry| entry.kind == ModelKind::Text);
        for named in &self.named {
            if !entries.iter().any(|entry| entry.name == named.name) {
                entries.push(named.clone());
            }
        }
        Ok(entries)
    }

    fn entry(&self, name: &str) -> Result<ModelEntry, ApiError> {
        if let Some(named) = self.named.iter().find(|entry| entry.name == name) {
            return Ok(named.clone());
        }
        match self.store.find(name) {
            // The store also finds folders elsewhere, by their path. That is for people at this machine, not for requests.
            Ok(entry) if entry.kind == ModelKind::Text && is_name_of(name, &entry.name) => Ok(entry),
            Ok(_) | Err(LibraryError::NotFound { .. } | LibraryError::InvalidName { .. }) => {
                let available = self.entries()?.into_iter().map(|entry| entry.name).collect();
                Err(ApiError::model_not_found(name, available))
            }
            Err(LibraryError::Ambiguous { candidates, .. }) => Err(ApiError::InvalidField {
                field: "model".to_owned(),
                problem: format!("the name fits several models; write one of them in full: {}", candidates.join(", ")),
            }),
            Err(error) => Err(broken(name, &error)),
        }
    }

    fn default_entry(&self) -> Result<ModelEntry, ApiError> {
        if let Some(first) = self.named.first() {
            return Ok(first.clone());
        }
        models::choose(self.entries()?).map_err(|error| match error {
            ChoiceError::Several(names) => ApiError::InvalidField {
                field: "model".to_owned(),
                problem: format!("several models are installed, so the request must name one of: {}", names.join(", ")),
            },
            _ => ApiError::NoModel,
        })
    }
}

impl ModelSource for StoreSource {
    fn list(&self) -> Result<Vec<ModelFacts>, ApiError> {
        Ok(self.entries()?.into_iter().map(facts).collect())
    }

    fn find(&self, name: Option<&str>) -> Result<ModelFacts, ApiError> {
        name.map_or_else(|| self.default_entry(), |name| self.entry(name)).map(facts)
    }

    fn estimate(&self, id: &str) -> Result<MemoryEstimate, ApiError> {
        let entry = self.entry(id)?;
        if let Some(problem) = &entry.problem {
            return Err(ApiError::ModelLoadFailed { model: entry.name, reason: problem.clone() });
        }
        estimate_memory(&entry.path, &self.load_options(&entry)).map_err(|error| broken(id, &error))
    }

    fn load(&self, id: &str) -> Result<ServedModel, ApiError> {
        let entry = self.entry(id)?;
        let loaded = load_model(&entry.path, &self.load_options(&entry)).map_err(|error| broken(id, &error))?;
        let sampling = SamplingOverrides::from(&loaded.defaults);
        let LoadedModel { engine, tokenizer, template, .. } = loaded;
        Ok(ServedModel::new(entry.name, engine, tokenizer, template, sampling))
    }
}

/// Whether the store found the model by its name: in any case, with its organisation or without, or as the starter.
fn is_name_of(asked: &str, name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    asked == STARTER || [name, last].iter().any(|known| known.to_lowercase() == asked.to_lowercase())
}

fn broken(model: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::ModelLoadFailed { model: model.to_owned(), reason: error.to_string() }
}

fn facts(entry: ModelEntry) -> ModelFacts {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    ModelFacts {
        id: entry.name,
        created: entry.created.unwrap_or_else(now),
        context_length: entry.context_length.and_then(|length| usize::try_from(length).ok()),
        architecture: entry.architecture,
        quantization: entry.quantization,
        parameters: entry.parameters,
        size_on_disk: Some(entry.size_on_disk),
        problem: entry.problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_name_even_if_it_leads_into_the_store() {
        for asked in ["maker/Small-A", "small-a", "SMALL-A", "starter"] {
            assert!(is_name_of(asked, "maker/Small-A"), "{asked}");
        }
        for asked in ["/home/me/models/maker/Small-A", "./maker/Small-A", "../small-a", "models/maker/small-a", ""] {
            assert!(!is_name_of(asked, "maker/Small-A"), "{asked}");
        }
    }
}
