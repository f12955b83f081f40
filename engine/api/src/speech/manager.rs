//! The speech models of a server.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linnet_speech::{Recognizer, SileroVad, SpeechEngine, SpeechEngineOptions, SpeechError, SpeechStatus, VadError};

use super::sessions::Sessions;
use crate::error::ApiError;
use crate::prompt::off_the_executor;
use crate::provider::{ModelCard, ModelResidency, ModelState};
use crate::residency::{ModelFacts, ModelKind};

/// Names that OpenAI's own models have, which clients send when nobody told them another: they mean the default model.
const OPENAI_NAMES: [&str; 4] =
    ["whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-4o-transcribe-diarize"];

/// The speech models on disk. All calls may block; they are made on threads that may.
pub trait SpeechSource: Send + Sync + 'static {
    /// All of them, usable or not.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn list(&self) -> Result<Vec<ModelFacts>, ApiError>;

    /// The one that goes by `name` in requests; `None` asks for the default.
    ///
    /// # Errors
    /// [`ApiError::ModelNotFound`], [`ApiError::NoSpeechModel`], or what is wrong with it.
    fn find(&self, name: Option<&str>) -> Result<ModelFacts, ApiError>;

    /// Loads one. Called on the thread that will own it.
    ///
    /// # Errors
    /// [`SpeechError::Load`].
    fn load(&self, id: &str) -> Result<Box<dyn Recognizer>, SpeechError>;
}

/// The speech models of a server: found by name, loaded when they are used, let go when they are not.
pub struct SpeechManager {
    source: Arc<dyn SpeechSource>,
    options: SpeechEngineOptions,
    vad: Arc<SileroVad>,
    engines: Mutex<BTreeMap<String, SpeechEngine>>,
    pub(crate) sessions: Arc<Sessions>,
}

impl fmt::Debug for SpeechManager {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SpeechManager").field("options", &self.options).finish_non_exhaustive()
    }
}

impl SpeechManager {
    /// How long a session that nobody touches stays open unless told otherwise.
    pub const DEFAULT_SESSION_IDLE: Duration = Duration::from_secs(10 * 60);

    /// A manager of the models of `source`.
    ///
    /// # Errors
    /// [`VadError`] when the detector that comes with Linnet cannot be read.
    pub fn new(
        source: Arc<dyn SpeechSource>,
        options: SpeechEngineOptions,
        session_idle: Duration,
    ) -> Result<Arc<Self>, VadError> {
        Ok(Arc::new(Self {
            source,
            options,
            vad: Arc::new(SileroVad::bundled()?),
            engines: Mutex::default(),
            sessions: Arc::new(Sessions::new(session_idle)),
        }))
    }

    /// The detector of speech.
    pub(crate) fn vad(&self) -> Arc<SileroVad> {
        Arc::clone(&self.vad)
    }

    // Nothing in here can panic half-way through a change, so a poisoned lock still guards a whole map.
    fn engines(&self) -> MutexGuard<'_, BTreeMap<String, SpeechEngine>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All speech models.
    pub(crate) async fn list(&self) -> Result<Vec<ModelCard>, ApiError> {
        let source = Arc::clone(&self.source);
        let facts = off_the_executor(move || source.list()).await?;
        Ok(facts.into_iter().map(|facts| self.card_of(facts)).collect())
    }

    /// The card of the model of that name.
    pub(crate) async fn card(&self, name: Option<&str>) -> Result<ModelCard, ApiError> {
        let name = name.filter(|name| !OPENAI_NAMES.contains(name)).map(str::to_owned);
        let source = Arc::clone(&self.source);
        let facts = off_the_executor(move || source.find(name.as_deref())).await?;
        if let Some(problem) = facts.problem {
            return Err(ApiError::ModelLoadFailed { model: facts.id, reason: problem });
        }
        Ok(self.card_of(facts))
    }

    /// The id and engine of the model of that name. Nothing is loaded yet.
    pub(crate) async fn engine(&self, name: Option<&str>) -> Result<(String, SpeechEngine), ApiError> {
        let id = self.card(name).await?.facts.id;
        let mut engines = self.engines();
        if let Some(engine) = engines.get(&id) {
            return Ok((id, engine.clone()));
        }
        let (source, model) = (Arc::clone(&self.source), id.clone());
        let engine = SpeechEngine::start(&id, self.options.clone(), move || source.load(&model))
            .map_err(|error| ApiError::speech(&id, error))?;
        engines.insert(id.clone(), engine.clone());
        Ok((id, engine))
    }

    /// Keeps a model in memory, loading it in the background if need be, or no longer.
    ///
    /// # Errors
    /// When there is no such model.
    pub async fn pin(&self, name: &str, pinned: bool) -> Result<ModelCard, ApiError> {
        let (id, engine) = self.engine(Some(name)).await?;
        engine.pin(pinned);
        self.card(Some(&id)).await
    }

    /// Loads a model in the background.
    pub(crate) async fn load(&self, name: &str) -> Result<ModelCard, ApiError> {
        let (id, engine) = self.engine(Some(name)).await?;
        drop(engine.hold());
        self.card(Some(&id)).await
    }

    /// Takes a model out of memory.
    pub(crate) async fn unload(&self, name: &str) -> Result<ModelCard, ApiError> {
        let (id, engine) = self.engine(Some(name)).await?;
        if !engine.unload() {
            let ModelCard { facts, residency } = self.card(Some(&id)).await?;
            return Err(ApiError::ModelInUse { model: facts.id, requests: residency.requests });
        }
        self.card(Some(&id)).await
    }

    /// What every model that was used is doing.
    #[must_use]
    pub fn statuses(&self) -> Vec<(String, SpeechStatus)> {
        self.engines().iter().map(|(id, engine)| (id.clone(), engine.status())).collect()
    }

    fn card_of(&self, facts: ModelFacts) -> ModelCard {
        let facts = ModelFacts { kind: ModelKind::Speech, ..facts };
        let status = self.engines().get(&facts.id).map(SpeechEngine::status).unwrap_or_default();
        let residency = ModelResidency {
            state: if status.loaded { ModelState::Ready } else { ModelState::OnDisk },
            pinned: status.pinned,
            requests: status.holds + status.queued + usize::from(status.busy),
            memory_bytes: if status.loaded { facts.size_on_disk.unwrap_or(0) } else { 0 },
            idle_for: Duration::ZERO,
        };
        ModelCard { facts, residency }
    }
}
