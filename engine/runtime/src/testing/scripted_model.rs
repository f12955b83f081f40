//! A model whose output a test decides.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use super::{BYTE_EOS, BYTE_VOCABULARY};
use crate::{KvBudget, RowOutput, RowResult, RowTokens, Slot, StepModel, StepModelError, StepRow};

/// What comes next in a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// This token, as surely as logits can say it.
    Token(u32),
    /// These logits.
    Logits(Vec<f32>),
}

type Script = dyn Fn(&[u32]) -> Next + Send;
/// What a step gave for a row: the row's number, the chosen token, the logits.
type Given = (usize, Option<u32>, Option<Vec<f32>>);

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
    splits_last_token: bool,
    runs_ahead: bool,
    steps: usize,
    /// The token chosen last for each slot.
    chosen: HashMap<Slot, u32>,
    /// What steps that were not collected yet gave for their rows.
    submitted: VecDeque<Vec<Given>>,
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
    ahead: AtomicUsize,
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

    /// Steps that were submitted while another one was not collected yet.
    #[must_use]
    pub fn steps_ahead(&self) -> usize {
        self.counts.ahead.load(SeqCst)
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
            splits_last_token: false,
            runs_ahead: false,
            steps: 0,
            chosen: HashMap::new(),
            submitted: VecDeque::new(),
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

    /// Lets the model choose tokens itself and take a step before the one before was collected. It chooses greedily
    /// whatever it is asked.
    #[must_use]
    pub fn runs_ahead(self) -> Self {
        Self { runs_ahead: true, ..self }
    }

    /// Makes a prompt's last token a step of its own.
    #[must_use]
    pub fn splits_last_token(self) -> Self {
        Self { splits_last_token: true, ..self }
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

    fn splits_last_token(&self) -> bool {
        self.splits_last_token
    }

    fn runs_ahead(&self) -> bool {
        self.runs_ahead
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
        self.chosen.remove(&slot);
        self.probe.counts.open.store(self.sequences.len(), SeqCst);
    }

    #[allow(clippy::panic, reason = "panicking on demand is what a test asks of it")]
    fn submit(&mut self, rows: &[StepRow<'_>]) -> Result<(), StepModelError> {
        let step = self.steps;
        self.steps += 1;
        self.probe.counts.steps.fetch_add(1, SeqCst);
        self.probe.counts.widest.fetch_max(rows.len(), SeqCst);
        if !self.submitted.is_empty() {
            self.probe.counts.ahead.fetch_add(1, SeqCst);
        }
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
            let chosen = self.chosen.get(&row.slot).copied();
            let tokens = match (&row.tokens, &chosen) {
                (RowTokens::Known(tokens), _) => tokens,
                (RowTokens::Chosen, Some(token)) => std::slice::from_ref(token),
                (RowTokens::Chosen, None) => {
                    return Err(StepModelError::Compute(format!("nothing was chosen for slot {}", row.slot.0)));
                }
            };
            let sequence = self
                .sequences
                .get_mut(&row.slot)
                .ok_or_else(|| StepModelError::Compute(format!("slot {} is not open", row.slot.0)))?;
            if tokens.is_empty() || sequence.len() + tokens.len() > self.context_length {
                let message = format!("{} tokens do not follow {}", tokens.len(), sequence.len());
                return Err(StepModelError::Compute(message));
            }
            sequence.extend_from_slice(tokens);
            self.probe.counts.tokens.fetch_add(tokens.len(), SeqCst);
        }
        let used = self.used();
        if used > self.budget.capacity {
            return Err(StepModelError::KvFull { used, capacity: self.budget.capacity });
        }
        let mut results = Vec::new();
        for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.output != RowOutput::None) {
            let mut logits = match (self.script)(&self.sequences[&row.slot]) {
                Next::Logits(values) => values,
                Next::Token(token) => {
                    let mut values = vec![0.0; self.vocabulary_size];
                    values[token as usize] = 100.0;
                    values
                }
            };
            logits.resize(self.vocabulary_size, f32::NEG_INFINITY);
            results.push(match row.output {
                RowOutput::Token { draw: _, logits: wants_logits } => {
                    let token = greatest(&logits);
                    self.chosen.insert(row.slot, token);
                    (index, Some(token), wants_logits.then_some(logits))
                }
                RowOutput::Logits | RowOutput::None => (index, None, Some(logits)),
            });
        }
        self.submitted.push_back(results);
        Ok(())
    }

    fn collect(&mut self, result: &mut dyn FnMut(RowResult<'_>)) -> Result<(), StepModelError> {
        for (row, token, mut logits) in self.submitted.pop_front().unwrap_or_default() {
            result(RowResult { row, token, logits: logits.as_deref_mut() });
        }
        Ok(())
    }
}

/// The token of the greatest logit, or what stands for none.
fn greatest(logits: &[f32]) -> u32 {
    if logits.iter().any(|logit| logit.is_nan()) {
        return u32::MAX;
    }
    let best = logits.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(u32::MAX, |(token, _)| token as u32)
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}
