//! A language model on a backend, driven as a [`StepModel`].

use crate::{
    Draw, KeptBlock, KvBlock, KvBudget, KvStatus, Namespace, RowOutput, RowResult, RowTokens, Slot, StepModel,
    StepModelError, StepRow, fingerprint::fingerprint,
};
use linnet_compute::{Backend, ComputeError, KvLayout, KvStore, Outputs, Row};
use linnet_models::{LanguageModel, ModelError};
use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    path::Path,
};

/// Prompt tokens per step where the processor computes at once: enough to reuse each weight many times (128 reach 95% of
/// what 512 do), few enough that other streams go on and a dropped request ends within a fraction of a second.
const PREFILL_CHUNK: usize = 128;

/// Prompt tokens per step where steps run ahead, on a GPU: as mlx-lm cuts prompts (`prefill_step_size`), for its bits. With
/// 512 an H200 takes in a long prompt at three quarters of the rate.
const AHEAD_PREFILL_CHUNK: usize = 2048;

/// How much the KV store may grow to where nothing else is said. Memory is taken only as tokens arrive.
const DEFAULT_KV_BYTES: usize = 4 << 30;

/// How large a model's KV store may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendModelOptions {
    /// Tokens of all sequences together. `None`: what `sequences` full contexts need, within `kv_bytes` and what the backend
    /// has room for.
    pub kv_tokens: Option<usize>,
    /// Bytes of all sequences together, where no number of tokens is given. `None`: 4 GiB.
    pub kv_bytes: Option<usize>,
    /// How many sequences run at once.
    pub sequences: usize,
}

/// A loaded model, its backend and its KV store.
pub struct BackendModel<B: Backend> {
    // Fields are dropped in this order: arrays before the backend that they belong to.
    submitted: VecDeque<Submitted<B>>,
    /// The token that was chosen last for each slot, and its place.
    chosen: HashMap<Slot, (B::Tokens, usize)>,
    model: Box<dyn LanguageModel<B>>,
    kv: B::Kv,
    backend: B,
    logits: Vec<f32>,
    fingerprint: String,
}

/// A step whose results were not collected yet.
struct Submitted<B: Backend> {
    step: B::Step,
    /// Tokens that the backend chose, one for each line.
    tokens: Option<B::Tokens>,
    /// Logits, if any row wants them.
    logits: Option<B::Tensor>,
    /// The rows that want something, one for each line.
    rows: Vec<Wish>,
}

/// What a row wants.
struct Wish {
    row: usize,
    token: bool,
    logits: bool,
}

impl<B: Backend> BackendModel<B> {
    /// Loads the model in `folder`.
    ///
    /// # Errors
    /// When the model cannot be loaded.
    pub fn load(backend: B, folder: &Path, options: BackendModelOptions) -> Result<Self, ModelError> {
        let BackendModelOptions { kv_tokens, kv_bytes, sequences } = options;
        let model = linnet_models::load(&backend, folder)?;
        let capacity = match kv_tokens {
            Some(tokens) => tokens,
            None => {
                let fitting = default_kv_tokens(model.kv_layout(), model.context_length(), sequences, kv_bytes);
                backend.kv_room(model.kv_layout())?.map_or(fitting, |room| fitting.min(room))
            }
        };
        let kv = backend.kv(model.kv_layout(), capacity)?;
        let fingerprint = fingerprint(folder)?;
        let (submitted, chosen, logits) = (VecDeque::new(), HashMap::new(), Vec::new());
        Ok(Self { submitted, chosen, model, kv, backend, logits, fingerprint })
    }

    fn begin(&mut self, rows: &[StepRow<'_>]) -> Result<(), ModelError> {
        let mut step_rows = Vec::with_capacity(rows.len());
        let mut known = Vec::new();
        let mut sources: Vec<Source> = Vec::with_capacity(rows.len());
        let mut wishes = Vec::new();
        let mut draws = Vec::new();
        for (number, row) in rows.iter().enumerate() {
            let (source, length) = match row.tokens {
                RowTokens::Known(tokens) => {
                    let first = known.len();
                    known.extend_from_slice(tokens);
                    (Source::Known(first..known.len()), tokens.len())
                }
                RowTokens::Chosen => (Source::Chosen(row.slot), 1),
            };
            sources.push(source);
            let wish = match row.output {
                RowOutput::None => None,
                RowOutput::Logits => Some(Wish { row: number, token: false, logits: true }),
                RowOutput::Token { logits, .. } => Some(Wish { row: number, token: true, logits }),
            };
            if let RowOutput::Token { draw, .. } = row.output {
                draws.push(draw);
            } else if wish.is_some() {
                // A line whose token nobody reads; the greedy choice costs the least.
                draws.push(Draw::Greedy);
            }
            let outputs = if wish.is_some() { Outputs::Last } else { Outputs::None };
            wishes.extend(wish);
            step_rows.push(Row { slot: row.slot, start: self.kv.length(row.slot)?, length, outputs });
        }
        let known = self.backend.tokens(&known)?;
        let mut parts: Vec<(&B::Tokens, Range<usize>)> = Vec::with_capacity(sources.len());
        for source in &sources {
            match source {
                Source::Known(range) => match parts.last_mut() {
                    Some((tokens, last)) if std::ptr::eq(*tokens, &known) && last.end == range.start => {
                        last.end = range.end;
                    }
                    _ => parts.push((&known, range.clone())),
                },
                Source::Chosen(slot) => {
                    let (tokens, line) = self.chosen.get(slot).ok_or(ComputeError::UnknownSlot { slot: slot.0 })?;
                    parts.push((tokens, *line..line + 1));
                }
            }
        }
        let tokens = self.backend.join_tokens(&parts)?;
        let step = self.backend.step(&mut self.kv, &step_rows, &tokens)?;
        let output = self.model.forward(&self.backend, &step, &mut self.kv)?;
        let wants_tokens = wishes.iter().any(|wish| wish.token);
        let wants_logits = wishes.iter().any(|wish| wish.logits);
        let tokens = if wants_tokens { Some(self.backend.choose(&output, &draws)?) } else { None };
        let logits = wants_logits.then_some(output);
        self.backend.submit(&step, &mut self.kv, tokens.as_ref(), logits.as_ref())?;
        if let Some(tokens) = &tokens {
            for (line, wish) in wishes.iter().enumerate().filter(|(_, wish)| wish.token) {
                self.chosen.insert(rows[wish.row].slot, (tokens.clone(), line));
            }
        }
        self.submitted.push_back(Submitted { step, tokens, logits, rows: wishes });
        Ok(())
    }

    fn finish(&mut self, result: &mut dyn FnMut(RowResult<'_>)) -> Result<(), ModelError> {
        let Some(Submitted { step, tokens, logits, rows }) = self.submitted.pop_front() else { return Ok(()) };
        if rows.is_empty() {
            return Ok(self.backend.wait(&step, &mut self.kv)?);
        }
        let tokens = tokens.map(|tokens| self.backend.read_tokens(&tokens)).transpose()?;
        match logits {
            Some(logits) => self.backend.read(&logits, &mut self.logits)?,
            None => self.logits.clear(),
        }
        let mut lines = self.logits.chunks_exact_mut(self.model.vocabulary_size());
        for (line, wish) in rows.iter().enumerate() {
            let logits = lines.next().filter(|_| wish.logits);
            let token = tokens.as_ref().filter(|_| wish.token).and_then(|tokens| tokens.get(line).copied());
            result(RowResult { row: wish.row, token, logits });
        }
        Ok(())
    }
}

/// Where a row's tokens come from.
enum Source {
    Known(Range<usize>),
    Chosen(Slot),
}

/// The tokens that `sequences` full contexts hold, or fewer if they would take more than `bytes`. Without a limit of the
/// user's own, one context fits in any case.
fn default_kv_tokens(layout: &KvLayout, context: usize, sequences: usize, bytes: Option<usize>) -> usize {
    let elements: usize = layout.layers.iter().map(|layer| 2 * layer.kv_heads * layer.head_dim).sum();
    let fitting = bytes.unwrap_or(DEFAULT_KV_BYTES) / (elements * size_of::<u16>()).max(1);
    let least = if bytes.is_some() { 1 } else { context };
    context.saturating_mul(sequences).min(fitting.max(least))
}

impl<B: Backend> StepModel for BackendModel<B> {
    fn vocabulary_size(&self) -> usize {
        self.model.vocabulary_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn prefill_chunk(&self) -> usize {
        if self.backend.runs_ahead() { AHEAD_PREFILL_CHUNK } else { PREFILL_CHUNK }
    }

    fn splits_last_token(&self) -> bool {
        self.backend.runs_ahead()
    }

    fn runs_ahead(&self) -> bool {
        self.backend.runs_ahead()
    }

    fn kv_budget(&self) -> KvBudget {
        let usage = self.kv.usage();
        KvBudget { capacity: usage.capacity_tokens, page: usage.page_tokens, is_padded: usage.is_padded }
    }

    fn block_tokens(&self) -> usize {
        self.kv.block_tokens()
    }

    fn namespace(&self) -> Namespace {
        let kv_format = format!("{}; {}", self.backend.identity(), self.kv.kept_format());
        Namespace { model: self.fingerprint.clone(), kv_format, ..Namespace::default() }
    }

    fn keep(&mut self, slot: Slot, start: usize, tokens: usize) -> Result<KeptBlock, StepModelError> {
        self.kv.keep(slot, start, tokens).map_err(compute_error)
    }

    fn release(&mut self, kept: KeptBlock) {
        self.kv.release(kept);
    }

    fn adoptable(&self, blocks: &[KeptBlock], tokens: usize) -> usize {
        self.kv.adoptable(blocks, tokens)
    }

    fn adopt(&mut self, slot: Slot, blocks: &[KeptBlock], tokens: usize) -> Result<(), StepModelError> {
        self.kv.adopt(slot, blocks, tokens).map_err(compute_error)
    }

    fn lacking(&self, rows: &[(Slot, usize)]) -> usize {
        self.kv.lacking(rows)
    }

    fn kept_bytes(&self, tokens: usize) -> usize {
        self.kv.kept_bytes(tokens)
    }

    fn read_kept(&mut self, kept: KeptBlock, range: Range<usize>) -> Result<KvBlock, StepModelError> {
        self.kv.read_kept(kept, range).map_err(compute_error)
    }

    fn write_kept(&mut self, block: &KvBlock) -> Result<KeptBlock, StepModelError> {
        self.kv.write_kept(block).map_err(compute_error)
    }

    fn kv_status(&self) -> KvStatus {
        let usage = self.kv.usage();
        KvStatus { used_tokens: usage.used_tokens, capacity_tokens: usage.capacity_tokens, bytes: usage.bytes }
    }

    fn open(&mut self) -> Result<Slot, StepModelError> {
        Ok(self.kv.open())
    }

    fn close(&mut self, slot: Slot) {
        self.chosen.remove(&slot);
        self.kv.close(slot);
    }

    fn submit(&mut self, rows: &[StepRow<'_>]) -> Result<(), StepModelError> {
        self.begin(rows).map_err(to_step_error)
    }

    fn collect(&mut self, result: &mut dyn FnMut(RowResult<'_>)) -> Result<(), StepModelError> {
        self.finish(result).map_err(to_step_error)
    }
}

fn compute_error(error: ComputeError) -> StepModelError {
    to_step_error(ModelError::Compute(error))
}

fn to_step_error(error: ModelError) -> StepModelError {
    match error {
        ModelError::Compute(ComputeError::KvFull { used, capacity, .. }) => StepModelError::KvFull { used, capacity },
        other => StepModelError::Compute(other.to_string()),
    }
}
