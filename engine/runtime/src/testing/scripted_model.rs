//! A model whose output a test decides.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use super::{BYTE_EOS, BYTE_VOCABULARY};
use crate::{KeptBlock, KvBlock, KvBudget, RowOutput, RowResult, RowTokens, Slot, StepModel, StepModelError, StepRow};
use linnet_compute::{Dtype, KvData, KvFormat, LayerBlock};

/// What comes next in a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// This token, as surely as logits can say it.
    Token(u32),
    /// These logits.
    Logits(Vec<f32>),
}

/// A kept block: its tokens, a digest of its sequence up to each of them, so that it can be told what it follows, and its
/// memory.
#[derive(Debug, Clone)]
struct Kept {
    tokens: Vec<u32>,
    digests: Vec<u32>,
    memory: Arc<()>,
}

type Script = dyn Fn(&[u32]) -> Next + Send;
/// What a step gave for a row: the row's number, the chosen token, the logits.
type Given = (usize, Option<u32>, Option<Vec<f32>>);

/// A [`StepModel`] that derives the next token from a sequence's tokens alone, so that its company cannot matter, and
/// that fails on demand. Give it an engine by moving it into `load`; watch it through its [`Probe`].
pub struct ScriptedModel {
    script: Box<Script>,
    sequences: HashMap<Slot, Vec<u32>>,
    /// Tokens of a block; 0 keeps none.
    block: usize,
    /// The memory of each sequence's blocks, in order.
    memory: HashMap<Slot, Vec<Arc<()>>>,
    kept: HashMap<KeptBlock, Kept>,
    next_kept: u64,
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
    kept: AtomicUsize,
    blocks: AtomicUsize,
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

    /// Blocks kept now.
    #[must_use]
    pub fn kept_blocks(&self) -> usize {
        self.counts.kept.load(SeqCst)
    }

    /// Blocks of memory taken when a block was kept or released last, or a sequence closed.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.counts.blocks.load(SeqCst)
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
            block: 0,
            memory: HashMap::new(),
            kept: HashMap::new(),
            next_kept: 0,
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

    /// Lets the model keep blocks of this many tokens; room is taken by the block then.
    #[must_use]
    pub fn keeps_blocks(self, tokens: usize) -> Self {
        Self { block: tokens, budget: KvBudget { page: tokens, ..self.budget }, ..self }
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

    /// Every block of memory, by its address, and how many hold it.
    fn holders(&self) -> HashMap<*const (), usize> {
        let mut holders = HashMap::new();
        let kept = self.kept.values().map(|kept| &kept.memory);
        for memory in self.memory.values().flatten().chain(kept) {
            *holders.entry(Arc::as_ptr(memory)).or_default() += 1;
        }
        holders
    }

    /// Makes `tokens` tokens of memory the sequence's own: a block that it goes on in is copied if others hold it.
    fn grow(&mut self, slot: Slot, before: usize, tokens: usize) {
        let blocks = self.memory.entry(slot).or_default();
        if !before.is_multiple_of(self.block)
            && let Some(last) = blocks.last_mut()
            && Arc::strong_count(last) > 1
        {
            *last = Arc::new(());
        }
        blocks.resize_with(tokens.div_ceil(self.block), || Arc::new(()));
    }

    fn note_kept(&self) {
        self.probe.counts.kept.store(self.kept.len(), SeqCst);
        self.probe.counts.blocks.store(if self.block == 0 { 0 } else { self.holders().len() }, SeqCst);
    }

    fn used(&self) -> usize {
        if self.block > 0 {
            return self.holders().len() * self.block;
        }
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

    fn block_tokens(&self) -> usize {
        self.block
    }

    fn keep(&mut self, slot: Slot, start: usize, tokens: usize) -> Result<KeptBlock, StepModelError> {
        let end = start + tokens;
        let fault = || StepModelError::Compute(format!("slot {} has no block {start}..{end}", slot.0));
        if !start.is_multiple_of(self.block) || !(1..=self.block).contains(&tokens) {
            return Err(fault());
        }
        let held = self.sequences.get(&slot).and_then(|held| held.get(..end)).ok_or_else(fault)?;
        let memory = self.memory.get(&slot).and_then(|blocks| blocks.get(start / self.block)).ok_or_else(fault)?;
        let kept = KeptBlock(self.next_kept);
        self.next_kept += 1;
        let (tokens, digests) = (held[start..].to_vec(), digests(held).split_off(start));
        self.kept.insert(kept, Kept { tokens, digests, memory: Arc::clone(memory) });
        self.note_kept();
        Ok(kept)
    }

    #[allow(clippy::panic, reason = "a block that is released twice is what tests look for")]
    fn release(&mut self, kept: KeptBlock) {
        assert!(self.kept.remove(&kept).is_some(), "{kept:?} is not kept");
        self.note_kept();
    }

    fn adoptable(&self, blocks: &[KeptBlock], tokens: usize) -> usize {
        tokens.min(blocks.len() * self.block)
    }

    fn adopt(&mut self, slot: Slot, blocks: &[KeptBlock], tokens: usize) -> Result<(), StepModelError> {
        let fault = |reason: &str| StepModelError::Compute(format!("slot {}: {reason}", slot.0));
        if self.sequences.get(&slot).is_none_or(|held| !held.is_empty()) || tokens.div_ceil(self.block) != blocks.len()
        {
            return Err(fault("is not an empty sequence for so many blocks"));
        }
        let mut held: Vec<u32> = Vec::new();
        let mut memory = Vec::new();
        for kept in blocks {
            let kept = self.kept.get(kept).ok_or_else(|| fault("unknown block"))?;
            // A block of another history must never be taken for one of this.
            let start = memory.len() * self.block;
            held.extend(&kept.tokens);
            if held.len() != start + kept.tokens.len() || digests(&held)[start..] != kept.digests {
                return Err(fault("a block that does not follow the one before"));
            }
            memory.push(Arc::clone(&kept.memory));
        }
        if tokens > held.len() {
            return Err(fault("a block has not as many tokens"));
        }
        held.truncate(tokens);
        self.sequences.insert(slot, held);
        self.memory.insert(slot, memory);
        Ok(())
    }

    fn lacking(&self, rows: &[(Slot, usize)]) -> usize {
        if self.block == 0 || self.budget.capacity == usize::MAX {
            return 0;
        }
        let holders = self.holders();
        let wanted = |&(slot, tokens): &(Slot, usize)| {
            let held = self.sequences.get(&slot).map_or(0, Vec::len);
            let blocks = self.memory.get(&slot).map_or(&[][..], Vec::as_slice);
            let is_shared = |memory: &Arc<()>| holders.get(&Arc::as_ptr(memory)).is_some_and(|&count| count > 1);
            let copies = !held.is_multiple_of(self.block) && blocks.last().is_some_and(is_shared);
            (held + tokens).div_ceil(self.block) - blocks.len() + usize::from(copies)
        };
        let wanted: usize = rows.iter().map(wanted).sum();
        (holders.len() + wanted).saturating_sub(self.budget.capacity / self.block)
    }

    fn kept_bytes(&self, tokens: usize) -> usize {
        tokens * 8
    }

    fn read_kept(&mut self, kept: KeptBlock, range: Range<usize>) -> Result<KvBlock, StepModelError> {
        let fault = || StepModelError::Compute(format!("{kept:?} is unknown"));
        let Kept { tokens, digests, .. } = self.kept.get(&kept).ok_or_else(fault)?;
        let data = |words: &[u32]| KvData {
            format: KvFormat::Plain(Dtype::F32),
            heads: 1,
            tokens: range.len(),
            head_dim: 1,
            parts: vec![words[..range.len()].iter().flat_map(|word| word.to_le_bytes()).collect()],
        };
        let layer = LayerBlock { first: range.start, keys: data(tokens), values: data(digests) };
        Ok(KvBlock { start: range.start, tokens: range.len(), layers: vec![layer] })
    }

    fn write_kept(&mut self, block: &KvBlock) -> Result<KeptBlock, StepModelError> {
        let used = self.used();
        if used + self.block > self.budget.capacity {
            return Err(StepModelError::KvFull { used, capacity: self.budget.capacity });
        }
        let words =
            |data: &KvData| data.parts[0].as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let (tokens, digests) = (words(&block.layers[0].keys), words(&block.layers[0].values));
        let kept = KeptBlock(self.next_kept);
        self.next_kept += 1;
        self.kept.insert(kept, Kept { tokens, digests, memory: Arc::new(()) });
        self.note_kept();
        Ok(kept)
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
        self.memory.remove(&slot);
        self.chosen.remove(&slot);
        self.note_kept();
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
            let before = sequence.len();
            sequence.extend_from_slice(tokens);
            let now = sequence.len();
            if self.block > 0 {
                self.grow(row.slot, before, now);
            }
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

/// For each token a digest of the sequence up to it.
fn digests(tokens: &[u32]) -> Vec<u32> {
    let mut state = 0;
    let digest = |&token: &u32| {
        state = mix(state ^ u64::from(token));
        state as u32
    };
    tokens.iter().map(digest).collect()
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
