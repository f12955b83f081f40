//! A Whisper model on a backend, as decoding sees it.

use super::{Alignment, NetworkError, Sequence, StepRow, WhisperDimensions, WhisperNetwork, Window};
use linnet_compute::{Backend, KvStore, Outputs, Row, Slot};
use linnet_models::{ModelError, WeightPrecision, Whisper, WhisperAlignment, WhisperWindow};
use std::{collections::HashMap, path::Path};

/// Full sequences that the store of keys and values may grow to: several windows with a beam each. Memory is taken only as
/// tokens arrive.
const SEQUENCES: usize = 64;

/// A loaded model, its backend, and what windows and sequences hold.
pub(super) struct BackendNetwork<B: Backend> {
    // Fields are dropped in this order: arrays before the backend that they belong to.
    windows: HashMap<Window, WhisperWindow<B>>,
    sequences: HashMap<Sequence, Held>,
    kv: B::Kv,
    model: Whisper<B>,
    backend: B,
    dimensions: WhisperDimensions,
    /// Numbers windows and sequences.
    next: u64,
}

/// What a sequence is to the backend.
#[derive(Debug, Clone, Copy)]
struct Held {
    slot: Slot,
    window: Window,
}

impl<B: Backend> BackendNetwork<B> {
    /// Loads the model in `folder`.
    pub(super) fn load(backend: B, folder: &Path, weights: WeightPrecision) -> Result<Self, ModelError> {
        let model = Whisper::load(&backend, folder, weights)?;
        let config = model.config();
        let layout = config.kv_layout();
        let wanted = SEQUENCES * config.n_text_ctx;
        let capacity = backend.kv_room(&layout)?.map_or(wanted, |room| wanted.min(room));
        let kv = backend.kv(&layout, capacity)?;
        let dimensions = WhisperDimensions {
            n_mels: config.n_mels,
            n_audio_ctx: config.n_audio_ctx,
            n_text_ctx: config.n_text_ctx,
            n_vocab: config.n_vocab,
            n_text_layer: config.n_text_layer,
            n_text_head: config.n_text_head,
            alignment_heads: config.alignment_heads.clone(),
        };
        Ok(Self { windows: HashMap::new(), sequences: HashMap::new(), kv, model, backend, dimensions, next: 0 })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn held(&self, sequence: Sequence) -> Result<Held, NetworkError> {
        self.sequences.get(&sequence).copied().ok_or(NetworkError::NotOpen { what: "a sequence" })
    }

    fn window(&self, window: Window) -> Result<&WhisperWindow<B>, NetworkError> {
        self.windows.get(&window).ok_or(NetworkError::NotOpen { what: "a window" })
    }

    /// Rows for the backend and all their tokens.
    fn rows(&self, rows: &[StepRow<'_>]) -> Result<(Vec<Row>, Vec<u32>), NetworkError> {
        let limit = self.dimensions.n_text_ctx;
        let mut tokens = Vec::with_capacity(rows.iter().map(|row| row.tokens.len()).sum());
        let mut backend_rows = Vec::with_capacity(rows.len());
        for (number, row) in rows.iter().enumerate() {
            let refuse = |reason| Err(NetworkError::BadRow { row: number, reason });
            let length = row.tokens.len();
            if length == 0 {
                return refuse("it has no tokens");
            }
            if row.outputs.end > length {
                return refuse("its outputs lie beyond its tokens");
            }
            if rows[..number].iter().any(|earlier| earlier.sequence == row.sequence) {
                return refuse("an earlier row has the same sequence");
            }
            let slot = self.held(row.sequence)?.slot;
            let start = self.kv.length(slot)?;
            if start + length > limit {
                return Err(NetworkError::TooLong { tokens: start + length, limit });
            }
            let (first, count) = (row.outputs.start, row.outputs.len());
            let outputs = match (first, count) {
                (_, 0) => Outputs::None,
                (0, _) if count == length => Outputs::All,
                (_, 1) if first + 1 == length => Outputs::Last,
                _ => Outputs::Some { first, count },
            };
            tokens.extend_from_slice(row.tokens);
            backend_rows.push(Row { slot, start, length, outputs });
        }
        Ok((backend_rows, tokens))
    }

    fn aligned(&mut self, slot: Slot, window: Window, tokens: &[u32]) -> Result<Alignment, NetworkError> {
        let row = Row { slot, start: 0, length: tokens.len(), outputs: Outputs::All };
        let tokens = self.backend.tokens(tokens)?;
        let step = self.backend.step(&mut self.kv, &[row], &tokens)?;
        let window = self.windows.get(&window).ok_or(NetworkError::NotOpen { what: "a window" })?;
        let WhisperAlignment { scores, logits } = self.model.align(&self.backend, &step, window, &mut self.kv)?;
        self.backend.submit(&step, &mut self.kv, None, Some(&logits))?;
        let mut alignment = Alignment::default();
        self.backend.read(&logits, &mut alignment.logits)?;
        let mut layers = Vec::with_capacity(scores.len());
        for scores in &scores {
            let mut lines = Vec::new();
            if let Some(scores) = scores {
                self.backend.read(scores, &mut lines)?;
            }
            layers.push(lines);
        }
        // Layer by layer is not the configuration's order.
        let head_size = row.length * self.dimensions.n_audio_ctx;
        let mut given = vec![0; layers.len()];
        for &(layer, _) in &self.dimensions.alignment_heads {
            let first = given[layer] * head_size;
            alignment.scores.extend_from_slice(layers[layer].get(first..first + head_size).unwrap_or_default());
            given[layer] += 1;
        }
        Ok(alignment)
    }
}

impl<B: Backend> WhisperNetwork for BackendNetwork<B> {
    fn dimensions(&self) -> &WhisperDimensions {
        &self.dimensions
    }

    fn encode(&mut self, mel: &[f32]) -> Result<Window, NetworkError> {
        let expected = self.model.config().window_frames() * self.dimensions.n_mels;
        if mel.len() != expected {
            return Err(NetworkError::WindowSize { expected, found: mel.len() });
        }
        let encoded = self.model.encode(&self.backend, mel)?;
        let heard = self.model.listen(&self.backend, &encoded)?;
        let window = Window(self.number());
        self.windows.insert(window, heard);
        Ok(window)
    }

    fn release(&mut self, window: Window) {
        self.windows.remove(&window);
    }

    fn open(&mut self, window: Window) -> Result<Sequence, NetworkError> {
        self.window(window)?;
        let slot = self.kv.open();
        let sequence = Sequence(self.number());
        self.sequences.insert(sequence, Held { slot, window });
        Ok(sequence)
    }

    fn fork(&mut self, sequence: Sequence) -> Result<Sequence, NetworkError> {
        let held = self.held(sequence)?;
        let slot = self.kv.fork(held.slot)?;
        let forked = Sequence(self.number());
        self.sequences.insert(forked, Held { slot, ..held });
        Ok(forked)
    }

    fn close(&mut self, sequence: Sequence) {
        if let Some(held) = self.sequences.remove(&sequence) {
            self.kv.close(held.slot);
        }
    }

    fn step(&mut self, rows: &[StepRow<'_>], logits: &mut Vec<f32>) -> Result<(), NetworkError> {
        logits.clear();
        if rows.is_empty() {
            return Ok(());
        }
        let (backend_rows, tokens) = self.rows(rows)?;
        let (open, sequences) = (&self.windows, &self.sequences);
        let windows = rows
            .iter()
            .map(|row| sequences.get(&row.sequence).and_then(|held| open.get(&held.window)))
            .collect::<Option<Vec<&WhisperWindow<B>>>>()
            .ok_or(NetworkError::NotOpen { what: "a window" })?;
        let tokens = self.backend.tokens(&tokens)?;
        let step = self.backend.step(&mut self.kv, &backend_rows, &tokens)?;
        let output = self.model.decode(&self.backend, &step, &windows, &mut self.kv)?;
        if backend_rows.iter().all(|row| row.outputs == Outputs::None) {
            self.backend.submit(&step, &mut self.kv, None, None)?;
            return Ok(self.backend.wait(&step, &mut self.kv)?);
        }
        self.backend.submit(&step, &mut self.kv, None, Some(&output))?;
        Ok(self.backend.read(&output, logits)?)
    }

    fn align(&mut self, window: Window, tokens: &[u32]) -> Result<Alignment, NetworkError> {
        self.window(window)?;
        let limit = self.dimensions.n_text_ctx;
        if tokens.len() > limit {
            return Err(NetworkError::TooLong { tokens: tokens.len(), limit });
        }
        if tokens.is_empty() {
            return Ok(Alignment::default());
        }
        let slot = self.kv.open();
        let alignment = self.aligned(slot, window, tokens);
        self.kv.close(slot);
        alignment
    }
}
