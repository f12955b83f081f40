//! Token probabilities in OpenAI's two shapes: a list of entries on chats, parallel lists on text completions.

use std::fmt::Write as _;

use linnet_runtime::TokenLogprob;
use serde_json::{Map, Value, json};

/// What stands for a probability of zero, whose logarithm JSON cannot write. OpenAI's wire uses the same figure.
const LOWEST_LOGPROB: f32 = -9999.0;

/// The bytes of a token.
pub(crate) type TokenBytes<'a> = dyn Fn(u32) -> Vec<u8> + Send + Sync + 'a;

/// The `logprobs` object of a chat choice.
pub(crate) fn chat_logprobs(entries: &[TokenLogprob], token_bytes: &TokenBytes<'_>) -> Value {
    let entry = |token: u32, logprob: f32| {
        let bytes = token_bytes(token);
        json!({ "token": token_text(&bytes), "logprob": finite(logprob), "bytes": bytes })
    };
    let content: Vec<Value> = entries
        .iter()
        .map(|chosen| {
            let mut content = entry(chosen.token, chosen.logprob);
            content["top_logprobs"] = chosen.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
            content
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

/// The `logprobs` object of a text completion; `text_offset` is where the first token's text begins, in characters,
/// and is moved behind the last.
pub(crate) fn completion_logprobs(
    entries: &[TokenLogprob],
    token_bytes: &TokenBytes<'_>,
    text_offset: &mut usize,
) -> Value {
    let mut tokens = Vec::new();
    let mut offsets = Vec::new();
    for entry in entries {
        let bytes = token_bytes(entry.token);
        offsets.push(*text_offset);
        // Counting the bytes that begin a character keeps the sum right for characters split over tokens.
        *text_offset += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        tokens.push(token_text(&bytes));
    }
    let top = |entry: &TokenLogprob| -> Value {
        let pair = |(token, logprob): &(u32, f32)| (token_text(&token_bytes(*token)), json!(finite(*logprob)));
        Value::Object(entry.top.iter().map(pair).collect::<Map<_, _>>())
    };
    json!({
        "tokens": tokens,
        "token_logprobs": entries.iter().map(|entry| finite(entry.logprob)).collect::<Vec<_>>(),
        "top_logprobs": entries.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOWEST_LOGPROB }
}

/// A token as text. A piece of a character is written as its bytes, in OpenAI's notation.
fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut text, byte| {
            let _ = write!(text, "\\x{byte:02x}");
            text
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(token: u32) -> Vec<u8> {
        vec![b"a\xc3\xa9"[token as usize]]
    }

    fn entries() -> Vec<TokenLogprob> {
        vec![
            TokenLogprob { token: 0, logprob: -0.5, top: vec![(0, -0.5), (1, f32::NEG_INFINITY)] },
            TokenLogprob { token: 1, logprob: -1.0, top: vec![] },
            TokenLogprob { token: 2, logprob: -2.0, top: vec![] },
        ]
    }

    #[test]
    fn chats_get_one_entry_per_token_with_its_bytes() {
        let value = chat_logprobs(&entries()[..2], &bytes);
        assert_eq!(
            value,
            json!({"content": [
                {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "bytes:\\xc3", "logprob": -9999.0, "bytes": [0xc3]},
                ]},
                {"token": "bytes:\\xc3", "logprob": -1.0, "bytes": [0xc3], "top_logprobs": []},
            ], "refusal": null})
        );
    }

    #[test]
    fn completions_get_parallel_lists_and_offsets_in_characters() {
        let mut offset = 10;
        let value = completion_logprobs(&entries(), &bytes, &mut offset);
        assert_eq!(value["tokens"], json!(["a", "bytes:\\xc3", "bytes:\\xa9"]));
        assert_eq!(value["token_logprobs"], json!([-0.5, -1.0, -2.0]));
        assert_eq!(value["top_logprobs"][0], json!({"a": -0.5, "bytes:\\xc3": -9999.0}));
        assert_eq!(value["text_offset"], json!([10, 11, 12]));
        assert_eq!(offset, 12);
    }
}
