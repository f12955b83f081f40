//! What the next step does: a pure decision.

use crate::KvBudget;

/// What planning needs to know of a running request. They are given oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// Tokens in the KV store.
    pub(super) held: usize,
    /// Tokens that can be processed now but are not there yet: a prompt's rest, or the one generated last. 0 while the
    /// request waits for a step in work.
    pub(super) pending: usize,
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
    /// Requests that give their KV room back and start over later, the youngest first.
    pub(super) set_back: Vec<usize>,
    /// The rows of the step, oldest request first.
    pub(super) rows: Vec<PlannedRow>,
}

/// Every request that decodes takes part in every step; beside them at most `chunk` prompt tokens are processed, those
/// of the oldest prompts first. So a long prompt delays the others by one chunk per token, never by all of it.
///
/// A request starts once the KV store has room for all it has to say so far, and none overtakes an older one. When
/// those that run outgrow the store the youngest is set back, so the oldest always gets through.
pub(super) fn plan_step(sequences: &[View], limits: &Limits) -> StepPlan {
    let Limits { chunk, budget, splits_last_token } = *limits;
    let mut started: Vec<usize> = (0..sequences.len()).filter(|&index| sequences[index].held > 0).collect();
    let mut committed = Committed::new(budget);
    for &index in &started {
        committed.add(&sequences[index]);
    }
    let mut plan = StepPlan::default();
    while committed.room() > budget.capacity
        && started.len() > 1
        && let Some(youngest) = started.pop()
    {
        plan.set_back.push(youngest);
        committed = Committed::new(budget);
        for &index in &started {
            committed.add(&sequences[index]);
        }
    }
    if plan.set_back.is_empty() {
        for (index, view) in sequences.iter().enumerate().filter(|(_, view)| view.held == 0) {
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
    }
    let mut left = chunk.max(1);
    for sequence in started {
        let pending = sequences[sequence].pending;
        let prompt = if splits_last_token { pending.saturating_sub(1) } else { pending };
        let tokens = if pending <= 1 { pending } else { prompt.min(left) };
        if pending > 1 {
            left -= tokens;
        }
        if tokens > 0 {
            plan.rows.push(PlannedRow { sequence, tokens, wants_logits: tokens == pending });
        }
    }
    plan
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
        let tokens = round_up(view.held.saturating_add(view.pending), self.budget.page);
        self.requests += 1;
        self.longest = self.longest.max(tokens);
        self.sum = self.sum.saturating_add(tokens);
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
mod tests {
    use super::*;

    fn view(held: usize, pending: usize) -> View {
        View { held, pending }
    }

    fn limits(chunk: usize, budget: KvBudget) -> Limits {
        Limits { chunk, budget, splits_last_token: false }
    }

    fn paged(capacity: usize, page: usize) -> KvBudget {
        KvBudget { capacity, page, is_padded: false }
    }

    fn row(sequence: usize, tokens: usize, wants_logits: bool) -> PlannedRow {
        PlannedRow { sequence, tokens, wants_logits }
    }

    #[test]
    fn decoding_requests_share_the_step_with_one_chunk_of_the_oldest_prompt() {
        let plan = plan_step(&[view(10, 1), view(0, 100), view(30, 1), view(0, 5)], &limits(32, KvBudget::UNLIMITED));
        assert_eq!(plan.rows, [row(0, 1, true), row(1, 32, false), row(2, 1, true)]);
        assert!(plan.set_back.is_empty());
    }

    #[test]
    fn short_prompts_share_a_chunk() {
        let plan = plan_step(&[view(96, 4), view(0, 5), view(0, 40)], &limits(32, KvBudget::UNLIMITED));
        assert_eq!(plan.rows, [row(0, 4, true), row(1, 5, true), row(2, 23, false)]);
    }

    #[test]
    fn the_last_prompt_token_goes_with_the_final_chunk() {
        let plan = plan_step(&[view(0, 32)], &limits(32, KvBudget::UNLIMITED));
        assert_eq!(plan.rows, [row(0, 32, true)]);
        let plan = plan_step(&[view(0, 33)], &limits(32, KvBudget::UNLIMITED));
        assert_eq!(plan.rows, [row(0, 32, false)]);
    }

    #[test]
    fn a_chunk_of_zero_still_goes_on() {
        assert_eq!(plan_step(&[view(0, 3)], &limits(0, KvBudget::UNLIMITED)).rows, [row(0, 1, false)]);
    }

    #[test]
    fn a_request_waits_until_the_store_has_room_and_none_overtakes_it() {
        let budget = paged(64, 16);
        let plan = plan_step(&[view(20, 1), view(0, 30), view(0, 2)], &limits(32, budget));
        assert_eq!(plan.rows, [row(0, 1, true)]);
        assert!(plan.set_back.is_empty());
        let plan = plan_step(&[view(15, 1), view(0, 30)], &limits(32, budget));
        assert_eq!(plan.rows, [row(0, 1, true), row(1, 30, true)]);
    }

    #[test]
    fn the_youngest_is_set_back_when_the_store_is_outgrown() {
        let budget = paged(64, 16);
        let plan = plan_step(&[view(32, 1), view(16, 1)], &limits(32, budget));
        assert_eq!(plan.set_back, [1]);
        assert_eq!(plan.rows, [row(0, 1, true)]);
    }

    #[test]
    fn the_oldest_alone_always_runs() {
        let budget = paged(64, 16);
        assert_eq!(plan_step(&[view(0, 64)], &limits(16, budget)).rows, [row(0, 16, false)]);
        assert_eq!(plan_step(&[view(63, 1)], &limits(16, budget)).rows, [row(0, 1, true)]);
    }

    #[test]
    fn a_prompt_s_last_token_is_a_step_of_its_own_where_the_model_wants_that() {
        let limits = Limits { splits_last_token: true, ..limits(32, KvBudget::UNLIMITED) };
        assert_eq!(plan_step(&[view(0, 33)], &limits).rows, [row(0, 32, false)]);
        assert_eq!(plan_step(&[view(0, 20), view(0, 2)], &limits).rows, [row(0, 19, false), row(1, 1, false)]);
        assert_eq!(plan_step(&[view(19, 1), view(0, 1)], &limits).rows, [row(0, 1, true), row(1, 1, true)]);
    }

    #[test]
    fn a_request_that_waits_for_its_token_takes_no_part_but_keeps_its_room() {
        let plan = plan_step(&[view(40, 0), view(10, 1), view(0, 10)], &limits(32, paged(64, 16)));
        assert_eq!(plan.rows, [row(1, 1, true)]);
        assert!(plan_step(&[view(40, 0)], &limits(32, KvBudget::UNLIMITED)).rows.is_empty());
    }

    #[test]
    fn in_a_padded_store_each_request_takes_the_room_of_the_longest() {
        let padded = KvBudget { is_padded: true, ..paged(64, 16) };
        let plan = plan_step(&[view(20, 1), view(0, 30)], &limits(32, padded));
        assert_eq!(plan.rows, [row(0, 1, true)], "32 + 32 and a page of growth are more than 64");
        let plan = plan_step(&[view(33, 1), view(1, 1)], &limits(32, padded));
        assert_eq!((plan.set_back, plan.rows), (vec![1], vec![row(0, 1, true)]), "2 * 48 are more than 64");
    }

    // Runs random loads through the plan and checks what must hold of every step: room, progress, fairness.
    #[test]
    fn every_load_finishes_within_the_store() {
        use rand::{Rng, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        for _ in 0..200 {
            let page = random.random_range(1..20);
            let is_padded = random.random();
            let splits_last_token = random.random();
            let budget = KvBudget { capacity: page * random.random_range(4..30), page, is_padded };
            let chunk = random.random_range(1..40);
            // (held, pending, tokens still to generate)
            let mut running: Vec<(usize, usize, usize)> = (0..random.random_range(1..9))
                .map(|_| {
                    let prompt = random.random_range(1..budget.capacity);
                    (0, prompt, random.random_range(1..=budget.capacity - prompt))
                })
                .collect();
            let mut steps = 0;
            while !running.is_empty() {
                steps += 1;
                assert!(steps < 20_000, "no progress: {running:?} in {budget:?}, chunk {chunk}");
                let views: Vec<View> = running.iter().map(|&(held, pending, _)| view(held, pending)).collect();
                let plan = plan_step(&views, &Limits { chunk, budget, splits_last_token });
                assert!(!plan.rows.is_empty());
                for &index in &plan.set_back {
                    let (held, pending, _) = &mut running[index];
                    *pending += std::mem::take(held);
                }
                let prompt_tokens: usize = plan.rows.iter().map(|row| row.tokens).filter(|&tokens| tokens > 1).sum();
                assert!(prompt_tokens <= chunk.max(1));
                for row in &plan.rows {
                    let (held, pending, left) = &mut running[row.sequence];
                    *held += row.tokens;
                    *pending -= row.tokens;
                    assert_eq!(row.wants_logits, *pending == 0);
                    if *pending == 0 {
                        *left -= 1;
                        *pending = 1;
                    }
                }
                let rooms = || running.iter().map(|&(held, ..)| round_up(held, page)).filter(|&room| room > 0);
                let longest = rooms().max().unwrap_or(0);
                let used = if is_padded { rooms().count() * longest } else { rooms().sum() };
                assert!(used <= budget.capacity, "{used} of {budget:?}");
                running.retain(|&(.., left)| left > 0);
            }
        }
    }
}
