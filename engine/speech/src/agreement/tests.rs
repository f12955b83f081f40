use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{LocalAgreement, TimedWord};

/// Words half a second long, from `first` half seconds on.
fn words(text: &str, first: usize) -> Vec<TimedWord> {
    let word = |(index, text): (usize, &str)| {
        let start = (first + index) as f64 * 0.5;
        TimedWord { text: text.to_owned(), start, end: start + 0.4 }
    };
    text.split_whitespace().enumerate().map(word).collect()
}

fn text(words: &[TimedWord]) -> String {
    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_word_is_committed_when_two_hypotheses_agree() {
    let mut agreement = LocalAgreement::new();
    assert_eq!(text(agreement.update(words("The quick", 0))), "");
    assert_eq!(text(agreement.tail()), "The quick");
    assert_eq!(text(agreement.update(words("The quick brawn", 0))), "The quick");
    assert_eq!(text(agreement.update(words("The quick brown fox", 0))), "");
    assert_eq!(text(agreement.update(words("the quick brown fox jumps", 0))), "brown fox");
    assert_eq!(text(agreement.finish(words("The quick brown fox jumped.", 0))), "jumped.");
    assert_eq!(text(agreement.committed()), "The quick brown fox jumped.");
    assert!(agreement.tail().is_empty());
}

#[test]
fn a_committed_word_does_not_change_when_a_later_hypothesis_reads_it_otherwise() {
    let mut agreement = LocalAgreement::new();
    agreement.update(words("I saw two ships", 0));
    agreement.update(words("I saw two ships come", 0));
    agreement.update(words("I saw too sheep come sailing", 0));
    agreement.update(words("I saw too sheep come sailing in", 0));
    assert_eq!(text(agreement.committed()), "I saw two ships come sailing");
}

#[test]
fn the_same_word_spoken_twice_is_kept_twice() {
    let mut agreement = LocalAgreement::new();
    agreement.update(words("no no", 0));
    agreement.update(words("no no no", 0));
    assert_eq!(text(agreement.committed()), "no no");
    agreement.update(words("no no no no", 0));
    agreement.finish(words("no no no no", 0));
    assert_eq!(text(agreement.committed()), "no no no no");
}

#[test]
fn audio_that_begins_after_the_committed_words_goes_on() {
    let mut agreement = LocalAgreement::new();
    agreement.update(words("one two three", 0));
    agreement.update(words("one two three four", 0));
    assert_eq!(agreement.committed_until(), 1.4);
    // The window was cut at "three": its last word is heard once more.
    agreement.update(words("three four five", 2));
    agreement.update(words("three four five six", 2));
    agreement.finish(words("four five six seven", 3));
    assert_eq!(text(agreement.committed()), "one two three four five six seven");
}

#[test]
fn capitals_and_punctuation_do_not_hold_a_word_back() {
    let mut agreement = LocalAgreement::new();
    agreement.update(words("Well.", 0));
    assert_eq!(text(agreement.update(words("well, yes", 0))), "well,");
}

#[test]
fn an_empty_hypothesis_takes_the_tail_away_and_nothing_else() {
    let mut agreement = LocalAgreement::new();
    agreement.update(words("one two", 0));
    agreement.update(words("one two three", 0));
    assert_eq!(text(agreement.update(Vec::new())), "");
    assert_eq!((text(agreement.committed()).as_str(), agreement.tail().len()), ("one two", 0));
    // Two in a row have to agree again.
    assert_eq!(text(agreement.update(words("one two three", 0))), "");
    assert_eq!(text(agreement.update(words("one two three", 0))), "three");
}

/// A recogniser that gets all but the last words right and whose times wander by up to a tenth of a second.
#[test]
fn whatever_the_tail_guesses_committed_words_never_change_and_end_right() {
    let vocabulary = ["a", "b", "c", "no", "no", "yes", "house", "tree"];
    let mut rng = StdRng::seed_from_u64(80);
    for round in 0..300 {
        let count = rng.random_range(1..40);
        let spoken: Vec<&str> = (0..count).map(|_| *vocabulary.choose(&mut rng).unwrap()).collect();
        let truth = words(&spoken.join(" "), 0);
        let mut agreement = LocalAgreement::new();
        let mut seen = Vec::new();
        let mut heard = 0;
        while heard < truth.len() {
            heard = (heard + rng.random_range(1..4)).min(truth.len());
            let first = if rng.random_bool(0.3) {
                // The window begins within what is committed.
                let committed = agreement.committed().len();
                committed.saturating_sub(rng.random_range(0..4))
            } else {
                0
            };
            let mut hypothesis: Vec<TimedWord> = truth[first.min(heard)..heard].to_vec();
            for word in &mut hypothesis {
                let shift = rng.random_range(-0.1..0.1);
                (word.start, word.end) = (word.start + shift, word.end + shift);
            }
            // The newest word is a wild guess, never the same twice.
            if heard < truth.len()
                && let Some(last) = hypothesis.last_mut()
            {
                last.text = format!("guess{}", rng.random_range(0..1_000_000));
            }
            agreement.update(hypothesis);
            let now: Vec<String> = agreement.committed().iter().map(|word| word.text.clone()).collect();
            assert!(now.starts_with(&seen), "round {round}: {seen:?} became {now:?}");
            seen = now;
        }
        agreement.finish(truth.clone());
        assert_eq!(text(agreement.committed()), text(&truth), "round {round}");
    }
}

#[test]
fn nonsense_never_changes_what_is_committed() {
    let mut rng = StdRng::seed_from_u64(81);
    for _ in 0..300 {
        let mut agreement = LocalAgreement::new();
        let mut seen: Vec<TimedWord> = Vec::new();
        for _ in 0..20 {
            let hypothesis = (0..rng.random_range(0..8))
                .map(|_| {
                    let start = rng.random_range(-1.0..10.0);
                    let text = ["", ".", "a", "b"][rng.random_range(0..4)].to_owned();
                    TimedWord { text, start, end: start + rng.random_range(-0.5..0.5) }
                })
                .collect();
            if rng.random_bool(0.2) {
                agreement.finish(hypothesis)
            } else {
                agreement.update(hypothesis)
            };
            assert_eq!(agreement.committed()[..seen.len()], seen);
            seen = agreement.committed().to_vec();
        }
    }
}
