//! Tokenizers give text back token by token, whole characters only, whatever the characters are split into.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linnet_models::{SpecialTokens, Tokenizer, TokenizerError};
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers").join(name)
}

fn both() -> [Tokenizer; 2] {
    ["byte_level", "byte_fallback"].map(|name| Tokenizer::load(&folder(name)).unwrap())
}

/// Emoji with skin tone, a flag, a family joined by ZWJ, Hangul (whole and in parts), Devanagari with joined marks.
const HARD: [&str; 8] = [
    "👋🏽 hi",
    "🇨🇭🇰🇷",
    "👩‍👩‍👧‍👦!",
    "한국어 안녕",
    "\u{1112}\u{1161}\u{11ab}",
    "नमस्ते दुनिया क्षत्रिय",
    "Hello world, é ñ \u{0} \t\n",
    "  two  blanks ",
];

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.stream();
    let mut parts: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    parts.push(stream.finish());
    parts
}

#[test]
fn text_survives_the_way_to_tokens_and_back() {
    for tokenizer in both() {
        for text in HARD {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids), text);
        }
    }
}

#[test]
fn no_part_of_a_stream_holds_half_a_character() {
    for tokenizer in both() {
        for text in HARD {
            let ids = tokenizer.encode(text, false).unwrap();
            let parts = streamed(&tokenizer, &ids);
            assert!(parts.iter().all(|part| !part.contains('\u{fffd}')), "{parts:?}");
            assert_eq!(parts.concat(), text);
            assert_eq!(parts.last().unwrap(), "", "a whole text leaves nothing for the end");
        }
    }
}

#[test]
fn a_stream_cut_anywhere_equals_the_decoding_of_what_came() {
    for tokenizer in both() {
        let ids = tokenizer.encode(&HARD.concat(), true).unwrap();
        for end in 0..=ids.len() {
            let parts = streamed(&tokenizer, &ids[..end]);
            assert_eq!(parts.concat(), tokenizer.decode(&ids[..end]), "{end}");
            let cut: Vec<u8> = ids[..end]
                .iter()
                .filter(|id| !tokenizer.is_special(**id))
                .flat_map(|id| tokenizer.token_bytes(*id).unwrap())
                .collect();
            let cut = String::from_utf8_lossy(&cut).into_owned();
            let strips = tokenizer.token_id("<0x00>").is_some();
            let wanted = if strips { cut.strip_prefix(' ').unwrap_or(&cut) } else { &cut };
            assert_eq!(parts.concat(), wanted, "{end}");
        }
    }
}

#[test]
fn decoding_agrees_with_the_library_on_valid_text() {
    for name in ["byte_level", "byte_fallback"] {
        let ours = Tokenizer::load(&folder(name)).unwrap();
        let mut library = tokenizers::Tokenizer::from_file(folder(name).join("tokenizer.json")).unwrap();
        library.with_truncation(None).unwrap();
        for text in HARD {
            let encoding = library.encode(text, true).unwrap();
            assert_eq!(ours.encode(text, true).unwrap(), encoding.get_ids());
            assert_eq!(ours.decode(encoding.get_ids()), library.decode(encoding.get_ids(), true).unwrap());
            assert_eq!(
                ours.decode_with_special_tokens(encoding.get_ids()),
                library.decode(encoding.get_ids(), false).unwrap()
            );
        }
    }
}

/// The ids of single bytes in either tokenizer.
fn byte_ids(tokenizer: &Tokenizer) -> HashMap<u8, u32> {
    let size = u32::try_from(tokenizer.vocabulary_size()).unwrap();
    let mut ids = HashMap::new();
    for id in (0..size).filter(|id| !tokenizer.is_special(*id)) {
        if let Some([byte]) = tokenizer.token_bytes(id).as_deref() {
            ids.entry(*byte).or_insert(id);
        }
    }
    ids
}

#[test]
fn every_byte_has_a_token_and_invalid_bytes_become_one_mark_for_each_invalid_part() {
    let cases: [(&[u8], &str); 9] = [
        (b"a\xffb", "a\u{fffd}b"),
        (b"\xf0\x9f\x98", "\u{fffd}"),
        (b"\xf0\x9f\x98a", "\u{fffd}a"),
        (b"\xe2\x82\xe2\x82\xac", "\u{fffd}\u{20ac}"),
        (b"\x80\x80", "\u{fffd}\u{fffd}"),
        (b"\xc0\xaf", "\u{fffd}\u{fffd}"),
        (b"\xed\xa0\x80", "\u{fffd}\u{fffd}\u{fffd}"),
        (b"\xf0\x9f\x98\x80\xf0", "😀\u{fffd}"),
        (b"", ""),
    ];
    for tokenizer in both() {
        let ids = byte_ids(&tokenizer);
        assert_eq!(ids.len(), 256);
        for (bytes, wanted) in cases {
            let sequence: Vec<u32> = bytes.iter().map(|byte| ids[byte]).collect();
            assert_eq!(streamed(&tokenizer, &sequence).concat(), wanted, "{bytes:x?}");
            assert_eq!(String::from_utf8_lossy(bytes), wanted);
            assert_eq!(tokenizer.decode(&sequence), wanted, "{bytes:x?}");
        }
    }
}

#[test]
fn an_unfinished_character_is_held_back_and_flushed_at_the_end() {
    for tokenizer in both() {
        let ids = byte_ids(&tokenizer);
        let mut stream = tokenizer.stream();
        for byte in [0xf0, 0x9f, 0x98] {
            assert_eq!(stream.push(ids[&byte]).unwrap(), "");
        }
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }
}

#[test]
fn sentencepiece_drops_one_blank_at_the_start_of_the_text_only() {
    let tokenizer = Tokenizer::load(&folder("byte_fallback")).unwrap();
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    let hello = id("▁Hello");
    assert_eq!(streamed(&tokenizer, &[hello, hello]), ["Hello", " Hello", ""]);
    assert_eq!(streamed(&tokenizer, &[id("<s>"), hello]), ["", "Hello", ""]);
    assert_eq!(streamed(&tokenizer, &[id("▁▁"), hello]), [" ", " Hello", ""]);
    assert_eq!(streamed(&tokenizer, &[id("▁"), id("▁"), id("a")]), ["", " ", "a", ""]);
    assert_eq!(streamed(&tokenizer, &[id("<0x20>"), id("a")]), ["", "a", ""]);
    assert_eq!(tokenizer.token_bytes(hello).unwrap(), b" Hello", "in the middle of a text the blank stays");
}

#[test]
fn special_tokens_are_hidden_unless_asked_for_and_added_words_are_text() {
    let tokenizer = Tokenizer::load(&folder("byte_level")).unwrap();
    let ids = tokenizer.encode("<|im_start|>Hello<tool_call><|im_end|>", false).unwrap();
    assert_eq!(ids.first(), tokenizer.token_id("<|im_start|>").as_ref());
    assert_eq!(tokenizer.decode(&ids), "Hello<tool_call>");
    assert_eq!(tokenizer.decode_with_special_tokens(&ids), "<|im_start|>Hello<tool_call><|im_end|>");
    assert!(tokenizer.is_special(ids[0]) && !tokenizer.is_special(tokenizer.token_id("<tool_call>").unwrap()));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (tokenizer.token_id("<|begin|>"), tokenizer.token_id("<|im_end|>")));
    assert_eq!(tokenizer.encode("Hello", true).unwrap()[0], tokenizer.bos().unwrap());
}

#[test]
fn a_special_token_inside_a_character_does_not_break_it() {
    for tokenizer in both() {
        let ids = byte_ids(&tokenizer);
        let eos = tokenizer.eos().unwrap();
        let sequence = [ids[&0xc3], eos, ids[&0xa9]];
        assert_eq!(streamed(&tokenizer, &sequence).concat(), "é");
    }
}

#[test]
fn the_cut_of_a_training_script_is_not_applied() {
    let tokenizer = Tokenizer::load(&folder("byte_level")).unwrap();
    let json: Value =
        serde_json::from_slice(&std::fs::read(folder("byte_level").join("tokenizer.json")).unwrap()).unwrap();
    assert_eq!(json["truncation"]["max_length"], 8);
    assert_eq!(tokenizer.encode(&"x ".repeat(100), false).unwrap().len(), 200);
}

#[test]
fn an_unknown_id_is_an_error_and_the_stream_goes_on() {
    for tokenizer in both() {
        let mut stream = tokenizer.stream();
        let size = tokenizer.vocabulary_size();
        let outside = u32::try_from(size).unwrap();
        assert!(tokenizer.token_text(outside).is_none() && tokenizer.token_text(outside - 1).is_some());
        let error = stream.push(outside).unwrap_err();
        assert!(matches!(error, TokenizerError::UnknownToken { id, size: named } if id == outside && named == size));
        let ids = tokenizer.encode("a", false).unwrap();
        assert_eq!(ids.iter().map(|id| stream.push(*id).unwrap()).collect::<String>(), "a");
    }
}

/// Doubling the tokens may not much more than double the time, as it would if the text so far were decoded anew.
#[test]
fn streaming_ten_thousand_tokens_takes_linear_time() {
    for tokenizer in both() {
        let ids = tokenizer.encode("Hello 👩‍👩‍👧 한국 ", false).unwrap();
        let time = |count: usize| -> Duration {
            let best = (0..7).map(|_| {
                let mut stream = tokenizer.stream();
                let begin = Instant::now();
                for index in 0..count {
                    stream.push(ids[index % ids.len()]).unwrap();
                }
                begin.elapsed()
            });
            best.min().unwrap()
        };
        let (short, long) = (time(2_500), time(40_000));
        // Linear is 16 times; quadratic would be 256 times.
        assert!(long < short * 128, "2500 tokens {short:?}, 40000 tokens {long:?}");
        assert!(time(10_000) < Duration::from_secs(2));
    }
}

fn with_decoder(decoder: &Value) -> Tokenizer {
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(folder("byte_fallback").join("tokenizer.json")).unwrap()).unwrap();
    json["decoder"] = decoder.clone();
    Tokenizer::from_json(json.to_string().as_bytes(), SpecialTokens::default()).unwrap()
}

#[test]
fn other_decoders_agree_with_the_library_too() {
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let decoders = [
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false}),
        json!({"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]}),
        json!({"type": "Sequence", "decoders": [replace, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 0}]}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "Sequence", "decoders": [{"type": "WordPiece", "prefix": "##", "cleanup": false}]}),
        Value::Null,
    ];
    for decoder in decoders {
        let ours = with_decoder(&decoder);
        let mut json: Value =
            serde_json::from_slice(&std::fs::read(folder("byte_fallback").join("tokenizer.json")).unwrap()).unwrap();
        json["decoder"] = decoder.clone();
        let library = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        let ids = ours.encode("  Hello world, the  world", true).unwrap();
        let wanted = library.decode(&ids, true).unwrap();
        assert_eq!(ours.decode(&ids), wanted, "{decoder}");
        assert_eq!(streamed(&ours, &ids).concat(), wanted, "{decoder}");
    }
}

fn copy(from: &Path, to: &Path, name: &str) {
    std::fs::copy(from.join(name), to.join(name)).unwrap();
}

#[test]
fn a_missing_tokenizer_names_the_folder_and_what_to_do() {
    let empty = tempfile::tempdir().unwrap();
    let message = Tokenizer::load(empty.path()).unwrap_err().to_string();
    assert!(message.contains("holds no tokenizer.json; copy") && message.contains(empty.path().to_str().unwrap()));
    std::fs::write(empty.path().join("tokenizer.model"), "x").unwrap();
    assert!(Tokenizer::load(empty.path()).unwrap_err().to_string().contains("only tokenizer.model"));
    std::fs::write(empty.path().join("tokenizer.json"), "{\"model\": 1}").unwrap();
    assert!(matches!(Tokenizer::load(empty.path()), Err(TokenizerError::Invalid { .. })));
    std::fs::write(empty.path().join("tokenizer_config.json"), "[]").unwrap();
    assert!(Tokenizer::load(empty.path()).unwrap_err().to_string().contains("tokenizer_config.json"));
}

#[test]
fn tokens_that_only_the_configuration_lists_are_added() {
    let model = tempfile::tempdir().unwrap();
    copy(&folder("byte_level"), model.path(), "tokenizer.json");
    let size = Tokenizer::load(&folder("byte_level")).unwrap().vocabulary_size();
    let config = json!({
        "eos_token": "<|eot|>",
        "added_tokens_decoder": {
            (size + 1).to_string(): {"content": "<think>", "special": false},
            size.to_string(): {"content": "<|eot|>", "special": true},
        },
    });
    std::fs::write(model.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = Tokenizer::load(model.path()).unwrap();
    assert_eq!(tokenizer.eos(), Some(u32::try_from(size).unwrap()));
    assert_eq!(tokenizer.vocabulary_size(), size + 2);
    let ids = tokenizer.encode("<think>a<|eot|>", false).unwrap();
    assert_eq!((ids.len(), tokenizer.decode(&ids).as_str()), (3, "<think>a"));
}

#[test]
fn vocabulary_and_merges_serve_for_gpt2_alone() {
    let json: Value =
        serde_json::from_slice(&std::fs::read(folder("byte_level").join("tokenizer.json")).unwrap()).unwrap();
    let model = tempfile::tempdir().unwrap();
    std::fs::write(model.path().join("vocab.json"), json["model"]["vocab"].to_string()).unwrap();
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    let merges: Vec<String> =
        merges.map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap())).collect();
    std::fs::write(model.path().join("merges.txt"), format!("#version: 0.2\n{}\n", merges.join("\n"))).unwrap();
    let tokenizer = Tokenizer::load(model.path()).unwrap();
    let original = Tokenizer::load(&folder("byte_level")).unwrap();
    for text in HARD {
        assert_eq!(tokenizer.encode(text, false).unwrap(), original.encode(text, false).unwrap());
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, false).unwrap()), text);
    }
    std::fs::write(model.path().join("tokenizer_config.json"), "{\"tokenizer_class\": \"Qwen2Tokenizer\"}").unwrap();
    assert!(Tokenizer::load(model.path()).unwrap_err().to_string().contains("Qwen2Tokenizer"));
}
