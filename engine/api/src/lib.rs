//! The HTTP surface: an OpenAI-compatible endpoint on axum.
//!
//! A server is an [`ApiState`] (options and a [`ModelProvider`]) behind [`router`], served on a socket by [`serve`].
//! A request passes the request id and log ([`request_id`]), the guards ([`guard`]), and one file under [`routes`]; its
//! body is read into checked values by [`wire`], its prompt made by [`prompt`], its generation run by [`answer`], and a
//! stream written by [`sse`]. Every way to fail stands in [`ApiError`], with its status, code and text.
//!
//! What may not change: nothing of what users write reaches a log; a request that asks for something that is not done
//! is refused rather than answered differently; a stream and a whole answer carry the same text.

mod answer;
mod body;
mod error;
mod fields;
mod form;
mod guard;
mod json;
mod metrics;
mod options;
mod prompt;
mod provider;
mod quote;
mod request_id;
mod residency;
mod routes;
mod sampling;
mod server;
mod speech;
mod sse;
mod state;
mod wire;

pub use error::ApiError;
pub use options::{DEFAULT_AUDIO_LIMIT, DEFAULT_BODY_LIMIT, DEFAULT_PORT, ServerOptions};
pub use provider::{
    LoadedCard, ModelCard, ModelLease, ModelProvider, ModelResidency, ModelState, ResidencyStatus, ServedModel,
    SingleModel,
};
pub use residency::{
    LoadDecision, MemoryMeter, MemoryState, ModelFacts, ModelKind, ModelManager, ModelSource, ResidencyOptions,
    Resident, Shortage, SystemMemory, Use, decide_load, next_idle_unload,
};
pub use routes::router;
pub use sampling::{BUILT_IN_TEMPERATURE, SamplingOverrides};
pub use server::serve;
pub use speech::{SpeechManager, SpeechSource};
pub use state::ApiState;
