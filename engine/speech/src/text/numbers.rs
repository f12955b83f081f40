//! English number words as digits.
//!
//! Numbers below ten that stand alone stay words, as English writes them. Ordinals stay words too.

use super::words::tokens;

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [(&str, u64); 4] =
    [("thousand", 1000), ("million", 1_000_000), ("billion", 1_000_000_000), ("trillion", 1_000_000_000_000)];
/// The smallest number that is written in digits.
const FIRST_IN_DIGITS: u64 = 10;
/// From here on round numbers keep their scale: "3 million".
const KEEPS_SCALE: u64 = 1_000_000;

/// What a number word adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Small(u64),
    Tens(u64),
    Hundred,
    Scale(u64),
}

fn number_word(text: &str) -> Option<Word> {
    let text = text.to_lowercase();
    let at = |words: &[&str]| words.iter().position(|word| *word == text).map(|index| index as u64);
    at(&SMALL)
        .map(Word::Small)
        .or_else(|| at(&TENS).map(|index| Word::Tens(20 + 10 * index)))
        .or_else(|| SCALES.iter().find(|(word, _)| *word == text).map(|(_, scale)| Word::Scale(*scale)))
        .or((text == "hundred").then_some(Word::Hundred))
}

/// A number while its words come in.
#[derive(Debug, Default)]
struct Number {
    /// What the scales so far add up to.
    total: u64,
    /// What is below the next scale.
    current: u64,
    /// The last scale, which the next must be below.
    scale: Option<u64>,
    last: Option<Word>,
}

impl Number {
    /// Takes in a word, if the number can go on with it.
    fn push(&mut self, word: Word) -> bool {
        let fits = match (self.last, word) {
            // Twenty-three, but not twenty zero.
            (Some(Word::Tens(_)), Word::Small(small)) => (1..10).contains(&small),
            (None | Some(Word::Hundred | Word::Scale(_)), Word::Small(small)) => self.last.is_none() || small > 0,
            (None | Some(Word::Hundred | Word::Scale(_)), Word::Tens(_)) => true,
            (Some(Word::Small(_) | Word::Tens(_)), Word::Hundred) => (1..100).contains(&self.current),
            (Some(Word::Small(_) | Word::Tens(_) | Word::Hundred), Word::Scale(scale)) => {
                self.current > 0 && self.scale.is_none_or(|last| scale < last)
            }
            _ => false,
        };
        if !fits {
            return false;
        }
        match word {
            Word::Small(value) | Word::Tens(value) => self.current += value,
            Word::Hundred => self.current *= 100,
            Word::Scale(scale) => {
                self.total += self.current * scale;
                (self.current, self.scale) = (0, Some(scale));
            }
        }
        self.last = Some(word);
        true
    }

    fn value(&self) -> u64 {
        self.total + self.current
    }
}

/// Writes numbers that are spoken in words with digits.
pub(super) fn as_digits(text: &str) -> String {
    // "twenty-three" is one word of the text and two of the number.
    let mut parts: Vec<(&str, bool)> = Vec::new();
    for token in tokens(text) {
        if token.word && token.text.split('-').all(|part| number_word(part).is_some()) {
            for (index, part) in token.text.split('-').enumerate() {
                if index > 0 {
                    parts.push(("-", false));
                }
                parts.push((part, true));
            }
        } else {
            parts.push((token.text, token.word));
        }
    }
    let mut out = String::new();
    let mut index = 0;
    while index < parts.len() {
        match number_at(&parts[index..]) {
            Some((written, used)) => {
                out.push_str(&written);
                index += used;
            }
            None => {
                out.push_str(parts[index].0);
                index += 1;
            }
        }
    }
    out
}

/// The number that begins here, in digits, and the parts it takes.
fn number_at(parts: &[(&str, bool)]) -> Option<(String, usize)> {
    let (number, mut used) = whole_number(parts)?;
    let mut value = number.value();
    // Years are spoken as two numbers: nineteen eighty-four.
    if (10..=20).contains(&value)
        && joins(parts, used)
        && let Some((second, more)) = whole_number(&parts[used + 1..])
        && (10..=99).contains(&second.value())
    {
        value = value * 100 + second.value();
        used += 1 + more;
        return Some((value.to_string(), used));
    }
    // Three point one four: digits after the point, one by one.
    if joins(parts, used) && parts.get(used + 1).is_some_and(|part| part.0.eq_ignore_ascii_case("point")) {
        let mut decimals = String::new();
        let mut end = used + 2;
        while joins(parts, end)
            && let Some(Word::Small(digit @ 0..10)) = parts.get(end + 1).and_then(|part| number_word(part.0))
        {
            decimals.push_str(&digit.to_string());
            end += 2;
        }
        if !decimals.is_empty() {
            return Some((format!("{value}.{decimals}"), end));
        }
    }
    if value < FIRST_IN_DIGITS {
        // As it was heard, all of it, so that nothing inside begins another number.
        return Some((parts[..used].iter().map(|part| part.0).collect(), used));
    }
    let round = SCALES.iter().rev().find(|(_, scale)| *scale >= KEEPS_SCALE && value.is_multiple_of(*scale));
    let written = match round {
        Some((word, scale)) => format!("{} {word}", value / scale),
        None => value.to_string(),
    };
    Some((written, used))
}

/// The longest number without a point that begins here.
fn whole_number(parts: &[(&str, bool)]) -> Option<(Number, usize)> {
    let mut number = Number::default();
    if !number.push(number_word(parts.first()?.0)?) {
        return None;
    }
    let mut used = 1;
    while joins(parts, used) {
        // "and" stands only after a hundred or a scale: one hundred and five.
        let and = parts[used + 1].0.eq_ignore_ascii_case("and")
            && matches!(number.last, Some(Word::Hundred | Word::Scale(_)))
            && joins(parts, used + 2);
        let next = if and { used + 3 } else { used + 1 };
        let Some(word) = parts.get(next).and_then(|part| number_word(part.0)) else { break };
        if and && matches!(word, Word::Hundred | Word::Scale(_)) || !number.push(word) {
            break;
        }
        used = next + 1;
    }
    Some((number, used))
}

/// Whether part `index` joins two words of a number, and there is a word after it.
fn joins(parts: &[(&str, bool)], index: usize) -> bool {
    parts.get(index).is_some_and(|part| matches!(part.0, " " | "-")) && parts.get(index + 1).is_some_and(|part| part.1)
}
