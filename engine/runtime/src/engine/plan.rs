//! What the next step does: a pure decision.

use std::time::Duration;

use super::{
    cost::{CostModel, StepLoad},
    share::{Prompt, share},
};
use crate::KvBudget;

/// What planning needs to know of a running request. They are given oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// Tokens in the KV store.
    pub(super) held: usize,
    /// Tokens of a request that has not started which are kept and will be held at once when it starts.
    pub(super) kept: usize,
    /// How many of both are counted with an older request already, because both share their memory.
    pub(super) shared: usize,
    /// Tokens that can be processed now but are not there yet: a prompt's rest, or the one generated last. 0 while the
    /// request waits for a step in work.
    pub(super) pending: usize,
    /// Whether the others go first.
    pub(super) yields: bool,
}

impl View {
    /// Whether somebody is being told an answer and waits for its next token.
    fn is_streaming(&self) -> bool {
        self.held > 0 && self.pending == 1
    }
}

/// One request's share of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedRow {
    /// Index of the request.
    pub(super) sequence: usize,
    /// How many of its pending tokens are processed.
    pub(super) tokens: usize,
    /// Whether the next token is wanted: nothing stays pending.
    pub(super) wants_logits: bool,
}

/// The next step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StepPlan {
    /// Requests that give their KV room back and start over later.
    pub(super) set_back: Vec<usize>,
    /// The rows of the step, oldest request first.
    pub(super) rows: Vec<PlannedRow>,
}

/// What bounds a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The most prompt tokens.
    pub(super) chunk: usize,
    /// What the KV store holds.
    pub(super) budget: KvBudget,
    /// Whether a prompt's last token is processed by itself.
    pub(super) splits_last_token: bool,
    /// How long a step may take while somebody waits for the next token of an answer.
    pub(super) max_stall: Duration,
}

/// Prompts are cut at multiples of this, which fill the kernels' register blocks.
const QUANTUM: usize = 16;

/// Every request that decodes takes part in every step; beside them at most `chunk` prompt tokens are processed. While an
/// answer streams there are fewer of them, if `costs` expects the step to take longer than `max_stall` otherwise; a
/// request alone, or prompts without a stream beside them, are never cut smaller. [`share`] says whose tokens they are.
///
/// A request starts once the KV store has room for all it has to say so far. Those that yield let the others start first;
/// apart from that none overtakes an older one. When those that run outgrow the store, the youngest of those that yield is
/// set back, else the youngest, so somebody always gets through.
pub(super) fn plan_step(sequences: &[View], limits: &Limits, costs: &CostModel) -> StepPlan {
    let (started, set_back) = started(sequences, limits.budget);
    let mut prompts = Vec::new();
    let mut load = StepLoad::default();
    let mut is_streaming = false;
    for &sequence in &started {
        let View { held, kept, pending, yields, .. } = sequences[sequence];
        if pending > 1 {
            let rest = if limits.splits_last_token { pending - 1 } else { pending };
            prompts.push(Prompt { sequence, rest, yields });
        } else {
            load.add(held + kept, pending);
            is_streaming |= sequences[sequence].is_streaming();
        }
    }
    let chunk = limits.chunk.max(1);
    let bound = is_streaming.then_some(limits.max_stall);
    let parts = bounded_parts(sequences, &prompts, chunk, bound, load, costs);
    let mut parts = prompts.iter().zip(parts).peekable();
    let mut rows = Vec::with_capacity(started.len());
    for sequence in started {
        let pending = sequences[sequence].pending;
        let tokens = parts.next_if(|(prompt, _)| prompt.sequence == sequence).map_or(pending, |(_, tokens)| tokens);
        if tokens > 0 {
            rows.push(PlannedRow { sequence, tokens, wants_logits: tokens == pending });
        }
    }
    StepPlan { set_back, rows }
}

/// Shares at most `chunk` tokens among the prompts, or as many as the bound allows beside what is in `load` already. There
/// is always some progress.
fn bounded_parts(
    sequences: &[View],
    prompts: &[Prompt],
    chunk: usize,
    bound: Option<Duration>,
    load: StepLoad,
    costs: &CostModel,
) -> Vec<usize> {
    let whole = share(prompts, chunk);
    let Some(aim) = bound.filter(|_| !prompts.is_empty()).map(|bound| costs.aim(bound)) else { return whole };
    let fits = |parts: &[usize]| {
        let mut load = load;
        for (prompt, &tokens) in prompts.iter().zip(parts) {
            let View { held, kept, .. } = sequences[prompt.sequence];
            load.add(held + kept, tokens);
        }
        costs.predict(&load) <= aim
    };
    if fits(&whole) {
        return whole;
    }
    // The most quanta that fit: more tokens never take less time.
    let (mut least, mut above) = (1, chunk.div_ceil(QUANTUM));
    while above - least > 1 {
        let middle = usize::midpoint(least, above);
        if fits(&share(prompts, middle * QUANTUM)) { least = middle } else { above = middle }
    }
    share(prompts, (least * QUANTUM).min(chunk))
}

/// Which requests take part, oldest first, and which are set back.
fn started(sequences: &[View], budget: KvBudget) -> (Vec<usize>, Vec<usize>) {
    let mut started: Vec<usize> = (0..sequences.len()).filter(|&index| sequences[index].held > 0).collect();
    let mut set_back = Vec::new();
    let committed = |started: &[usize]| {
        let mut committed = Committed::new(budget);
        started.iter().for_each(|&index| committed.add(&sequences[index]));
        committed
    };
    while started.len() > 1 && committed(&started).room() > budget.capacity {
        let victim = started.iter().rposition(|&index| sequences[index].yields).unwrap_or(started.len() - 1);
        set_back.push(started.remove(victim));
    }
    if !set_back.is_empty() {
        return (started, set_back);
    }
    let mut committed = committed(&started);
    let mut waiting: Vec<usize> = (0..sequences.len()).filter(|&index| sequences[index].held == 0).collect();
    waiting.sort_by_key(|&index| sequences[index].yields);
    for index in waiting {
        let view = &sequences[index];
        // One page of growth for each that runs keeps a newcomer from being set back at once.
        let growth = budget.page.saturating_mul(started.len());
        let mut with_it = committed;
        with_it.add(view);
        let has_room = started.is_empty() || with_it.room().saturating_add(growth) <= budget.capacity;
        if !has_room || view.pending == 0 {
            break;
        }
        committed = with_it;
        started.push(index);
    }
    started.sort_unstable();
    (started, set_back)
}

/// The room that some requests take in the KV store.
#[derive(Debug, Clone, Copy)]
struct Committed {
    budget: KvBudget,
    requests: usize,
    longest: usize,
    sum: usize,
}

impl Committed {
    fn new(budget: KvBudget) -> Self {
        Self { budget, requests: 0, longest: 0, sum: 0 }
    }

    fn add(&mut self, view: &View) {
        let tokens = round_up(view.held.saturating_add(view.kept).saturating_add(view.pending), self.budget.page);
        self.requests += 1;
        self.longest = self.longest.max(tokens);
        self.sum = self.sum.saturating_add(tokens.saturating_sub(view.shared));
    }

    fn room(&self) -> usize {
        if self.budget.is_padded { self.requests.saturating_mul(self.longest) } else { self.sum }
    }
}

fn round_up(tokens: usize, page: usize) -> usize {
    let page = page.max(1);
    tokens.div_ceil(page).saturating_mul(page)
}

#[cfg(test)]
mod tests;
