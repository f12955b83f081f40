//! What users of other engines complained of, each as a test.

use super::*;
use crate::testing::Next;

// Others: waybarrios/vllm-mlx pull 109 and 195, ml-explore/mlx-swift-examples 252.
#[test]
fn characters_split_over_tokens_never_become_replacement_marks() {
    let texts = ["😀🇩🇪 flags", "👩‍👩‍👧‍👦 family", "안녕하세요", "नमस्ते दुनिया", "漢字かな交じり文", "é\u{301}ñ"];
    for text in texts {
        let engine = start(ScriptedModel::says(1, text));
        for top_logprobs in [None, Some(1)] {
            let answer = answer(&engine, GenerationRequest { top_logprobs, ..request("?") });
            assert_eq!(answer.text(), text);
            assert!(answer.pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{:?}", answer.pieces);
            assert_eq!(answer.tokens, byte_tokens(text));
            assert_eq!(answer.reason(), FinishReason::Stop);
        }
    }
}

// Others: mzau/mlx-knife 68.
#[test]
fn a_stop_text_split_over_tokens_is_in_no_piece() {
    let engine = start(ScriptedModel::says(1, "The EN, the END of it"));
    let answer = answer(&engine, GenerationRequest { stop: vec!["END".into()], ..request("?") });
    assert_eq!(answer.text(), "The EN, the ");
    assert_eq!(answer.tokens, byte_tokens("The EN, the "));
    assert_eq!(answer.reason(), FinishReason::Stop);
    assert_eq!(answer.usage().completion_tokens, "The EN, the END".len());
}

// Others: lablup/mlxcel 1466, where `stop` was accepted and not applied.
#[test]
fn each_of_several_stop_texts_is_applied() {
    let engine = start(ScriptedModel::says(1, "one two three"));
    for (stop, expected) in [("two", "one "), ("three", "one two "), ("o", ""), ("four", "one two three")] {
        let stop = vec!["never".into(), stop.into(), "nor this".into()];
        let answer = answer(&engine, GenerationRequest { stop, ..request("?") });
        assert_eq!(answer.text(), expected);
        assert_eq!(answer.reason(), FinishReason::Stop);
    }
}

// Others: lmstudio-ai/lmstudio-bug-tracker 2255, a chat and the request for its title at once.
#[test]
fn two_requests_at_once_both_finish_fifty_times() {
    let prompts = ["a long chat about many things, longer than a chunk of prompt tokens", "a title"];
    let answers = prompts.map(|prompt| (byte_tokens(prompt), byte_tokens(&format!("answer to {prompt}"))));
    let engine = start(ScriptedModel::answers(answers.into()));
    for _ in 0..50 {
        let both = prompts.map(|prompt| {
            let engine = engine.clone();
            (prompt, std::thread::spawn(move || answer(&engine, request(prompt))))
        });
        for (prompt, thread) in both {
            assert_eq!(thread.join().unwrap().text(), format!("answer to {prompt}"));
        }
    }
    assert_eq!(engine.status().finished, 100);
}

// Others: jundot/omlx 804 and 2260, raullenchai/Rapid-MLX 1759, microsoft/foundry-local 1136.
#[test]
fn a_hundred_streams_dropped_after_three_tokens_leave_nothing_behind() {
    let model = ScriptedModel::noise().delay(Duration::from_micros(200));
    let probe = model.probe();
    let engine = start_with(model, EngineOptions { queue_limit: 100, ..Default::default() });
    let mut streams: Vec<Generation> = (0..100).map(|_| engine.submit(request("go on for ever")).unwrap()).collect();
    for mut stream in streams.drain(..) {
        read_tokens(&mut stream, 3);
    }
    wait_until(Duration::from_secs(1), "no active request and no open slot", || {
        engine.status().active == 0 && probe.open_slots() == 0
    });
    let status = engine.status();
    assert_eq!((status.queued, status.requests, status.cancelled, status.failed), (0, 100, 100, 0));
    let steps = probe.steps();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(probe.steps(), steps, "an idle engine makes no steps");
}

// Others: antirez/ds4 333, where retries of a long prompt pile up.
#[test]
fn a_stream_dropped_in_a_long_prefill_stops_it_at_the_next_chunk() {
    let model = ScriptedModel::noise().context_length(40_000).prefill_chunk(256).delay(Duration::from_millis(5));
    let probe = model.probe();
    let engine = start(model);
    let mut stream = engine.submit(request(&"x".repeat(32_768))).unwrap();
    while let Some(event) = stream.blocking_next() {
        if matches!(event, GenerationEvent::Prefill { done, .. } if done >= 512) {
            break;
        }
    }
    let steps = probe.steps();
    drop(stream);
    wait_until(Duration::from_secs(1), "the slot closed", || probe.open_slots() == 0);
    assert!(probe.steps() <= steps + 2, "{} steps after {steps}", probe.steps());
    wait_until(Duration::from_secs(1), "counted", || engine.status().cancelled == 1);
    assert_eq!(engine.status().active, 0);
}

// Others: jundot/omlx 173, lmstudio-ai/lmstudio-bug-tracker 1504.
#[test]
fn a_request_larger_than_the_kv_store_gives_an_error_and_the_next_one_works() {
    let budget = crate::KvBudget { capacity: 64, page: 16, is_padded: false };
    let engine = start(ScriptedModel::says(5, "fine").kv_budget(budget));
    let error = engine.submit(request(&"x".repeat(65))).unwrap_err();
    assert_eq!(error, crate::SubmitError::ContextOverflow { prompt: 65, max_tokens: None, context: 64 });
    assert_eq!(answer(&engine, request("hello")).text(), "fine");
}

// A model whose own figure of its room is wrong still may not take the engine down.
#[test]
fn a_full_kv_store_fails_the_request_and_the_next_one_works() {
    let engine = start(ScriptedModel::new(|tokens| {
        assert!(tokens.len() < 40, "out of memory");
        Next::Token(if tokens[0] == u32::from(b's') { crate::testing::BYTE_EOS } else { 65 })
    }));
    let failed = answer(&engine, request("long"));
    assert!(matches!(failed.failed, Some(StepModelError::Panicked(_))), "{failed:?}");
    assert_eq!(answer(&engine, request("short")).reason(), FinishReason::Stop);
    assert_eq!(engine.status().active, 0);
}
