//! Reads the parity fixtures and compares a model's logits with them.
//!
//! What a fixture holds stands in `make_fixtures.py`. The comparison feeds the reference's own tokens: a model that
//! picks the same token at each of these steps decodes the same text by itself, and one that departs is still measured
//! at all later steps.

mod comparison;
mod fixture;

pub use comparison::{Comparison, compare};
pub use fixture::{Fixture, FixtureError};
