//! Whisper tiny.en and base on real speech, beside what the references understand (`tests/fixtures/references.json`: texts;
//! `words.json`: mlx-whisper's words). The models are 230 MB and not kept here: LINNET_SPEECH_MODELS names the
//! folder of Linnet's models, which `make test-speech` fills.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use linnet_models::WeightPrecision;
use linnet_speech::{AudioReader, NetworkOptions, TranscribeOptions, Transcriber, Transcript, load_network};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(name)).unwrap()).unwrap()
}

fn samples(of_clip: &Value) -> Vec<f32> {
    let parts = of_clip.as_array().unwrap().iter().map(|part| format!("speech/{}.flac", part.as_str().unwrap()));
    parts.flat_map(|part| AudioReader::open(&fixture(&part)).unwrap().read_to_end().unwrap()).collect()
}

fn transcriber(model: &str, options: &NetworkOptions) -> Transcriber {
    let models = PathBuf::from(std::env::var_os("LINNET_SPEECH_MODELS").unwrap());
    let folder = models.join(format!("whisper-{model}"));
    Transcriber::new(load_network(&folder, options).unwrap(), &folder).unwrap()
}

/// Temperature 0 alone, as the references were asked.
fn options(beam_size: usize) -> TranscribeOptions {
    TranscribeOptions {
        languages: vec!["en".to_owned()],
        beam_size,
        temperatures: vec![0.0],
        ..TranscribeOptions::default()
    }
}

fn transcripts(
    model: &str,
    network: &NetworkOptions,
    options: &TranscribeOptions,
    mut check: impl FnMut(&str, &Transcript, &Value),
) {
    let references = read("references.json");
    let mut transcriber = transcriber(model, network);
    for (clip, parts) in references["clips"].as_object().unwrap() {
        let known = &references[model][clip];
        if known.is_object() {
            let transcript = transcriber.transcribe(&samples(parts), options.clone(), &mut ()).unwrap();
            check(clip, &transcript, known);
        }
    }
}

const EXACT: NetworkOptions = NetworkOptions {
    backend: linnet_compute::BackendChoice::Cpu,
    threads: None,
    weights: WeightPrecision::Stored,
    exact: true,
};

#[test]
#[ignore = "needs whisper-tiny.en and whisper-base: make test-speech"]
fn greedy_text_is_mlx_whispers() {
    for model in ["tiny.en", "base"] {
        transcripts(model, &EXACT, &options(1), |clip, transcript, known| {
            assert_eq!(transcript.text(), known["mlx-whisper greedy"].as_str().unwrap(), "{model}, {clip} s");
        });
    }
}

#[test]
#[ignore = "needs whisper-tiny.en and whisper-base: make test-speech"]
fn text_of_five_beams_is_faster_whispers() {
    for model in ["tiny.en", "base"] {
        transcripts(model, &EXACT, &options(5), |clip, transcript, known| {
            assert_eq!(
                transcript.text(),
                known["faster-whisper float32 beam 5"].as_str().unwrap(),
                "{model}, {clip} s"
            );
        });
    }
}

#[test]
#[ignore = "needs whisper-tiny.en and whisper-base: make test-speech"]
fn with_int8_weights_no_more_words_are_wrong_than_faster_whispers() {
    let references = read("references.json");
    let network = NetworkOptions { weights: WeightPrecision::Int8, ..NetworkOptions::default() };
    for (model, beam_size) in [("tiny.en", 1), ("tiny.en", 5), ("base", 1), ("base", 5)] {
        let (mut ours, mut theirs) = (0, 0);
        transcripts(model, &network, &options(beam_size), |clip, transcript, known| {
            let said = references["said"][clip].as_str().unwrap();
            ours += wrong_words(&transcript.text(), said);
            // Which sentences are left out where windows meet hangs on a rounding: the 62 s have each sentence twice.
            let of =
                |kind| wrong_words(known[format!("faster-whisper {kind} beam {beam_size}")].as_str().unwrap(), said);
            theirs += of("int8").max(of("float32"));
        });
        assert!(ours <= theirs, "{model}, {beam_size} beams: {ours} wrong words, faster-whisper {theirs}");
    }
}

#[test]
#[ignore = "needs whisper-tiny.en and whisper-base: make test-speech"]
fn words_and_their_times_are_mlx_whispers() {
    let (references, words) = (read("references.json"), read("words.json"));
    let options = TranscribeOptions { word_timestamps: true, ..options(1) };
    for (model, of_clips) in words.as_object().unwrap() {
        let mut transcriber = transcriber(model, &EXACT);
        for (clip, expected) in of_clips.as_object().unwrap() {
            let heard = samples(&references["clips"][clip]);
            let transcript = transcriber.transcribe(&heard, options.clone(), &mut ()).unwrap();
            let found: Vec<_> = transcript.segments.iter().flat_map(|segment| &segment.words).collect();
            let expected = expected.as_array().unwrap();
            assert_eq!(found.len(), expected.len(), "{model}, {clip} s");
            for (word, expected) in found.iter().zip(expected) {
                assert_eq!(word.word, expected[0].as_str().unwrap(), "{model}, {clip} s");
                // One position of the encoder: where two ways through the attention are as good, rounding decides.
                for (found, expected) in [(word.start, &expected[1]), (word.end, &expected[2])] {
                    assert!(
                        (found - expected.as_f64().unwrap()).abs() < 0.021,
                        "{model}, {clip} s: {word:?} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
#[ignore = "needs whisper-tiny.en and whisper-base: make test-speech"]
fn audio_that_comes_in_pieces_is_understood_as_a_whole() {
    let references = read("references.json");
    let heard = samples(&references["clips"]["62"]);
    let mut transcriber = transcriber("tiny.en", &NetworkOptions::default());
    let whole = transcriber.transcribe(&heard, options(1), &mut ()).unwrap();
    let mut run = transcriber.begin(options(1)).unwrap();
    for piece in heard.chunks(1_600) {
        transcriber.push(&mut run, piece, &mut ()).unwrap();
    }
    transcriber.finish(&mut run, &mut ()).unwrap();
    // The first window was heard before a louder moment lowered the rest: words stay, punctuation may not.
    assert_eq!(words(&run.into_transcript().text()), words(&whole.text()));
}

#[test]
#[ignore = "needs whisper-tiny.en and whisper-base: make test-speech"]
fn the_language_is_heard() {
    let references = read("references.json");
    let mut transcriber = transcriber("base", &NetworkOptions::default());
    let heard = samples(&references["clips"]["11"]);
    let any = TranscribeOptions { languages: Vec::new(), ..options(1) };
    let transcript = transcriber.transcribe(&heard, any, &mut ()).unwrap();
    assert!(transcript.language == "en" && transcript.language_probability > 0.9, "{transcript:?}");
    let two = TranscribeOptions { languages: vec!["german".to_owned(), "french".to_owned()], ..options(1) };
    let transcript = transcriber.transcribe(&heard, two, &mut ()).unwrap();
    assert!(["de", "fr"].contains(&transcript.language.as_str()), "{}", transcript.language);
}

#[test]
#[ignore = "needs whisper-tiny.en and whisper-base: make test-speech"]
fn a_long_dictionary_is_not_read_out_on_silence() {
    let dictionary: Vec<String> =
        ["Kubernetes", "Grafana", "Prometheus", "Terraform", "Ansible", "Postgres", "Kafka", "Linnet"]
            .iter()
            .flat_map(|name| (0..50).map(move |number| format!("{name} {number}")))
            .collect();
    let options = TranscribeOptions { vocabulary: dictionary, ..options(1) };
    for model in ["tiny.en", "base"] {
        let mut transcriber = transcriber(model, &NetworkOptions::default());
        let prompt = transcriber.begin(options.clone()).unwrap().initial_prompt().clone();
        assert!(prompt.tokens.len() <= 223 && prompt.included.len() + prompt.omitted.len() == 400);
        for level in [0.0, 0.001, 0.01] {
            let mut state = 1u32;
            let heard: Vec<f32> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * level
            })
            .take(5 * 16_000)
            .collect();
            let text = transcriber.transcribe(&heard, options.clone(), &mut ()).unwrap().text();
            let read = ["kubernetes", "grafana", "prometheus", "terraform", "ansible", "postgres", "kafka", "linnet"];
            assert!(!read.iter().any(|name| text.to_lowercase().contains(name)), "{model}, noise of {level}: {text}");
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.to_lowercase()
        .replace("mr.", "mister")
        .split(|c: char| !c.is_alphanumeric() && c != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Words to change, to add and to leave out (Levenshtein's distance).
fn wrong_words(text: &str, said: &str) -> usize {
    let (text, said) = (words(text), words(said));
    let mut above: Vec<usize> = (0..=text.len()).collect();
    for (row, word) in said.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, other) in text.iter().enumerate() {
            let changed = above[column] + usize::from(word != other);
            line.push(changed.min(above[column + 1] + 1).min(line[column] + 1));
        }
        above = line;
    }
    above[text.len()]
}
