//! What an answer holds: tokens, texts, reasons, counts, probabilities.

use super::*;
use crate::{
    EngineText, SamplingParameters,
    testing::{BYTE_EOS, Next},
};

#[test]
fn usage_counts_the_prompt_and_every_token_with_the_final_end_of_sequence() {
    let engine = start(ScriptedModel::says(7, "hello").prefill_chunk(3));
    let answer = answer(&engine, request("a query"));
    assert_eq!(answer.text(), "hello");
    assert_eq!(answer.reason(), FinishReason::Stop);
    let usage = answer.usage();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (7, 0, 6));
    assert_eq!(answer.prefill, [(0, 7), (3, 7), (6, 7), (7, 7)]);
    let status = engine.status();
    assert_eq!((status.prompt_tokens, status.generated_tokens), (7, 6));
}

#[test]
fn timings_add_up() {
    let engine = start(ScriptedModel::says(7, "hello").prefill_chunk(3).delay(Duration::from_millis(4)));
    let usage = answer(&engine, request("a query")).usage();
    assert!(usage.queue_seconds < 1.0, "{usage:?}");
    assert!((0.012..2.0).contains(&usage.prefill_seconds), "three chunks of 4 ms: {usage:?}");
    assert!((0.020..2.0).contains(&usage.decode_seconds), "five steps of 4 ms: {usage:?}");
}

#[test]
fn the_end_of_sequence_at_the_very_last_token_is_a_stop() {
    let engine = start(ScriptedModel::says(1, "four"));
    let ask = |max_tokens| answer(&engine, GenerationRequest { max_tokens: Some(max_tokens), ..request("?") });
    assert_eq!(ask(5).reason(), FinishReason::Stop);
    assert_eq!(ask(4).reason(), FinishReason::Length);
    assert_eq!(ask(4).text(), "four");
    assert_eq!(ask(4).usage().completion_tokens, 4);
}

#[test]
fn a_stop_text_completed_by_the_very_last_token_is_a_stop() {
    let engine = start(ScriptedModel::says(1, "an END of it"));
    let stop = vec!["END".into()];
    let answer = answer(&engine, GenerationRequest { max_tokens: Some(6), stop, ..request("?") });
    assert_eq!((answer.text().as_str(), answer.reason()), ("an ", FinishReason::Stop));
}

#[test]
fn text_held_back_for_a_stop_text_comes_out_when_the_tokens_end() {
    let engine = start(ScriptedModel::says(1, "an EN"));
    for (max_tokens, reason) in [(None, FinishReason::Stop), (Some(5), FinishReason::Length)] {
        let stop = vec!["END".into()];
        let answer = answer(&engine, GenerationRequest { max_tokens, stop, ..request("?") });
        assert_eq!((answer.text().as_str(), answer.reason()), ("an EN", reason));
        assert_eq!(answer.tokens, byte_tokens("an EN"));
    }
}

#[test]
fn a_character_cut_by_the_limit_leaves_no_replacement_mark() {
    let engine = start(ScriptedModel::says(1, "a🙂"));
    let answer = answer(&engine, GenerationRequest { max_tokens: Some(3), ..request("?") });
    assert_eq!((answer.text().as_str(), answer.reason()), ("a", FinishReason::Length));
    assert_eq!(answer.tokens, byte_tokens("a"));
}

#[test]
fn zero_tokens_are_no_work() {
    let model = ScriptedModel::says(1, "hello");
    let probe = model.probe();
    let engine = start(model);
    let answer = answer(&engine, GenerationRequest { max_tokens: Some(0), ..request("?") });
    assert_eq!((answer.text().as_str(), answer.reason()), ("", FinishReason::Length));
    assert_eq!((answer.usage().prompt_tokens, answer.usage().completion_tokens), (1, 0));
    assert_eq!(probe.steps(), 0);
}

#[test]
fn without_a_limit_the_context_is_the_limit() {
    let engine = start(ScriptedModel::noise().context_length(50));
    let answer = answer(&engine, request("hello"));
    assert_eq!((answer.usage().completion_tokens, answer.reason()), (45, FinishReason::Length));
    let model = ScriptedModel::noise().context_length(50);
    let engine = start_with(model, EngineOptions { default_max_tokens: Some(7), ..Default::default() });
    assert_eq!(super::answer(&engine, request("hello")).usage().completion_tokens, 7);
}

#[test]
fn ignore_eos_goes_on_to_the_limit_and_special_tokens_show_only_on_demand() {
    let engine = start(ScriptedModel::new(|tokens| Next::Token(if tokens.len() % 2 == 1 { BYTE_EOS } else { 65 })));
    let ask = |show_special_tokens| {
        let request = GenerationRequest { max_tokens: Some(4), ignore_eos: true, show_special_tokens, ..request("?") };
        answer(&engine, request)
    };
    assert_eq!(ask(false).text(), "AA");
    assert_eq!(ask(true).text(), "</s>A</s>A");
    assert_eq!(ask(false).usage().completion_tokens, 4);
    assert_eq!(ask(false).reason(), FinishReason::Length);
    assert_eq!(ask(false).tokens, [BYTE_EOS, 65, BYTE_EOS, 65]);
}

#[test]
fn company_does_not_change_what_a_seed_draws() {
    let engine = start(ScriptedModel::noise().prefill_chunk(4));
    let ask = |index: u64| GenerationRequest {
        max_tokens: Some(40),
        sampling: SamplingParameters {
            temperature: 1.0,
            top_p: 0.95,
            repetition_penalty: 1.2,
            seed: Some(index),
            ..Default::default()
        },
        ..request(&format!("prompt number {index}"))
    };
    let alone: Vec<Answer> = (0..8).map(|index| answer(&engine, ask(index))).collect();
    let together: Vec<Generation> = (0..8).map(|index| engine.submit(ask(index)).unwrap()).collect();
    for (alone, together) in alone.iter().zip(together) {
        assert_eq!(alone.tokens, read(together).tokens);
    }
    assert_ne!(alone[0].tokens, alone[1].tokens);
}

#[test]
fn probabilities_come_with_every_token_and_only_on_demand() {
    let engine = start(ScriptedModel::says(1, "né"));
    let ask = |top_logprobs| answer(&engine, GenerationRequest { top_logprobs, ..request("?") });
    assert!(ask(None).logprobs.is_empty());
    for count in [0, 3] {
        let answer = ask(Some(count));
        assert_eq!(answer.tokens, byte_tokens("né"));
        assert_eq!(answer.logprobs.len(), 3);
        for (logprob, token) in answer.logprobs.iter().zip(byte_tokens("né")) {
            assert_eq!(logprob.token, token);
            assert!((-1e-6..=0.0).contains(&logprob.logprob), "{logprob:?}");
            assert_eq!(logprob.top.len(), count);
            if count > 0 {
                assert_eq!(logprob.top[0].0, token);
            }
        }
    }
}

#[test]
fn a_real_tokenizer_streams_every_character_whole() {
    let tokenizers = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/tokenizers");
    for name in ["byte_level", "byte_fallback"] {
        let tokenizer = linnet_models::Tokenizer::load(&tokenizers.join(name)).unwrap();
        let text = "👩‍👩‍👧‍👦 नमस्ते 한국어 \u{1112}\u{1161}\u{11ab}";
        let eos = tokenizer.eos().unwrap();
        let answer_tokens = tokenizer.encode(text, false).unwrap();
        assert!(answer_tokens.len() > text.chars().count(), "characters are split over tokens");
        let model = ScriptedModel::answers(vec![(vec![5], [answer_tokens, vec![eos]].concat())])
            .vocabulary_size(tokenizer.vocabulary_size());
        let text_side = EngineText::from_tokenizer(tokenizer, vec![eos]);
        assert!(text_side.xtc_exempt.contains(&eos) && text_side.xtc_exempt.len() > 1);
        let engine = Engine::start(name, EngineOptions::default(), text_side, move || Ok(model)).unwrap();
        for stop in [vec![], vec!["한국".into()]] {
            let expected = if stop.is_empty() { text } else { "👩‍👩‍👧‍👦 नमस्ते " };
            let request = GenerationRequest { prompt: vec![5], stop, ..Default::default() };
            let answer = answer(&engine, request);
            assert_eq!((answer.text().as_str(), answer.reason()), (expected, FinishReason::Stop));
            assert!(!answer.pieces.iter().any(|piece| piece.contains('\u{fffd}')), "{:?}", answer.pieces);
        }
    }
}
