//! Errors and panics in the model.

use super::*;
use crate::{
    EngineHealth, RowResult, Slot, StepModel, StepRow, SubmitError,
    testing::{BYTE_EOS, Next},
};

#[test]
fn a_failed_step_fails_its_requests_and_the_next_request_works() {
    for at in 0..4 {
        for panics in [false, true] {
            let model = ScriptedModel::says(1, "fine").prefill_chunk(8);
            let model = if panics { model.panic_at(at) } else { model.error_at(at) };
            let probe = model.probe();
            let engine = start(model);
            let failed = answer(&engine, request("?"));
            match failed.failed {
                Some(StepModelError::Panicked(message)) if panics => assert!(message.contains("scripted panic")),
                Some(StepModelError::Compute(message)) if !panics => assert!(message.contains("scripted failure")),
                other => panic!("{other:?}"),
            }
            assert_eq!(failed.pieces.concat(), "fine"[..at]);
            assert_eq!(probe.open_slots(), 0);
            assert!(matches!(engine.status().health, EngineHealth::Failing { consecutive: 1, .. }));
            assert_eq!(answer(&engine, request("?")).text(), "fine");
            let status = engine.status();
            assert_eq!((status.active, status.failed, status.finished), (0, 1, 1));
            assert_eq!(status.health, EngineHealth::Serving);
        }
    }
}

#[test]
fn a_request_that_waits_outlives_the_failed_step_of_another() {
    let model = ScriptedModel::says(1, "fine").error_at(1).delay(Duration::from_millis(2));
    let engine = start_with(model, EngineOptions { max_concurrent: 1, ..Default::default() });
    let first = engine.submit(request("1")).unwrap();
    let second = engine.submit(request("2")).unwrap();
    assert!(read(first).failed.is_some());
    assert_eq!(read(second).text(), "fine");
}

#[test]
fn a_model_that_fails_again_and_again_is_reported() {
    let engine = start(ScriptedModel::new(|_| panic!("broken weights")));
    for consecutive in 1..=3 {
        assert!(answer(&engine, request("?")).failed.is_some());
        let expected = EngineHealth::Failing { consecutive, last: String::new() };
        match (engine.status().health, expected) {
            (EngineHealth::Failing { consecutive: is, last }, EngineHealth::Failing { consecutive, .. }) => {
                assert_eq!(is, consecutive);
                assert!(last.contains("broken weights"), "{last}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

#[test]
fn logits_that_are_not_numbers_fail_only_their_own_request() {
    let engine = start(ScriptedModel::new(|tokens| match tokens[0] {
        0 => Next::Logits(vec![f32::NAN; 257]),
        _ => Next::Token(if tokens.len() < 30 { 65 } else { BYTE_EOS }),
    }));
    let good = engine.submit(request("good")).unwrap();
    let bad = engine.submit(GenerationRequest { prompt: vec![0], ..Default::default() }).unwrap();
    assert!(matches!(read(bad).failed, Some(StepModelError::InvalidLogits(_))));
    assert_eq!(read(good).reason(), FinishReason::Stop);
    assert_eq!(engine.status().health, EngineHealth::Serving);
}

/// A model that misbehaves in ways a script cannot.
struct Rude {
    no_slots: bool,
    no_logits: bool,
}

impl StepModel for Rude {
    fn vocabulary_size(&self) -> usize {
        257
    }

    fn context_length(&self) -> usize {
        100
    }

    fn prefill_chunk(&self) -> usize {
        8
    }

    fn open(&mut self) -> Result<Slot, StepModelError> {
        if self.no_slots { Err(StepModelError::KvFull { used: 9, capacity: 9 }) } else { Ok(Slot(0)) }
    }

    fn close(&mut self, _slot: Slot) {
        panic!("close");
    }

    fn submit(&mut self, _rows: &[StepRow<'_>]) -> Result<(), StepModelError> {
        Ok(())
    }

    fn collect(&mut self, result: &mut dyn FnMut(RowResult<'_>)) -> Result<(), StepModelError> {
        // A row that does not exist must not matter.
        result(RowResult { row: 9, token: None, logits: Some(&mut []) });
        if !self.no_logits {
            result(RowResult { row: 0, token: None, logits: Some(&mut [0.0; 257]) });
        }
        Ok(())
    }
}

#[test]
fn a_model_without_slots_without_logits_or_with_a_panic_in_close_does_not_end_the_engine() {
    let start = |model: Rude| Engine::start("rude", EngineOptions::default(), byte_text(), move || Ok(model)).unwrap();
    let engine = start(Rude { no_slots: true, no_logits: false });
    for _ in 0..2 {
        assert!(matches!(answer(&engine, request("?")).failed, Some(StepModelError::KvFull { .. })));
    }
    let engine = start(Rude { no_slots: false, no_logits: true });
    for _ in 0..2 {
        let failed = answer(&engine, request("?")).failed;
        assert!(
            matches!(&failed, Some(StepModelError::Compute(message)) if message.contains("no logits")),
            "{failed:?}"
        );
    }
    let engine = start(Rude { no_slots: false, no_logits: false });
    for _ in 0..2 {
        let answer = answer(&engine, GenerationRequest { max_tokens: Some(3), ..request("?") });
        assert_eq!(answer.reason(), FinishReason::Length);
    }
}

#[test]
fn a_load_that_fails_or_panics_is_the_error_of_start() {
    let failed = |load: fn() -> Result<ScriptedModel, StepModelError>| {
        Engine::start("broken", EngineOptions::default(), byte_text(), load).unwrap_err()
    };
    let error = failed(|| Err(StepModelError::Compute("weights are missing".into())));
    assert!(matches!(error, StepModelError::Compute(message) if message == "weights are missing"));
    let error = failed(|| panic!("no memory"));
    assert!(matches!(error, StepModelError::EngineGone(message) if message.contains("no memory")));
}

#[test]
fn what_cannot_run_is_refused_before_it_waits() {
    let engine = start(ScriptedModel::noise().context_length(100));
    assert_eq!(engine.submit(request("")).unwrap_err(), SubmitError::EmptyPrompt);
    let overflow = GenerationRequest { max_tokens: Some(99), ..request("ab") };
    assert_eq!(
        engine.submit(overflow).unwrap_err(),
        SubmitError::ContextOverflow { prompt: 2, max_tokens: Some(99), context: 100 }
    );
    let unknown = GenerationRequest { prompt: vec![257], ..Default::default() };
    assert_eq!(
        engine.submit(unknown).unwrap_err(),
        SubmitError::TokenOutOfRange { name: "prompt", token: 257, vocabulary: 257 }
    );
    assert_eq!(engine.status().requests, 0);
}

#[test]
fn a_tokenizer_that_panics_fails_only_its_own_request() {
    struct Fragile;
    impl crate::Detokenizer for Fragile {
        fn push(&mut self, token: u32, text: &mut String) -> Result<(), StepModelError> {
            assert!(token != 66, "no B");
            text.push('x');
            Ok(())
        }

        fn finish(&mut self, _text: &mut String) {}
    }
    let text = crate::EngineText::new(
        |show_special| {
            assert!(!show_special, "no special tokens");
            Box::new(Fragile)
        },
        vec![BYTE_EOS],
    );
    let model = ScriptedModel::new(|tokens| Next::Token(if tokens.len() < 30 { tokens[0] } else { BYTE_EOS }));
    let engine = Engine::start("fragile", EngineOptions::default(), text, move || Ok(model)).unwrap();
    let good = engine.submit(request("A")).unwrap();
    let bad = engine.submit(request("B")).unwrap();
    let worse = engine.submit(GenerationRequest { show_special_tokens: true, ..request("A") }).unwrap();
    assert!(matches!(read(bad).failed, Some(StepModelError::Panicked(message)) if message.contains("no B")));
    assert!(matches!(read(worse).failed, Some(StepModelError::Panicked(message)) if message.contains("no special")));
    assert_eq!(read(good).text(), "x".repeat(29));
    let status = engine.status();
    assert_eq!((status.active, status.finished, status.failed), (0, 1, 2));
}
