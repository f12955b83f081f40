//! From requests to tokens.
//!
//! One engine thread owns a loaded model and everything it computes with ([`engine`]); the rest of the program talks to
//! it by channels: a [`GenerationRequest`] goes in, [`GenerationEvent`]s come out, and dropping the receiver cancels the
//! request. What the thread needs of a model is the small [`StepModel`] trait, so the scheduling can be tested with a
//! scripted model and runs unchanged on every backend.

mod backend_model;
mod event;
mod request;
mod step_model;

pub use backend_model::BackendModel;
pub use event::{FinishReason, GenerationEvent, TokenLogprob, Usage};
pub use request::{GenerationRequest, SamplingParameters};
pub use step_model::{Slot, StepModel, StepModelError, StepRow};
