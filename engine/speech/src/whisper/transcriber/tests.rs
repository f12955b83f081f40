//! Rules of transcription, on a network that says what the tests tell it to.

use std::{cell::RefCell, rc::Rc};

use super::{TranscribeObserver, Transcriber};
use crate::whisper::{
    ResumePoint, Task, TranscribeError, TranscribeOptions, Transcript, TranscriptSegment,
    language::Language,
    scripted::{Answer, Heard, Log, N_VOCAB, ScriptedNetwork, tokenizer},
    tokenizer::SpecialIds,
};

const SECOND: usize = 16_000;

fn special() -> SpecialIds {
    SpecialIds::new(N_VOCAB).unwrap()
}

fn time(seconds: f64) -> u32 {
    special().timestamp_begin + (seconds * 50.0).round() as u32
}

fn bytes(text: &str) -> Vec<u32> {
    tokenizer(N_VOCAB).encode(text).unwrap()
}

/// A segment's tokens.
fn said(start: f64, text: &str, end: f64) -> Vec<u32> {
    [vec![time(start)], bytes(text), vec![time(end)]].concat()
}

fn transcriber(language: &str, script: impl FnMut(&Heard) -> Answer + 'static) -> (Transcriber, Rc<RefCell<Log>>) {
    let language = special().language(Language::find(language).unwrap()).unwrap();
    let (network, log) = ScriptedNetwork::new(N_VOCAB, language, script);
    (Transcriber::with_tokenizer(network, tokenizer(N_VOCAB)).unwrap(), log)
}

/// The usual options; this tokenizer writes a space as a token of its own, which belongs to what writes no speech.
fn options() -> TranscribeOptions {
    TranscribeOptions { suppress_tokens: Some(Vec::new()), ..TranscribeOptions::default() }
}

fn audio(seconds: usize) -> Vec<f32> {
    (0..seconds * SECOND).map(|index| (index as f32 * 0.05).sin() * 0.1).collect()
}

fn transcribe(transcriber: &mut Transcriber, seconds: usize, options: TranscribeOptions) -> Transcript {
    transcriber.transcribe(&audio(seconds), options, &mut ()).unwrap()
}

/// What stands before the start of transcript.
fn told(heard: &Heard) -> String {
    let before = heard.prompt.split(|&token| token == special().sot).next().unwrap();
    tokenizer(N_VOCAB).decode(before)
}

/// What stands from the start of transcript on.
fn start(heard: &Heard) -> Vec<u32> {
    let sot = heard.prompt.iter().position(|&token| token == special().sot).unwrap();
    heard.prompt[sot..].to_vec()
}

fn assert_nothing_is_open(log: &Rc<RefCell<Log>>) {
    let log = log.borrow();
    assert_eq!((log.open_sequences(), log.open_windows.len()), (0, 0));
}

/// Two whole sentences and one cut off by the window's end, which the next window hears whole.
fn three_sentences(heard: &Heard) -> Answer {
    Answer::text(match heard.window {
        0 => [said(0.0, " One.", 10.0), said(10.0, " Two.", 24.0), vec![time(24.0)], bytes(" Thr")].concat(),
        1 => said(0.0, " Three.", 5.0),
        _ => panic!("a third window"),
    })
}

#[test]
fn windows_follow_the_last_whole_segment_and_hear_the_text_before() {
    for beam_size in [1, 3] {
        let (mut transcriber, log) = transcriber("en", three_sentences);
        let transcript = transcribe(&mut transcriber, 40, TranscribeOptions { beam_size, ..options() });
        let segments: Vec<(usize, f64, f64, &str)> = transcript
            .segments
            .iter()
            .map(|segment| (segment.id, segment.start, segment.end, segment.text.as_str()))
            .collect();
        assert_eq!(segments, [(0, 0.0, 10.0, " One."), (1, 10.0, 24.0, " Two."), (2, 24.0, 29.0, " Three.")]);
        assert_eq!((transcript.text().as_str(), transcript.duration), ("One. Two. Three.", 40.0));
        let heard = log.borrow().heard.clone();
        assert_eq!((told(&heard[0]).as_str(), told(&heard[1]).as_str()), ("", " One. Two."));
        assert_eq!(heard[1].prompt[0], special().sot_prev);
        assert_nothing_is_open(&log);
    }
}

#[test]
fn pieces_of_any_size_give_the_text_of_the_whole() {
    let (mut whole, _) = transcriber("en", three_sentences);
    let expected = transcribe(&mut whole, 40, options());
    for piece in [160, 1_600, 400_000] {
        let (mut transcriber, log) = transcriber("en", three_sentences);
        let mut run = transcriber.begin(options()).unwrap();
        for piece in audio(40).chunks(piece) {
            transcriber.push(&mut run, piece, &mut ()).unwrap();
        }
        assert_eq!(log.borrow().windows, 1, "a whole window is not left for the end");
        transcriber.finish(&mut run, &mut ()).unwrap();
        assert_eq!(run.into_transcript(), expected);
    }
}

#[test]
fn a_transcription_goes_on_where_it_was_left() {
    let (mut first, _) = transcriber("en", three_sentences);
    let expected = transcribe(&mut first, 40, options());

    let (mut first, _) = transcriber("en", three_sentences);
    let mut run = first.begin(options()).unwrap();
    first.push(&mut run, &audio(31), &mut ()).unwrap();
    let point = run.resume_point();
    assert_eq!((point.frame, point.segments), (2400, 2));
    let mut segments = run.into_transcript().segments;

    let (mut second, log) =
        transcriber("en", |heard| three_sentences(&Heard { window: heard.window + 1, ..heard.clone() }));
    let from = point.frame * 160;
    let mut run = second.resume(options(), point).unwrap();
    second.push(&mut run, &audio(40)[from..], &mut ()).unwrap();
    second.finish(&mut run, &mut ()).unwrap();
    assert_eq!(told(&log.borrow().heard[0]), " One. Two.");
    let rest = run.into_transcript();
    assert_eq!(rest.duration, expected.duration);
    segments.extend(rest.segments);
    assert_eq!(segments, expected.segments);
}

#[test]
fn vocabulary_and_prompt_are_told_to_every_window_and_what_does_not_fit_is_named() {
    let (mut transcriber, log) = transcriber("en", three_sentences);
    let long = "x".repeat(300);
    let options = TranscribeOptions {
        initial_prompt: Some("Dear Ada,".to_owned()),
        vocabulary: vec!["Kubernetes".to_owned(), long.clone(), "Linnet".to_owned()],
        ..options()
    };
    let prompt = transcriber.begin(options.clone()).unwrap().initial_prompt().clone();
    assert_eq!((prompt.included, prompt.omitted), (vec!["Kubernetes".to_owned(), "Linnet".to_owned()], vec![long]));
    transcribe(&mut transcriber, 40, options);
    let heard = log.borrow().heard.clone();
    assert_eq!(told(&heard[0]), " Kubernetes, Linnet. Dear Ada,");
    assert_eq!(told(&heard[1]), " Kubernetes, Linnet. Dear Ada, One. Two.");
}

#[test]
fn a_long_prompt_leaves_room_for_the_text() {
    let (mut transcriber, log) = transcriber("en", three_sentences);
    let options = TranscribeOptions { initial_prompt: Some("word ".repeat(400)), ..options() };
    transcribe(&mut transcriber, 40, options);
    for heard in &log.borrow().heard {
        assert_eq!(heard.prompt.len(), 1 + 223 + 3);
    }
}

#[test]
fn a_loop_is_heard_again_without_the_text_before() {
    let again = |count: usize| said(0.0, &" Thank you.".repeat(count), 20.0);
    let (mut transcriber, log) = transcriber("en", move |heard| {
        Answer::text(match (heard.window, told(heard).as_str()) {
            (0, _) => [again(3), vec![time(20.0)]].concat(),
            (_, "") => said(0.0, " Good night.", 5.0),
            _ => again(6),
        })
    });
    let transcript = transcribe(&mut transcriber, 40, options());
    assert_eq!(transcript.segments.last().unwrap().text, " Good night.");
    let heard = log.borrow().heard.clone();
    assert_eq!((heard.len(), told(&heard[2]).as_str()), (3, ""));
    // It was found before any other temperature was tried.
    assert_eq!(transcript.segments.last().unwrap().temperature, 0.0);
}

#[test]
fn a_text_that_repeats_itself_is_tried_at_a_higher_temperature() {
    let mut attempts = 0;
    let (mut transcriber, log) = transcriber("en", move |_| {
        attempts += 1;
        Answer::text(said(0.0, &if attempts < 3 { " la".repeat(60) } else { " A song.".to_owned() }, 5.0))
    });
    let options = TranscribeOptions { best_of: 1, ..options() };
    let transcript = transcribe(&mut transcriber, 10, options);
    assert_eq!((transcript.text().as_str(), transcript.segments[0].temperature), ("A song.", 0.4));
    assert_nothing_is_open(&log);
}

#[test]
fn silence_gives_no_text_and_quiet_speech_does() {
    let unsure = |no_speech| Answer { tokens: said(0.0, " Thank you.", 2.0), no_speech, certainty: 9.0 };
    let (mut transcriber, log) = transcriber("en", move |_| unsure(0.9));
    assert_eq!(transcribe(&mut transcriber, 10, options()).text(), "");
    assert_eq!(log.borrow().heard.len(), 1, "silence is no reason to try again");

    let (mut transcriber, _) = transcriber_of_certain("en");
    assert_eq!(transcribe(&mut transcriber, 10, options()).text(), "Thank you.");
}

/// Silence is probable, and the text certain.
fn transcriber_of_certain(language: &str) -> (Transcriber, Rc<RefCell<Log>>) {
    transcriber(language, |_| Answer { no_speech: 0.9, ..Answer::text(said(0.0, " Thank you.", 2.0)) })
}

#[test]
fn a_dictionary_is_not_read_out_where_nobody_speaks() {
    let options = TranscribeOptions {
        vocabulary: vec!["Kubernetes".to_owned(), "Grafana".to_owned(), "Prometheus".to_owned()],
        ..options()
    };
    for (without_prompt, expected) in [(" you", ""), (" Graphana, Promethius", "Grafana, Prometheus")] {
        let (mut transcriber, _) = transcriber("en", move |heard| {
            let text = if told(heard).is_empty() { without_prompt } else { " Grafana, Prometheus" };
            Answer::text(said(0.0, text, 2.0))
        });
        assert_eq!(transcribe(&mut transcriber, 5, options.clone()).text(), expected);
    }
}

#[test]
fn german_is_written_in_german_unless_a_translation_is_asked_for() {
    let german = special().language(Language::find("de").unwrap()).unwrap();
    for (task, token) in [(Task::Transcribe, special().transcribe), (Task::Translate, special().translate)] {
        let (mut transcriber, log) = transcriber("de", |_| Answer::text(said(0.0, " Guten Tag.", 2.0)));
        let transcript = transcribe(&mut transcriber, 5, TranscribeOptions { task, ..options() });
        assert_eq!(transcript.language, "de");
        assert!(transcript.language_probability > 0.7, "{}", transcript.language_probability);
        assert_eq!(start(&log.borrow().heard[0]), [special().sot, german, token]);
    }
}

#[test]
fn the_language_is_one_of_those_allowed() {
    let languages = |of: &[&str]| of.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let hears_german = || transcriber("de", |_| Answer::text(said(0.0, " Tag.", 2.0))).0;
    let language = |of: &[&str]| {
        let options = TranscribeOptions { languages: languages(of), ..options() };
        hears_german().transcribe(&audio(3), options, &mut ()).map(|transcript| transcript.language)
    };
    assert_eq!(language(&["english", "de-AT"]).unwrap(), "de");
    assert_eq!(language(&["en"]).unwrap(), "en");
    assert!(["en", "fr"].contains(&language(&["en", "fr"]).unwrap().as_str()));
    assert!(matches!(language(&["klingon"]), Err(TranscribeError::UnknownLanguage { .. })));
    assert!(matches!(language(&["yue"]), Err(TranscribeError::LanguageNotInModel { .. })));
}

#[test]
fn an_english_model_says_what_it_cannot_do() {
    let english = N_VOCAB - 1;
    let (network, log) = ScriptedNetwork::new(english, 0, |_| {
        let begin = SpecialIds::new(N_VOCAB - 1).unwrap().timestamp_begin;
        Answer::text([vec![begin], bytes(" Yes."), vec![begin + 50]].concat())
    });
    let mut transcriber = Transcriber::with_tokenizer(network, tokenizer(english)).unwrap();
    let with = |languages: &[&str], task| TranscribeOptions {
        languages: languages.iter().map(|&name| name.to_owned()).collect(),
        task,
        ..options()
    };
    assert!(matches!(
        transcriber.begin(with(&["de"], Task::Transcribe)),
        Err(TranscribeError::LanguageNotInModel { .. })
    ));
    assert!(matches!(transcriber.begin(with(&[], Task::Translate)), Err(TranscribeError::CannotTranslate)));
    let transcript = transcribe(&mut transcriber, 3, with(&["de", "en"], Task::Transcribe));
    assert_eq!((transcript.text().as_str(), transcript.language.as_str()), ("Yes.", "en"));
    assert_eq!(log.borrow().heard[0].prompt, [50_257]);
}

#[test]
fn words_have_times_within_the_audio_in_order() {
    let (mut transcriber, _) = transcriber("en", |_| Answer::text(said(0.0, " one two, three", 4.0)));
    let options = TranscribeOptions { word_timestamps: true, ..options() };
    let transcript = transcribe(&mut transcriber, 5, options);
    let words = &transcript.segments[0].words;
    assert_eq!(words.iter().map(|word| word.word.as_str()).collect::<Vec<_>>(), [" one", " two,", " three"]);
    assert!(words.windows(2).all(|pair| pair[0].start < pair[0].end && pair[0].end <= pair[1].start), "{words:?}");
    assert!(words[2].end <= 5.0);
}

struct GivesUp(bool, Vec<TranscriptSegment>);

impl TranscribeObserver for GivesUp {
    fn segment(&mut self, segment: &TranscriptSegment) {
        self.1.push(segment.clone());
    }
    fn is_cancelled(&self) -> bool {
        self.0
    }
}

#[test]
fn a_cancelled_transcription_leaves_nothing_open_and_can_go_on() {
    let (mut transcriber, log) = transcriber("en", three_sentences);
    let mut run = transcriber.begin(options()).unwrap();
    let mut observer = GivesUp(true, Vec::new());
    let failed = transcriber.push(&mut run, &audio(40), &mut observer);
    assert!(matches!(failed, Err(TranscribeError::Cancelled)) && log.borrow().windows == 0);
    assert_nothing_is_open(&log);
    observer.0 = false;
    let missing = audio(40).split_off(run.samples);
    transcriber.push(&mut run, &missing, &mut observer).unwrap();
    transcriber.finish(&mut run, &mut observer).unwrap();
    assert_eq!(run.segments().len(), 3);
    assert_eq!(observer.1, run.segments());
}

#[test]
fn too_little_to_hear_gives_no_text() {
    let (mut transcriber, log) = transcriber("en", three_sentences);
    for samples in [0, 1, 159] {
        let transcript = transcriber.transcribe(&vec![0.1; samples], options(), &mut ()).unwrap();
        assert_eq!((transcript.text().as_str(), log.borrow().windows), ("", 0));
    }
    assert_eq!(transcriber.resume(options(), ResumePoint::default()).unwrap().segments().len(), 0);
}
