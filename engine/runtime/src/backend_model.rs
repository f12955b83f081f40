//! A language model on a backend, driven as a [`StepModel`].

use crate::{KvBudget, Slot, StepModel, StepModelError, StepRow};
use linnet_compute::{Backend, ComputeError, KvLayout, KvStore, Outputs, Row};
use linnet_models::{LanguageModel, ModelError};
use std::path::Path;

/// Prompt tokens per step: enough to reuse each weight many times (128 reach 95% of what 512 do), few enough that other
/// streams go on and a dropped request ends within a fraction of a second.
const PREFILL_CHUNK: usize = 128;

/// How much the KV store may grow to where nothing else is said. Memory is taken only as tokens arrive.
const DEFAULT_KV_BYTES: usize = 4 << 30;

/// A loaded model, its backend and its KV store.
pub struct BackendModel<B: Backend> {
    backend: B,
    model: Box<dyn LanguageModel<B>>,
    kv: B::Kv,
    logits: Vec<f32>,
}

impl<B: Backend> BackendModel<B> {
    /// Loads the model in `folder`. Its store holds `kv_tokens` tokens of all sequences together, or as many as
    /// `sequences` full contexts need, within 4 GiB.
    ///
    /// # Errors
    /// When the model cannot be loaded.
    pub fn load(backend: B, folder: &Path, kv_tokens: Option<usize>, sequences: usize) -> Result<Self, ModelError> {
        let model = linnet_models::load(&backend, folder)?;
        let capacity =
            kv_tokens.unwrap_or_else(|| default_kv_tokens(model.kv_layout(), model.context_length(), sequences));
        let kv = backend.kv(model.kv_layout(), capacity)?;
        Ok(Self { backend, model, kv, logits: Vec::new() })
    }

    fn run(&mut self, rows: &[StepRow<'_>], logits: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        let mut tokens = Vec::with_capacity(rows.iter().map(|row| row.tokens.len()).sum());
        let mut step_rows = Vec::with_capacity(rows.len());
        for row in rows {
            tokens.extend_from_slice(row.tokens);
            step_rows.push(Row {
                slot: row.slot,
                start: self.kv.length(row.slot)?,
                length: row.tokens.len(),
                outputs: if row.wants_logits { Outputs::Last } else { Outputs::None },
            });
        }
        let tokens = self.backend.tokens(&tokens)?;
        let step = self.backend.step(&mut self.kv, &step_rows, &tokens)?;
        let output = self.model.forward(&self.backend, &step, &mut self.kv)?;
        self.backend.read(&output, &mut self.logits)?;
        let wanting = rows.iter().enumerate().filter(|(_, row)| row.wants_logits);
        for ((row, _), line) in wanting.zip(self.logits.chunks_exact_mut(self.model.vocabulary_size())) {
            logits(row, line);
        }
        Ok(())
    }
}

/// The tokens that `sequences` full contexts hold, or fewer if they would take more than [`DEFAULT_KV_BYTES`].
fn default_kv_tokens(layout: &KvLayout, context: usize, sequences: usize) -> usize {
    let elements: usize = layout.layers.iter().map(|layer| 2 * layer.kv_heads * layer.head_dim).sum();
    let fitting = DEFAULT_KV_BYTES / (elements * size_of::<u16>()).max(1);
    context.saturating_mul(sequences).min(fitting.max(context))
}

impl<B: Backend> StepModel for BackendModel<B> {
    fn vocabulary_size(&self) -> usize {
        self.model.vocabulary_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn prefill_chunk(&self) -> usize {
        PREFILL_CHUNK
    }

    fn kv_budget(&self) -> KvBudget {
        let usage = self.kv.usage();
        KvBudget { capacity: usage.capacity_tokens, page: usage.page_tokens }
    }

    fn open(&mut self) -> Result<Slot, StepModelError> {
        Ok(self.kv.open())
    }

    fn close(&mut self, slot: Slot) {
        self.kv.close(slot);
    }

    fn step(&mut self, rows: &[StepRow<'_>], logits: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), StepModelError> {
        self.run(rows, logits).map_err(|error| match error {
            ModelError::Compute(ComputeError::KvFull { used, capacity, .. }) => {
                StepModelError::KvFull { used, capacity }
            }
            other => StepModelError::Compute(other.to_string()),
        })
    }
}
