//! Floats between uses: fresh pages from the system cost more than what is computed in them.

use std::sync::{Mutex, PoisonError};

/// Buffers not in use.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Mutex<Vec<Vec<f32>>>);

impl Scratch {
    /// A buffer of any length and content.
    pub(crate) fn take(&self) -> Vec<f32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&self, buffer: Vec<f32>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
