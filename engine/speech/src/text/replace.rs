//! The user's exact replacements.

use super::{TextError, piece::Piece, words::is_unspaced};

/// Spoken words and what is written for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// What is recognised. Capitals do not matter, any run of spaces fits a space, and it fits whole words only.
    pub from: String,
    /// What is written, exactly like this: capitals, line ends and all. Empty removes the words.
    pub to: String,
}

/// Replacements, the longest first.
#[derive(Debug)]
pub(super) struct Replacements {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    from: Vec<char>,
    to: String,
}

impl Replacements {
    pub(super) fn new(replacements: &[Replacement]) -> Result<Self, TextError> {
        let mut rules: Vec<Rule> = Vec::new();
        for (index, replacement) in replacements.iter().enumerate() {
            let from = folded(&replacement.from.split_whitespace().collect::<Vec<_>>().join(" "));
            if from.is_empty() {
                return Err(TextError::EmptyReplacement { number: index + 1 });
            }
            if rules.iter().any(|rule| rule.from == from) {
                return Err(TextError::DoubleReplacement { from: replacement.from.clone() });
            }
            rules.push(Rule { from, to: replacement.to.clone() });
        }
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.from.len()));
        Ok(Self { rules })
    }

    /// Makes all replacements, from left to right, each place once: what was put in is not looked at again.
    pub(super) fn apply(&self, text: String) -> Vec<Piece> {
        if self.rules.is_empty() {
            return vec![Piece::Heard(text)];
        }
        let mut pieces = Vec::new();
        let (mut at, mut kept) = (0, 0);
        let mut before = None;
        while let Some(character) = text[at..].chars().next() {
            let found = self.rules.iter().find_map(|rule| Some((rule, rule.fits(&text[at..], before)?)));
            let Some((rule, length)) = found else {
                before = Some(character);
                at += character.len_utf8();
                continue;
            };
            pieces.push(Piece::Heard(text[kept..at].to_owned()));
            pieces.push(Piece::Fixed(rule.to.clone()));
            before = text[..at + length].chars().next_back();
            at += length;
            if rule.to.ends_with(['\n', '\t']) {
                // A recogniser takes the spoken words for a sentence and sets a full stop or comma behind them.
                at += text[at..].len() - text[at..].trim_start_matches([',', '.']).len();
            } else if rule.to.is_empty() && text[at..].starts_with(' ') && text[..kept.max(at - length)].ends_with(' ')
            {
                at += 1;
            }
            kept = at;
        }
        pieces.push(Piece::Heard(text[kept..].to_owned()));
        pieces.retain(|piece| !matches!(piece, Piece::Heard(text) if text.is_empty()));
        pieces
    }
}

impl Rule {
    /// The length of what this rule replaces at the beginning of `text`, whose preceding character is `before`.
    fn fits(&self, text: &str, before: Option<char>) -> Option<usize> {
        let mut rest = text;
        for &wanted in &self.from {
            let character = rest.chars().next()?;
            if wanted == ' ' {
                let trimmed = rest.trim_start();
                if trimmed.len() == rest.len() {
                    return None;
                }
                rest = trimmed;
            } else {
                if fold(character) != wanted {
                    return None;
                }
                rest = &rest[character.len_utf8()..];
            }
        }
        let first = self.from.first().copied();
        let last = self.from.last().copied();
        let whole = !joined(before, first) && !joined(last, rest.chars().next());
        whole.then(|| text.len() - rest.len())
    }
}

/// Whether two neighbouring characters are of one word.
fn joined(a: Option<char>, b: Option<char>) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() && !is_unspaced(c));
    part(a) && part(b)
}

/// One character for another: capitals that become several characters stay.
fn fold(character: char) -> char {
    let mut lower = character.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some('’'), None) => '\'',
        (Some(single), None) => single,
        _ => character,
    }
}

fn folded(text: &str) -> Vec<char> {
    text.chars().map(fold).collect()
}
