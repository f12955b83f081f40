//! What all routes share.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::provider::{ModelLease, ModelProvider};
use crate::residency::ModelKind;
use crate::speech::SpeechManager;

/// A server's options, its models, and the signal that ends running answers.
pub struct ApiState {
    /// How the server behaves.
    pub options: ServerOptions,
    /// Where its models come from.
    pub provider: Arc<dyn ModelProvider>,
    /// Its speech models, if it has any.
    pub(crate) speech: Option<Arc<SpeechManager>>,
    pub(crate) metrics: Metrics,
    cut_off: watch::Sender<bool>,
}

impl ApiState {
    /// The state of a server that has not started yet.
    pub fn new(options: ServerOptions, provider: Arc<dyn ModelProvider>) -> Arc<Self> {
        Self::with_speech(options, provider, None)
    }

    /// As [`ApiState::new`], with speech models.
    pub fn with_speech(
        options: ServerOptions,
        provider: Arc<dyn ModelProvider>,
        speech: Option<Arc<SpeechManager>>,
    ) -> Arc<Self> {
        Arc::new(Self { options, provider, speech, metrics: Metrics::new(), cut_off: watch::Sender::new(false) })
    }

    /// The speech models.
    pub(crate) fn speech(&self) -> Result<&Arc<SpeechManager>, ApiError> {
        self.speech.as_ref().ok_or(ApiError::NoSpeechModel)
    }

    /// The text model of that name, loaded. A speech model is refused by its name.
    pub(crate) async fn text_model(&self, name: Option<&str>) -> Result<ModelLease, ApiError> {
        match self.provider.get(name).await {
            Err(error @ ApiError::ModelNotFound { .. }) => Err(self.explain_not_text(name, error).await),
            other => other,
        }
    }

    async fn explain_not_text(&self, name: Option<&str>, error: ApiError) -> ApiError {
        let (Some(speech), Some(name)) = (&self.speech, name) else { return error };
        let Ok(card) = speech.card(Some(name)).await else { return error };
        ApiError::WrongModelKind {
            model: card.facts.id,
            kind: ModelKind::Speech.name(),
            remedy: "send audio to /v1/audio/transcriptions, or name a text model (GET /v1/models lists them)",
        }
    }

    /// The error of a speech model that was not found: a text model of that name is told apart.
    pub(crate) async fn explain_not_speech(&self, name: Option<&str>, error: ApiError) -> ApiError {
        let (ApiError::ModelNotFound { .. }, Some(name)) = (&error, name) else { return error };
        match self.provider.card(name).await {
            Ok(card) => ApiError::WrongModelKind {
                model: card.facts.id,
                kind: ModelKind::Text.name(),
                remedy: "name a speech model such as whisper-tiny.en (GET /v1/models lists them)",
            },
            Err(_) => error,
        }
    }

    /// Ends all running answers with an error event, and refuses what comes later likewise.
    pub fn end_answers(&self) {
        self.cut_off.send_replace(true);
    }

    /// Becomes true when answers must end.
    pub(crate) fn cut_off(&self) -> watch::Receiver<bool> {
        self.cut_off.subscribe()
    }
}
