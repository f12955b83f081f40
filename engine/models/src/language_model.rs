//! What every text-generating architecture offers.

use crate::error::Result;
use linnet_compute::{Backend, KvLayout};

/// A loaded language model on a backend.
pub trait LanguageModel<B: Backend> {
    /// How many entries a line of logits has.
    fn vocabulary_size(&self) -> usize;

    /// The longest sequence the model was made for, in tokens.
    fn context_length(&self) -> usize;

    /// What each layer keeps of a sequence.
    fn kv_layout(&self) -> &KvLayout;

    /// Processes a prepared step: stores its keys and values in `kv` and returns logits, one line of
    /// [`LanguageModel::vocabulary_size`] entries for each token whose row asks for it.
    ///
    /// # Errors
    /// When an operation fails. What the step's slots hold is then undefined.
    fn forward(&self, backend: &B, step: &B::Step, kv: &mut B::Kv) -> Result<B::Tensor>;
}
