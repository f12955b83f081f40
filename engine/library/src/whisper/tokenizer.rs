//! A Whisper model's tokenizer: taken over, or rebuilt from its vocabulary.
//!
//! Whisper's text tokens are those of a byte-level BPE, numbered in the order in which they were merged. Which two
//! tokens each was made of is therefore what the merges before it leave of its bytes (as tiktoken reads such a
//! vocabulary). The special tokens follow from the vocabulary's size (openai/whisper, tokenizer.py).

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::dimensions::Dimensions;
use crate::disk;
use crate::error::LibraryError;
use crate::import::Companion;
use crate::import::folder::is_legal;
use crate::tokenizer_files::TOKENIZER;

/// What is copied beside a tokenizer.
const COMPANIONS: [&str; 5] =
    [TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "README.md"];
/// The vocabularies that OpenAI's and mlx-whisper's packages bring.
const TIKTOKEN: [&str; 2] = ["gpt2.tiktoken", "multilingual.tiktoken"];
const TOKENIZER_LIMIT: u64 = 64 << 20;
const END_OF_TEXT: &str = "<|endoftext|>";

/// Languages in the order of their tokens (openai/whisper, tokenizer.py).
#[rustfmt::skip]
const LANGUAGES: [&str; 100] = [
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it", "id", "hi", "fi", "vi",
    "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur", "hr", "bg", "lt", "la", "mi", "ml", "cy", "sk",
    "te", "fa", "lv", "bn", "sr", "az", "sl", "kn", "et", "mk", "br", "eu", "is", "hy", "ne", "mn", "bs", "kk", "sq", "sw",
    "gl", "mr", "pa", "si", "km", "sn", "yo", "so", "af", "oc", "ka", "be", "tg", "sd", "gu", "am", "yi", "lo", "uz", "fo",
    "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln", "ha", "ba", "jw", "su",
    "yue",
];

/// Where a model's tokenizer comes from.
pub(crate) enum Tokenizer {
    /// The files of the model's folder.
    Folder,
    /// The bytes of the text tokens, in the order of their ids.
    Tokens(Vec<Vec<u8>>),
}

impl Tokenizer {
    /// The files that go beside the weights.
    pub(super) fn companions(
        &self,
        path: &Path,
        dimensions: &Dimensions,
    ) -> Result<Vec<(String, Companion)>, LibraryError> {
        match self {
            Tokenizer::Tokens(tokens) => {
                let tokenizer = rebuild(path, tokens, dimensions)?;
                Ok(vec![(TOKENIZER.to_owned(), Companion::Json(tokenizer))])
            }
            Tokenizer::Folder => {
                let mut companions = Vec::new();
                if path.join(TOKENIZER).symlink_metadata().is_ok() {
                    check(&path.join(TOKENIZER), dimensions)?;
                } else {
                    let tokenizer = rebuild(path, &vocabulary(path, dimensions)?, dimensions)?;
                    companions.push((TOKENIZER.to_owned(), Companion::Json(tokenizer)));
                }
                for file in disk::files_of(path)? {
                    let name = disk::file_name_text(&file);
                    if (COMPANIONS.contains(&name.as_str()) || is_legal(&name)) && file.is_file() {
                        companions.push((name, Companion::Copy(file)));
                    }
                }
                Ok(companions)
            }
        }
    }
}

fn refused(path: &Path, reason: impl Into<String>) -> LibraryError {
    LibraryError::Tokenizer { path: path.to_owned(), reason: reason.into() }
}

/// Refuses a tokenizer of another model.
fn check(path: &Path, dimensions: &Dimensions) -> Result<(), LibraryError> {
    let tokenizer = disk::read_json(path, TOKENIZER_LIMIT)?;
    let Some(vocabulary) = tokenizer["model"]["vocab"].as_object() else {
        return Err(refused(path, "it has no vocabulary; fetch it again"));
    };
    let added = tokenizer["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let end = added
        .iter()
        .find(|token| token["content"] == END_OF_TEXT)
        .map(|token| &token["id"])
        .or_else(|| vocabulary.get(END_OF_TEXT))
        .and_then(Value::as_u64);
    let expected = dimensions.text_tokens() as u64;
    if end == Some(expected) {
        return Ok(());
    }
    let found = end.map_or_else(|| "nowhere".to_owned(), |id| format!("at {id}"));
    let kind = if dimensions.is_multilingual() { "multilingual" } else { "English" };
    Err(refused(
        path,
        format!("it has {END_OF_TEXT} {found}, not at {expected}; fetch the tokenizer.json of this {kind} model"),
    ))
}

/// The text tokens of a folder without tokenizer.json.
fn vocabulary(folder: &Path, dimensions: &Dimensions) -> Result<Vec<Vec<u8>>, LibraryError> {
    let list = TIKTOKEN[usize::from(dimensions.is_multilingual())];
    let path = folder.join(list);
    if path.is_file() {
        let text = disk::read_text(&path, TOKENIZER_LIMIT)?;
        return tiktoken(&text).ok_or_else(|| refused(&path, "it is no list of tokens and ranks; fetch it again"));
    }
    let path = folder.join("vocab.json");
    if path.is_file() {
        let value = disk::read_json(&path, TOKENIZER_LIMIT)?;
        return byte_level(&value, dimensions.text_tokens())
            .ok_or_else(|| refused(&path, "it does not number the tokens of a byte-level vocabulary; fetch it again"));
    }
    Err(refused(
        folder,
        format!(
            "tokenizer.json is missing; put the one of OpenAI's model of the same name into the folder (openai/whisper-... \
             on the hub), or {list} from the folder assets of the Python package mlx-whisper"
        ),
    ))
}

/// Lines of base64 and rank.
fn tiktoken(text: &str) -> Option<Vec<Vec<u8>>> {
    let mut tokens = Vec::new();
    for (expected, line) in text.lines().enumerate() {
        let (token, rank) = line.split_once(' ')?;
        if rank.trim().parse() != Ok(expected) {
            return None;
        }
        tokens.push(base64(token)?);
    }
    Some(tokens)
}

/// Decodes standard base64 (RFC 4648); `=` alone is what the vocabulary writes for nothing.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for symbol in text.trim_end_matches('=').bytes() {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}

/// The tokens of a `vocab.json`, whose bytes are written as printable characters.
fn byte_level(vocabulary: &Value, count: usize) -> Option<Vec<Vec<u8>>> {
    let bytes: HashMap<char, u8> = characters().into_iter().zip(0u8..=255).collect();
    let mut tokens: Vec<Option<Vec<u8>>> = vec![None; count];
    for (token, id) in vocabulary.as_object()? {
        if let Some(slot) = tokens.get_mut(usize::try_from(id.as_u64()?).ok()?) {
            *slot = token.chars().map(|character| bytes.get(&character).copied()).collect();
        }
    }
    // Of the multilingual vocabularies the last text token is empty, and some lists leave it out.
    if let Some(last) = tokens.last_mut() {
        last.get_or_insert_with(Vec::new);
    }
    tokens.into_iter().collect()
}

/// The printable character that stands for each byte (openai/gpt-2, encoder.py, `bytes_to_unicode`).
fn characters() -> [char; 256] {
    let mut next = 256;
    std::array::from_fn(|byte| {
        let is_printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if is_printable {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

/// Makes a `tokenizer.json` out of the text tokens.
fn rebuild(path: &Path, tokens: &[Vec<u8>], dimensions: &Dimensions) -> Result<Value, LibraryError> {
    let expected = dimensions.text_tokens();
    let languages = dimensions.languages() as usize;
    if languages == 0 || languages > LANGUAGES.len() {
        let reason = format!("a vocabulary of {} entries is none of OpenAI's", dimensions.n_vocab);
        return Err(refused(path, reason));
    }
    // Some lists go on with the special tokens, which are made here.
    let Some(tokens) = tokens.get(..expected) else {
        return Err(refused(path, format!("it has {} tokens of text, not {expected}; fetch it again", tokens.len())));
    };
    let mut ids: HashMap<&[u8], usize> = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if ids.insert(token, id).is_some() {
            return Err(refused(path, format!("token {id} is there twice; fetch it again")));
        }
    }
    if let Some(byte) = (0..=255u8).find(|byte| !ids.contains_key([*byte].as_slice())) {
        return Err(refused(path, format!("it has no token for the byte {byte}; fetch it again")));
    }
    let characters = characters();
    let text = |token: &[u8]| -> String { token.iter().map(|byte| characters[usize::from(*byte)]).collect() };
    let mut vocabulary = Map::with_capacity(tokens.len() + 1);
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        vocabulary.insert(text(token), id.into());
        if let Some((left, right)) = halves(token, id, &ids) {
            merges.push(json!([text(left), text(right)]));
        }
    }
    vocabulary.insert(END_OF_TEXT.into(), expected.into());
    let added: Vec<Value> = special_tokens(languages)
        .into_iter()
        .enumerate()
        .map(|(index, content)| {
            json!({
                "id": expected + index, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "vocab": vocabulary,
            "merges": merges,
        },
    }))
}

/// The two tokens that a token was merged from: what is left of its bytes by the merges that came before it.
fn halves<'a>(token: &'a [u8], id: usize, ids: &HashMap<&[u8], usize>) -> Option<(&'a [u8], &'a [u8])> {
    // Where each piece begins, and the end.
    let mut cuts: Vec<usize> = (0..=token.len()).collect();
    while cuts.len() > 3 {
        let (index, _) = (0..cuts.len() - 2)
            .filter_map(|index| Some((index, *ids.get(&token[cuts[index]..cuts[index + 2]])?)))
            .filter(|(_, rank)| *rank < id)
            .min_by_key(|(_, rank)| *rank)?;
        cuts.remove(index + 1);
    }
    match cuts.as_slice() {
        [_, middle, _] => Some(token.split_at(*middle)),
        _ => None,
    }
}

/// The special tokens in the order of their ids.
fn special_tokens(languages: usize) -> Vec<String> {
    let mut tokens = vec![END_OF_TEXT.to_owned(), "<|startoftranscript|>".to_owned()];
    tokens.extend(LANGUAGES.iter().take(languages).map(|language| format!("<|{language}|>")));
    let tasks = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"];
    tokens.extend(tasks.map(|task| format!("<|{task}|>")));
    // Hundredths of a second, two at a time: to 30 s.
    tokens.extend((0..=1500).map(|step| format!("<|{}.{:02}|>", step * 2 / 100, step * 2 % 100)));
    tokens
}
