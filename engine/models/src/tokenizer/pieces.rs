//! From the pieces of a vocabulary to bytes, by the decoder that `tokenizer.json` names.

use std::borrow::Cow;

use serde_json::Value;

/// How pieces become bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PieceDecoder {
    /// GPT-2's alphabet: each character of a piece stands for one byte.
    ByteLevel,
    /// SentencePiece: a mark for blanks, and pieces such as `<0xE2>` for single bytes.
    SentencePiece {
        /// The mark, usually `▁`.
        mark: String,
        /// Whether `<0xE2>` means a byte.
        byte_fallback: bool,
        /// Blanks dropped from the start of the text.
        strip: usize,
        /// Whether the marks of the first piece vanish.
        first_without_mark: bool,
    },
    /// Pieces are text as they stand (no decoder in the file): joined by blanks, as the library does.
    Words,
    /// Another decoder of the library (WordPiece, CTC, ...), which only the library can run.
    Library,
}

impl PieceDecoder {
    pub(super) fn of(library: &tokenizers::Tokenizer) -> Self {
        match library.get_decoder().map(serde_json::to_value) {
            None => Self::Words,
            Some(Ok(decoder)) => Self::of_json(&decoder),
            Some(Err(_)) => Self::Library,
        }
    }

    fn of_json(decoder: &Value) -> Self {
        let steps = match decoder.get("decoders").and_then(Value::as_array) {
            Some(steps) => steps.as_slice(),
            None => std::slice::from_ref(decoder),
        };
        let kinds: Vec<&str> = steps.iter().map(|step| step["type"].as_str().unwrap_or_default()).collect();
        match kinds.as_slice() {
            ["ByteLevel"] => Self::ByteLevel,
            ["Metaspace"] => match steps[0]["replacement"].as_str() {
                Some(mark) => Self::SentencePiece {
                    mark: mark.to_owned(),
                    byte_fallback: false,
                    strip: 0,
                    first_without_mark: steps[0]["prepend_scheme"] != "never",
                },
                None => Self::Library,
            },
            ["Replace", rest @ ..] => {
                let mark = steps[0]["pattern"]["String"].as_str().filter(|_| steps[0]["content"] == " ");
                let (strip, before_strip) = match rest {
                    [before @ .., "Strip"] => (leading_blanks(&steps[steps.len() - 1]), before),
                    all => (Some(0), all),
                };
                match (mark, strip, before_strip) {
                    // Without Fuse, Strip would work on every piece.
                    (Some(mark), Some(strip), ["ByteFallback", "Fuse"] | ["Fuse"] | ["ByteFallback"] | [])
                        if strip == 0 || before_strip.contains(&"Fuse") =>
                    {
                        Self::SentencePiece {
                            mark: mark.to_owned(),
                            byte_fallback: before_strip.contains(&"ByteFallback"),
                            strip,
                            first_without_mark: false,
                        }
                    }
                    _ => Self::Library,
                }
            }
            _ => Self::Library,
        }
    }

    /// The bytes of one piece; `first` says whether it begins the text.
    pub(super) fn bytes<'a>(&self, piece: &'a str, first: bool) -> Cow<'a, [u8]> {
        match self {
            Self::ByteLevel => {
                let bytes: Option<Vec<u8>> = piece.chars().map(byte_of).collect();
                bytes.map_or(Cow::Borrowed(piece.as_bytes()), Cow::Owned)
            }
            Self::SentencePiece { mark, byte_fallback, first_without_mark, .. } => {
                if let Some(byte) = byte_piece(piece).filter(|_| *byte_fallback) {
                    return Cow::Owned(vec![byte]);
                }
                if !piece.contains(mark.as_str()) {
                    return Cow::Borrowed(piece.as_bytes());
                }
                let blank = if first && *first_without_mark { "" } else { " " };
                Cow::Owned(piece.replace(mark.as_str(), blank).into_bytes())
            }
            Self::Words if !first => Cow::Owned(format!(" {piece}").into_bytes()),
            Self::Words | Self::Library => Cow::Borrowed(piece.as_bytes()),
        }
    }
}

fn leading_blanks(strip: &Value) -> Option<usize> {
    let blank = strip["content"] == " " && strip["stop"] == 0;
    strip["start"].as_u64().filter(|_| blank).and_then(|start| usize::try_from(start).ok())
}

/// `<0xE2>` is the byte 0xE2.
fn byte_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    // The library would take a sign for a digit.
    let valid = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if valid { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte that a character of GPT-2's byte-level alphabet stands for: printable Latin-1 characters stand for
/// themselves, the characters from U+0100 for the remaining bytes in order (`bytes_to_unicode` of GPT-2's encoder).
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let itself = matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match code {
        _ if itself => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_level_alphabet_covers_each_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('Ł')), (Some(b' '), Some(b'\n'), Some(0x9f)));
    }

    #[test]
    fn byte_pieces_are_two_hexadecimal_digits() {
        assert_eq!(byte_piece("<0xE2>"), Some(0xe2));
        for piece in ["<0xE>", "<0xE2", "0xE2>", "<0x+1>", "<0xÉ>"] {
            assert_eq!(byte_piece(piece), None, "{piece}");
        }
    }
}
