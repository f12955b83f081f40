//! Reads the parity fixtures and compares a model's logits with them.
//!
//! What a fixture holds stands in `make_fixtures.py`. That comparison feeds the reference's own tokens: a model that
//! picks the same token at each of these steps decodes the same text by itself, and one that departs is still measured
//! at all later steps.
//!
//! Two kinds of fixture: those of `make_fixtures.py` are compared within a tolerance, by any backend; those of
//! `exact/make.py` bit for bit, by the backend that runs on the reference's own library.

mod comparison;
mod fixture;
mod replay;
mod scenario;
mod seeded;
mod whisper;

pub use comparison::{Comparison, compare};
pub use fixture::{Fixture, FixtureError};
pub use replay::{Mismatch, replay};
pub use scenario::{Call, ExactFixture, QuantizedKv, Scenario};
pub use seeded::{SeededError, SeededModel, SeededTensor, SeededType, UniformLaw};
pub use whisper::{WhisperFixture, WhisperFixtureError, WhisperResults};
