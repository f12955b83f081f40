//! A model that is given the next step before the last one's tokens are known.

use super::*;
use crate::{KvBudget, SamplingParameters, testing::Next};

fn ahead(model: ScriptedModel) -> ScriptedModel {
    model.runs_ahead().splits_last_token()
}

#[test]
fn answers_are_those_of_a_model_that_waits() {
    let prompts = ["a long prompt of many tokens, longer than a chunk of them", "b", "cc", "the fourth"];
    for top_logprobs in [None, Some(2)] {
        let answers = [false, true].map(|runs_ahead| {
            let model = ScriptedModel::noise();
            let engine = start(if runs_ahead { ahead(model) } else { model });
            let request = |prompt| GenerationRequest { max_tokens: Some(40), top_logprobs, ..request(prompt) };
            let running: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt)).unwrap()).collect();
            running
                .into_iter()
                .map(|running| {
                    let answer = read(running);
                    (answer.tokens.clone(), answer.logprobs.clone(), answer.reason(), answer.usage().completion_tokens)
                })
                .collect::<Vec<_>>()
        });
        assert_eq!(answers[0], answers[1]);
    }
}

#[test]
fn steps_really_run_ahead_and_none_is_made_for_a_token_beyond_the_limit() {
    let model = ahead(ScriptedModel::noise());
    let probe = model.probe();
    let engine = start(model);
    let answer = answer(&engine, GenerationRequest { max_tokens: Some(20), ..request("ab") });
    assert_eq!(answer.tokens.len(), 20);
    // The prompt's first token, its last one, and 19 of the answer's tokens.
    assert_eq!((probe.steps(), probe.tokens()), (21, 21));
    assert_eq!(probe.steps_ahead(), 20, "every step but the first was submitted before the one before was collected");
    assert_eq!(answer.prefill, [(0, 2), (1, 2), (2, 2)]);
}

#[test]
fn what_was_computed_past_the_end_is_in_no_event_and_in_no_count() {
    let model = ahead(ScriptedModel::says(1, "done"));
    let probe = model.probe();
    let engine = start(model);
    for stop in [vec![], vec!["ne".to_owned()]] {
        let answer = answer(&engine, GenerationRequest { stop, ..request("?") });
        assert!(matches!(answer.text().as_str(), "done" | "do"), "{answer:?}");
        assert_eq!(answer.reason(), FinishReason::Stop);
    }
    wait_until(Duration::from_secs(1), "no open slot", || probe.open_slots() == 0);
    let status = engine.status();
    assert_eq!((status.finished, status.generated_tokens), (2, 5 + 4));
    let steps = probe.steps();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(probe.steps(), steps, "an idle engine makes no steps");
}

#[test]
fn a_request_whose_tokens_are_chosen_here_is_not_run_ahead() {
    let penalised = SamplingParameters { presence_penalty: 0.5, ..Default::default() };
    let expected = {
        let engine = start(ScriptedModel::noise());
        answer(&engine, GenerationRequest { sampling: penalised.clone(), max_tokens: Some(30), ..request("x") }).tokens
    };
    let model = ahead(ScriptedModel::noise());
    let probe = model.probe();
    let engine = start(model);
    let alone = GenerationRequest { sampling: penalised, max_tokens: Some(30), ..request("x") };
    assert_eq!(answer(&engine, alone.clone()).tokens, expected);
    assert_eq!(probe.steps_ahead(), 0);
    // Nor is its company, but both come to the same answers.
    let company = engine.submit(GenerationRequest { max_tokens: Some(30), ..request("yy") }).unwrap();
    let running = engine.submit(alone).unwrap();
    let company = read(company).tokens;
    assert_eq!(read(running).tokens, expected);
    let engine = start(ScriptedModel::noise());
    assert_eq!(answer(&engine, GenerationRequest { max_tokens: Some(30), ..request("yy") }).tokens, company);
}

#[test]
fn a_failed_step_fails_its_requests_after_what_came_before_it() {
    for at in 0..5 {
        for panics in [false, true] {
            let model = ahead(ScriptedModel::says(1, "fine").prefill_chunk(8));
            let model = if panics { model.panic_at(at) } else { model.error_at(at) };
            let probe = model.probe();
            let engine = start(model);
            let failed = answer(&engine, request("?"));
            assert!(failed.failed.is_some(), "{failed:?}");
            assert_eq!(failed.pieces.concat(), "fine"[..at]);
            assert_eq!(probe.open_slots(), 0);
            assert_eq!(answer(&engine, request("?")).text(), "fine");
        }
    }
}

#[test]
fn logits_that_are_not_numbers_fail_only_their_own_request() {
    let engine = start(ahead(ScriptedModel::new(|tokens| match tokens[0] {
        0 => Next::Logits(vec![f32::NAN; 257]),
        _ => Next::Token(if tokens.len() < 30 { 65 } else { crate::testing::BYTE_EOS }),
    })));
    let good = engine.submit(request("good")).unwrap();
    let bad = engine.submit(GenerationRequest { prompt: vec![0], ..Default::default() }).unwrap();
    assert!(matches!(read(bad).failed, Some(StepModelError::InvalidLogits(_))));
    assert_eq!(read(good).reason(), FinishReason::Stop);
}

#[test]
fn requests_that_outgrow_the_store_still_finish_with_the_same_text() {
    for is_padded in [false, true] {
        let budget = KvBudget { capacity: 128, page: 16, is_padded };
        let model = ahead(ScriptedModel::noise().kv_budget(budget).delay(Duration::from_micros(300)));
        let probe = model.probe();
        let engine = start(model);
        let request = |prompt: &str| GenerationRequest { max_tokens: Some(50), ..request(prompt) };
        let prompts = ["one", "another", "a third", "and a fourth one"];
        let running: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt)).unwrap()).collect();
        let found: Vec<_> = running.into_iter().map(|running| read(running).tokens).collect();
        assert!(probe.opened_slots() > prompts.len(), "some were set back");
        let engine = start(ScriptedModel::noise());
        for (prompt, found) in prompts.iter().zip(found) {
            assert_eq!(answer(&engine, request(prompt)).tokens, found, "{prompt}");
        }
    }
}

#[test]
fn a_stream_dropped_while_a_step_is_in_work_leaves_nothing_behind() {
    let model = ahead(ScriptedModel::noise().delay(Duration::from_micros(300)));
    let probe = model.probe();
    let engine = start(model);
    for _ in 0..20 {
        let mut stream = engine.submit(request("go on for ever")).unwrap();
        read_tokens(&mut stream, 2);
    }
    wait_until(Duration::from_secs(1), "no active request and no open slot", || {
        engine.status().active == 0 && probe.open_slots() == 0
    });
    assert_eq!(engine.status().cancelled, 20);
}
