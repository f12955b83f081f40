//! Spoken punctuation and line ends.

use super::{
    piece::Piece,
    words::{capitalized, tokens},
};

/// How a sign stands between words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Right behind the word before it, with a space after it.
    Closing,
    /// As [`Fit::Closing`], and a sentence begins after it.
    Ending,
    /// Right before the word after it.
    Opening,
    /// Between two words, without spaces.
    Joining,
    /// Between two words, with spaces.
    Apart,
    /// A line end: no spaces, and a sentence begins after it.
    Line,
}

/// The spoken signs of a language.
#[derive(Debug)]
pub(super) struct SpokenPunctuation {
    signs: &'static [(&'static str, &'static str, Fit)],
    /// After one of these, the word is meant as a word: "a comma", "the period".
    articles: &'static [&'static str],
}

use Fit::{Apart, Closing, Ending, Joining, Line, Opening};

const ENGLISH: SpokenPunctuation = SpokenPunctuation {
    signs: &[
        ("comma", ",", Closing),
        ("period", ".", Ending),
        ("full stop", ".", Ending),
        ("question mark", "?", Ending),
        ("exclamation mark", "!", Ending),
        ("exclamation point", "!", Ending),
        ("colon", ":", Closing),
        ("semicolon", ";", Closing),
        ("semi colon", ";", Closing),
        ("ellipsis", "…", Closing),
        ("hyphen", "-", Joining),
        ("dash", "–", Apart),
        ("open parenthesis", "(", Opening),
        ("close parenthesis", ")", Closing),
        ("open bracket", "(", Opening),
        ("close bracket", ")", Closing),
        ("open quote", "\"", Opening),
        ("close quote", "\"", Closing),
        ("new line", "\n", Line),
        ("newline", "\n", Line),
        ("new paragraph", "\n\n", Line),
    ],
    articles: &["a", "an", "the", "this", "that", "each", "every", "no", "any", "my", "your", "his", "her", "its"],
};

const GERMAN: SpokenPunctuation = SpokenPunctuation {
    signs: &[
        ("komma", ",", Closing),
        ("punkt", ".", Ending),
        ("fragezeichen", "?", Ending),
        ("ausrufezeichen", "!", Ending),
        ("doppelpunkt", ":", Closing),
        ("semikolon", ";", Closing),
        ("strichpunkt", ";", Closing),
        ("bindestrich", "-", Joining),
        ("gedankenstrich", "–", Apart),
        ("klammer auf", "(", Opening),
        ("klammer zu", ")", Closing),
        ("neue zeile", "\n", Line),
        ("neuer absatz", "\n\n", Line),
    ],
    articles: &[
        "ein", "eine", "einen", "einem", "einer", "der", "die", "das", "den", "dem", "des", "dieser", "diesen",
        "jeder", "jeden", "kein", "keinen", "am", "zum", "beim", "im",
    ],
};

// A narrow space that does not break stands before the high signs.
const FRENCH: SpokenPunctuation = SpokenPunctuation {
    signs: &[
        ("virgule", ",", Closing),
        ("point", ".", Ending),
        ("point d'interrogation", "\u{202f}?", Ending),
        ("point d'exclamation", "\u{202f}!", Ending),
        ("deux points", "\u{202f}:", Closing),
        ("point virgule", "\u{202f};", Closing),
        ("point-virgule", "\u{202f};", Closing),
        ("trait d'union", "-", Joining),
        ("ouvrez la parenthèse", "(", Opening),
        ("fermez la parenthèse", ")", Closing),
        ("à la ligne", "\n", Line),
        ("nouvelle ligne", "\n", Line),
        ("nouveau paragraphe", "\n\n", Line),
    ],
    articles: &["un", "une", "le", "la", "les", "ce", "cette", "au", "du", "chaque", "mon", "ton", "son", "quel", "de"],
};

const SPANISH: SpokenPunctuation = SpokenPunctuation {
    signs: &[
        ("coma", ",", Closing),
        ("punto", ".", Ending),
        ("punto y coma", ";", Closing),
        ("dos puntos", ":", Closing),
        ("abrir interrogación", "¿", Opening),
        ("cerrar interrogación", "?", Ending),
        ("abrir exclamación", "¡", Opening),
        ("cerrar exclamación", "!", Ending),
        ("abrir paréntesis", "(", Opening),
        ("cerrar paréntesis", ")", Closing),
        ("nueva línea", "\n", Line),
        ("nuevo párrafo", "\n\n", Line),
    ],
    articles: &["un", "una", "el", "la", "los", "las", "este", "esta", "al", "del", "cada", "en", "que", "de"],
};

impl SpokenPunctuation {
    /// The signs of a language, if they are known.
    pub(super) fn of(language: &str) -> Option<&'static Self> {
        match language {
            "en" => Some(&ENGLISH),
            "de" => Some(&GERMAN),
            "fr" => Some(&FRENCH),
            "es" => Some(&SPANISH),
            _ => None,
        }
    }

    /// Writes the signs that were spoken. What a recogniser sets around them itself, because it takes them for
    /// sentences, goes: "Yes, comma, no" becomes "Yes, no".
    pub(super) fn apply(&self, pieces: Vec<Piece>) -> Vec<Piece> {
        let mut begins = false;
        let step = |piece| match piece {
            Piece::Heard(text) => Piece::Heard(self.write(&text, &mut begins)),
            Piece::Fixed(text) => {
                begins &= !text.contains(char::is_alphanumeric);
                Piece::Fixed(text)
            }
        };
        pieces.into_iter().map(step).collect()
    }

    fn write(&self, text: &str, begins: &mut bool) -> String {
        let tokens = tokens(text);
        let mut out = String::new();
        let mut before = String::new();
        let mut index = 0;
        while let Some(token) = tokens.get(index) {
            if !token.word {
                out.push_str(token.text);
                index += 1;
                continue;
            }
            let word = token.text.to_lowercase().replace('’', "'");
            let words: Vec<String> = tokens[index..]
                .iter()
                .take(5)
                .take_while(|token| token.word || token.text == " ")
                .map(|token| token.text.to_lowercase().replace('’', "'"))
                .collect();
            // The longest first: "point d'interrogation" before "point".
            let fits = |sign: &&(&str, &'static str, Fit)| {
                let count = sign.0.split(' ').count() * 2 - 1;
                words.len() >= count && words[..count].concat() == sign.0
            };
            let sign = self.signs.iter().filter(fits).max_by_key(|sign| sign.0.len());
            let Some((spoken, written, fit)) = sign.filter(|_| !self.articles.contains(&before.as_str())) else {
                out.push_str(&if *begins { capitalized(token.text) } else { token.text.to_owned() });
                *begins = false;
                before = word;
                index += 1;
                continue;
            };
            index += spoken.split(' ').count() * 2 - 1;
            before.clear();
            *begins = matches!(fit, Ending | Line);
            let rest = tokens.get(index).map_or("", |token| token.text);
            index += usize::from(!rest.is_empty());
            place(&mut out, written, *fit, rest);
        }
        out
    }
}

/// Appends a sign and the text `rest` that follows it up to the next word.
fn place(out: &mut String, written: &str, fit: Fit, rest: &str) {
    const PAUSES: [char; 3] = [',', '.', ';'];
    let rest = rest.trim_start_matches(['.', ',', ';', ':', '?', '!']);
    let spoken_before = out.trim_end_matches(' ').len();
    match fit {
        Closing | Ending => {
            out.truncate(spoken_before);
            out.truncate(out.trim_end_matches(PAUSES).len());
            out.push_str(written);
            out.push_str(rest);
        }
        Joining => {
            out.truncate(spoken_before);
            out.truncate(out.trim_end_matches(PAUSES).len());
            out.push_str(written);
            out.push_str(rest.trim_start());
        }
        Apart => {
            out.truncate(spoken_before);
            out.truncate(out.trim_end_matches(PAUSES).len());
            let space = if out.is_empty() { "" } else { " " };
            out.push_str(&format!("{space}{written} "));
            out.push_str(rest.trim_start());
        }
        Opening => {
            out.push_str(written);
            out.push_str(rest.trim_start());
        }
        Line => {
            // The sign before a line end was meant: "Dear Anna, new line".
            out.truncate(spoken_before);
            out.push_str(written);
            out.push_str(rest.trim_start());
        }
    }
}
