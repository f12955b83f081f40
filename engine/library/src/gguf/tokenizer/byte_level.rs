//! The "gpt2" kind: byte-level BPE, whose merges the file lists in order.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::pre_tokenizer;
use super::{Parts, Vocabulary, refused};
use crate::error::LibraryError;
use crate::gguf::GgufFile;

pub(super) fn parts(file: &GgufFile, vocabulary: &Vocabulary) -> Result<Parts, LibraryError> {
    let mut notes = Vec::new();
    let name = file.text("tokenizer.ggml.pre").unwrap_or("default");
    let pre_tokenizer = pre_tokenizer::find(name).ok_or_else(|| {
        refused(
            file,
            format!(
                "its pre-tokenizer \"{name}\" (tokenizer.ggml.pre) is not known; known are {}; import the model's \
                 safetensors, which bring their own tokenizer.json",
                pre_tokenizer::names().join(", ")
            ),
        )
    })?;
    if name == "default" {
        notes.push(
            "the file does not say how text is cut into words; GPT-2's rules were taken, which may tokenize digits and \
             punctuation differently from the original"
                .into(),
        );
    }
    let listed = file.array("tokenizer.ggml.merges").ok_or_else(|| {
        refused(file, "its metadata has no tokenizer.ggml.merges; use a GGUF file with a complete vocabulary".into())
    })?;
    let known: HashSet<&str> = vocabulary.tokens.iter().map(String::as_str).collect();
    let mut merges = Vec::with_capacity(listed.len());
    let mut unusable = 0usize;
    for (number, merge) in listed.iter().enumerate() {
        let text = merge.as_text().ok_or_else(|| refused(file, format!("merge {number} is not a text")))?;
        let (left, right) =
            cut(text).ok_or_else(|| refused(file, format!("merge {number} (\"{text}\") is not a pair")))?;
        if known.contains(left) && known.contains(right) && known.contains(format!("{left}{right}").as_str()) {
            merges.push(json!([left, right]));
        } else {
            unusable += 1;
        }
    }
    if unusable > 0 {
        notes.push(format!("{unusable} of {} merges name texts that are no tokens; they were left out", listed.len()));
    }
    Ok(Parts {
        description: format!("byte-level BPE ({name})"),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre_tokenizer.ignore_merges,
            "vocab": vocabulary.to_json(),
            "merges": merges,
        }),
        normalizer: if pre_tokenizer.composes { json!({ "type": "NFC" }) } else { Value::Null },
        pre_tokenizer: pre_tokenizer.to_json(),
        decoder: json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true }),
        default_add_beginning: pre_tokenizer.add_beginning,
        notes,
    })
}

/// Cuts a merge at its space. The first character belongs to the left part even if it is a space.
fn cut(merge: &str) -> Option<(&str, &str)> {
    let (at, _) = merge.char_indices().skip(1).find(|(_, character)| *character == ' ')?;
    let right = &merge[at + 1..];
    (!right.is_empty()).then_some((&merge[..at], right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_cut_at_the_space_between_the_parts() {
        assert_eq!(cut("Ġ t"), Some(("Ġ", "t")));
        assert_eq!(cut("  x"), Some((" ", "x")));
        assert_eq!(cut("no"), None);
        assert_eq!(cut("no "), None);
        assert_eq!(cut(""), None);
    }
}
