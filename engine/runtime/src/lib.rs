//! From requests to tokens.
//!
//! One engine thread owns a loaded model and everything it computes with ([`engine`]); the rest of the program talks to
//! it by channels: a [`GenerationRequest`] goes in, [`GenerationEvent`]s come out, and dropping the receiver cancels the
//! request. What the thread needs of a model is the small [`StepModel`] trait, so the scheduling can be tested with a
//! scripted model and runs unchanged on every backend.

mod backend_model;
mod cache_status;
mod engine;
mod event;
mod fingerprint;
mod load;
mod memory_estimate;
mod prefix;
mod recommendation;
mod request;
mod samplers;
pub mod ssd;
mod step_model;
mod stop;
mod submit_error;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;

pub use backend_model::{BackendModel, BackendModelOptions};
pub use cache_status::{CacheFlush, CacheStatus, DiskCacheStatus, RamCacheStatus};
pub use engine::{Engine, EngineHealth, EngineOptions, EngineStatus, Generation, KvStatus};
pub use event::{FinishReason, GenerationEvent, TokenLogprob, Usage};
/// How keys and values may be quantized.
pub use linnet_compute::KvQuantization;
/// Which backend a model runs on.
pub use linnet_compute::{BackendChoice, UnknownBackend};
pub use load::{LoadError, LoadOptions, LoadedModel, ModelInfo, load_model};
pub use memory_estimate::{MemoryEstimate, estimate_memory};
pub use prefix::{BlockKey, Eviction, Namespace, Node, PrefixMatch, PrefixTree};
pub use request::{GenerationRequest, Priority, SamplingParameters};
pub use step_model::{
    Draw, KeptBlock, KvBlock, KvBudget, RowOutput, RowResult, RowTokens, Slot, StepModel, StepModelError, StepRow,
};
pub use submit_error::SubmitError;
pub use text::{Detokenizer, EngineText, NewDetokenizer};
