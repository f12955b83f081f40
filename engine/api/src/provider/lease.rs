//! The hold that a request has on its model.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::ServedModel;

/// A model that stays in memory for as long as this lives: a request keeps it to its last event.
pub struct ModelLease {
    model: Arc<ServedModel>,
    /// Dropped with the lease, which tells the owner.
    _hold: Option<Box<dyn Any + Send + Sync>>,
}

impl ModelLease {
    /// A lease of a model that is never unloaded.
    #[must_use]
    pub fn new(model: Arc<ServedModel>) -> Self {
        Self { model, _hold: None }
    }

    /// A lease that drops `hold` at its end.
    #[must_use]
    pub fn holding(model: Arc<ServedModel>, hold: impl Any + Send + Sync) -> Self {
        Self { model, _hold: Some(Box::new(hold)) }
    }

    /// The model, for work that goes on beside the request. Does not keep it in memory.
    #[must_use]
    pub fn model(&self) -> &Arc<ServedModel> {
        &self.model
    }
}

impl Deref for ModelLease {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.model
    }
}

impl fmt::Debug for ModelLease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ModelLease").field("model", &self.model.id).finish_non_exhaustive()
    }
}
