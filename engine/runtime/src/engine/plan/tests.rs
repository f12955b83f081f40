//! The plan of single steps, and of random loads to their end.

use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn view(held: usize, pending: usize) -> View {
    View { held, kept: 0, shared: 0, pending, yields: false }
}

fn background(held: usize, pending: usize) -> View {
    View { yields: true, ..view(held, pending) }
}

fn limits(chunk: usize, budget: KvBudget) -> Limits {
    Limits { chunk, budget, splits_last_token: false, max_stall: Duration::from_millis(200) }
}

fn paged(capacity: usize, page: usize) -> KvBudget {
    KvBudget { capacity, page, is_padded: false }
}

fn row(sequence: usize, tokens: usize, wants_logits: bool) -> PlannedRow {
    PlannedRow { sequence, tokens, wants_logits }
}

fn plan(sequences: &[View], limits: &Limits) -> StepPlan {
    plan_step(sequences, limits, &CostModel::default())
}

/// A model that has learned that a token takes 2 ms.
fn slow() -> CostModel {
    let mut costs = CostModel::default();
    for tokens in [128, 64, 16, 128, 32] {
        let load = StepLoad { prompt_tokens: tokens, ..StepLoad::default() };
        costs.observe(&load, Duration::from_millis(2) * tokens as u32);
    }
    costs
}

#[test]
fn decoding_requests_share_the_step_with_a_chunk_of_the_prompts() {
    let plan = plan(&[view(10, 1), view(0, 100), view(30, 1), view(0, 5)], &limits(32, KvBudget::UNLIMITED));
    assert_eq!(plan.rows, [row(0, 1, true), row(1, 27, false), row(2, 1, true), row(3, 5, true)]);
    assert!(plan.set_back.is_empty());
}

#[test]
fn short_prompts_share_a_chunk() {
    let plan = plan(&[view(96, 4), view(0, 5), view(0, 40)], &limits(32, KvBudget::UNLIMITED));
    assert_eq!(plan.rows, [row(0, 4, true), row(1, 5, true), row(2, 23, false)]);
}

#[test]
fn the_last_prompt_token_goes_with_the_final_chunk() {
    assert_eq!(plan(&[view(0, 32)], &limits(32, KvBudget::UNLIMITED)).rows, [row(0, 32, true)]);
    assert_eq!(plan(&[view(0, 33)], &limits(32, KvBudget::UNLIMITED)).rows, [row(0, 32, false)]);
}

#[test]
fn a_chunk_of_zero_still_goes_on() {
    assert_eq!(plan(&[view(0, 3)], &limits(0, KvBudget::UNLIMITED)).rows, [row(0, 1, false)]);
}

#[test]
fn prompts_are_cut_smaller_only_beside_an_answer_that_streams() {
    let (limits, costs) = (limits(128, KvBudget::UNLIMITED), slow());
    assert_eq!(plan_step(&[view(512, 4000)], &limits, &costs).rows, [row(0, 128, false)]);
    let two_prompts = plan_step(&[view(512, 4000), view(0, 90)], &limits, &costs);
    assert_eq!(two_prompts.rows, [row(0, 38, false), row(1, 90, true)]);
    let company = plan_step(&[view(512, 4000), view(30, 1)], &limits, &costs);
    assert!((32..=96).contains(&company.rows[0].tokens), "{company:?}");
    assert_eq!(company.rows[1], row(1, 1, true));
    let patient = Limits { max_stall: Duration::from_secs(60), ..limits };
    assert_eq!(plan_step(&[view(512, 4000), view(30, 1)], &patient, &costs).rows[0].tokens, 128);
}

#[test]
fn a_bound_that_cannot_be_kept_still_lets_prompts_go_on() {
    let limits = Limits { max_stall: Duration::from_micros(1), ..limits(128, KvBudget::UNLIMITED) };
    let plan = plan_step(&[view(512, 4000), view(30, 1)], &limits, &slow());
    assert_eq!(plan.rows, [row(0, QUANTUM, false), row(1, 1, true)]);
}

#[test]
fn a_request_waits_until_the_store_has_room_and_none_overtakes_it() {
    let limits = limits(32, paged(64, 16));
    let found = plan(&[view(20, 1), view(0, 30), view(0, 2)], &limits);
    assert_eq!(found.rows, [row(0, 1, true)]);
    assert!(found.set_back.is_empty());
    let found = plan(&[view(15, 1), view(0, 30)], &limits);
    assert_eq!(found.rows, [row(0, 1, true), row(1, 30, true)]);
}

#[test]
fn what_yields_starts_after_the_others_and_is_set_back_before_them() {
    let limits = limits(32, paged(64, 16));
    let found = plan(&[view(15, 1), background(0, 20), view(0, 20)], &limits);
    assert_eq!(found.rows, [row(0, 1, true), row(2, 20, true)]);
    let found = plan(&[view(16, 1), background(16, 1), view(16, 1)], &limits);
    assert_eq!((found.set_back, found.rows), (vec![1], vec![row(0, 1, true), row(2, 1, true)]));
}

#[test]
fn the_youngest_is_set_back_when_the_store_is_outgrown() {
    let found = plan(&[view(32, 1), view(16, 1)], &limits(32, paged(64, 16)));
    assert_eq!(found.set_back, [1]);
    assert_eq!(found.rows, [row(0, 1, true)]);
}

#[test]
fn the_oldest_alone_always_runs() {
    let limits = limits(16, paged(64, 16));
    assert_eq!(plan(&[view(0, 64)], &limits).rows, [row(0, 16, false)]);
    assert_eq!(plan(&[view(63, 1)], &limits).rows, [row(0, 1, true)]);
}

#[test]
fn a_prompt_s_last_token_is_a_step_of_its_own_where_the_model_wants_that() {
    let limits = Limits { splits_last_token: true, ..limits(32, KvBudget::UNLIMITED) };
    assert_eq!(plan(&[view(0, 33)], &limits).rows, [row(0, 32, false)]);
    assert_eq!(plan(&[view(0, 20), view(0, 2)], &limits).rows, [row(0, 19, false), row(1, 1, false)]);
    assert_eq!(plan(&[view(19, 1), view(0, 1)], &limits).rows, [row(0, 1, true), row(1, 1, true)]);
}

#[test]
fn a_request_that_waits_for_its_token_takes_no_part_but_keeps_its_room() {
    let found = plan(&[view(40, 0), view(10, 1), view(0, 10)], &limits(32, paged(64, 16)));
    assert_eq!(found.rows, [row(1, 1, true)]);
    assert!(plan(&[view(40, 0)], &limits(32, KvBudget::UNLIMITED)).rows.is_empty());
}

#[test]
fn in_a_padded_store_each_request_takes_the_room_of_the_longest() {
    let padded = KvBudget { is_padded: true, ..paged(64, 16) };
    let found = plan(&[view(20, 1), view(0, 30)], &limits(32, padded));
    assert_eq!(found.rows, [row(0, 1, true)], "32 + 32 and a page of growth are more than 64");
    let found = plan(&[view(33, 1), view(1, 1)], &limits(32, padded));
    assert_eq!((found.set_back, found.rows), (vec![1], vec![row(0, 1, true)]), "2 * 48 are more than 64");
}

/// A request of a random load.
#[derive(Debug)]
struct Running {
    view: View,
    /// Tokens still to generate.
    left: usize,
    arrived: usize,
}

/// A machine whose steps take `constant + tokens * token + pairs * pair` seconds, give or take `noise`.
#[derive(Debug)]
struct Machine {
    constant: f64,
    token: f64,
    pair: f64,
    noise: f64,
}

impl Machine {
    fn random(random: &mut ChaCha8Rng) -> Self {
        Self {
            constant: random.random_range(0.0..0.01),
            token: random.random_range(0.0001..0.002),
            pair: random.random_range(0.0..3e-7),
            noise: random.random_range(0.0..0.2),
        }
    }

    fn seconds(&self, load: &StepLoad, random: &mut ChaCha8Rng) -> f64 {
        let tokens = (load.prompt_tokens + load.decode_rows) as f64;
        let seconds = self.constant + tokens * self.token + load.pairs as f64 * self.pair;
        seconds * (1.0 + self.noise * random.random_range(-1.0..1.0))
    }
}

/// The step that a plan makes of the requests: what it costs, and the requests after it.
fn carry_out(plan: &StepPlan, running: &mut [Running]) -> StepLoad {
    for &index in &plan.set_back {
        let view = &mut running[index].view;
        view.pending += std::mem::take(&mut view.held);
    }
    let mut load = StepLoad::default();
    for row in &plan.rows {
        let Running { view, left, .. } = &mut running[row.sequence];
        load.add(view.held, row.tokens);
        view.held += row.tokens;
        view.pending -= row.tokens;
        assert_eq!(row.wants_logits, view.pending == 0);
        if view.pending == 0 {
            *left -= 1;
            view.pending = 1;
        }
    }
    load
}

#[test]
fn every_load_finishes_within_the_store() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for _ in 0..200 {
        let page = random.random_range(1..20);
        let budget = KvBudget { capacity: page * random.random_range(4..30), page, is_padded: random.random() };
        let limits = Limits { splits_last_token: random.random(), ..limits(random.random_range(1..40), budget) };
        let (machine, mut costs) = (Machine::random(&mut random), CostModel::default());
        let mut running: Vec<Running> = (0..random.random_range(1..9))
            .map(|_| {
                let prompt = random.random_range(1..budget.capacity);
                let view = View { yields: random.random(), ..view(0, prompt) };
                Running { view, left: random.random_range(1..=budget.capacity - prompt), arrived: 0 }
            })
            .collect();
        let mut steps = 0;
        while !running.is_empty() {
            steps += 1;
            assert!(steps < 40_000, "no progress: {running:?} in {limits:?}");
            let views: Vec<View> = running.iter().map(|running| running.view).collect();
            let plan = plan_step(&views, &limits, &costs);
            assert!(!plan.rows.is_empty());
            let load = carry_out(&plan, &mut running);
            assert!(load.prompt_tokens <= limits.chunk);
            costs.observe(&load, Duration::from_secs_f64(machine.seconds(&load, &mut random)));
            let rooms = || running.iter().map(|running| round_up(running.view.held, page)).filter(|&room| room > 0);
            let longest = rooms().max().unwrap_or(0);
            let used = if budget.is_padded { rooms().count() * longest } else { rooms().sum() };
            assert!(used <= budget.capacity, "{used} of {budget:?}");
            running.retain(|running| running.left > 0);
        }
    }
}

/// What a random load with arrivals is checked for.
#[derive(Debug, Default)]
struct Watched {
    /// Steps with a prompt beside a stream, and how many of them took longer than the bound.
    bounded: usize,
    late: usize,
    /// By how much the latest one missed it.
    worst: f64,
    /// The most steps that a request of at most one chunk waited for its first token, and any request.
    short_wait: usize,
    long_wait: usize,
}

fn watch(seed: u64, chunk: usize) -> Watched {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let limits = limits(chunk, KvBudget::UNLIMITED);
    let (machine, mut costs) = (Machine::random(&mut random), CostModel::default());
    let (mut running, mut watched): (Vec<Running>, _) = (Vec::new(), Watched::default());
    for step in 0..1500 {
        if running.len() < 8 && random.random_bool(0.06) {
            let prompt =
                if random.random_bool(0.3) { random.random_range(500..6000) } else { random.random_range(1..60) };
            let view = View { yields: random.random_bool(0.2), ..view(0, prompt) };
            running.push(Running { view, left: random.random_range(1..80), arrived: step });
        }
        let views: Vec<View> = running.iter().map(|running| running.view).collect();
        let plan = plan_step(&views, &limits, &costs);
        assert_eq!(plan.rows.is_empty(), running.is_empty());
        // Whoever streams has a row in every step, whatever else there is.
        let streams: Vec<usize> = (0..views.len()).filter(|&index| views[index].is_streaming()).collect();
        for stream in &streams {
            assert!(plan.rows.contains(&row(*stream, 1, true)));
        }
        // The oldest prompt that does not yield goes on in every step.
        let is_prompt = |index: &usize| views[*index].pending > 1 && !views[*index].yields;
        if let Some(oldest) = (0..views.len()).find(is_prompt) {
            assert!(plan.rows.iter().any(|row| row.sequence == oldest));
        }
        let before: Vec<bool> = running.iter().map(|running| running.view.is_streaming()).collect();
        let load = carry_out(&plan, &mut running);
        let seconds = machine.seconds(&load, &mut random);
        costs.observe(&load, Duration::from_secs_f64(seconds));
        for (running, streamed) in running.iter().zip(before) {
            if running.view.is_streaming() && !streamed && !running.view.yields {
                let waited = step - running.arrived;
                let most = if running.view.held < 60 { &mut watched.short_wait } else { &mut watched.long_wait };
                *most = waited.max(*most);
            }
        }
        if !streams.is_empty() && load.prompt_tokens > QUANTUM && step > 100 {
            watched.bounded += 1;
            let part = seconds / limits.max_stall.as_secs_f64();
            watched.late += usize::from(part > 1.0);
            watched.worst = watched.worst.max(part);
        }
        running.retain(|running| running.left > 0);
    }
    watched
}

#[test]
fn streams_do_not_stall_beyond_the_bound_and_short_prompts_are_not_starved() {
    let (mut bounded, mut late) = (0, 0);
    for seed in 0..30 {
        let watched = watch(seed, 128);
        bounded += watched.bounded;
        late += watched.late;
        assert!(watched.worst < 1.5, "seed {seed}: {watched:?}");
        assert!(watched.short_wait <= 20, "seed {seed}: {watched:?}");
        assert!(watched.long_wait <= 1400, "seed {seed}: {watched:?}");
    }
    assert!(bounded > 3000, "{bounded} steps tested nothing");
    assert!(late * 100 <= bounded, "{late} of {bounded} steps took longer than the bound");
}
