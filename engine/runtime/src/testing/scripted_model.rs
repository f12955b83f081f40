//! A model whose output a test decides.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use super::{BYTE_EOS, BYTE_VOCABULARY};
use crate::{KvBudget, Slot, StepModel, StepModelError, StepRow};

/// What comes next in a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// This token, as surely as logits can say it.
    Token(u32),
    /// These logits.
    Logits(Vec<f32>),
}

type Script = dyn Fn(&[u32]) -> Next + Send;

/// A [`StepModel`] that derives the next token from a sequence's tokens alone, so that its company cannot matter, and
/// that fails on demand. Give it an engine by moving it into `load`; watch it through its [`Probe`].
pub struct ScriptedModel {
    script: Box<Script>,
    sequences: HashMap<Slot, Vec<u32>>,
    next_slot: u32,
    vocabulary_size: usize,
    context_length: usize,
    prefill_chunk: usize,
    budget: KvBudget,
    delay: Duration,
    error_at: Option<usize>,
    panic_at: Option<usize>,
    steps: usize,
    probe: Probe,
    _note: DropNote,
}

/// Tells the probe when the model is dropped; apart from the model, so that its fields can still be moved.
struct DropNote(Probe);

impl Drop for DropNote {
    fn drop(&mut self) {
        self.0.counts.dropped.fetch_add(1, SeqCst);
    }
}

/// What a [`ScriptedModel`] has seen, readable while an engine owns it.
#[derive(Debug, Clone, Default)]
pub struct Probe {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    opened: AtomicUsize,
    steps: AtomicUsize,
    tokens: AtomicUsize,
    widest: AtomicUsize,
    dropped: AtomicUsize,
}

impl Probe {
    /// Slots open now.
    #[must_use]
    pub fn open_slots(&self) -> usize {
        self.counts.open.load(SeqCst)
    }

    /// Slots opened since the start.
    #[must_use]
    pub fn opened_slots(&self) -> usize {
        self.counts.opened.load(SeqCst)
    }

    /// Steps begun, failed ones included.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.counts.steps.load(SeqCst)
    }

    /// Tokens processed in all steps.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.counts.tokens.load(SeqCst)
    }

    /// The most rows that one step had.
    #[must_use]
    pub fn widest_step(&self) -> usize {
        self.counts.widest.load(SeqCst)
    }

    /// Whether the model was dropped.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.counts.dropped.load(SeqCst) > 0
    }
}

impl ScriptedModel {
    /// A model that calls `script` with all tokens of a sequence to learn what follows them. It has the vocabulary of
    /// [`super::byte_text`], a context of 4096 tokens and prefill chunks of 32.
    pub fn new(script: impl Fn(&[u32]) -> Next + Send + 'static) -> Self {
        let probe = Probe::default();
        Self {
            script: Box::new(script),
            sequences: HashMap::new(),
            next_slot: 0,
            vocabulary_size: BYTE_VOCABULARY,
            context_length: 4096,
            prefill_chunk: 32,
            budget: KvBudget::UNLIMITED,
            delay: Duration::ZERO,
            error_at: None,
            panic_at: None,
            steps: 0,
            _note: DropNote(probe.clone()),
            probe,
        }
    }

    /// A model that answers each of the prompts with its tokens and then with [`BYTE_EOS`]. Other prompts get
    /// [`BYTE_EOS`] at once.
    #[must_use]
    pub fn answers(answers: Vec<(Vec<u32>, Vec<u32>)>) -> Self {
        Self::new(move |tokens| {
            let next = answers.iter().find_map(|(prompt, answer)| {
                let said = tokens.strip_prefix(prompt.as_slice())?;
                answer.strip_prefix(said)?.first().copied()
            });
            Next::Token(next.unwrap_or(BYTE_EOS))
        })
    }

    /// A model that answers every prompt with `text`, byte by byte, and then with [`BYTE_EOS`]. The prompt must hold
    /// `prompt` tokens.
    #[must_use]
    pub fn says(prompt: usize, text: &str) -> Self {
        let answer = super::byte_tokens(text);
        Self::new(move |tokens| {
            Next::Token(answer.get(tokens.len().saturating_sub(prompt)).copied().unwrap_or(BYTE_EOS))
        })
    }

    /// A model whose logits are noise that depends on the whole sequence; it never chooses [`BYTE_EOS`].
    #[must_use]
    pub fn noise() -> Self {
        Self::new(|tokens| {
            let mut state = tokens.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, &token| {
                mix(state ^ u64::from(token).wrapping_mul(0xff51_afd7_ed55_8ccd))
            });
            let mut logits: Vec<f32> = (0..BYTE_VOCABULARY)
                .map(|_| {
                    state = mix(state);
                    (state >> 40) as f32 / (1 << 20) as f32
                })
                .collect();
            logits[BYTE_EOS as usize] = -1000.0;
            Next::Logits(logits)
        })
    }

    /// Sets how many tokens the model knows.
    #[must_use]
    pub fn vocabulary_size(self, vocabulary_size: usize) -> Self {
        Self { vocabulary_size, ..self }
    }

    /// Sets the context length.
    #[must_use]
    pub fn context_length(self, context_length: usize) -> Self {
        Self { context_length, ..self }
    }

    /// Sets the most prompt tokens per step.
    #[must_use]
    pub fn prefill_chunk(self, prefill_chunk: usize) -> Self {
        Self { prefill_chunk, ..self }
    }

    /// Limits the tokens of all sequences together; a step beyond that fails with [`StepModelError::KvFull`].
    #[must_use]
    pub fn kv_budget(self, budget: KvBudget) -> Self {
        Self { budget, ..self }
    }

    /// Makes every step take this long.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Makes the step of this number fail; the first is 0.
    #[must_use]
    pub fn error_at(self, step: usize) -> Self {
        Self { error_at: Some(step), ..self }
    }

    /// Makes the step of this number panic; the first is 0.
    #[must_use]
    pub fn panic_at(self, step: usize) -> Self {
        Self { panic_at: Some(step), ..self }
    }

    /// A view of the model for when the engine has taken it.
    #[must_use]
    pub fn probe(&self) -> Probe {
        self.probe.clone()
    }

    fn used(&self) -> usize {
        self.sequences.values().map(|tokens| tokens.len().next_multiple_of(self.budget.page)).sum()
    }
}

impl StepModel for ScriptedModel {
    fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    fn context_length(&self) -> usize {
        self.context_length
    }

    fn prefill_chunk(&self) -> usize {
        self.prefill_chunk
    }

    fn kv_budget(&self) -> KvBudget {
        self.budget
    }

    fn open(&mut self) -> Result<Slot, StepModelError> {
        let slot = Slot(self.next_slot);
        self.next_slot += 1;
        self.sequences.insert(slot, Vec::new());
        self.probe.counts.open.store(self.sequences.len(), SeqCst);
        self.probe.counts.opened.fetch_add(1, SeqCst);
        Ok(slot)
    }

    fn close(&mut self, slot: Slot) {
        self.sequences.remove(&slot);
        self.probe.counts.open.store(self.sequences.len(), SeqCst);
    }

    #[allow(clippy::panic, reason = "panicking on demand is what a test asks of it")]
    fn step(&mut self, rows: &[StepRow<'_>], logits: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), StepModelError> {
        let step = self.steps;
        self.steps += 1;
        self.probe.counts.steps.fetch_add(1, SeqCst);
        self.probe.counts.widest.fetch_max(rows.len(), SeqCst);
        if self.delay > Duration::ZERO {
            std::thread::sleep(self.delay);
        }
        if self.panic_at == Some(step) {
            panic!("scripted panic at step {step}");
        }
        if self.error_at == Some(step) {
            return Err(StepModelError::Compute(format!("scripted failure at step {step}")));
        }
        for row in rows {
            let sequence = self
                .sequences
                .get_mut(&row.slot)
                .ok_or_else(|| StepModelError::Compute(format!("slot {} is not open", row.slot.0)))?;
            if row.tokens.is_empty() || sequence.len() + row.tokens.len() > self.context_length {
                let message = format!("{} tokens do not follow {}", row.tokens.len(), sequence.len());
                return Err(StepModelError::Compute(message));
            }
            sequence.extend_from_slice(row.tokens);
            self.probe.counts.tokens.fetch_add(row.tokens.len(), SeqCst);
        }
        let used = self.used();
        if used > self.budget.capacity {
            return Err(StepModelError::KvFull { used, capacity: self.budget.capacity });
        }
        for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.wants_logits) {
            let mut values = match (self.script)(&self.sequences[&row.slot]) {
                Next::Logits(values) => values,
                Next::Token(token) => {
                    let mut values = vec![0.0; self.vocabulary_size];
                    values[token as usize] = 100.0;
                    values
                }
            };
            values.resize(self.vocabulary_size, f32::NEG_INFINITY);
            logits(index, &mut values);
        }
        Ok(())
    }
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}
