//! What is kept of prompts and answers, and found again.

use super::*;
use crate::{KvBudget, Priority};

const BLOCK: usize = 8;

fn keeping(model: ScriptedModel) -> ScriptedModel {
    model.keeps_blocks(BLOCK)
}

fn limited(prompt: &str, tokens: usize) -> GenerationRequest {
    GenerationRequest { max_tokens: Some(tokens), ..request(prompt) }
}

/// The tokens of an answer without a cache.
fn alone(request: GenerationRequest) -> Vec<u32> {
    answer(&start(ScriptedModel::noise()), request).tokens
}

#[test]
fn a_prompt_that_was_seen_before_is_processed_only_from_where_it_differs() {
    let model = keeping(ScriptedModel::noise());
    let probe = model.probe();
    let engine = start(model);
    let first = "a long system prompt that everybody sends, and a question";
    let edited = "a long system prompt that everybody sends, and another one";
    assert_eq!(answer(&engine, limited(first, 5)).usage().cached_tokens, 0);
    let before = probe.tokens();
    let again = answer(&engine, limited(first, 5));
    assert_eq!(again.usage().cached_tokens, first.len() - 1, "one token is left to process");
    assert_eq!(probe.tokens() - before, 1 + 4);
    assert_eq!(again.tokens, alone(limited(first, 5)));
    let other = answer(&engine, limited(edited, 5));
    assert_eq!(other.usage().cached_tokens, "a long system prompt that everybody sends, and a".len());
    assert_eq!(other.tokens, alone(limited(edited, 5)));
    assert_eq!(other.prefill.last(), Some(&(edited.len(), edited.len())));
    let ram = engine.cache_status().ram;
    assert_eq!((ram.hits, ram.misses, ram.hit_tokens), (2, 1, (first.len() - 1 + 48) as u64));
}

#[test]
fn a_follow_up_finds_the_answer_by_the_tokens_that_were_generated() {
    let model = keeping(ScriptedModel::noise());
    let engine = start(model);
    let first = answer(&engine, limited("a question", 21));
    let mut prompt = byte_tokens("a question");
    prompt.extend(&first.tokens);
    prompt.extend(byte_tokens(" and more"));
    let follow_up = GenerationRequest { prompt, max_tokens: Some(3), ..Default::default() };
    let second = answer(&engine, follow_up.clone());
    // The last generated token was never processed.
    assert_eq!(second.usage().cached_tokens, "a question".len() + 20);
    assert_eq!(second.tokens, alone(follow_up));
}

#[test]
fn two_equal_prompts_that_come_together_are_processed_once() {
    for runs_ahead in [false, true] {
        let model = keeping(ScriptedModel::noise().prefill_chunk(16).delay(Duration::from_millis(2)));
        let model = if runs_ahead { model.runs_ahead().splits_last_token() } else { model };
        let probe = model.probe();
        let engine = start(model);
        let prompt = "x".repeat(200);
        let running = engine.submit(limited("occupied", 40)).unwrap();
        let streams: Vec<Generation> = (0..4).map(|_| engine.submit(limited(&prompt, 3)).unwrap()).collect();
        let answers: Vec<Answer> = streams.into_iter().map(read).collect();
        let cached: usize = answers.iter().map(|answer| answer.usage().cached_tokens).sum();
        // Whole blocks are shared while the prompt is read; what is left of the last one may be processed by each.
        assert!(cached >= 3 * 192, "{cached}, runs ahead: {runs_ahead}");
        for answer in &answers {
            assert_eq!(answer.tokens, alone(limited(&prompt, 3)));
        }
        drop(running);
        assert!(probe.tokens() < 200 + 3 * 8 + 4 * 3 + 60, "{}", probe.tokens());
    }
}

#[test]
fn an_interactive_request_does_not_wait_for_the_prompt_of_a_background_one() {
    let model = keeping(ScriptedModel::noise().prefill_chunk(16).delay(Duration::from_millis(3)));
    let engine = start(model);
    let prompt = "x".repeat(400);
    let background =
        engine.submit(GenerationRequest { priority: Priority::Background, ..limited(&prompt, 60) }).unwrap();
    wait_until(Duration::from_secs(2), "it runs", || engine.status().prompt_tokens > 0);
    let interactive = read(engine.submit(limited(&prompt, 2)).unwrap());
    assert_eq!(interactive.tokens, alone(limited(&prompt, 2)));
    drop(background);
}

#[test]
fn what_was_interrupted_is_kept() {
    let model = keeping(ScriptedModel::noise().delay(Duration::from_millis(1)));
    let engine = start(model);
    let mut stream = engine.submit(request("interrupted before its end")).unwrap();
    read_tokens(&mut stream, 20);
    drop(stream);
    wait_until(Duration::from_secs(1), "it is cancelled", || engine.status().cancelled == 1);
    let again = answer(&engine, limited("interrupted before its end", 1));
    assert_eq!(again.usage().cached_tokens, "interrupted before its end".len() - 1);
}

#[test]
fn what_a_failed_step_may_have_spoilt_is_never_found() {
    for runs_ahead in [false, true] {
        let model = keeping(ScriptedModel::noise().prefill_chunk(16).error_at(4));
        let model = if runs_ahead { model.runs_ahead() } else { model };
        let probe = model.probe();
        let engine = start(model);
        let prompt = "p".repeat(100);
        assert!(read(engine.submit(limited(&prompt, 3)).unwrap()).failed.is_some());
        wait_until(Duration::from_secs(1), "nothing is kept", || probe.kept_blocks() == 0);
        let again = answer(&engine, limited(&prompt, 3));
        assert_eq!(again.usage().cached_tokens, 0);
        assert_eq!(again.tokens, alone(limited(&prompt, 3)));
    }
}

#[test]
fn kept_blocks_make_room_before_a_request_waits_or_is_set_back() {
    let budget = KvBudget { capacity: 20 * BLOCK, page: BLOCK, is_padded: false };
    let model = ScriptedModel::noise().kv_budget(budget).keeps_blocks(BLOCK);
    let probe = model.probe();
    let engine = start(model);
    for number in 0..12 {
        let prompt = format!("{number} is a prompt that fills some blocks");
        assert_eq!(answer(&engine, limited(&prompt, 10)).tokens, alone(limited(&prompt, 10)));
    }
    assert!(probe.blocks() <= 20, "{}", probe.blocks());
    let ram = engine.cache_status().ram;
    assert!(ram.evictions > 0 && ram.entries > 10, "{ram:?}");
    let opened = probe.opened_slots();
    let whole = "w".repeat(19 * BLOCK);
    assert_eq!(answer(&engine, limited(&whole, BLOCK)).tokens.len(), BLOCK);
    assert_eq!(probe.opened_slots(), opened + 1, "nothing was set back");
}

#[test]
fn a_shared_beginning_takes_its_room_once() {
    let budget = KvBudget { capacity: 40 * BLOCK, page: BLOCK, is_padded: false };
    let model = ScriptedModel::noise().kv_budget(budget).keeps_blocks(BLOCK).delay(Duration::from_millis(1));
    let probe = model.probe();
    let engine = start(model);
    let shared = "s".repeat(30 * BLOCK);
    answer(&engine, limited(&shared, 1));
    let opened = probe.opened_slots();
    let ask = |number: usize| limited(&format!("{shared}{number}"), 12);
    let streams: Vec<Generation> = (0..4).map(|number| engine.submit(ask(number)).unwrap()).collect();
    for (number, stream) in streams.into_iter().enumerate() {
        let answer = read(stream);
        assert_eq!(answer.tokens, alone(ask(number)));
        assert_eq!(answer.usage().cached_tokens, 30 * BLOCK);
    }
    assert_eq!(probe.widest_step(), 4, "all four fit at once");
    assert_eq!(probe.opened_slots() - opened, 4, "none was set back");
}

#[test]
fn what_is_set_back_goes_on_from_what_it_computed() {
    let budget = KvBudget { capacity: 16 * BLOCK, page: BLOCK, is_padded: false };
    let model = ScriptedModel::noise().kv_budget(budget).keeps_blocks(BLOCK);
    let probe = model.probe();
    let engine = start(model);
    let prompts = ["one", "the second", "a third prompt", "four"];
    let streams: Vec<Generation> = prompts.iter().map(|prompt| engine.submit(limited(prompt, 60)).unwrap()).collect();
    for (prompt, stream) in prompts.iter().zip(streams) {
        let answer = read(stream);
        assert_eq!(answer.tokens, alone(limited(prompt, 60)), "{prompt}");
        assert_eq!(answer.usage().cached_tokens, 0, "its own work is no cache hit");
    }
    assert!(probe.opened_slots() > prompts.len(), "nothing was set back: the test does not test");
    assert_eq!(probe.open_slots(), 0);
}

#[test]
fn the_byte_budget_holds_and_zero_keeps_nothing() {
    let options = EngineOptions { prefix_cache_bytes: 10 * BLOCK * 8, ..Default::default() };
    let model = keeping(ScriptedModel::noise());
    let probe = model.probe();
    let engine = start_with(model, options);
    for number in 0..30 {
        answer(&engine, limited(&format!("prompt number {number} of many"), 9));
        wait_until(Duration::from_secs(1), "within the budget", || {
            engine.cache_status().ram.bytes <= options.prefix_cache_bytes && probe.kept_blocks() <= 11
        });
    }
    let model = keeping(ScriptedModel::noise());
    let probe = model.probe();
    let engine = start_with(model, EngineOptions { prefix_cache_bytes: 0, ..options });
    answer(&engine, limited("the same prompt twice", 9));
    assert_eq!(answer(&engine, limited("the same prompt twice", 9)).usage().cached_tokens, 0);
    assert_eq!(probe.kept_blocks(), 0);
}

#[test]
fn a_session_leads_to_its_newest_checkpoint_and_an_edited_history_to_the_longest_prefix() {
    let engine = start(keeping(ScriptedModel::noise()));
    let ask = |prompt: &[u32], session: Option<&str>| GenerationRequest {
        prompt: prompt.to_vec(),
        max_tokens: Some(6),
        session: session.map(str::to_owned),
        ..Default::default()
    };
    let mut history = byte_tokens("hello, this is a conversation");
    for turn in 0..3 {
        let answered = answer(&engine, ask(&history, Some("chat")));
        let ram = engine.cache_status().ram;
        assert_eq!((ram.session_hits, ram.session_misses), (turn, 1), "turn {turn}");
        history.extend(answered.tokens);
        history.extend(byte_tokens(" next turn"));
    }
    history[40] = u32::from(b'#');
    assert_eq!(answer(&engine, ask(&history, Some("chat"))).usage().cached_tokens, 40);
    let status = engine.cache_status();
    assert_eq!((status.ram.session_misses, status.sessions), (2, 1));
    assert!(engine.close_session("chat"));
    assert!(!engine.close_session("chat"));
    assert_eq!(engine.cache_status().sessions, 0);
    assert!(answer(&engine, ask(&history, None)).usage().cached_tokens > 40, "closing deletes no checkpoints");
    engine.clear_cache();
    let ram = engine.cache_status().ram;
    assert_eq!((ram.entries, ram.bytes), (0, 0));
    assert_eq!(answer(&engine, ask(&history, None)).usage().cached_tokens, 0);
}

#[test]
fn memory_returns_after_many_requests_with_random_disconnects() {
    use rand::{Rng, SeedableRng};
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    let budget = KvBudget { capacity: 64 * BLOCK, page: BLOCK, is_padded: false };
    let model = ScriptedModel::noise().kv_budget(budget).keeps_blocks(BLOCK).context_length(300);
    let probe = model.probe();
    let options = EngineOptions { queue_limit: 600, prefix_cache_bytes: 30 * BLOCK * 8, ..Default::default() };
    let engine = start_with(model, options);
    let mut streams = Vec::new();
    for _ in 0..500 {
        let length = random.random_range(1..200);
        let prompt: Vec<u32> =
            (0..length).map(|place| if place < 50 { 7 } else { random.random_range(0..256) }).collect();
        let session = random.random_bool(0.3).then(|| random.random_range(0..9).to_string());
        let request =
            GenerationRequest { prompt, max_tokens: Some(random.random_range(1..60)), session, ..Default::default() };
        let mut stream = engine.submit(request).unwrap();
        match random.random_range(0..4) {
            0 => drop(stream),
            1 => {
                for _ in 0..random.random_range(1..10) {
                    drop(stream.blocking_next());
                }
            }
            _ => streams.push(stream),
        }
    }
    for stream in streams {
        assert!(read(stream).finished.is_some());
    }
    wait_until(Duration::from_secs(5), "all ended", || engine.status().active == 0 && engine.status().queued == 0);
    let ram = engine.cache_status().ram;
    assert_eq!(probe.open_slots(), 0);
    assert_eq!((probe.kept_blocks(), probe.blocks()), (ram.entries, ram.entries), "a block for each that is kept");
    assert!(ram.bytes <= options.prefix_cache_bytes);
    engine.clear_cache();
    assert_eq!((probe.kept_blocks(), probe.blocks()), (0, 0));
    assert_eq!(engine.cache_status().ram.bytes, 0);
    assert_eq!(engine.status().failed, 0);
}
