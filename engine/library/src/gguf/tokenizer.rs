//! Rebuilds a Hugging Face tokenizer out of GGUF metadata.
//!
//! Two kinds of vocabulary are known: byte-level BPE ("gpt2", with merges) and SentencePiece ("llama", with scores).
//! The result is a `tokenizer.json` for the `tokenizers` library and a `tokenizer_config.json` beside it.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::GgufFile;
use crate::error::LibraryError;

mod byte_level;
mod pre_tokenizer;
mod sentencepiece;

/// `tokenizer.ggml.token_type`, as in llama.cpp's `llama_token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Tokens that end an answer in some model family. Files often name only one of them as their end-of-sequence token,
/// and old ones do not even mark them as control tokens.
const END_OF_TURN: [&str; 10] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "</s>",
];

/// The vocabulary as the file has it.
struct Vocabulary {
    path: PathBuf,
    /// Unique texts: a repeated text is replaced by a stand-in.
    tokens: Vec<String>,
    kinds: Vec<TokenKind>,
    /// Empty for byte-level vocabularies.
    scores: Vec<f32>,
    duplicates: usize,
}

/// The ids of the tokens with a role.
#[derive(Default)]
struct Roles {
    beginning: Option<u32>,
    end: Option<u32>,
    unknown: Option<u32>,
    padding: Option<u32>,
}

/// The parts that the two kinds of vocabulary fill differently.
struct Parts {
    /// For people: "byte-level BPE (smollm)".
    description: String,
    model: Value,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    /// Whether the kind begins a text with the beginning token when the file does not say.
    default_add_beginning: bool,
    notes: Vec<String>,
}

/// A rebuilt tokenizer.
pub(crate) struct Rebuilt {
    /// `tokenizer.json`.
    pub(crate) tokenizer: Value,
    /// `tokenizer_config.json`, with the chat template.
    pub(crate) tokenizer_config: Value,
    pub(crate) beginning: Option<u32>,
    /// All tokens that end an answer, the file's own end token first.
    pub(crate) ends: Vec<u32>,
    pub(crate) padding: Option<u32>,
    pub(crate) description: String,
    pub(crate) has_chat_template: bool,
    pub(crate) notes: Vec<String>,
}

/// Rebuilds the tokenizer of a model whose embedding has `rows` rows.
pub(crate) fn rebuild(file: &GgufFile, rows: u64) -> Result<Rebuilt, LibraryError> {
    let vocabulary = vocabulary(file, rows)?;
    let roles = roles(file, &vocabulary)?;
    let parts = match file.text("tokenizer.ggml.model") {
        Some("gpt2") => byte_level::parts(file, &vocabulary)?,
        Some("llama") => sentencepiece::parts(file, &vocabulary, &roles)?,
        Some(other) => {
            return Err(refused(
                file,
                format!("its tokenizer is of the kind \"{other}\"; the kinds gpt2 and llama can be rebuilt"),
            ));
        }
        None => {
            return Err(refused(
                file,
                "its metadata has no tokenizer.ggml.model; use a GGUF file with a vocabulary".into(),
            ));
        }
    };
    let mut notes = parts.notes;
    if vocabulary.duplicates > 0 {
        notes.push(format!(
            "{} tokens repeat the text of an earlier token and were given stand-in texts",
            vocabulary.duplicates
        ));
    }
    let (added, ends) = added_tokens(file, &vocabulary, &roles);
    let add_beginning = file.boolean("tokenizer.ggml.add_bos_token").unwrap_or(parts.default_add_beginning);
    let add_end = file.boolean("tokenizer.ggml.add_eos_token").unwrap_or(false);
    let template = chat_template(file);
    if template.is_none() {
        notes.push("the file has no chat template: chat falls back to the engine's plain one".into());
    }
    let text = |id: Option<u32>| id.and_then(|id| vocabulary.tokens.get(id as usize)).cloned();
    let around_beginning = add_beginning.then(|| roles.beginning.zip(text(roles.beginning))).flatten();
    let around_end = add_end.then(|| roles.end.zip(text(roles.end))).flatten();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor(around_beginning.as_ref(), around_end.as_ref()),
        "decoder": parts.decoder,
        "model": parts.model,
    });
    let mut config = Map::new();
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    for (name, id) in [
        ("bos_token", roles.beginning),
        ("eos_token", roles.end),
        ("unk_token", roles.unknown),
        ("pad_token", roles.padding),
    ] {
        if let Some(text) = text(id) {
            config.insert(name.into(), text.into());
        }
    }
    config.insert("add_bos_token".into(), add_beginning.into());
    config.insert("add_eos_token".into(), add_end.into());
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    let has_chat_template = template.is_some();
    if let Some(template) = template {
        config.insert("chat_template".into(), template);
    }
    Ok(Rebuilt {
        tokenizer,
        tokenizer_config: Value::Object(config),
        beginning: roles.beginning,
        ends,
        padding: roles.padding,
        description: parts.description,
        has_chat_template,
        notes,
    })
}

fn refused(file: &GgufFile, reason: String) -> LibraryError {
    LibraryError::Tokenizer { path: file.path.clone(), reason }
}

fn vocabulary(file: &GgufFile, rows: u64) -> Result<Vocabulary, LibraryError> {
    let texts = file.array("tokenizer.ggml.tokens").filter(|tokens| !tokens.is_empty()).ok_or_else(|| {
        refused(file, "its metadata has no tokenizer.ggml.tokens; use a GGUF file with a vocabulary".into())
    })?;
    if texts.len() as u64 > rows {
        return Err(refused(file, format!("it has {} tokens for an embedding of {rows} rows", texts.len())));
    }
    let mut seen = HashSet::with_capacity(texts.len());
    let mut tokens = Vec::with_capacity(texts.len());
    let mut duplicates = 0;
    for (id, text) in texts.iter().enumerate() {
        let text = text.as_text().ok_or_else(|| refused(file, format!("token {id} is not a text")))?;
        if seen.insert(text) {
            tokens.push(text.to_owned());
        } else {
            duplicates += 1;
            tokens.push(format!("<duplicate token {id}>"));
        }
    }
    let length_fits = |name: &str, length: usize| {
        if length == tokens.len() {
            return Ok(());
        }
        Err(refused(file, format!("it has {} tokens but {length} entries in {name}", tokens.len())))
    };
    let kinds = match file.array("tokenizer.ggml.token_type") {
        None => vec![TokenKind::Normal; tokens.len()],
        Some(numbers) => {
            length_fits("tokenizer.ggml.token_type", numbers.len())?;
            numbers.iter().map(|number| kind(number.as_integer())).collect()
        }
    };
    let scores = match file.array("tokenizer.ggml.scores") {
        None => Vec::new(),
        Some(numbers) => {
            length_fits("tokenizer.ggml.scores", numbers.len())?;
            numbers.iter().map(|number| number.as_float().unwrap_or(0.0)).collect()
        }
    };
    Ok(Vocabulary { path: file.path.clone(), tokens, kinds, scores, duplicates })
}

fn kind(number: Option<u64>) -> TokenKind {
    match number {
        Some(2) => TokenKind::Unknown,
        Some(3) => TokenKind::Control,
        Some(4) => TokenKind::UserDefined,
        Some(5) => TokenKind::Unused,
        Some(6) => TokenKind::Byte,
        _ => TokenKind::Normal,
    }
}

fn roles(file: &GgufFile, vocabulary: &Vocabulary) -> Result<Roles, LibraryError> {
    let role = |name: &str| match file.integer(&format!("tokenizer.ggml.{name}")) {
        None => Ok(None),
        Some(id) if id < vocabulary.tokens.len() as u64 => Ok(Some(id as u32)),
        // Some converters write 2^32-1 for "none".
        Some(id) if id >= u64::from(u32::MAX) => Ok(None),
        Some(id) => Err(refused(
            file,
            format!("tokenizer.ggml.{name} is {id}, but there are {} tokens", vocabulary.tokens.len()),
        )),
    };
    Ok(Roles {
        beginning: role("bos_token_id")?,
        end: role("eos_token_id")?,
        unknown: role("unknown_token_id")?,
        padding: role("padding_token_id")?,
    })
}

/// The tokens that are matched as a whole before anything else, and the ids of those that end an answer.
fn added_tokens(file: &GgufFile, vocabulary: &Vocabulary, roles: &Roles) -> (Vec<Value>, Vec<u32>) {
    let turn_ids = ["eot_token_id", "eom_token_id"]
        .iter()
        .filter_map(|name| file.integer(&format!("tokenizer.ggml.{name}")))
        .filter_map(|id| u32::try_from(id).ok());
    let mut ends: Vec<u32> = roles.end.into_iter().chain(turn_ids).collect();
    let special_roles: BTreeSet<u32> = [roles.beginning, roles.end, roles.unknown, roles.padding]
        .into_iter()
        .flatten()
        .chain(ends.iter().copied())
        .collect();
    let mut added = Vec::new();
    for (id, (text, kind)) in (0u32..).zip(vocabulary.tokens.iter().zip(&vocabulary.kinds)) {
        let ends_turn = END_OF_TURN.contains(&text.as_str()) && *kind != TokenKind::UserDefined;
        // An end-of-text token of the base model ends an answer too; models use both.
        if ends_turn {
            ends.push(id);
        }
        let special =
            matches!(kind, TokenKind::Control | TokenKind::Unknown) || ends_turn || special_roles.contains(&id);
        if (special || *kind == TokenKind::UserDefined) && !text.is_empty() {
            added.push(json!({
                "id": id,
                "content": text,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            }));
        }
    }
    let mut seen = BTreeSet::new();
    ends.retain(|id| (*id as usize) < vocabulary.tokens.len() && seen.insert(*id));
    (added, ends)
}

/// The template, or a list of named templates where the file has several.
fn chat_template(file: &GgufFile) -> Option<Value> {
    const KEY: &str = "tokenizer.chat_template";
    let default = file.text(KEY);
    let prefix = format!("{KEY}.");
    let named: Vec<(&str, &str)> =
        file.metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value.as_text()?))).collect();
    if named.is_empty() {
        return default.map(Value::from);
    }
    let list = default.map(|template| ("default", template)).into_iter().chain(named);
    Some(list.map(|(name, template)| json!({ "name": name, "template": template })).collect())
}

/// Puts the beginning and the end token around a text.
fn post_processor(beginning: Option<&(u32, String)>, end: Option<&(u32, String)>) -> Value {
    if beginning.is_none() && end.is_none() {
        return Value::Null;
    }
    let part = |token: &(u32, String), sequence: u32| json!({ "SpecialToken": { "id": token.1, "type_id": sequence } });
    let around = |name: &str, sequence: u32| -> Vec<Value> {
        let middle = json!({ "Sequence": { "id": name, "type_id": sequence } });
        let before = beginning.map(|token| part(token, sequence));
        let after = end.map(|token| part(token, sequence));
        before.into_iter().chain([middle]).chain(after).collect()
    };
    let special_tokens: Map<String, Value> = beginning
        .into_iter()
        .chain(end)
        .map(|(id, text)| (text.clone(), json!({ "id": text, "ids": [id], "tokens": [text] })))
        .collect();
    let single = around("A", 0);
    let pair: Vec<Value> = single.iter().cloned().chain(around("B", 1)).collect();
    json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special_tokens })
}

impl Vocabulary {
    /// The vocabulary as tokenizer.json has it: text to id.
    fn to_json(&self) -> Value {
        (0u32..).zip(&self.tokens).map(|(id, text)| (text.clone(), Value::from(id))).collect::<Map<_, _>>().into()
    }
}
