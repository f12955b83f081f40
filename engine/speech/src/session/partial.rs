//! The text of the window that is being spoken, as far as it can be relied on.
//!
//! Every hypothesis of a window begins where the window does, so that hypotheses are compared word by word from the
//! beginning (local agreement, as in [`crate::LocalAgreement`], without times). Words are committed as they are written, with
//! capitals and punctuation, after the text stage: what is shown is what the user gets.
//!
//! A committed word stays even if the final text has another, so words are committed late: three hypotheses agree on them
//! and much follows them. With two hypotheses and two words behind them, a minute of read speech had three words that the
//! final text had otherwise, all of them better.

/// Hypotheses in a row that must agree.
const AGREEMENTS: usize = 3;

/// Words at the end of a hypothesis that are not committed: what follows may change them.
const LOOSE_WORDS: usize = 8;

/// Committed words, and the last hypotheses.
#[derive(Debug, Clone, Default)]
pub(super) struct PartialText {
    committed: Vec<String>,
    /// At most [`AGREEMENTS`], the newest last.
    hypotheses: Vec<Vec<String>>,
}

impl PartialText {
    /// Words that will not change any more.
    pub(super) fn committed(&self) -> &[String] {
        &self.committed
    }

    /// What the last hypothesis says after them.
    pub(super) fn tail(&self) -> &[String] {
        let Some(last) = self.hypotheses.last() else { return &[] };
        &last[after_committed(&self.committed, last)..]
    }

    /// Takes in a hypothesis.
    pub(super) fn update(&mut self, text: &str) {
        self.hypotheses.push(words(text));
        if self.hypotheses.len() < AGREEMENTS {
            return;
        }
        let surplus = self.hypotheses.len() - AGREEMENTS;
        self.hypotheses.drain(..surplus);
        let Some((first, others)) = self.hypotheses.split_first() else { return };
        let agrees = |index: &usize| others.iter().all(|other| other.get(*index) == first.get(*index));
        let agreed = (0..first.len()).take_while(agrees).count();
        let shortest = self.hypotheses.iter().map(Vec::len).min().unwrap_or_default();
        let sure = agreed.min(shortest.saturating_sub(LOOSE_WORDS));
        if sure > self.committed.len() && first.starts_with(&self.committed) {
            self.committed = first[..sure].to_vec();
        }
    }

    /// Ends the window with its final text and returns what its text is: the committed words and what the final text says
    /// after them. If the speech goes on without a pause, committed words may belong to the next window; they stay for it.
    pub(super) fn finish(&mut self, text: &str, goes_on: bool) -> String {
        let committed = std::mem::take(&mut self.committed);
        self.hypotheses.clear();
        if committed.is_empty() {
            return text.to_owned();
        }
        let last = words(text);
        if last.starts_with(&committed) {
            return text.to_owned();
        }
        if goes_on && committed.len() > last.len() {
            let own = after_committed(&last, &committed);
            self.committed = committed[own..].to_vec();
            return committed[..own].join("");
        }
        let after = after_committed(&committed, &last);
        committed.iter().chain(&last[after..]).map(String::as_str).collect()
    }
}

/// How many words of `hypothesis` are other readings of the committed ones: the count with the least edit distance.
fn after_committed(committed: &[String], hypothesis: &[String]) -> usize {
    if hypothesis.starts_with(committed) {
        return committed.len();
    }
    // The last row of the edit distance: of all committed words to every beginning of the hypothesis.
    let mut row: Vec<usize> = (0..=hypothesis.len()).collect();
    for (index, word) in committed.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in hypothesis.iter().enumerate() {
            let replaced = diagonal + usize::from(core(word) != core(other));
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    let distance = |count: usize| (row[count], count.abs_diff(committed.len()));
    (0..=hypothesis.len()).min_by_key(|&count| distance(count)).unwrap_or_default()
}

/// What a word is, however it is written.
fn core(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Cuts a text before every word; spaces stay with the word after them, so that the words make the text again. A text
/// without spaces is cut at every character.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut was_space = true;
    for character in text.chars() {
        let is_space = character.is_whitespace();
        let is_letter_alone = is_written_without_spaces(character);
        match words.last_mut() {
            Some(word) if (!is_space || was_space) && !is_letter_alone => word.push(character),
            _ => words.push(character.to_string()),
        }
        was_space = is_space;
    }
    words
}

/// Chinese characters, Japanese syllables and Thai, Lao, Burmese and Khmer letters.
fn is_written_without_spaces(character: char) -> bool {
    matches!(character, '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}' | '\u{3040}'..='\u{30FF}'
        | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}')
}

#[cfg(test)]
mod tests {
    use super::{PartialText, words};

    fn committed(partial: &PartialText) -> String {
        partial.committed().concat()
    }

    #[test]
    fn words_make_the_text_again() {
        for text in ["", "one two", " one\ntwo  three ", "你好吗", "日本 ok"] {
            assert_eq!(words(text).concat(), text);
        }
        assert_eq!(words("So, my\nfellow"), ["So,", " my", "\nfellow"]);
        assert_eq!(words("你好"), ["你", "好"]);
    }

    /// The words "1" to "count".
    fn counted(count: usize) -> String {
        (1..=count).map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn three_hypotheses_commit_what_they_agree_on_but_not_their_last_words() {
        let mut partial = PartialText::default();
        partial.update(&counted(12));
        partial.update(&counted(13));
        assert_eq!((committed(&partial).as_str(), partial.tail().concat()), ("", counted(13)));
        partial.update(&counted(14));
        assert_eq!((committed(&partial).as_str(), partial.tail().len()), ("1 2 3 4", 10));
        // Another reading of a committed word does not change it, and nothing more is committed on it.
        for count in [15, 16, 17] {
            partial.update(&counted(count).replace("3 4", "3, for"));
        }
        assert_eq!(committed(&partial), "1 2 3 4");
        assert_eq!(partial.tail().first().map(String::as_str), Some(" 5"));
        assert_eq!(partial.finish("1 2 3, for 5 six.", false), "1 2 3 4 5 six.");
        assert_eq!(committed(&partial), "");
    }

    #[test]
    fn a_final_text_that_agrees_is_taken_as_it_is() {
        let mut partial = PartialText::default();
        (10..14).for_each(|count| partial.update(&counted(count)));
        assert_eq!(committed(&partial), "1 2 3");
        assert_eq!(partial.finish("1 2 3 for 5.", false), "1 2 3 for 5.");
        assert_eq!(partial.finish("nothing was committed", false), "nothing was committed");
    }

    #[test]
    fn words_beyond_a_split_are_kept_for_the_next_window() {
        let mut partial = PartialText::default();
        (14..17).for_each(|count| partial.update(&counted(count)));
        assert_eq!(committed(&partial), "1 2 3 4 5 6");
        assert_eq!(partial.finish("1 2 3 4", true), "1 2 3 4");
        assert_eq!(committed(&partial), " 5 6");
    }
}
