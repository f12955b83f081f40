//! A model folder's files become a [`Tokenizer`].

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, AddedVocabulary};

use super::pieces::PieceDecoder;
use super::{Inner, Tokenizer, TokenizerError};
use crate::special_tokens::{SpecialTokens, read_json_object};

pub(super) fn from_folder(folder: &Path) -> Result<Tokenizer, TokenizerError> {
    let special_tokens = SpecialTokens::load(folder)?;
    let config = read_json_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let path = folder.join("tokenizer.json");
    let mut library = match std::fs::read(&path) {
        Ok(json) => parse(&path, &json)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => from_vocabulary_and_merges(folder, &config)?,
        Err(source) => return Err(TokenizerError::Read { path, source }),
    };
    let special = add_configured_tokens(&mut library, &config, &special_tokens);
    Ok(assemble(library, special_tokens, special))
}

pub(super) fn parse(path: &Path, json: &[u8]) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let invalid = |detail: String| TokenizerError::Invalid { path: path.to_owned(), detail };
    let mut library = tokenizers::Tokenizer::from_bytes(json).map_err(|error| invalid(error.to_string()))?;
    // Some files carry the cut and the padding of the training script.
    library.with_truncation(None).map_err(|error| invalid(error.to_string()))?;
    library.with_padding(None);
    Ok(library)
}

/// The tokenizer of a folder from before `tokenizer.json`, where its kind is certain: GPT-2's byte-level BPE. Other
/// families split words by rules that these two files do not hold.
fn from_vocabulary_and_merges(
    folder: &Path,
    config: &Map<String, Value>,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let (vocabulary, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    let missing = |also: &str| TokenizerError::Missing { folder: folder.to_owned(), also: also.to_owned() };
    if !vocabulary.is_file() || !merges.is_file() {
        let sentencepiece = folder.join("tokenizer.model").is_file();
        return Err(missing(if sentencepiece { " (only tokenizer.model, which is not read)" } else { "" }));
    }
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("GPT2Tokenizer");
    if !class.starts_with("GPT2Tokenizer") {
        return Err(missing(&format!(" (only vocab.json and merges.txt, which do not tell how {class} splits words)")));
    }
    let invalid = |error: tokenizers::Error| TokenizerError::Invalid {
        path: vocabulary.clone(),
        detail: format!("with merges.txt: {error}"),
    };
    let model = BPE::from_file(&vocabulary.to_string_lossy(), &merges.to_string_lossy()).build().map_err(invalid)?;
    let mut library = tokenizers::Tokenizer::new(model);
    let byte_level = ByteLevel::default().add_prefix_space(false);
    library.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
    Ok(library)
}

/// Adds the tokens that only `tokenizer_config.json` lists, in the order of their ids, and gives back the ids of all
/// that it calls special.
fn add_configured_tokens(
    library: &mut tokenizers::Tokenizer,
    config: &Map<String, Value>,
    special_tokens: &SpecialTokens,
) -> HashSet<u32> {
    let mut listed: Vec<(u32, AddedToken)> = config
        .get("added_tokens_decoder")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse().ok()?, added_token(token)?)))
        .collect();
    listed.sort_by_key(|(id, _)| *id);
    let named =
        special_tokens.iter().map(|(_, text)| text).chain(special_tokens.additional().iter().map(String::as_str));
    let named: Vec<AddedToken> = named.map(|text| AddedToken::from(text, true)).collect();
    let mut special = HashSet::new();
    for token in listed.into_iter().map(|(_, token)| token).chain(named) {
        if library.token_to_id(&token.content).is_none() {
            if token.special {
                library.add_special_tokens(std::slice::from_ref(&token));
            } else {
                library.add_tokens(std::slice::from_ref(&token));
            }
        }
        special.extend(library.token_to_id(&token.content).filter(|_| token.special));
    }
    special
}

fn added_token(value: &Value) -> Option<AddedToken> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
    let content = value.get("content")?.as_str()?;
    Some(
        AddedToken::from(content, flag("special"))
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(flag("normalized")),
    )
}

pub(super) fn assemble(
    library: tokenizers::Tokenizer,
    special_tokens: SpecialTokens,
    mut special: HashSet<u32>,
) -> Tokenizer {
    let added: &AddedVocabulary = library.get_added_vocabulary();
    let added = added.get_added_tokens_decoder();
    special.extend(added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id));
    let size = library.get_vocab(true).into_values().max().map_or(0, |highest| highest as usize + 1);
    let id_of = |name: &str| special_tokens.get(name).and_then(|text| library.token_to_id(text));
    let (bos, eos) = (id_of("bos_token"), id_of("eos_token"));
    let decoder = PieceDecoder::of(&library);
    Tokenizer { inner: Arc::new(Inner { library, decoder, special, size, bos, eos, special_tokens }) }
}
