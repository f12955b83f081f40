//! Makes a backend repeat the calls that the reference made, and compares bit for bit.

use std::collections::HashMap;

use linnet_compute::{Backend, Draw, KeptBlock, KvStore, Outputs, Row, Slot};
use linnet_models::{LanguageModel, ModelError};
use sha2::{Digest, Sha256};

use crate::{ExactFixture, Scenario};

/// Where a backend's result first departs from the reference's.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    /// The call, as an index into the scenario's.
    pub call: usize,
    /// The row of that call.
    pub row: usize,
    /// The row's sequence.
    pub sequence: usize,
    /// The position of the token that was fed.
    pub position: usize,
    /// Chosen token: found and expected.
    pub tokens: (u32, u32),
    /// Where the reference's whole row is kept: how many logits differ, and by how much at most. `None` when not kept.
    pub logits: Option<(usize, f32)>,
}

/// A call whose results were not read yet.
struct Pending<'a, B: Backend> {
    call: usize,
    logits: B::Tensor,
    tokens: B::Tokens,
    /// Where each row's token was fed.
    positions: Vec<usize>,
    scenario: &'a Scenario,
    fixture: &'a ExactFixture,
}

/// Repeats a scenario's calls. `None`: every row of logits and every chosen token equals the reference's.
///
/// Results are read one call late, and where a call feeds the rows of the last one again it takes the tokens just chosen
/// without the host seeing them: as a pipelined decode loop does.
///
/// # Errors
/// Whatever the backend returns.
pub fn replay<B: Backend>(
    backend: &B,
    model: &dyn LanguageModel<B>,
    fixture: &ExactFixture,
    scenario: &Scenario,
) -> Result<Option<Mismatch>, ModelError> {
    let fed: usize = scenario.calls.iter().flat_map(|call| &call.rows).map(|row| row.1).sum();
    // Room is taken in pages.
    let mut kv = backend.kv(model.kv_layout(), fed + 256 * scenario.prompts.len())?;
    let mut slots: HashMap<usize, Slot> = HashMap::new();
    let mut sequences = scenario.prompts.clone();
    let mut pending: Option<Pending<'_, B>> = None;
    // What sequences to come begin with, where its source is about to end.
    let mut kept: HashMap<usize, Vec<KeptBlock>> = HashMap::new();
    for (index, call) in scenario.calls.iter().enumerate() {
        for sequence in scenario.ended_before(index) {
            if let Some(slot) = slots.remove(&sequence) {
                for (heir, tokens) in heirs(scenario, sequence) {
                    if scenario.begins_from(heir, index) {
                        kept.insert(heir, keep(&mut kv, slot, tokens)?);
                    }
                }
                kv.close(slot);
            }
        }
        let wanted = !call.logits.is_empty();
        let outputs = if wanted { Outputs::Last } else { Outputs::None };
        let (mut rows, mut ids) = (Vec::new(), Vec::new());
        for &(sequence, length) in &call.rows {
            let slot = match slots.get(&sequence) {
                Some(&slot) => slot,
                None => {
                    let slot = kv.open();
                    if let Some((source, tokens)) = scenario.reuse_of(sequence) {
                        let blocks = match (kept.remove(&sequence), slots.get(&source)) {
                            (Some(blocks), _) => blocks,
                            (None, Some(&source)) => keep(&mut kv, source, tokens)?,
                            (None, None) => Vec::new(),
                        };
                        kv.adopt(slot, &blocks, tokens)?;
                        blocks.into_iter().for_each(|block| kv.release(block));
                    }
                    slots.insert(sequence, slot);
                    slot
                }
            };
            let start = kv.length(slot)?;
            rows.push(Row { slot, start, length, outputs });
            ids.extend_from_slice(&sequences[sequence][start..start + length]);
        }
        let tokens = match &pending {
            Some(last) if last.repeats(call) => last.tokens.clone(),
            _ => backend.tokens(&ids)?,
        };
        let step = backend.step(&mut kv, &rows, &tokens)?;
        let logits = model.forward(backend, &step, &mut kv)?;
        let mut next = None;
        if wanted {
            let tokens = backend.choose(&logits, &vec![Draw::Greedy; rows.len()])?;
            backend.submit(&step, &mut kv, Some(&tokens), Some(&logits))?;
            let positions = rows.iter().map(|row| row.start + row.length - 1).collect();
            next = Some(Pending { call: index, logits, tokens, positions, scenario, fixture });
            for (&(sequence, _), &token) in call.rows.iter().zip(&call.tokens) {
                sequences[sequence].push(token);
            }
        } else {
            backend.submit(&step, &mut kv, None, None)?;
            backend.wait(&step, &mut kv)?;
        }
        if let Some(mismatch) = check(backend, std::mem::replace(&mut pending, next))? {
            return Ok(Some(mismatch));
        }
    }
    check(backend, pending)
}

/// Which sequences begin with tokens of this one, and how many.
fn heirs(scenario: &Scenario, source: usize) -> Vec<(usize, usize)> {
    let tokens = |heir| scenario.reuse_of(heir).filter(|(from, _)| *from == source).map(|(_, tokens)| (heir, tokens));
    (0..scenario.prompts.len()).filter_map(tokens).collect()
}

/// Keeps the first tokens of a sequence.
fn keep(kv: &mut impl KvStore, slot: Slot, tokens: usize) -> Result<Vec<KeptBlock>, ModelError> {
    let block = kv.block_tokens();
    let starts = (0..tokens).step_by(block);
    Ok(starts.map(|start| kv.keep(slot, start, block.min(tokens - start))).collect::<Result<_, _>>()?)
}

fn check<B: Backend>(backend: &B, pending: Option<Pending<'_, B>>) -> Result<Option<Mismatch>, ModelError> {
    match pending {
        Some(pending) => pending.first_mismatch(backend),
        None => Ok(None),
    }
}

impl<B: Backend> Pending<'_, B> {
    /// Whether `call` feeds the tokens that this one chose, to the same rows.
    fn repeats(&self, call: &crate::Call) -> bool {
        let ours = self.scenario.calls[self.call].rows.iter().map(|row| row.0);
        call.rows.iter().all(|row| row.1 == 1) && ours.eq(call.rows.iter().map(|row| row.0))
    }

    fn first_mismatch(&self, backend: &B) -> Result<Option<Mismatch>, ModelError> {
        let call = &self.scenario.calls[self.call];
        let mut logits = Vec::new();
        backend.read(&self.logits, &mut logits)?;
        let tokens = backend.read_tokens(&self.tokens)?;
        let size = logits.len() / call.rows.len();
        let whole = self.fixture.whole_rows(self.scenario, self.call);
        for (row, &(sequence, _)) in call.rows.iter().enumerate() {
            let found = &logits[row * size..(row + 1) * size];
            let token = tokens.get(row).copied().unwrap_or(u32::MAX);
            if digest(found) != call.logits[row] || token != call.tokens[row] {
                return Ok(Some(Mismatch {
                    call: self.call,
                    row,
                    sequence,
                    position: self.positions[row],
                    tokens: (token, call.tokens[row]),
                    logits: whole
                        .and_then(|rows| rows.get(row * size..(row + 1) * size))
                        .map(|row| distance(found, row)),
                }));
            }
        }
        Ok(None)
    }
}

/// The first 8 bytes of SHA-256 over a row of f32, little end first.
fn digest(row: &[f32]) -> String {
    let mut state = Sha256::new();
    for value in row {
        state.update(value.to_le_bytes());
    }
    state.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// How many values differ in a bit, and the greatest difference.
fn distance(found: &[f32], expected: &[f32]) -> (usize, f32) {
    let pairs = found.iter().zip(expected);
    let differing = pairs.clone().filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    (differing, pairs.fold(0.0, |most: f32, (a, b)| most.max((a - b).abs())))
}
