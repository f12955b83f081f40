//! Starting, waiting, cancelling, ending.

use super::*;
use crate::{EngineHealth, KvBudget, SubmitError};

#[test]
fn the_queue_is_bounded_and_says_when_to_come_back() {
    let model = ScriptedModel::noise().delay(Duration::from_millis(1));
    let engine = start_with(model, EngineOptions { max_concurrent: 2, queue_limit: 3, ..Default::default() });
    let streams: Vec<Generation> = (0..5).map(|_| engine.submit(request("?")).unwrap()).collect();
    match engine.submit(request("?")).unwrap_err() {
        SubmitError::QueueFull { limit: 3, retry_after } => assert!(retry_after >= Duration::from_secs(1)),
        other => panic!("{other:?}"),
    }
    wait_until(Duration::from_secs(1), "two run and three wait", || {
        let status = engine.status();
        (status.active, status.queued) == (2, 3)
    });
    drop(streams);
    wait_until(Duration::from_secs(1), "all are gone", || engine.status().cancelled == 5);
    assert_eq!(
        answer(&engine, GenerationRequest { max_tokens: Some(1), ..request("?") }).reason(),
        FinishReason::Length
    );
}

#[test]
fn a_request_dropped_while_it_waits_makes_room_at_once() {
    let model = ScriptedModel::noise().delay(Duration::from_millis(1));
    let probe = model.probe();
    let engine = start_with(model, EngineOptions { max_concurrent: 1, queue_limit: 1, ..Default::default() });
    let mut running = engine.submit(request("?")).unwrap();
    read_tokens(&mut running, 1);
    let waiting = engine.submit(request("?")).unwrap();
    assert!(engine.submit(request("?")).is_err());
    drop(waiting);
    let next = engine.submit(GenerationRequest { max_tokens: Some(2), ..request("?") }).unwrap();
    drop(running);
    assert_eq!(read(next).tokens.len(), 2);
    assert_eq!(probe.opened_slots(), 2, "the dropped request never started");
}

#[test]
fn dropping_the_last_handle_frees_the_model_and_fails_what_runs() {
    let model = ScriptedModel::noise().delay(Duration::from_millis(1));
    let probe = model.probe();
    let engine = start_with(model, EngineOptions { max_concurrent: 1, ..Default::default() });
    let mut running = engine.submit(request("?")).unwrap();
    let waiting = engine.submit(request("?")).unwrap();
    read_tokens(&mut running, 1);
    let other = engine.clone();
    drop(engine);
    read_tokens(&mut running, 1);
    drop(other);
    for stream in [running, waiting] {
        assert!(matches!(read(stream).failed, Some(StepModelError::EngineGone(_))));
    }
    wait_until(Duration::from_secs(1), "the model is freed", || probe.is_dropped());
    assert_eq!(probe.open_slots(), 0);
}

#[test]
fn dropping_an_idle_engine_ends_its_thread() {
    let model = ScriptedModel::noise();
    let probe = model.probe();
    drop(start(model));
    wait_until(Duration::from_secs(1), "the model is freed", || probe.is_dropped());
}

#[test]
fn a_stopped_engine_has_freed_its_model_and_refuses_requests() {
    let model = ScriptedModel::noise();
    let probe = model.probe();
    let engine = start(model);
    let running = engine.submit(request("?")).unwrap();
    engine.stop();
    assert!(probe.is_dropped());
    assert!(matches!(read(running).failed, Some(StepModelError::EngineGone(_))));
    assert!(matches!(engine.submit(request("?")), Err(SubmitError::EngineGone(_))));
    assert!(matches!(engine.status().health, EngineHealth::Gone(_)));
    engine.stop();
}

#[test]
fn no_more_than_the_allowed_number_run_at_once() {
    let model = ScriptedModel::says(1, "hello there").delay(Duration::from_micros(100));
    let probe = model.probe();
    let engine = start_with(model, EngineOptions { max_concurrent: 3, ..Default::default() });
    let streams: Vec<Generation> = (0..20).map(|_| engine.submit(request("?")).unwrap()).collect();
    for stream in streams {
        assert_eq!(read(stream).text(), "hello there");
    }
    assert_eq!(probe.widest_step(), 3);
    assert_eq!(engine.status().active, 0);
}

#[test]
fn a_long_prompt_does_not_hold_up_a_running_answer() {
    let model = ScriptedModel::noise().context_length(4096).prefill_chunk(16).delay(Duration::from_micros(300));
    let probe = model.probe();
    let engine = start(model);
    let mut running = engine.submit(request("short")).unwrap();
    read_tokens(&mut running, 1);
    let long = engine.submit(request(&"x".repeat(1600))).unwrap();
    wait_until(Duration::from_secs(1), "the long prompt started", || probe.open_slots() == 2);
    let before = probe.steps();
    read_tokens(&mut running, 20);
    assert!(probe.steps() - before <= 40, "{} steps for 20 tokens", probe.steps() - before);
    drop(long);
}

#[test]
fn requests_that_outgrow_the_kv_store_together_still_all_finish_with_the_same_text() {
    let alone = start(ScriptedModel::noise());
    let model = ScriptedModel::noise().kv_budget(KvBudget { capacity: 128, page: 16, is_padded: false });
    let probe = model.probe();
    let engine = start(model);
    let prompts = ["one", "the second", "a third prompt", "four"];
    let ask = |prompt: &str| GenerationRequest {
        max_tokens: Some(60),
        sampling: crate::SamplingParameters { temperature: 1.0, seed: Some(9), ..Default::default() },
        ..request(prompt)
    };
    let together: Vec<Generation> = prompts.iter().map(|prompt| engine.submit(ask(prompt)).unwrap()).collect();
    for (prompt, stream) in prompts.iter().zip(together) {
        let together = read(stream);
        assert_eq!(together.tokens, answer(&alone, ask(prompt)).tokens, "{prompt}");
        assert_eq!(together.usage().completion_tokens, 60);
        assert!(together.prefill.is_sorted(), "{:?}", together.prefill);
    }
    assert!(probe.opened_slots() > prompts.len(), "nothing was set back: the test does not test");
    assert_eq!(probe.open_slots(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_async_tasks_share_an_engine() {
    let engine = start(ScriptedModel::says(1, "hello"));
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let mut generation = engine.submit(request("?")).unwrap();
                let mut text = String::new();
                while let Some(event) = generation.next().await {
                    if let GenerationEvent::Text { text: piece, .. } = event {
                        text.push_str(&piece);
                    }
                }
                text
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), "hello");
    }
    assert_eq!(engine.status().finished, 10);
}

// A thread that does not wake up uses no processor time; Linux counts how often one does.
#[cfg(target_os = "linux")]
#[test]
fn an_idle_engine_does_not_wake_up() {
    let model = ScriptedModel::says(1, "hello");
    let engine = Engine::start("idle one", EngineOptions::default(), byte_text(), move || Ok(model)).unwrap();
    answer(&engine, request("?"));
    let wake_ups = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let status = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
            .find(|status| status.starts_with("Name:\tengine idle one\n"))
            .unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        count.trim().parse::<u64>().unwrap()
    };
    std::thread::sleep(Duration::from_millis(50));
    let before = wake_ups();
    assert!(before > 0);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(wake_ups(), before);
}
