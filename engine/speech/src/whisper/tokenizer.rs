//! Whisper's tokens: text, and the special ones around it.

use std::path::Path;

use linnet_models::{Tokenizer, TokenizerError};

use super::language::{LANGUAGES, Language};

/// Entries of the smallest vocabulary that has a token for each language; English-only models have one less.
const MULTILINGUAL_VOCABULARY: usize = 51_865;

/// Entries beside languages and, in multilingual models, one more: 50,256 pieces of text, the end of text, 1,501 times and
/// seven tokens of control.
const VOCABULARY_WITHOUT_LANGUAGES: usize = 51_765;

/// The ids of the special tokens, which follow from the size of the vocabulary (openai/whisper, tokenizer.py).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialIds {
    /// The end of a text.
    pub eot: u32,
    /// The start of a transcript. Languages follow it.
    pub sot: u32,
    /// How many languages have tokens.
    pub languages: usize,
    /// Asks for English whatever is spoken.
    pub translate: u32,
    /// Asks for what is spoken.
    pub transcribe: u32,
    /// Never used.
    pub sot_lm: u32,
    /// Begins the text before this window.
    pub sot_prev: u32,
    /// Nobody speaks.
    pub no_speech: u32,
    /// No times are wanted.
    pub no_timestamps: u32,
    /// The time 0.00; each further one is 0.02 s later.
    pub timestamp_begin: u32,
}

impl SpecialIds {
    /// The ids in a vocabulary of `n_vocab` entries; `None` where no Whisper has as few or as many.
    #[must_use]
    pub fn new(n_vocab: usize) -> Option<Self> {
        let is_multilingual = n_vocab >= MULTILINGUAL_VOCABULARY;
        let languages = n_vocab.checked_sub(VOCABULARY_WITHOUT_LANGUAGES + usize::from(is_multilingual))?;
        if !(99..=LANGUAGES.len()).contains(&languages) {
            return None;
        }
        let eot = 50_256 + u32::from(is_multilingual);
        let after = eot + 2 + languages as u32;
        Some(Self {
            eot,
            sot: eot + 1,
            languages,
            translate: after,
            transcribe: after + 1,
            sot_lm: after + 2,
            sot_prev: after + 3,
            no_speech: after + 4,
            no_timestamps: after + 5,
            timestamp_begin: after + 6,
        })
    }

    /// Whether the model was trained on languages beside English.
    #[must_use]
    pub fn is_multilingual(&self) -> bool {
        self.eot == 50_257
    }

    /// The token of a language; `None` where the model does not know it.
    #[must_use]
    pub fn language(&self, language: Language) -> Option<u32> {
        let index = language.index();
        (index < self.languages).then(|| self.sot + 1 + index as u32)
    }
}

/// Why a model's tokenizer does not serve.
#[derive(Debug, thiserror::Error)]
pub enum WhisperTokenizerError {
    /// It cannot be loaded or used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// No Whisper has such a vocabulary.
    #[error("a vocabulary of {n_vocab} tokens is not one of Whisper's (51864 to 51866); import the model again")]
    Vocabulary {
        /// Entries of the model's logits.
        n_vocab: usize,
    },
    /// Tokenizer and model have other special tokens.
    #[error("tokenizer.json has {found} where Whisper has the end of text; it belongs to another model")]
    Foreign {
        /// What it has.
        found: String,
    },
}

/// What writes no speech: brackets, notes and the like, which subtitles use for what is not said.
const NON_SPEECH: [&str; 46] = [
    "\"", "#", "(", ")", "*", "+", "/", ":", ";", "<", "=", ">", "@", "[", "\\", "]", "^", "_", "`", "{", "|", "}",
    "~", "「", "」", "『", "』", "<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", "(\"", "((", "))", "(((",
    ")))", "[[", "]]", "{{", "}}", "♪♪",
];

/// Musical signs, which are left out by their first token even where they have several.
const MUSIC: [&str; 8] = ["♪♪♪", "♩", "♪", "♫", "♬", "♭", "♮", "♯"];

/// The tokenizer of a Whisper model.
#[derive(Debug, Clone)]
pub struct WhisperTokenizer {
    inner: Tokenizer,
    special: SpecialIds,
    blank: Vec<u32>,
    non_speech: Vec<u32>,
}

impl WhisperTokenizer {
    /// Loads the tokenizer in a model's folder for a vocabulary of `n_vocab` entries.
    ///
    /// # Errors
    /// [`WhisperTokenizerError`].
    pub fn load(folder: &Path, n_vocab: usize) -> Result<Self, WhisperTokenizerError> {
        Self::new(Tokenizer::load(folder)?, n_vocab)
    }

    /// Takes a tokenizer for a vocabulary of `n_vocab` entries.
    ///
    /// # Errors
    /// [`WhisperTokenizerError`].
    pub fn new(inner: Tokenizer, n_vocab: usize) -> Result<Self, WhisperTokenizerError> {
        let special = SpecialIds::new(n_vocab).ok_or(WhisperTokenizerError::Vocabulary { n_vocab })?;
        let end = inner.token_text(special.eot).unwrap_or_default();
        if end != "<|endoftext|>" {
            return Err(WhisperTokenizerError::Foreign { found: end });
        }
        let mut blank = inner.encode(" ", false)?;
        blank.push(special.eot);
        let non_speech = non_speech_tokens(&inner)?;
        Ok(Self { inner, special, blank, non_speech })
    }

    /// The special tokens.
    #[must_use]
    pub fn special(&self) -> &SpecialIds {
        &self.special
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// [`WhisperTokenizerError::Tokenizer`] when the library fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, WhisperTokenizerError> {
        let mut tokens = self.inner.encode(text, false)?;
        // Somebody may write `<|endoftext|>` into a prompt.
        tokens.retain(|&token| token < self.special.eot);
        Ok(tokens)
    }

    /// The text of tokens; special ones and times are left out.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        let text: Vec<u32> = tokens.iter().copied().filter(|&token| token < self.special.eot).collect();
        self.inner.decode(&text)
    }

    /// What a text must not begin with: a space alone, and its end.
    #[must_use]
    pub fn blank(&self) -> &[u32] {
        &self.blank
    }

    /// Tokens that write what nobody says (`non_speech_tokens` of openai/whisper's tokenizer.py).
    #[must_use]
    pub fn non_speech(&self) -> &[u32] {
        &self.non_speech
    }

    /// Cuts tokens of text into words: at spaces and punctuation, or at every character in languages without spaces. Each
    /// word comes with its tokens; a special token is a word of its own. (`split_to_word_tokens` of tokenizer.py.)
    #[must_use]
    pub fn words(&self, tokens: &[u32], language: Option<Language>) -> Vec<(String, Vec<u32>)> {
        let characters = self.characters(tokens);
        if language.is_some_and(Language::is_written_without_spaces) {
            return characters;
        }
        let mut words: Vec<(String, Vec<u32>)> = Vec::new();
        for (text, tokens) in characters {
            let is_special = tokens.first().is_some_and(|&token| token >= self.special.eot);
            let begins = is_special || text.starts_with(' ') || is_punctuation(text.trim());
            match words.last_mut() {
                Some((word, of_word)) if !begins => {
                    word.push_str(&text);
                    of_word.extend(tokens);
                }
                _ => words.push((text, tokens)),
            }
        }
        words
    }

    /// Cuts tokens where they make whole characters (`split_tokens_on_unicode` of tokenizer.py).
    fn characters(&self, tokens: &[u32]) -> Vec<(String, Vec<u32>)> {
        let whole: Vec<char> = lossy(&self.bytes(tokens)).chars().collect();
        let mut done = 0;
        let mut pieces = Vec::new();
        let mut of_piece = Vec::new();
        let mut bytes = Vec::new();
        for &token in tokens {
            of_piece.push(token);
            bytes.extend(self.bytes(&[token]));
            let text = lossy(&bytes);
            // What is cut off in the middle of a character may become whole, unless it is broken in the whole text too.
            let broken = text.chars().position(|c| c == char::REPLACEMENT_CHARACTER);
            let is_whole = |place: usize| whole.get(done + place).is_none_or(|&c| c == char::REPLACEMENT_CHARACTER);
            if broken.is_none_or(is_whole) {
                done += text.chars().count();
                pieces.push((text, std::mem::take(&mut of_piece)));
                bytes.clear();
            }
        }
        if !of_piece.is_empty() {
            pieces.push((lossy(&bytes), of_piece));
        }
        pieces
    }

    /// What tokens write; special ones write their name.
    fn bytes(&self, tokens: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &token in tokens {
            if token >= self.special.eot {
                bytes.extend(self.inner.token_text(token).unwrap_or_default().into_bytes());
            } else {
                bytes.extend(self.inner.token_bytes(token).unwrap_or_default());
            }
        }
        bytes
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Python's `string.punctuation`. A text that stands in it as it is begins a word; three full stops do not.
const ASCII_PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

fn is_punctuation(text: &str) -> bool {
    ASCII_PUNCTUATION.contains(text)
}

fn non_speech_tokens(tokenizer: &Tokenizer) -> Result<Vec<u32>, TokenizerError> {
    let mut tokens = Vec::new();
    // A hyphen or an apostrophe alone is no word; within words they stay.
    for text in [" -", " '"] {
        tokens.extend(tokenizer.encode(text, false)?.first());
    }
    for (symbols, only_single) in [(&NON_SPEECH[..], true), (&MUSIC, false)] {
        for symbol in symbols {
            for text in [(*symbol).to_owned(), format!(" {symbol}")] {
                let ids = tokenizer.encode(&text, false)?;
                if ids.len() == 1 || !only_single {
                    tokens.extend(ids.first());
                }
            }
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::SpecialIds;
    use crate::whisper::language::Language;

    #[test]
    fn special_ids_follow_from_the_size_of_the_vocabulary() {
        let english = SpecialIds::new(51_864).unwrap();
        assert_eq!((english.eot, english.no_timestamps, english.timestamp_begin), (50_256, 50_362, 50_363));
        let base = SpecialIds::new(51_865).unwrap();
        assert_eq!((base.sot, base.transcribe, base.timestamp_begin), (50_258, 50_359, 50_364));
        let turbo = SpecialIds::new(51_866).unwrap();
        assert_eq!((turbo.transcribe, turbo.timestamp_begin), (50_360, 50_365));
        assert_eq!((SpecialIds::new(32_000), SpecialIds::new(51_900)), (None, None));
        let cantonese = Language::find("yue").unwrap();
        assert_eq!((base.language(cantonese), turbo.language(cantonese)), (None, Some(50_358)));
    }
}
