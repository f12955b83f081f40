use std::sync::Arc;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{DictationSession, SessionOptions, WorkFailure, WorkKind};
use crate::{
    Delivery, Replacement, SileroVad, TextOptions, TextStage, TranscribeOptions, Transcript, TranscriptSegment,
    WindowOptions,
    test_support::{clip, noise},
};

/// Samples that make one word of the scripted recogniser.
const WORD: usize = 6000;

/// Hears a word for every [`WORD`] samples, named after their sound; what does not fill a word is misheard.
fn scripted(samples: &[f32]) -> Transcript {
    let name = |samples: &[f32]| {
        let sum = samples.iter().fold(0u32, |sum, sample| sum.rotate_left(5) ^ sample.to_bits());
        format!(" w{:04x}", sum >> 16)
    };
    let mut text: String = samples.chunks_exact(WORD).map(name).collect();
    text.push_str(&name(samples.chunks_exact(WORD).remainder()));
    let end = samples.len() as f64 / 16_000.0;
    let segment = TranscriptSegment {
        id: 0,
        seek: 0,
        start: 0.0,
        end,
        text,
        tokens: vec![1],
        temperature: 0.0,
        avg_logprob: -0.2,
        compression_ratio: 1.0,
        no_speech_prob: 0.0,
        words: Vec::new(),
    };
    Transcript { language: "en".into(), language_probability: 0.9, duration: end, segments: vec![segment] }
}

fn options(windows: WindowOptions, partials: bool) -> SessionOptions {
    let text = TextStage::new(&TextOptions::default()).unwrap();
    SessionOptions {
        windows,
        transcribe: TranscribeOptions::default(),
        text: Arc::new(text),
        partials,
        ahead: partials,
    }
}

fn session(options: SessionOptions) -> DictationSession {
    DictationSession::new(Arc::new(SileroVad::bundled().unwrap()), options)
}

/// Three sentences with pauses, and a stretch without one.
fn speech() -> Vec<f32> {
    let mut samples = noise(3, 8000, 0.001);
    for (name, pause) in [("librivox-0880", 12_000), ("librivox-0930", 50_000), ("jfk", 0), ("librivox-0870", 9000)] {
        samples.extend(clip(name));
        samples.extend(noise(4, pause, 0.001));
    }
    samples
}

fn work_through(session: &mut DictationSession) {
    while let Some(work) = session.next_work() {
        session.complete(work.id, Ok(scripted(work.window.samples())));
    }
}

/// The text of everything at once.
fn batch(options: SessionOptions, samples: &[f32]) -> String {
    let mut session = session(SessionOptions { ahead: false, ..options });
    session.push(samples).unwrap();
    session.finish().unwrap();
    work_through(&mut session);
    assert!(session.is_complete());
    session.text().committed
}

#[test]
fn any_chunking_and_any_delay_give_the_text_of_the_batch_and_committed_words_never_change() {
    let samples = speech();
    let expected = batch(options(WindowOptions::LIVE, true), &samples);
    assert!(expected.split(' ').count() > 50, "{expected}");
    let mut rng = StdRng::seed_from_u64(11);
    for round in 0..6 {
        let mut session = session(options(WindowOptions::LIVE, true));
        let (mut committed, mut shown, mut out) = (String::new(), 0, None);
        let mut check = |session: &DictationSession| {
            let text = session.text();
            assert!(text.committed.starts_with(&committed), "{committed:?} became {:?}", text.committed);
            shown += usize::from(!session.is_ended() && text.committed.len() > committed.len());
            committed = text.committed;
        };
        let mut left = &samples[..];
        while !left.is_empty() {
            let (now, later) = left.split_at(rng.random_range(1..9000).min(left.len()));
            left = later;
            session.push(now).unwrap();
            check(&session);
            // Results come late, or never because they were called off.
            if out.is_none() {
                out = session.next_work();
            }
            if let Some(work) = out.take_if(|_| rng.random_bool(0.4)) {
                let result = if session.is_overtaken() && rng.random_bool(0.5) {
                    Err(WorkFailure::Cancelled)
                } else {
                    Ok(scripted(work.window.samples()))
                };
                session.complete(work.id, result);
                check(&session);
            }
        }
        session.finish().unwrap();
        if let Some(work) = out.take() {
            session.complete(work.id, Ok(scripted(work.window.samples())));
        }
        work_through(&mut session);
        check(&session);
        assert!(session.is_complete() && session.text().is_final);
        assert_eq!(session.text().whole(), expected, "round {round}");
        assert!(shown > 5, "text was shown {shown} times while it was spoken");
    }
}

#[test]
fn nothing_is_left_to_do_at_the_end_if_the_speaker_had_paused() {
    let mut session = session(options(WindowOptions::LIVE, false));
    session.options.ahead = true;
    for piece in clip("librivox-0880").chunks(1600) {
        session.push(piece).unwrap();
        work_through(&mut session);
    }
    session.push(&noise(8, 6400, 0.001)).unwrap();
    let mut kinds = Vec::new();
    while let Some(work) = session.next_work() {
        kinds.push(work.kind);
        session.complete(work.id, Ok(scripted(work.window.samples())));
    }
    assert!(kinds.iter().all(|kind| *kind == WorkKind::Settled), "{kinds:?}");
    session.push(&noise(9, 1600, 0.001)).unwrap();
    session.finish().unwrap();
    assert!(session.is_complete() && session.next_work().is_none());
    assert!(session.text().committed.starts_with('w'));
}

#[test]
fn a_failure_keeps_the_audio_and_a_retry_gives_the_text() {
    let samples = speech();
    let mut session = session(options(WindowOptions::LIVE, true));
    for piece in samples.chunks(3000) {
        session.push(piece).unwrap();
        if let Some(work) = session.next_work() {
            session.complete(work.id, Err(WorkFailure::Failed("the engine is gone".into())));
        }
    }
    session.finish().unwrap();
    assert_eq!(session.failure(), Some("the engine is gone"));
    assert!(session.next_work().is_none() && !session.is_complete());
    session.retry();
    work_through(&mut session);
    assert_eq!(session.text().committed, batch(options(WindowOptions::LIVE, true), &samples));
}

#[test]
fn nothing_is_recognised_where_nobody_speaks_and_zeros_are_a_microphone_that_does_not_deliver() {
    let mut session = session(options(WindowOptions::LIVE, true));
    assert_eq!(session.push(&[0.0; 80_000]).unwrap(), Delivery::NotDelivering);
    assert!(!session.has_heard() && session.next_work().is_none());
    assert_eq!(session.push(&noise(2, 80_000, 0.001)).unwrap(), Delivery::Delivering);
    assert!(session.next_work().is_none() && !session.has_speech());
    session.finish().unwrap();
    assert!(session.is_complete() && session.next_work().is_none());
    assert_eq!(session.text().whole(), "");
}

#[test]
fn zeros_in_the_middle_are_told_and_lose_nothing_around_them() {
    let (first, second) = (clip("librivox-0880"), clip("librivox-0930"));
    let mut session = session(options(WindowOptions::LIVE, true));
    session.push(&first).unwrap();
    assert_eq!(session.push(&[0.0; 20_000]).unwrap(), Delivery::NotDelivering);
    assert_eq!(session.push(&second).unwrap(), Delivery::Delivering);
    session.finish().unwrap();
    work_through(&mut session);
    let heard: u64 = session.finished().iter().map(|window| window.end - window.start).sum();
    assert!(heard as f64 > 0.8 * (first.len() + second.len()) as f64);
    assert!(session.text().committed.len() > 100);
}

#[test]
fn the_language_is_decided_once_and_the_next_window_is_told_the_text_before() {
    let mut session = session(options(WindowOptions::LIVE, false));
    session.push(&[speech(), speech()].concat()).unwrap();
    session.finish().unwrap();
    let first = session.next_work().unwrap();
    assert!(first.options.languages.is_empty() && first.options.initial_prompt.is_none());
    let german = Transcript { language: "de".into(), ..scripted(first.window.samples()) };
    session.complete(first.id, Ok(german.clone()));
    let second = session.next_work().unwrap();
    assert_eq!(second.options.languages, ["de"]);
    assert_eq!(second.options.initial_prompt, Some(german.text()));
    // What took several attempts is not passed on.
    let mut doubtful = german;
    doubtful.segments[0].temperature = 0.8;
    session.complete(second.id, Ok(doubtful));
    assert_eq!(session.next_work().unwrap().options.initial_prompt, None);
    assert_eq!(session.language().unwrap().0, "de");
}

#[test]
fn the_text_stage_works_on_what_is_shown_as_on_what_stays() {
    let samples = speech();
    let whole = batch(options(WindowOptions::LIVE, true), &samples);
    let spoken = whole.split(' ').nth(1).unwrap().to_owned();
    let text = TextOptions {
        replacements: vec![Replacement { from: spoken.clone(), to: "Linnet\n".into() }],
        ..TextOptions::default()
    };
    let options =
        SessionOptions { text: Arc::new(TextStage::new(&text).unwrap()), ..options(WindowOptions::LIVE, true) };
    let mut session = session(options.clone());
    let mut shown = false;
    for piece in samples.chunks(4000) {
        session.push(piece).unwrap();
        work_through(&mut session);
        let text = session.text();
        assert!(!text.whole().contains(&spoken));
        shown |= !session.is_ended() && text.committed.contains("Linnet\n");
    }
    session.finish().unwrap();
    work_through(&mut session);
    assert!(shown);
    assert_eq!(session.text().committed, batch(options, &samples));
}
