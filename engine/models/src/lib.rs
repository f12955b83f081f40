//! Room: models.
