//! Quantized activations and the memory they live in, kept from product to product.

use std::sync::{Mutex, PoisonError};

use super::quantize::{GroupMeta, TERMS};

/// Activations quantized for one group size. The vectors may be longer than the product at hand needs.
#[derive(Debug, Default)]
pub(crate) struct QuantizedActivations {
    pub(crate) group: usize,
    /// `[rows, TERMS, in_features]`, for kernels of byte products.
    pub(crate) codes: Vec<i8>,
    /// `[rows, in_features]`: both terms in one number, for kernels of words.
    pub(crate) wide: Vec<i16>,
    /// `[rows, in_features / group]`
    pub(crate) meta: Vec<GroupMeta>,
}

impl QuantizedActivations {
    /// Makes room without clearing what a longer product left.
    pub(crate) fn reserve(&mut self, group: usize, rows: usize, in_features: usize, is_wide: bool) {
        self.group = group;
        if is_wide {
            if self.wide.len() < rows * in_features {
                self.wide.resize(rows * in_features, 0);
            }
        } else if self.codes.len() < rows * TERMS * in_features {
            self.codes.resize(rows * TERMS * in_features, 0);
        }
        if self.meta.len() < rows * in_features / group {
            self.meta.resize(rows * in_features / group, GroupMeta::default());
        }
    }
}

/// Buffers not in use. Fresh pages cost more than quantizing into them, so they are kept.
#[derive(Debug, Default)]
pub(crate) struct BufferStore(Mutex<Vec<QuantizedActivations>>);

impl BufferStore {
    pub(crate) fn take(&self) -> QuantizedActivations {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&self, buffers: QuantizedActivations) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
    }
}
