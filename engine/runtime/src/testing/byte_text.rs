//! A tokenizer whose tokens are bytes, so that every character beyond ASCII is split over tokens.

use crate::{Detokenizer, EngineText, StepModelError};

/// The tokens that [`byte_text`] knows: 256 bytes and [`BYTE_EOS`].
pub const BYTE_VOCABULARY: usize = 257;

/// The end-of-sequence token of [`byte_text`]; as text it is `</s>`.
pub const BYTE_EOS: u32 = 256;

/// The text side of an engine whose tokens 0 to 255 are bytes of UTF-8.
#[must_use]
pub fn byte_text() -> EngineText {
    EngineText::new(|show_special| Box::new(ByteDetokenizer { pending: Vec::new(), show_special }), vec![BYTE_EOS])
}

/// A text as byte tokens.
#[must_use]
pub fn byte_tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Joins bytes to characters.
#[derive(Debug, Default)]
pub struct ByteDetokenizer {
    pending: Vec<u8>,
    show_special: bool,
}

impl Detokenizer for ByteDetokenizer {
    fn push(&mut self, token: u32, text: &mut String) -> Result<(), StepModelError> {
        match u8::try_from(token) {
            Ok(byte) => self.pending.push(byte),
            Err(_) if token == BYTE_EOS && self.show_special => self.pending.extend(b"</s>"),
            Err(_) if token == BYTE_EOS => {}
            Err(_) => return Err(StepModelError::Detokenize { token, reason: "it is no byte".into() }),
        }
        let complete = match std::str::from_utf8(&self.pending) {
            Ok(all) => all.len(),
            // Bytes that can never become a character are replaced as soon as that is known.
            Err(error) => match error.error_len() {
                None => error.valid_up_to(),
                Some(length) => error.valid_up_to() + length,
            },
        };
        text.push_str(&String::from_utf8_lossy(&self.pending[..complete]));
        self.pending.drain(..complete);
        Ok(())
    }

    fn finish(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
    }
}
