//! Room: api.
