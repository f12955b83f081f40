//! The text of the window that is being spoken, as far as it can be relied on.
//!
//! Every hypothesis of a window begins where the window does, so that hypotheses are compared word by word from the
//! beginning (LocalAgreement-2, as in [`crate::LocalAgreement`], without times). Words are committed as they are written,
//! with capitals and punctuation, after the text stage: what is shown is what the user gets.

/// Words at the end of a hypothesis that are not committed: the next sound may change them.
const LOOSE_WORDS: usize = 2;

/// Committed words, and the tail of the last hypothesis.
#[derive(Debug, Clone, Default)]
pub(super) struct PartialText {
    committed: Vec<String>,
    hypothesis: Vec<String>,
}

impl PartialText {
    /// Words that will not change any more.
    pub(super) fn committed(&self) -> &[String] {
        &self.committed
    }

    /// What the last hypothesis says after them.
    pub(super) fn tail(&self) -> &[String] {
        let after = after_committed(&self.committed, &self.hypothesis);
        &self.hypothesis[after..]
    }

    /// Takes in a hypothesis. A settled one was heard to the end of a pause: its last words are as good as the others.
    pub(super) fn update(&mut self, text: &str, is_settled: bool) {
        let new = words(text);
        let agreed = new.iter().zip(&self.hypothesis).take_while(|(new, old)| new == old).count();
        let loose = if is_settled { 0 } else { LOOSE_WORDS };
        let sure = agreed.min(new.len().saturating_sub(loose)).min(self.hypothesis.len().saturating_sub(LOOSE_WORDS));
        if sure > self.committed.len() && new.starts_with(&self.committed) {
            self.committed = new[..sure].to_vec();
        }
        self.hypothesis = new;
    }

    /// Ends the window with its final text and returns what its text is: the committed words and what the final text says
    /// after them. If the speech goes on without a pause, committed words may belong to the next window; they stay for it.
    pub(super) fn finish(&mut self, text: &str, goes_on: bool) -> String {
        let committed = std::mem::take(&mut self.committed);
        self.hypothesis.clear();
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

    #[test]
    fn two_hypotheses_commit_what_they_agree_on_but_not_their_last_words() {
        let mut partial = PartialText::default();
        partial.update("And so my fellow", false);
        assert_eq!(committed(&partial), "");
        partial.update("And so my fellow Americans, ask", false);
        assert_eq!(
            (committed(&partial).as_str(), partial.tail().concat().as_str()),
            ("And so", " my fellow Americans, ask")
        );
        partial.update("And so, my fellow Americans, ask not", false);
        // The second word is read otherwise now: it stays, and so does what follows until hypotheses agree again.
        assert_eq!(
            (committed(&partial).as_str(), partial.tail().concat().as_str()),
            ("And so", " my fellow Americans, ask not")
        );
        assert_eq!(
            partial.finish("And so, my fellow Americans, ask not.", false),
            "And so my fellow Americans, ask not."
        );
        assert_eq!(committed(&partial), "");
    }

    #[test]
    fn a_final_text_that_agrees_is_taken_as_it_is() {
        let mut partial = PartialText::default();
        partial.update("one two three four", false);
        partial.update("one two three four five", false);
        assert_eq!(committed(&partial), "one two");
        assert_eq!(partial.finish("one two three for five.", false), "one two three for five.");
        assert_eq!(partial.finish("nothing was committed", false), "nothing was committed");
    }

    #[test]
    fn words_beyond_a_split_are_kept_for_the_next_window() {
        let mut partial = PartialText::default();
        partial.update("a b c d e f g h", false);
        partial.update("a b c d e f g h i j", false);
        assert_eq!(committed(&partial), "a b c d e f");
        assert_eq!(partial.finish("a b c d", true), "a b c d");
        assert_eq!(committed(&partial), " e f");
    }
}
