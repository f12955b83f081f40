//! Partial text that can be relied on: local agreement.
//!
//! While somebody speaks, the same stretch of audio is recognised again and again as it grows. The end of a hypothesis is
//! a guess that the next one may overturn. A word is committed when two hypotheses in a row agree on it and on
//! everything before it (LocalAgreement-2: Macháček, Dabre and Bojar, "Turning Whisper into Real-Time Transcription
//! System", 2023). Committed words never change; what follows them, the tail, may.

/// A word that was recognised, and when it was spoken, in seconds from the beginning of the session.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedWord {
    /// The word as it is to be written, with its punctuation and without spaces around it.
    pub text: String,
    /// When it begins.
    pub start: f64,
    /// When it ends.
    pub end: f64,
}

/// How far a recogniser's word times may wander from one hypothesis to the next, in seconds. Whisper's word times are
/// quantised to 0.02 s and move by a few tenths at the end of a window.
const TIME_SLACK: f64 = 0.5;

/// Words compared to find where a hypothesis goes on after what is committed (the reference implementation looks at five).
const OVERLAP: usize = 5;

/// Committed words, and the tail of the last hypothesis.
#[derive(Debug, Clone, Default)]
pub struct LocalAgreement {
    committed: Vec<TimedWord>,
    /// The last hypothesis after the committed words.
    tail: Vec<TimedWord>,
}

impl LocalAgreement {
    /// Nothing heard yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Words that will not change any more.
    #[must_use]
    pub fn committed(&self) -> &[TimedWord] {
        &self.committed
    }

    /// What the last hypothesis says after them; it may change.
    #[must_use]
    pub fn tail(&self) -> &[TimedWord] {
        &self.tail
    }

    /// Takes in a new hypothesis and returns the words that it commits. A hypothesis holds the words of all the audio
    /// that was recognised, in order; it may begin in the middle of what is committed, if the audio did.
    pub fn update(&mut self, hypothesis: Vec<TimedWord>) -> &[TimedWord] {
        let new = self.after_committed(hypothesis);
        let agreed = new.iter().zip(&self.tail).take_while(|(new, old)| same(&new.text, &old.text)).count();
        self.commit(new, agreed)
    }

    /// Ends the utterance with its last hypothesis, all of whose words are committed. The next utterance follows it.
    pub fn finish(&mut self, hypothesis: Vec<TimedWord>) -> &[TimedWord] {
        let new = self.after_committed(hypothesis);
        let all = new.len();
        self.commit(new, all)
    }

    /// The end of the last committed word, from where audio still has to be recognised.
    #[must_use]
    pub fn committed_until(&self) -> f64 {
        self.committed.last().map_or(0.0, |word| word.end)
    }

    fn commit(&mut self, mut new: Vec<TimedWord>, count: usize) -> &[TimedWord] {
        let before = self.committed.len();
        self.tail = new.split_off(count);
        self.committed.append(&mut new);
        &self.committed[before..]
    }

    /// The words of a hypothesis that come after what is committed.
    ///
    /// Words that lie before the end of the committed ones are dropped by their times. Times wander, so that the first
    /// that are left may still be the last committed words said once more. How many of them are is what their texts
    /// allow and their times make likeliest: the same word spoken again lies where a new word would.
    fn after_committed(&self, hypothesis: Vec<TimedWord>) -> Vec<TimedWord> {
        let Some(last) = self.committed.last() else { return hypothesis };
        let recent = |word: &TimedWord| middle(word) > last.end - TIME_SLACK;
        let mut words: Vec<TimedWord> = hypothesis.into_iter().skip_while(|word| !recent(word)).collect();
        let most = OVERLAP.min(words.len()).min(self.committed.len());
        // How far the times contradict that the first `count` words are the last committed ones.
        let contradiction = |count: usize| {
            let said = &self.committed[self.committed.len() - count..];
            if !said.iter().zip(&words).all(|(said, new)| same(&said.text, &new.text)) {
                return f64::INFINITY;
            }
            let moved: f64 = said.iter().zip(&words).map(|(said, new)| (middle(said) - middle(new)).abs()).sum();
            moved / count as f64
        };
        let none = words.first().map_or(0.0, |word| (last.end - word.start).max(0.0));
        let costs = (1..=most).map(|count| (count, contradiction(count)));
        let likeliest = costs.fold((0, none), |best, other| if other.1 < best.1 { other } else { best });
        words.drain(..likeliest.0);
        // What still lies before the end is another reading of a committed word, which stays as it is.
        words.into_iter().skip_while(|word| middle(word) < last.end).collect()
    }
}

fn middle(word: &TimedWord) -> f64 {
    f64::midpoint(word.start, word.end)
}

/// Whether two words are one word: capitals and punctuation depend on what follows.
fn same(a: &str, b: &str) -> bool {
    let core =
        |text: &str| -> String { text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect() };
    let (core_a, core_b) = (core(a), core(b));
    if core_a.is_empty() || core_b.is_empty() { a == b } else { core_a == core_b }
}

#[cfg(test)]
mod tests;
