//! Dictation from sound to text with a real model: what users of dictation programs complain about, case by case.
//!
//! `LINNET_WHISPER_TINY_EN` names the folder of whisper-tiny.en; `make test-speech` fetches it and runs these.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests stand outside of test functions")]

#[path = "dictation/sounds.rs"]
mod sounds;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use linnet_speech::{
    AudioReader, Delivery, DictationSession, NetworkOptions, Recognizer, SessionOptions, SileroVad, TextOptions,
    TextStage, TranscribeOptions, Transcriber, WindowOptions, WorkFailure, load_network,
};

use sounds::{at_level, breathing, fan, level, music, room, typing, white};

const RATE: usize = 16_000;

/// Makes so many samples of a sound.
type Maker = fn(usize) -> Vec<f32>;

fn model() -> Transcriber {
    let folder = PathBuf::from(std::env::var("LINNET_SPEECH_MODELS").unwrap()).join("whisper-tiny.en");
    Transcriber::new(load_network(&folder, &NetworkOptions::default()).unwrap(), &folder).unwrap()
}

fn clip(name: &str) -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/speech/{name}.flac"));
    AudioReader::open(&path).unwrap().read_to_end().unwrap()
}

fn options(windows: WindowOptions, partials: bool) -> SessionOptions {
    SessionOptions {
        windows,
        transcribe: TranscribeOptions::default(),
        text: Arc::new(TextStage::new(&TextOptions::default()).unwrap()),
        partials,
        ahead: partials,
    }
}

fn session(options: SessionOptions) -> DictationSession {
    DictationSession::new(Arc::new(SileroVad::bundled().unwrap()), options)
}

fn work_through(session: &mut DictationSession, model: &mut Transcriber) {
    while let Some(work) = session.next_work() {
        let result = model.recognize(work.window.samples(), &work.options, &|| false);
        session.complete(work.id, result.map_err(|error| WorkFailure::Failed(error.to_string())));
        assert_eq!(session.failure(), None);
    }
}

/// The text of samples that come in pieces of 100 ms, with a recogniser that gets round to it every 1.6 s.
fn dictated(model: &mut Transcriber, samples: &[f32], options: SessionOptions) -> String {
    let mut session = session(options);
    for (index, piece) in samples.chunks(RATE / 10).enumerate() {
        session.push(piece).unwrap();
        if index % 16 == 15 {
            work_through(&mut session, model);
        }
    }
    session.finish().unwrap();
    work_through(&mut session, model);
    assert!(session.is_complete());
    session.text().committed
}

fn live(model: &mut Transcriber, samples: &[f32]) -> String {
    dictated(model, samples, options(WindowOptions::LIVE, true))
}

fn words(text: &str) -> Vec<String> {
    let plain = |word: &str| word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    text.split_whitespace().map(plain).filter(|word: &String| !word.is_empty()).collect()
}

/// Words that differ, as a share of the words that were said.
fn word_errors(said: &str, heard: &str) -> f64 {
    let (said, heard) = (words(said), words(heard));
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (index, word) in said.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in heard.iter().enumerate() {
            let replaced = diagonal + usize::from(word != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[heard.len()] as f64 / said.len() as f64
}

const JFK: &str =
    "And so my fellow Americans ask not what your country can do for you ask what you can do for your country";

#[test]
#[ignore = "needs whisper-tiny.en: make test-speech"]
fn silence_noise_fan_music_breathing_and_typing_insert_nothing() {
    let mut model = model();
    let zeros = vec![0.0; 5 * RATE];
    assert_eq!(live(&mut model, &zeros), "");
    let makers: [(&str, Maker); 6] =
        [("hiss", white), ("room", room), ("fan", fan), ("music", music), ("breathing", breathing), ("typing", typing)];
    for (name, make) in makers {
        for dbfs in [-60.0, -40.0, -25.0] {
            let sound = at_level(make(5 * RATE), dbfs);
            assert_eq!(live(&mut model, &sound), "", "{name} at {dbfs} dBFS, live");
            let file = dictated(&mut model, &sound, options(WindowOptions::FILE, false));
            assert_eq!(file, "", "{name} at {dbfs} dBFS, as a file");
        }
    }
}

#[test]
#[ignore = "needs whisper-tiny.en: make test-speech"]
fn speech_at_minus_45_dbfs_is_transcribed() {
    let speech = at_level(clip("jfk"), -45.0);
    assert!((level(&speech) + 45.0).abs() < 0.1);
    let text = live(&mut model(), &speech);
    assert!(word_errors(JFK, &text) <= 0.1, "{text}");
}

#[test]
#[ignore = "needs whisper-tiny.en: make test-speech"]
fn speech_from_the_very_first_sample_keeps_its_first_word() {
    let speech = clip("jfk");
    // The first word begins where the sound first rises.
    let first = speech.iter().position(|sample| sample.abs() > 0.05).unwrap();
    let text = live(&mut model(), &speech[first..]);
    assert_eq!(words(&text)[..3], ["and", "so", "my"], "{text}");
    assert!(word_errors(JFK, &text) <= 0.1, "{text}");
}

#[test]
#[ignore = "needs whisper-tiny.en: make test-speech"]
fn a_dictionary_of_400_words_is_not_echoed_where_nobody_speaks() {
    let mut model = model();
    let vocabulary: Vec<String> = (0..400).map(|number| format!("Linnaeus{number}")).collect();
    let with_words = |windows, partials| {
        let mut options = options(windows, partials);
        options.transcribe.vocabulary.clone_from(&vocabulary);
        options
    };
    let mut quiet = at_level(white(3 * RATE), -55.0);
    quiet.extend(at_level(typing(3 * RATE), -35.0));
    quiet.extend(at_level(breathing(3 * RATE), -30.0));
    for (windows, partials) in [(WindowOptions::LIVE, true), (WindowOptions::FILE, false)] {
        assert_eq!(dictated(&mut model, &quiet, with_words(windows, partials)), "");
    }
    // Where somebody speaks, the words of the dictionary do not spoil what is heard.
    let mut speech = clip("jfk");
    speech.extend(quiet);
    let text = dictated(&mut model, &speech, with_words(WindowOptions::LIVE, true));
    assert!(word_errors(JFK, &text) <= 0.1 && !text.contains("Linnaeus"), "{text}");
}

#[test]
#[ignore = "needs whisper-tiny.en: make test-speech"]
fn long_audio_that_repeats_itself_does_not_loop() {
    let mut speech = Vec::new();
    for _ in 0..7 {
        speech.extend(clip("jfk"));
        speech.extend(at_level(room(RATE / 2), -60.0));
    }
    assert!(speech.len() > 80 * RATE);
    let mut model = model();
    for (windows, partials) in [(WindowOptions::LIVE, true), (WindowOptions::FILE, false)] {
        let text = dictated(&mut model, &speech, options(windows, partials));
        let said = text.matches("fellow Americans").count();
        // More than were said would be a loop. One less was seen: a sentence that is all but the one before.
        assert!((6..=7).contains(&said) && words(&text).len() <= 7 * words(JFK).len(), "{text}");
    }
}

#[test]
#[ignore = "needs whisper-tiny.en: make test-speech"]
fn noise_after_speech_adds_no_words_and_no_brackets() {
    let mut model = model();
    for make in [room as Maker, music, typing, breathing] {
        let mut sound = clip("jfk");
        sound.extend(at_level(make(8 * RATE), -38.0));
        let text = live(&mut model, &sound);
        assert!(word_errors(JFK, &text) <= 0.1, "{text}");
        assert!(!text.contains(['[', '(', '*', '♪']), "{text}");
    }
}

#[test]
#[ignore = "needs whisper-tiny.en: make test-speech"]
fn zeros_before_and_in_the_middle_of_speech_lose_no_words() {
    let speech = clip("jfk");
    // Bluetooth microphones begin with 0.6 s of nothing; the pause between the two sentences is after 7.7 s.
    let mut sound = vec![0.0; RATE * 6 / 10];
    sound.extend(&speech[..RATE * 77 / 10]);
    sound.extend(vec![0.0; RATE]);
    sound.extend(&speech[RATE * 77 / 10..]);
    let text = live(&mut model(), &sound);
    assert!(word_errors(JFK, &text) <= 0.1, "{text}");
    let mut session = session(options(WindowOptions::LIVE, true));
    assert_eq!(session.push(&sound[..RATE * 6 / 10]).unwrap(), Delivery::NotDelivering);
}

#[test]
#[ignore = "needs whisper-tiny.en: make test-speech"]
fn a_take_of_62_seconds_gives_the_text_of_the_batch_and_committed_words_never_change() {
    let mut speech = Vec::new();
    for name in
        ["librivox-0870", "jfk", "librivox-0880", "librivox-0890", "librivox-0920", "jfk", "librivox-0930", "jfk"]
    {
        speech.extend(clip(name));
        speech.extend(at_level(room(RATE * 4 / 10), -62.0));
    }
    speech.truncate(62 * RATE);
    let mut model = model();
    let mut batch = session(options(WindowOptions::LIVE, true));
    batch.push(&speech).unwrap();
    batch.finish().unwrap();
    while let Some(work) = batch.next_work() {
        let result = model.recognize(work.window.samples(), &work.options, &|| false).unwrap();
        batch.complete(work.id, Ok(result));
    }
    let expected = batch.text().committed;
    assert!(words(&expected).len() > 100, "{expected}");

    let mut live = session(options(WindowOptions::LIVE, true));
    let (mut committed, mut grown) = (String::new(), 0);
    for (index, piece) in speech.chunks(RATE / 10).enumerate() {
        live.push(piece).unwrap();
        // The recogniser takes its time.
        if index % 12 != 11 {
            continue;
        }
        work_through(&mut live, &mut model);
        let text = live.text().committed;
        assert!(text.starts_with(&committed), "{committed:?} became {text:?}");
        grown += usize::from(text.len() > committed.len());
        committed = text;
    }
    live.finish().unwrap();
    work_through(&mut live, &mut model);
    assert!(live.text().committed.starts_with(&committed));
    assert!(grown > 4, "text was committed {grown} times while it was spoken");
    assert_eq!(live.text().committed, expected);
}
