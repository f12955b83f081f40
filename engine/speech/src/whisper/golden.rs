//! What openai/whisper's own code makes of made-up answers of a network (`tests/speech/make_decoding.py`).

use std::{cell::RefCell, rc::Rc};

use linnet_kernels::Context;
use serde_json::Value;

use super::{
    TranscribeOptions, Transcriber,
    beam::Beams,
    compression::compression_ratio,
    decode::{Finished, Hypothesis, rank},
    filter::LogitFilter,
    language::Language,
    network::Sequence,
    scripted::{Answer, Heard, Log, N_VOCAB, ScriptedNetwork, tokenizer},
    tokenizer::SpecialIds,
};
use crate::test_support::fixture;

fn cases(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("decoding.json")).unwrap();
    let mut made: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(cases) = made[name].take() else { panic!("no {name}") };
    assert!(!cases.is_empty());
    cases
}

fn numbers(of: &Value) -> Vec<f64> {
    of.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn tokens(of: &Value) -> Vec<u32> {
    numbers(of).into_iter().map(|number| number as u32).collect()
}

#[test]
fn rules_leave_the_tokens_that_they_leave_in_the_reference() {
    let filter = LogitFilter {
        suppressed: [5, 6].into_iter().chain(25..32).collect(),
        blank: vec![3, 24],
        eot: 24,
        timestamp_begin: 32,
        last_initial: Some(38),
    };
    for case in cases("filters") {
        let mut line: Vec<f32> = numbers(&case["sixteenths"]).iter().map(|number| *number as f32 / 16.0).collect();
        filter.apply(&Context::new(1), &mut line, &tokens(&case["sampled"]));
        let left: Vec<u32> = (0..64).filter(|&token| line[token as usize].is_finite()).collect();
        assert_eq!(left, tokens(&case["left"]), "after {}", case["sampled"]);
    }
}

/// `following` of make_decoding.py.
fn following(seed: u32, prefix: &[u32]) -> Vec<f32> {
    let next = |state: u32| state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    let mut state = prefix.iter().fold(seed, |state, token| next(state.wrapping_add(*token)));
    let mut logits: Vec<f32> = (0..12)
        .map(|_| {
            state = next(state);
            (state >> 20) as f32 / 512.0
        })
        .collect();
    logits[11] += 2.0;
    logits
}

#[test]
fn beam_search_finds_and_ranks_the_texts_of_the_reference() {
    for case in cases("beams") {
        let (seed, size) = (case["seed"].as_u64().unwrap() as u32, case["size"].as_u64().unwrap() as usize);
        let begun = Hypothesis { sequence: Sequence(0), tokens: Vec::new(), sum_logprob: 0.0 };
        let mut beams = Beams::new(begun, size, case["patience"].as_f64().unwrap() as f32, 11);
        for _ in 0..case["steps"].as_u64().unwrap() {
            let lines: Vec<f32> = beams.running().iter().flat_map(|text| following(seed, &text.tokens)).collect();
            let sum = |line| linnet_kernels::log_sum_exp(&Context::new(1), line);
            let sums: Vec<f32> = lines.chunks_exact(12).map(sum).collect();
            let plan = beams.choose(&lines, &sums, 12);
            beams.take(plan, |_| Some(Sequence(0)));
            if beams.is_complete() {
                break;
            }
        }
        let found = beams.finish();
        let texts: Vec<Vec<u32>> = found.iter().map(|text| text.tokens.clone()).collect();
        let expected: Vec<Vec<u32>> = case["texts"].as_array().unwrap().iter().map(tokens).collect();
        assert_eq!(texts, expected, "{size} beams");
        for (text, sum) in found.iter().zip(numbers(&case["sums"])) {
            assert!((f64::from(text.sum_logprob) - sum).abs() < 1e-4, "{text:?} {sum}");
        }
        for (penalty, name) in [(None, "None"), (Some(0.0), "0.0"), (Some(0.6), "0.6"), (Some(1.0), "1.0")] {
            let better = |best: Finished, other: Finished| {
                if rank(&other, penalty) > rank(&best, penalty) { other } else { best }
            };
            let chosen = found.iter().cloned().reduce(better).unwrap();
            assert_eq!(chosen.tokens, tokens(&case["chosen"][name]), "{size} beams, penalty {name}");
        }
    }
}

#[test]
fn words_are_cut_where_the_reference_cuts_them() {
    let tokenizer = tokenizer(N_VOCAB);
    for case in cases("splits") {
        let language = Language::find(case["language"].as_str().unwrap());
        let words = tokenizer.words(&tokens(&case["tokens"]), language);
        let expected: Vec<&str> = case["words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(words.iter().map(|(word, _)| word.as_str()).collect::<Vec<_>>(), expected);
        let lengths: Vec<u32> = words.iter().map(|(_, tokens)| tokens.len() as u32).collect();
        assert_eq!(lengths, tokens(&case["lengths"]));
    }
}

#[test]
fn compression_ratios_are_pythons() {
    for case in cases("ratios") {
        let (text, ratio) = (case[0].as_str().unwrap(), case[1].as_f64().unwrap());
        let found = f64::from(compression_ratio(text));
        // Another implementation of the same format may need a few bytes more or less.
        assert!((found / ratio - 1.0).abs() < 0.1, "{found} {ratio}");
    }
}

fn transcriber(windows: Vec<Vec<u32>>) -> (Transcriber, Rc<RefCell<Log>>) {
    let english = SpecialIds::new(N_VOCAB).unwrap().sot + 1;
    let answer = move |heard: &Heard| Answer::text(windows[heard.window].clone());
    let (network, log) = ScriptedNetwork::new(N_VOCAB, english, answer);
    (Transcriber::with_tokenizer(network, tokenizer(N_VOCAB)).unwrap(), log)
}

#[test]
fn recordings_give_the_segments_and_words_of_the_reference() {
    let special = SpecialIds::new(N_VOCAB).unwrap();
    for (number, case) in cases("transcripts").into_iter().enumerate() {
        let windows: Vec<Vec<u32>> = case["windows"].as_array().unwrap().iter().map(tokens).collect();
        let (mut transcriber, log) = transcriber(windows);
        let options = TranscribeOptions {
            languages: vec!["en".to_owned()],
            temperatures: vec![0.0],
            word_timestamps: case["words"].as_bool().unwrap(),
            hallucination_silence_threshold: case["threshold"].as_f64().map(|seconds| seconds as f32),
            // This tokenizer writes a space as a token of its own, which belongs to what writes no speech.
            suppress_tokens: Some(Vec::new()),
            ..TranscribeOptions::default()
        };
        let samples = vec![0.0; case["seconds"].as_u64().unwrap() as usize * crate::SAMPLE_RATE];
        let transcript = transcriber.transcribe(&samples, options, &mut ()).unwrap();
        let expected = case["segments"].as_array().unwrap();
        let found: Vec<Vec<u32>> = transcript.segments.iter().map(|segment| segment.tokens.clone()).collect();
        assert_eq!(found, expected.iter().map(|segment| tokens(&segment["tokens"])).collect::<Vec<_>>(), "{number}");
        for (segment, expected) in transcript.segments.iter().zip(expected) {
            let time = |found: f64, expected: &Value| {
                let expected = expected.as_f64().unwrap();
                assert!((found - expected).abs() < 1e-6, "{number}: {found} is not {expected} in {segment:?}");
            };
            assert_eq!(segment.seek as u64, expected["seek"].as_u64().unwrap(), "{number}");
            time(segment.start, &expected["start"]);
            time(segment.end, &expected["end"]);
            let words = expected["words"].as_array().unwrap();
            assert_eq!(segment.words.len(), words.len(), "{number}: {segment:?}");
            for (word, expected) in segment.words.iter().zip(words) {
                assert_eq!(word.word, expected[0].as_str().unwrap(), "{number}");
                time(word.start, &expected[1]);
                time(word.end, &expected[2]);
                assert!((f64::from(word.probability) - expected[3].as_f64().unwrap()).abs() < 1e-4, "{word:?}");
            }
        }
        let told: Vec<Vec<u32>> = log
            .borrow()
            .heard
            .iter()
            .map(|heard| heard.prompt.iter().copied().take_while(|&token| token != special.sot))
            .map(|before| before.filter(|&token| token != special.sot_prev).collect())
            .collect();
        assert_eq!(told, case["told"].as_array().unwrap().iter().map(tokens).collect::<Vec<_>>(), "{number}");
    }
}
