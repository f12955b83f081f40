//! The store's models, as the server's manager wants them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use linnet_api::{ApiError, ModelFacts, ModelKind, ModelSource, SamplingOverrides, ServedModel, SpeechSource};
use linnet_kernels::CoreTurns;
use linnet_library::{LibraryError, ModelEntry, STARTER, Store};
use linnet_runtime::ssd::SsdTier;
use linnet_runtime::{EngineOptions, LoadOptions, LoadedModel, MemoryEstimate, estimate_memory, load_model};
use linnet_speech::{NetworkOptions, Recognizer, SpeechError};

use crate::models::{self, ChoiceError, RunArguments, is_speech};
use crate::speech;

/// The store, and how its models are run.
pub(crate) struct StoreSource {
    store: Store,
    /// Models that were named when the server was started, wherever they lie; the first is the default model.
    named: Vec<ModelEntry>,
    run: RunArguments,
    engine: EngineOptions,
    /// Where all models keep what is to survive a restart.
    disk: Option<Arc<SsdTier>>,
    /// What text models give way to.
    turns: Arc<CoreTurns>,
}

impl StoreSource {
    /// A source of the models of `store` and of those that were `named`.
    pub(crate) fn new(
        store: Store,
        named: Vec<ModelEntry>,
        run: RunArguments,
        engine: EngineOptions,
        disk: Option<Arc<SsdTier>>,
        turns: Arc<CoreTurns>,
    ) -> Self {
        Self { store, named, run, engine, disk, turns }
    }

    fn load_options(&self, entry: &ModelEntry) -> LoadOptions {
        LoadOptions { disk: self.disk.clone(), ..models::load_options(entry, &self.run, self.engine) }
    }

    /// The models of the store, then those that lie elsewhere.
    fn entries(&self) -> Result<Vec<ModelEntry>, ApiError> {
        let mut entries = self.store.list().map_err(|error| broken("the models", &error))?;
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
            Ok(entry) if is_name_of(name, &entry.name) => Ok(entry),
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

    /// The error of a name that means no model of a kind.
    fn no_such(&self, name: &str, is_meant: impl Fn(&ModelEntry) -> bool) -> Result<ApiError, ApiError> {
        let available = self.entries()?.into_iter().filter(is_meant).map(|entry| entry.name).collect();
        Ok(ApiError::model_not_found(name, available))
    }

    fn default_entry(&self) -> Result<ModelEntry, ApiError> {
        if let Some(first) = self.named.iter().find(|entry| !is_speech(entry)) {
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

/// The speech models of a store.
pub(crate) struct SpeechStoreSource {
    source: Arc<StoreSource>,
    network: NetworkOptions,
}

impl SpeechStoreSource {
    /// The speech models of `source`, run as `network` says.
    pub(crate) fn new(source: Arc<StoreSource>, network: NetworkOptions) -> Self {
        Self { source, network }
    }
}

impl SpeechSource for SpeechStoreSource {
    fn list(&self) -> Result<Vec<ModelFacts>, ApiError> {
        Ok(self.source.entries()?.into_iter().filter(is_speech).map(facts).collect())
    }

    fn find(&self, name: Option<&str>) -> Result<ModelFacts, ApiError> {
        let Some(name) = name else {
            // One that was named when the server was started comes first.
            if let Some(named) = self.source.named.iter().find(|entry| is_speech(entry)) {
                return Ok(facts(named.clone()));
            }
            return speech::choose(self.source.entries()?).map(facts).map_err(|error| match error {
                ChoiceError::SeveralSpeech(names) => ApiError::InvalidField {
                    field: "model".to_owned(),
                    problem: format!(
                        "several speech models are installed, so the request must name one of: {}",
                        names.join(", ")
                    ),
                },
                _ => ApiError::NoSpeechModel,
            });
        };
        let entry = self.source.entry(name)?;
        if is_speech(&entry) { Ok(facts(entry)) } else { Err(self.source.no_such(name, is_speech)?) }
    }

    fn load(&self, id: &str) -> Result<Box<dyn Recognizer>, SpeechError> {
        let entry = self.source.entry(id).map_err(|error| SpeechError::Load(error.to_string()))?;
        speech::load(&entry.path, &self.network)
    }
}

impl ModelSource for StoreSource {
    fn list(&self) -> Result<Vec<ModelFacts>, ApiError> {
        Ok(self.entries()?.into_iter().filter(|entry| !is_speech(entry)).map(facts).collect())
    }

    fn find(&self, name: Option<&str>) -> Result<ModelFacts, ApiError> {
        let Some(name) = name else { return self.default_entry().map(facts) };
        let entry = self.entry(name)?;
        // The server tells what it is instead.
        if is_speech(&entry) { Err(self.no_such(name, |entry| !is_speech(entry))?) } else { Ok(facts(entry)) }
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
        loaded.engine.give_way_to(Arc::clone(&self.turns));
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
        kind: if is_speech(&entry) { ModelKind::Speech } else { ModelKind::Text },
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
