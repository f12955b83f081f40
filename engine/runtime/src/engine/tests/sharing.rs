//! Requests beside each other: who goes first, and that company changes nothing but time.

use super::*;
use crate::{Priority, testing::Next};

fn background(prompt: &str) -> GenerationRequest {
    GenerationRequest { priority: Priority::Background, ..request(prompt) }
}

fn limited(request: GenerationRequest, max_tokens: usize) -> GenerationRequest {
    GenerationRequest { max_tokens: Some(max_tokens), ..request }
}

#[test]
fn a_request_alone_takes_the_same_steps_whatever_the_bound_is() {
    let prompt = "x".repeat(333);
    let [patient, strict] = [Duration::from_secs(100), Duration::from_nanos(1)].map(|max_stall| {
        let model = ScriptedModel::noise().delay(Duration::from_micros(50));
        let probe = model.probe();
        let engine = start_with(model, EngineOptions { max_stall, ..Default::default() });
        let answer = answer(&engine, limited(request(&prompt), 20));
        (answer.prefill, answer.tokens, probe.steps())
    });
    assert_eq!(patient, strict);
    // 333 tokens in chunks of 32.
    assert_eq!(patient.2, 11 + 19);
}

#[test]
fn a_strict_bound_cuts_prompts_beside_a_stream_and_changes_no_answer() {
    let prompt = "y".repeat(320);
    let ask = |max_stall| {
        let model = ScriptedModel::noise().delay(Duration::from_micros(200));
        let engine = start_with(model, EngineOptions { max_stall, ..Default::default() });
        let mut stream = engine.submit(limited(request("a stream"), 400)).unwrap();
        read_tokens(&mut stream, 3);
        let answer = answer(&engine, limited(request(&prompt), 10));
        drop(stream);
        answer
    };
    let (patient, strict) = (ask(Duration::from_secs(100)), ask(Duration::from_nanos(1)));
    assert_eq!(patient.tokens, strict.tokens);
    assert_eq!(patient.prefill.len(), 1 + 10);
    assert_eq!(strict.prefill.len(), 1 + 20, "{:?}", strict.prefill);
}

#[test]
fn a_short_prompt_is_answered_before_a_long_one_that_came_first() {
    let model = ScriptedModel::noise().delay(Duration::from_micros(500));
    let engine = start(model);
    let long = engine.submit(limited(request(&"z".repeat(3200)), 1)).unwrap();
    let short = engine.submit(limited(request("short"), 1)).unwrap();
    let short = std::thread::spawn(move || (read(short).usage(), Instant::now()));
    let long = std::thread::spawn(move || (read(long).usage(), Instant::now()));
    let ((_, short_end), (_, long_end)) = (short.join().unwrap(), long.join().unwrap());
    assert!(short_end < long_end);
}

#[test]
fn an_interactive_request_finds_a_place_among_background_ones() {
    let model = ScriptedModel::noise().delay(Duration::from_micros(300));
    let engine = start_with(model, EngineOptions { max_concurrent: 3, ..Default::default() });
    let running: Vec<Generation> = (0..5).map(|_| engine.submit(limited(background("job"), 2000)).unwrap()).collect();
    wait_until(Duration::from_secs(1), "two run, one place is kept", || engine.status().active == 2);
    assert_eq!(answer(&engine, limited(request("question"), 3)).usage().completion_tokens, 3);
    let status = engine.status();
    assert_eq!((status.active, status.queued, status.finished), (2, 3, 1));
    drop(running);
}

#[test]
fn where_one_runs_at_a_time_the_interactive_one_overtakes_what_waits() {
    let model = ScriptedModel::new(|tokens| Next::Token(tokens[0])).delay(Duration::from_micros(300));
    let engine = start_with(model, EngineOptions { max_concurrent: 1, ..Default::default() });
    let mut first = engine.submit(limited(background("first"), 2000)).unwrap();
    read_tokens(&mut first, 1);
    let waiting = engine.submit(limited(background("waits"), 5)).unwrap();
    let question = engine.submit(limited(request("asks"), 5)).unwrap();
    drop(first);
    let waiting = std::thread::spawn(move || (read(waiting).text(), Instant::now()));
    let (question, asked) = (read(question).text(), Instant::now());
    let (waiting, waited) = waiting.join().unwrap();
    assert_eq!((question.as_str(), waiting.as_str()), ("aaaaa", "wwwww"));
    assert!(asked < waited);
}

#[test]
fn background_work_alone_uses_the_engine_as_anything_else() {
    let engine = start_with(ScriptedModel::says(1, "done"), EngineOptions { max_concurrent: 2, ..Default::default() });
    let running: Vec<Generation> = (0..6).map(|_| engine.submit(background("?")).unwrap()).collect();
    for running in running {
        assert_eq!(read(running).text(), "done");
    }
}
