//! The "llama" kind: SentencePiece's BPE, whose merges follow from the scores of its pieces.
//!
//! SentencePiece joins, again and again, the neighbours whose union has the highest score. A merge table in the order
//! of the scores does the same; every way to cut a piece into two pieces is a merge.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Parts, Roles, TokenKind, Vocabulary};
use crate::error::LibraryError;
use crate::gguf::GgufFile;

/// What SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";

pub(super) fn parts(file: &GgufFile, vocabulary: &Vocabulary, roles: &Roles) -> Result<Parts, LibraryError> {
    if vocabulary.scores.is_empty() {
        return Err(LibraryError::Tokenizer {
            path: vocabulary.path.clone(),
            reason: "its metadata has no tokenizer.ggml.scores, from which the merges follow; use a GGUF file with a \
                     complete vocabulary"
                .into(),
        });
    }
    let byte_fallback = has_all_bytes(vocabulary);
    let mut notes = Vec::new();
    if !byte_fallback {
        notes.push("the vocabulary has no byte tokens: characters outside of it become the unknown token".into());
    }
    let prefix = file.boolean("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let unknown = roles.unknown.and_then(|id| vocabulary.tokens.get(id as usize)).or_else(|| {
        let id = vocabulary.kinds.iter().position(|kind| *kind == TokenKind::Unknown)?;
        vocabulary.tokens.get(id)
    });
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![replace(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    Ok(Parts {
        description: "SentencePiece BPE".into(),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": byte_fallback,
            "ignore_merges": false,
            "vocab": vocabulary.to_json(),
            "merges": merges(vocabulary),
        }),
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: Value::Null,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        default_add_beginning: true,
        notes,
    })
}

fn has_all_bytes(vocabulary: &Vocabulary) -> bool {
    let count = vocabulary.tokens.iter().filter(|text| byte_of(text).is_some()).count();
    count == 256
}

/// The byte that a token like `<0x0A>` stands for.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// All pairs of pieces whose union is a piece, the highest score first.
///
/// Control and byte tokens take no part, and neither do user-defined pieces: they are matched whole, before any merge.
fn merges(vocabulary: &Vocabulary) -> Vec<Value> {
    let takes_part = |id: usize| {
        matches!(vocabulary.kinds[id], TokenKind::Normal | TokenKind::Unused)
            && byte_of(&vocabulary.tokens[id]).is_none()
    };
    let pieces: HashMap<&str, usize> = (0..vocabulary.tokens.len())
        .filter(|&id| takes_part(id))
        .map(|id| (vocabulary.tokens[id].as_str(), id))
        .collect();
    let mut found: Vec<(f32, usize, usize)> = Vec::new();
    for (text, &id) in &pieces {
        for (at, _) in text.char_indices().skip(1) {
            if pieces.contains_key(&text[..at]) && pieces.contains_key(&text[at..]) {
                found.push((vocabulary.scores[id], id, at));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    found
        .into_iter()
        .map(|(_, id, at)| {
            let (left, right) = vocabulary.tokens[id].split_at(at);
            json!([left, right])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_follow_the_scores_and_skip_control_and_byte_tokens() {
        let entries = [
            ("<s>", TokenKind::Control, 0.0),
            ("<0x41>", TokenKind::Byte, 0.0),
            ("a", TokenKind::Normal, -10.0),
            ("b", TokenKind::Normal, -11.0),
            ("c", TokenKind::Normal, -12.0),
            ("bc", TokenKind::Normal, -1.0),
            ("ab", TokenKind::Normal, -2.0),
            ("abc", TokenKind::Normal, -3.0),
            ("cc", TokenKind::UserDefined, -0.5),
        ];
        let vocabulary = Vocabulary {
            path: "test.gguf".into(),
            tokens: entries.iter().map(|entry| entry.0.to_owned()).collect(),
            kinds: entries.iter().map(|entry| entry.1).collect(),
            scores: entries.iter().map(|entry| entry.2).collect(),
            duplicates: 0,
        };
        let expected = vec![json!(["b", "c"]), json!(["a", "b"]), json!(["a", "bc"]), json!(["ab", "c"])];
        assert_eq!(merges(&vocabulary), expected);
    }

    #[test]
    fn byte_tokens_are_told_from_texts() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0xA>"), None);
        assert_eq!(byte_of("<0x0A"), None);
        assert_eq!(byte_of("x"), None);
    }
}
