//! Signs that a text was not spoken.

use super::transcript::{TranscriptSegment, TranscriptWord};

/// How often some tokens must follow themselves to count as a loop.
const LOOP_REPEATS: usize = 5;
/// How many tokens a loop has at least: people do say "no, no, no, no, no".
const LOOP_TOKENS: usize = 16;
/// The longest part that is looked for, in tokens: a sentence.
const LOOP_PART: usize = 32;

/// Whether the end of `before` and `text`, taken together without times, repeats some tokens over and over, up to a place
/// within `text`. What a model was told of the text before makes it more likely to go on so.
pub(crate) fn loops(before: &[u32], text: &[u32], eot: u32) -> bool {
    let is_text = |token: &&u32| **token < eot;
    let known = before.iter().filter(is_text).count().min(LOOP_PART * LOOP_REPEATS);
    let mut tokens: Vec<u32> = before.iter().rev().filter(is_text).take(known).copied().collect();
    tokens.reverse();
    tokens.extend(text.iter().filter(is_text));
    (1..=LOOP_PART).any(|part| {
        // Tokens in a row, up to and with this one, that are the same as those one part earlier.
        let mut same = 0;
        (part..tokens.len()).any(|index| {
            same = if tokens[index] == tokens[index - part] { same + 1 } else { 0 };
            index >= known && same + part >= LOOP_TOKENS && same >= part * (LOOP_REPEATS - 1)
        })
    })
}

/// Whether the words of a text stand one after the other in what the model was told, so that it may have read them there
/// and heard nothing. One word alone is too little to say so.
pub(crate) fn echoes(text: &str, told: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let plain = |word: &str| word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
        text.split(|c: char| c.is_whitespace() || c == ',')
            .map(plain)
            .filter(|word: &String| !word.is_empty())
            .collect()
    };
    let (text, told) = (words(text), words(told));
    text.len() > 1 && told.windows(text.len()).any(|part| part == text)
}

/// Whether two texts sound alike: the share of pairs of letters that they have in common (Dice's coefficient) is at least
/// three tenths. Names heard without a hint are spelled otherwise, but not altogether otherwise.
pub(crate) fn resemble(a: &str, b: &str) -> bool {
    let pairs = |text: &str| -> Vec<(char, char)> {
        let letters: Vec<char> = text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
        letters.windows(2).map(|pair| (pair[0], pair[1])).collect()
    };
    let (a, mut b) = (pairs(a), pairs(b));
    let all = a.len() + b.len();
    let mut common = 0;
    for pair in a {
        if let Some(place) = b.iter().position(|other| *other == pair) {
            b.swap_remove(place);
            common += 1;
        }
    }
    common * 20 >= all * 3 && all > 0
}

// Values of transcribe.py's `word_anomaly_score` and `is_segment_anomaly`.
const IMPROBABLE: f32 = 0.15;
const SHORTEST_WORD: f64 = 0.133;
const SHORTNESS: f64 = 15.0;
const LONGEST_WORD: f64 = 2.0;
const WORDS_JUDGED: usize = 8;
const ANOMALY: f64 = 3.0;
const PUNCTUATION: &str = "\"'“¿([{-\"'.。,，!！?？:：”)]}、";

/// Whether a segment's words are too improbable, too short or too long to have been spoken.
pub(crate) fn is_anomaly(segment: &TranscriptSegment) -> bool {
    let words: Vec<&TranscriptWord> =
        segment.words.iter().filter(|word| !PUNCTUATION.contains(word.word.as_str())).take(WORDS_JUDGED).collect();
    let score: f64 = words.iter().map(|word| word_anomaly(word)).sum();
    !words.is_empty() && (score >= ANOMALY || score + 0.01 >= words.len() as f64)
}

fn word_anomaly(word: &TranscriptWord) -> f64 {
    let length = word.end - word.start;
    let improbable = if word.probability < IMPROBABLE { 1.0 } else { 0.0 };
    improbable + (SHORTEST_WORD - length).max(0.0) * SHORTNESS + (length - LONGEST_WORD).max(0.0)
}

/// A window's place in the audio, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowTimes {
    pub(crate) start: f64,
    pub(crate) end: f64,
    /// Where it would end if it were whole. The last window of some audio seldom is.
    pub(crate) whole_end: f64,
    /// Where the audio ends, if that is known.
    pub(crate) audio_end: Option<f64>,
}

/// What to do with a window's segments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    /// They were spoken.
    Keep,
    /// Those before `segments` were spoken; the next window begins at this time.
    GoOnAt {
        /// How many to keep.
        segments: usize,
        /// Seconds from the audio's beginning.
        time: f64,
    },
    /// Those before `segments` were spoken, and the audio ends with them.
    End {
        /// How many to keep.
        segments: usize,
    },
}

/// Looks for segments that seem invented and have silence of more than `threshold` seconds around them.
/// (transcribe.py: `hallucination_silence_threshold`.)
pub(crate) fn judge(segments: &[TranscriptSegment], window: WindowTimes, last_speech: f64, threshold: f64) -> Verdict {
    let spoken = |from: usize| segments[from..].iter().find(|segment| !segment.words.is_empty());
    if let Some(first) = spoken(0).filter(|first| is_anomaly(first)) {
        let gap = first.start - window.start;
        if gap > threshold {
            return Verdict::GoOnAt { segments: 0, time: window.start + gap };
        }
    }
    let mut last_end = last_speech;
    for (index, segment) in segments.iter().enumerate().filter(|(_, segment)| !segment.words.is_empty()) {
        if is_anomaly(segment) {
            let next = spoken(index + 1);
            let next_start = next.and_then(|next| next.words.first()).map_or(window.end, |word| word.start);
            let silence_before = segment.start - last_end > threshold
                || segment.start < threshold
                || segment.start - window.start < EDGE;
            let silence_after = next_start - segment.end > threshold
                || next.is_some_and(is_anomaly)
                || window.whole_end - segment.end < EDGE;
            if silence_before && silence_after {
                if window.audio_end.is_some_and(|end| end - segment.end < threshold) {
                    return Verdict::End { segments: index };
                }
                return Verdict::GoOnAt { segments: index, time: (window.start + 1.0).max(segment.start) };
            }
        }
        last_end = segment.end;
    }
    Verdict::Keep
}

/// So near to a window's border, in seconds, one cannot say what is around.
const EDGE: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::{Verdict, WindowTimes, echoes, judge, loops, resemble};
    use crate::whisper::transcript::{TranscriptSegment, TranscriptWord};

    const EOT: u32 = 1000;

    #[test]
    fn loops_are_found_and_emphasis_is_not() {
        let sentence = [5, 6, 7, 8, 9];
        assert!(loops(&[], &sentence.repeat(5), EOT));
        assert!(!loops(&[], &sentence.repeat(4), EOT));
        // Said three times before and twice again.
        assert!(loops(&sentence.repeat(3), &sentence.repeat(2), EOT));
        // It looped before, and does no more.
        assert!(!loops(&sentence.repeat(8), &[1, 2, 3, 4, 10, 11], EOT));
        assert!(!loops(&[], &[7; 8], EOT));
        assert!(loops(&[], &[7; 20], EOT));
        // Times between the repeats do not hide them.
        let timed: Vec<u32> = (0..6).flat_map(|time| [1001 + time, 5, 6, 7, 8, 1002 + time]).collect();
        assert!(loops(&[], &timed, EOT));
    }

    #[test]
    fn an_echo_of_the_prompt_is_told_from_speech() {
        let told = "Kubernetes, Grafana, Prometheus, Linnet.";
        assert!(echoes("Grafana, Prometheus.", told));
        assert!(!echoes("Grafana and Prometheus", told) && !echoes("Linnet", told) && !echoes("", told));
    }

    #[test]
    fn names_spelled_by_ear_resemble_themselves() {
        assert!(resemble("Kubernetes, Grafana", "Cubernetis graphana"));
        assert!(!resemble("Kubernetes, Grafana", "you") && !resemble("Kubernetes, Grafana", "") && !resemble("", ""));
    }

    fn segment(start: f64, end: f64, probability: f32) -> TranscriptSegment {
        let word = |start, end| TranscriptWord { word: " a".to_owned(), start, end, probability };
        TranscriptSegment {
            id: 0,
            seek: 0,
            start,
            end,
            text: " a a".to_owned(),
            tokens: vec![1, 1],
            temperature: 0.0,
            avg_logprob: -0.2,
            compression_ratio: 1.0,
            no_speech_prob: 0.1,
            words: vec![word(start, f64::midpoint(start, end)), word(f64::midpoint(start, end), end)],
        }
    }

    #[test]
    fn invented_segments_in_silence_are_cut_and_spoken_ones_are_not() {
        let window = WindowTimes { start: 0.0, end: 30.0, whole_end: 30.0, audio_end: None };
        let spoken = [segment(3.0, 4.0, 0.9), segment(4.0, 5.0, 0.8)];
        assert_eq!(judge(&spoken, window, 0.0, 2.0), Verdict::Keep);
        let invented = [segment(3.0, 4.0, 0.9), segment(12.0, 12.1, 0.05)];
        assert_eq!(judge(&invented, window, 0.0, 2.0), Verdict::GoOnAt { segments: 1, time: 12.0 });
        let at_the_end = WindowTimes { audio_end: Some(13.0), ..window };
        assert_eq!(judge(&invented, at_the_end, 0.0, 2.0), Verdict::End { segments: 1 });
        assert_eq!(judge(&[segment(9.0, 9.1, 0.05)], window, 0.0, 2.0), Verdict::GoOnAt { segments: 0, time: 9.0 });
    }
}
