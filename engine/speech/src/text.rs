//! What happens to recognised text before it is inserted. Every step is optional and the same input always gives the
//! same output.
//!
//! Steps run in a fixed order: fillers are removed; the user's replacements are made, and what they put in is touched by
//! nothing after them; spoken punctuation becomes punctuation; numbers become digits; misheard words of the user's
//! vocabulary are put right; Chinese gets the script that was asked for.

mod common_words;
mod fillers;
mod numbers;
mod piece;
mod punctuation;
mod replace;
mod script;
mod vocabulary;
mod words;

use thiserror::Error;

pub use replace::Replacement;
pub use script::ChineseScript;

use piece::Piece;
use punctuation::SpokenPunctuation;
use replace::Replacements;
use script::ScriptConverter;
use vocabulary::Vocabulary;

/// Which steps are taken. The default is none: text stays as it was recognised.
#[derive(Debug, Clone, Default)]
pub struct TextOptions {
    /// Removes "um", "uh" and their like, by language.
    pub remove_fillers: bool,
    /// Exact replacements; where several fit, the longest.
    pub replacements: Vec<Replacement>,
    /// "comma" becomes ",", "new line" a new line, and so on, by language.
    pub spoken_punctuation: bool,
    /// "twenty-three" becomes "23". English only; other languages are left alone.
    pub numbers_as_digits: bool,
    /// Names and terms of the user, written as they are to be written. A word that is almost one of them becomes it,
    /// unless it is one of the 10,000 most common words of the language.
    pub vocabulary: Vec<String>,
    /// The script that Chinese is written in.
    pub script: Option<ChineseScript>,
}

/// Why options cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TextError {
    /// A replacement of nothing would fit everywhere.
    #[error("replacement {number} has nothing to replace: enter the spoken words")]
    EmptyReplacement {
        /// Its place in the list, from 1.
        number: usize,
    },
    /// Two replacements of the same words.
    #[error("\"{from}\" is replaced twice: remove one of the two")]
    DoubleReplacement {
        /// The words.
        from: String,
    },
    /// A term of the vocabulary holds no letter or digit.
    #[error("term {number} of the vocabulary holds no letter or digit: remove it")]
    EmptyTerm {
        /// Its place in the list, from 1.
        number: usize,
    },
    /// The tables of the script could not be loaded.
    #[error("the tables for {script:?} cannot be loaded: {detail}; choose no script")]
    Script {
        /// The script asked for.
        script: ChineseScript,
        /// What went wrong.
        detail: String,
    },
}

/// The steps, ready to be taken for text after text.
#[derive(Debug)]
pub struct TextStage {
    remove_fillers: bool,
    replacements: Replacements,
    spoken_punctuation: bool,
    numbers_as_digits: bool,
    vocabulary: Vocabulary,
    script: Option<ScriptConverter>,
}

impl TextStage {
    /// Prepares the steps.
    ///
    /// # Errors
    /// [`TextError`] when an option cannot be used.
    pub fn new(options: &TextOptions) -> Result<Self, TextError> {
        Ok(Self {
            remove_fillers: options.remove_fillers,
            replacements: Replacements::new(&options.replacements)?,
            spoken_punctuation: options.spoken_punctuation,
            numbers_as_digits: options.numbers_as_digits,
            vocabulary: Vocabulary::new(&options.vocabulary)?,
            script: options.script.map(ScriptConverter::new).transpose()?,
        })
    }

    /// Takes the steps for `text`, which was recognised in `language` (a code such as "en"; an unknown one leaves out the
    /// steps that depend on it).
    #[must_use]
    pub fn apply(&self, text: &str, language: &str) -> String {
        let mut text = text.to_owned();
        if self.remove_fillers {
            text = fillers::remove(&text, language);
        }
        let mut pieces = self.replacements.apply(text);
        if let Some(spoken) = SpokenPunctuation::of(language).filter(|_| self.spoken_punctuation) {
            pieces = spoken.apply(pieces);
        }
        for piece in &mut pieces {
            let Piece::Heard(text) = piece else { continue };
            if self.numbers_as_digits && language == "en" {
                *text = numbers::as_digits(text);
            }
            *text = self.vocabulary.apply(text, language);
            if let Some(script) = &self.script {
                *text = script.apply(text, language);
            }
        }
        piece::join(&pieces)
    }
}

#[cfg(test)]
mod tests;
