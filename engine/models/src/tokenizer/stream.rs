//! Text from tokens as they come.

use super::pieces::PieceDecoder;
use super::{Tokenizer, TokenizerError};

/// Turns token ids into text one by one. The parts joined are the decoded text; no part holds half a character.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    show_special: bool,
    /// Bytes of a character whose remainder has not come yet.
    pending: Vec<u8>,
    /// Whether a token has contributed already.
    started: bool,
    /// Blanks still to drop from the start of the text.
    to_strip: usize,
    library: LibraryWindow,
}

/// The state of the library's own incremental decoding, for decoders that only it can run.
#[derive(Debug, Default)]
struct LibraryWindow {
    ids: Vec<u32>,
    prefix: String,
    prefix_index: usize,
}

impl TextStream {
    pub(super) fn new(tokenizer: Tokenizer, show_special: bool) -> Self {
        let to_strip = match &tokenizer.inner.decoder {
            PieceDecoder::SentencePiece { strip, .. } => *strip,
            _ => 0,
        };
        let library = LibraryWindow::default();
        Self { tokenizer, show_special, pending: Vec::new(), started: false, to_strip, library }
    }

    /// Takes the next token and gives the text that is complete with it, which can be empty.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] for an id outside the vocabulary; the stream goes on as if it had not come.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let inner = self.tokenizer.inner.clone();
        let special = inner.special.contains(&id);
        let Some(piece) = inner.library.id_to_token(id) else {
            return Err(TokenizerError::UnknownToken { id, size: inner.size });
        };
        if special && !self.show_special {
            return Ok(String::new());
        }
        if inner.decoder == PieceDecoder::Library {
            return self.push_to_library(id);
        }
        let first = !std::mem::replace(&mut self.started, true);
        if special {
            self.pending.extend_from_slice(piece.as_bytes());
        } else {
            self.pending.extend_from_slice(&inner.decoder.bytes(&piece, first));
        }
        let text = self.take_whole_characters();
        Ok(self.without_leading_blanks(text))
    }

    /// Ends the text: a character whose remainder never came becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        if self.tokenizer.inner.decoder == PieceDecoder::Library {
            return self.finish_library();
        }
        let rest = std::mem::take(&mut self.pending);
        let text = String::from_utf8_lossy(&rest).into_owned();
        self.without_leading_blanks(text)
    }

    /// Moves everything out of `pending` that no later byte can change.
    fn take_whole_characters(&mut self) -> String {
        let mut text = String::new();
        let mut taken = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            // At the very end, an invalid part that could begin a character waits for its remainder.
            let at_end = taken + invalid.len() == self.pending.len();
            let may_continue = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if invalid.is_empty() || (at_end && may_continue) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
        self.pending.drain(..taken);
        text
    }

    fn without_leading_blanks(&mut self, text: String) -> String {
        if self.to_strip == 0 || text.is_empty() {
            return text;
        }
        let blanks = text.bytes().take(self.to_strip).take_while(|byte| *byte == b' ').count();
        self.to_strip = if blanks == text.len() { self.to_strip - blanks } else { 0 };
        text[blanks..].to_owned()
    }

    fn push_to_library(&mut self, id: u32) -> Result<String, TokenizerError> {
        let LibraryWindow { ids, prefix, prefix_index } = &mut self.library;
        let library = &self.tokenizer.inner.library;
        let step = tokenizers::step_decode_stream(library, vec![id], false, ids, prefix, prefix_index);
        step.map(Option::unwrap_or_default)
            .map_err(|_| TokenizerError::UnknownToken { id, size: self.tokenizer.vocabulary_size() })
    }

    fn finish_library(&mut self) -> String {
        let LibraryWindow { ids, prefix, .. } = std::mem::take(&mut self.library);
        let whole = self.tokenizer.inner.library.decode(&ids, false).unwrap_or_default();
        whole.strip_prefix(prefix.as_str()).unwrap_or_default().to_owned()
    }
}
