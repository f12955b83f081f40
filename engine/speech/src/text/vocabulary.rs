//! Misheard words of the user's vocabulary, put right.
//!
//! A word becomes a term only if it is almost that term, begins with the same sound, is not almost another term as well,
//! and is not one of the 10,000 most common words of the language: a vocabulary with "Linnet" must not turn "linen" into
//! it. For languages without a list of common words, only capitals are put right.

use std::collections::HashSet;

use super::{
    TextError,
    common_words::common_words,
    words::{Token, tokens},
};

/// Letters for each wrong one that is forgiven: a term of four may differ in one, of eight in two.
const LETTERS_PER_FAULT: usize = 4;
/// More wrong letters than this are another word, however long it is.
const MAX_FAULTS: usize = 3;

/// The user's terms.
#[derive(Debug)]
pub(super) struct Vocabulary {
    terms: Vec<Term>,
    longest: usize,
}

#[derive(Debug)]
struct Term {
    /// As it is to be written.
    written: String,
    /// Its words in small letters.
    words: Vec<Vec<char>>,
}

impl Vocabulary {
    pub(super) fn new(terms: &[String]) -> Result<Self, TextError> {
        let term = |(index, written): (usize, &String)| {
            let written = written.split_whitespace().collect::<Vec<_>>().join(" ");
            let words = tokens(&written).into_iter().filter(|token| token.word).map(|token| small(token.text));
            let words: Vec<Vec<char>> = words.collect();
            if words.is_empty() {
                return Err(TextError::EmptyTerm { number: index + 1 });
            }
            Ok(Term { written, words })
        };
        let terms = terms.iter().enumerate().map(term).collect::<Result<Vec<Term>, _>>()?;
        let longest = terms.iter().map(|term| term.words.len()).max().unwrap_or(0);
        Ok(Self { terms, longest })
    }

    /// Puts right what is almost a term.
    pub(super) fn apply(&self, text: &str, language: &str) -> String {
        if self.terms.is_empty() {
            return text.to_owned();
        }
        let common = common_words(language);
        let tokens = tokens(text);
        let mut out = String::new();
        let mut index = 0;
        while index < tokens.len() {
            if !tokens[index].word {
                out.push_str(tokens[index].text);
                index += 1;
                continue;
            }
            // The most words first: "visual studio code" before "visual".
            let found = (1..=self.longest.max(2)).rev().find_map(|count| self.term_at(&tokens[index..], count, common));
            match found {
                Some(found) => {
                    out.push_str(found.written);
                    out.push_str(found.ending);
                    index += found.tokens;
                }
                None => {
                    out.push_str(tokens[index].text);
                    index += 1;
                }
            }
        }
        out
    }

    /// The term that the next `count` words are meant to be.
    fn term_at<'a>(
        &'a self,
        tokens: &[Token<'a>],
        count: usize,
        common: Option<&HashSet<&'static str>>,
    ) -> Option<Found<'a>> {
        let used = 2 * count - 1;
        let taken = tokens.get(..used)?;
        if taken.iter().any(|token| !token.word && token.text != " ") {
            return None;
        }
        let mut heard: Vec<Vec<char>> =
            taken.iter().filter(|token| token.word).map(|token| small(token.text)).collect();
        let ending = possessive(taken.last()?.text);
        let last = heard.last_mut()?;
        last.truncate(last.len() - ending.chars().count());
        let is_common =
            |word: &[char]| common.is_some_and(|common| common.contains(word.iter().collect::<String>().as_str()));
        // One word of the vocabulary that was heard as two.
        if count == 2 && !heard.iter().all(|word| is_common(word)) {
            let joined = heard.concat();
            if let Some(term) = self.terms.iter().find(|term| term.words.len() == 1 && term.words[0] == joined) {
                return Some(Found { written: &term.written, ending, tokens: used });
            }
        }
        let mut best: Option<(usize, &Term)> = None;
        let mut tied = false;
        for term in self.terms.iter().filter(|term| term.words.len() == count) {
            let Some(faults) = term.faults(&heard, common.is_some(), &is_common) else { continue };
            match best {
                Some((least, _)) if faults > least => {}
                Some((least, _)) if faults == least => tied = true,
                _ => (best, tied) = (Some((faults, term)), false),
            }
        }
        let (_, term) = best.filter(|_| !tied)?;
        Some(Found { written: &term.written, ending, tokens: used })
    }
}

struct Found<'a> {
    written: &'a str,
    /// A possessive ending, which stays.
    ending: &'a str,
    tokens: usize,
}

impl Term {
    /// Wrong letters of words that may be this term; nothing where they may not.
    fn faults(&self, heard: &[Vec<char>], fuzzy: bool, is_common: &impl Fn(&[char]) -> bool) -> Option<usize> {
        let mut total = 0;
        for (heard, wanted) in heard.iter().zip(&self.words) {
            if heard == wanted {
                continue;
            }
            if !fuzzy || is_common(heard) || !begins_alike(heard, wanted) {
                return None;
            }
            total += distance(heard, wanted);
        }
        // A single common word stays as it was heard, capitals included: "apple" is mostly a fruit.
        if heard.len() == 1 && is_common(&heard[0]) {
            return None;
        }
        let letters: usize = self.words.iter().map(Vec::len).sum();
        (total <= (letters / LETTERS_PER_FAULT).min(MAX_FAULTS)).then_some(total)
    }
}

/// Whether two words begin with the same sound, by their first letter or a pair that sounds like it.
fn begins_alike(a: &[char], b: &[char]) -> bool {
    let sound = |word: &[char]| match word {
        ['p', 'h', ..] => 'f',
        ['c', 'h', ..] => 'ч',
        ['k' | 'g', 'n', ..] => 'n',
        ['c' | 'q' | 'k', ..] => 'k',
        ['w', 'r', ..] => 'r',
        ['x' | 'z', ..] => 's',
        [first, ..] => *first,
        [] => ' ',
    };
    sound(a) == sound(b)
}

/// Letters left out, put in, changed, or swapped with their neighbour (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let (mut before, mut last) = (vec![0; b.len() + 1], (0..=b.len()).collect::<Vec<usize>>());
    for (i, &from) in a.iter().enumerate() {
        let mut row = vec![i + 1; b.len() + 1];
        for (j, &to) in b.iter().enumerate() {
            let mut least = (last[j] + usize::from(from != to)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && from == b[j - 1] && a[i - 1] == to {
                least = least.min(before[j - 1] + 1);
            }
            row[j + 1] = least;
        }
        (before, last) = (last, row);
    }
    last[b.len()]
}

/// The possessive ending of a word.
fn possessive(word: &str) -> &str {
    ["'s", "’s"]
        .into_iter()
        .find(|ending| word.len() > ending.len() && word.ends_with(ending))
        .map_or("", |ending| &word[word.len() - ending.len()..])
}

fn small(word: &str) -> Vec<char> {
    word.chars().flat_map(char::to_lowercase).map(|c| if c == '’' { '\'' } else { c }).collect()
}
