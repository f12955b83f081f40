//! What the next step does: a pure decision.

use crate::KvBudget;

/// What planning needs to know of a running request. They are given oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// Tokens in the KV store.
    pub(super) held: usize,
    /// Tokens that are known but not yet there: a prompt's rest, or the one generated last. At least 1.
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
pub(super) fn plan_step(sequences: &[View], chunk: usize, budget: KvBudget) -> StepPlan {
    let room = |view: &View| round_up(view.held.saturating_add(view.pending), budget.page);
    let mut started: Vec<usize> = (0..sequences.len()).filter(|&index| sequences[index].held > 0).collect();
    let mut committed = started.iter().map(|&index| room(&sequences[index])).fold(0, usize::saturating_add);
    let mut plan = StepPlan::default();
    while committed > budget.capacity
        && started.len() > 1
        && let Some(youngest) = started.pop()
    {
        committed -= room(&sequences[youngest]);
        plan.set_back.push(youngest);
    }
    if plan.set_back.is_empty() {
        for (index, view) in sequences.iter().enumerate().filter(|(_, view)| view.held == 0) {
            // One page of growth for each that runs keeps a newcomer from being set back at once.
            let growth = budget.page.saturating_mul(started.len());
            let needed = committed.saturating_add(room(view));
            if !started.is_empty() && needed.saturating_add(growth) > budget.capacity {
                break;
            }
            committed = needed;
            started.push(index);
        }
        started.sort_unstable();
    }
    let mut left = chunk.max(1);
    for sequence in started {
        let pending = sequences[sequence].pending;
        let tokens = if pending == 1 { 1 } else { pending.min(left) };
        if pending > 1 {
            left -= tokens;
        }
        if tokens > 0 {
            plan.rows.push(PlannedRow { sequence, tokens, wants_logits: tokens == pending });
        }
    }
    plan
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

    fn row(sequence: usize, tokens: usize, wants_logits: bool) -> PlannedRow {
        PlannedRow { sequence, tokens, wants_logits }
    }

    #[test]
    fn decoding_requests_share_the_step_with_one_chunk_of_the_oldest_prompt() {
        let plan = plan_step(&[view(10, 1), view(0, 100), view(30, 1), view(0, 5)], 32, KvBudget::UNLIMITED);
        assert_eq!(plan.rows, [row(0, 1, true), row(1, 32, false), row(2, 1, true)]);
        assert!(plan.set_back.is_empty());
    }

    #[test]
    fn short_prompts_share_a_chunk() {
        let plan = plan_step(&[view(96, 4), view(0, 5), view(0, 40)], 32, KvBudget::UNLIMITED);
        assert_eq!(plan.rows, [row(0, 4, true), row(1, 5, true), row(2, 23, false)]);
    }

    #[test]
    fn the_last_prompt_token_goes_with_the_final_chunk() {
        let plan = plan_step(&[view(0, 32)], 32, KvBudget::UNLIMITED);
        assert_eq!(plan.rows, [row(0, 32, true)]);
        let plan = plan_step(&[view(0, 33)], 32, KvBudget::UNLIMITED);
        assert_eq!(plan.rows, [row(0, 32, false)]);
    }

    #[test]
    fn a_chunk_of_zero_still_goes_on() {
        assert_eq!(plan_step(&[view(0, 3)], 0, KvBudget::UNLIMITED).rows, [row(0, 1, false)]);
    }

    #[test]
    fn a_request_waits_until_the_store_has_room_and_none_overtakes_it() {
        let budget = KvBudget { capacity: 64, page: 16 };
        let plan = plan_step(&[view(20, 1), view(0, 30), view(0, 2)], 32, budget);
        assert_eq!(plan.rows, [row(0, 1, true)]);
        assert!(plan.set_back.is_empty());
        let plan = plan_step(&[view(15, 1), view(0, 30)], 32, budget);
        assert_eq!(plan.rows, [row(0, 1, true), row(1, 30, true)]);
    }

    #[test]
    fn the_youngest_is_set_back_when_the_store_is_outgrown() {
        let budget = KvBudget { capacity: 64, page: 16 };
        let plan = plan_step(&[view(32, 1), view(16, 1)], 32, budget);
        assert_eq!(plan.set_back, [1]);
        assert_eq!(plan.rows, [row(0, 1, true)]);
    }

    #[test]
    fn the_oldest_alone_always_runs() {
        let budget = KvBudget { capacity: 64, page: 16 };
        assert_eq!(plan_step(&[view(0, 64)], 16, budget).rows, [row(0, 16, false)]);
        assert_eq!(plan_step(&[view(63, 1)], 16, budget).rows, [row(0, 1, true)]);
    }

    // Runs random loads through the plan and checks what must hold of every step: room, progress, fairness.
    #[test]
    fn every_load_finishes_within_the_store() {
        use rand::{Rng, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        for _ in 0..200 {
            let page = random.random_range(1..20);
            let budget = KvBudget { capacity: page * random.random_range(4..30), page };
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
                let plan = plan_step(&views, chunk, budget);
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
                let used: usize = running.iter().map(|&(held, ..)| round_up(held, page)).sum();
                assert!(used <= budget.capacity, "{used} of {budget:?}");
                running.retain(|&(.., left)| left > 0);
            }
        }
    }
}
