//! When words are spoken.
//!
//! After `add_word_timestamps` of openai/whisper's timing.py; its constants keep their values.

use linnet_kernels::{Context, log_sum_exp};

use super::{
    TranscribeError,
    alignment::{AlignmentShape, token_starts},
    language::Language,
    network::{WhisperNetwork, Window},
    tokenizer::WhisperTokenizer,
    transcript::{TranscriptSegment, TranscriptWord},
};

/// Seconds of an encoder position.
const POSITION: f64 = 0.02;
/// No word counts as longer than this when the usual length of words is taken.
const LONGEST_USUAL: f64 = 0.7;
/// A word this many times as long as usual is cut at sentences' ends and pauses.
const LONG: f64 = 2.0;
/// A pause: this many usual words.
const PAUSE: f64 = 4.0;
/// Words may begin before their segment and end after it by so many seconds.
const SLACK: f64 = 0.5;
/// Punctuation that belongs to the word after it.
const PREPENDED: &str = "\"'“¿([{-";
/// Punctuation that belongs to the word before it.
const APPENDED: &str = "\"'.。,，!！?？:：”)]}、";
/// What ends a sentence.
const SENTENCE_ENDS: &str = ".。!！?？";

/// A word under way to a transcript.
#[derive(Debug, Clone, PartialEq)]
struct WordTime {
    word: String,
    tokens: usize,
    /// Seconds from the window's beginning.
    start: f64,
    end: f64,
    probability: f32,
}

/// A window whose words are to be found.
pub(crate) struct WordTiming<'a> {
    pub(crate) network: &'a mut dyn WhisperNetwork,
    pub(crate) tokenizer: &'a WhisperTokenizer,
    pub(crate) ctx: &'a Context,
    pub(crate) window: Window,
    /// Mel frames that hold audio.
    pub(crate) frames: usize,
    pub(crate) language: Language,
    /// The start of transcript and what belongs to it, without times.
    pub(crate) prompt: &'a [u32],
    /// Seconds from the audio's beginning to the window's.
    pub(crate) offset: f64,
}

impl WordTiming<'_> {
    /// Gives the segments of one window their words, and times to the segments by them. `last_speech` is when the last word
    /// before ended.
    pub(crate) fn add_words(
        &mut self,
        segments: &mut [TranscriptSegment],
        mut last_speech: f64,
    ) -> Result<(), TranscribeError> {
        let eot = self.tokenizer.special().eot;
        let of_segments: Vec<Vec<u32>> = segments
            .iter()
            .map(|segment| segment.tokens.iter().copied().filter(|&token| token < eot).collect())
            .collect();
        let text = of_segments.concat();
        let mut words = self.align(&text)?;
        let usual = usual_length(&words);
        cut_at_sentences(&mut words, usual);
        merge_punctuation(&mut words);
        let mut words = words.into_iter();
        for (segment, tokens) in segments.iter_mut().zip(&of_segments) {
            let mut left = tokens.len();
            let mut of_segment = Vec::new();
            while left > 0 {
                let Some(word) = words.next() else { break };
                left = left.saturating_sub(word.tokens);
                if !word.word.is_empty() {
                    of_segment.push(TranscriptWord {
                        word: word.word,
                        start: hundredths(self.offset + word.start),
                        end: hundredths(self.offset + word.end),
                        probability: word.probability,
                    });
                }
            }
            fit(segment, &mut of_segment, usual, last_speech);
            if !of_segment.is_empty() {
                last_speech = segment.end;
            }
            segment.words = of_segment;
        }
        Ok(())
    }

    /// The words of `text` with the times that cross attention gives.
    fn align(&mut self, text: &[u32]) -> Result<Vec<WordTime>, TranscribeError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let special = *self.tokenizer.special();
        let tokens: Vec<u32> =
            self.prompt.iter().chain(&[special.no_timestamps]).chain(text).chain(&[special.eot]).copied().collect();
        let alignment = self.network.align(self.window, &tokens)?;
        let dimensions = self.network.dimensions();
        let shape = AlignmentShape {
            tokens: tokens.len(),
            positions: dimensions.n_audio_ctx,
            spoken: self.frames / 2,
            prompt: self.prompt.len(),
        };
        let starts = token_starts(self.ctx, &alignment, shape);
        let probability = |index: usize| {
            let line = &alignment.logits[(self.prompt.len() + index) * dimensions.n_vocab..][..special.eot as usize];
            (line[text[index] as usize] - log_sum_exp(self.ctx, line)).exp()
        };
        let mut words = Vec::new();
        let mut begin = 0;
        for (word, tokens) in self.tokenizer.words(text, Some(self.language)) {
            let end = begin + tokens.len();
            words.push(WordTime {
                word,
                tokens: tokens.len(),
                start: starts[begin] as f64 * POSITION,
                end: starts[end] as f64 * POSITION,
                probability: (begin..end).map(probability).sum::<f32>() / tokens.len() as f32,
            });
            begin = end;
        }
        Ok(words)
    }
}

/// The median length of words that have one.
fn usual_length(words: &[WordTime]) -> f64 {
    let mut lengths: Vec<f64> =
        words.iter().map(|word| word.end - word.start).filter(|&length| length != 0.0).collect();
    if lengths.is_empty() {
        return 0.0;
    }
    lengths.sort_unstable_by(f64::total_cmp);
    let half = lengths.len() / 2;
    let median = if lengths.len() % 2 == 1 { lengths[half] } else { f64::midpoint(lengths[half - 1], lengths[half]) };
    median.min(LONGEST_USUAL)
}

/// Silence after a sentence is given to its last word or to the first of the next: such words are cut.
fn cut_at_sentences(words: &mut [WordTime], usual: f64) {
    let longest = LONG * usual;
    let ends_sentence = |word: &WordTime| !word.word.is_empty() && SENTENCE_ENDS.contains(&word.word);
    if usual == 0.0 {
        return;
    }
    for index in 1..words.len() {
        if words[index].end - words[index].start <= longest {
            continue;
        }
        if ends_sentence(&words[index]) {
            words[index].end = words[index].start + longest;
        } else if ends_sentence(&words[index - 1]) {
            words[index].start = words[index].end - longest;
        }
    }
}

/// Joins punctuation to the words that it belongs to; what was joined stays behind empty, with no tokens.
fn merge_punctuation(words: &mut [WordTime]) {
    let mut following = words.len().saturating_sub(1);
    for previous in (0..following).rev() {
        // A space alone goes with the next word too: nothing stands in every list.
        if words[previous].word.starts_with(' ') && PREPENDED.contains(words[previous].word.trim()) {
            let moved = std::mem::take(&mut words[previous].word);
            words[following].word.insert_str(0, &moved);
            words[following].tokens += std::mem::take(&mut words[previous].tokens);
        } else {
            following = previous;
        }
    }
    let mut previous = 0;
    for following in 1..words.len() {
        let mark = &words[following].word;
        if !words[previous].word.ends_with(' ') && !mark.is_empty() && APPENDED.contains(mark.as_str()) {
            let moved = std::mem::take(&mut words[following].word);
            words[previous].word.push_str(&moved);
            words[previous].tokens += std::mem::take(&mut words[following].tokens);
        } else if !mark.is_empty() {
            previous = following;
        }
    }
}

/// Makes words and their segment fit each other. After a pause the first words are not long, and where a word and a
/// segment disagree by much, the segment's time is the better one.
fn fit(segment: &mut TranscriptSegment, words: &mut [TranscriptWord], usual: f64, last_speech: f64) {
    let longest = LONG * usual;
    let count = words.len();
    if count == 0 {
        return;
    }
    if words[0].end - last_speech > PAUSE * usual
        && (words[0].end - words[0].start > longest || count > 1 && words[1].end - words[0].start > 2.0 * longest)
    {
        if count > 1 && words[1].end - words[1].start > longest {
            let border = (words[1].end / 2.0).max(words[1].end - longest);
            words[0].end = border;
            words[1].start = border;
        }
        words[0].start = (words[0].end - longest).max(0.0);
    }
    if segment.start < words[0].end && segment.start - SLACK > words[0].start {
        words[0].start = (words[0].end - usual).min(segment.start).max(0.0);
    } else {
        segment.start = words[0].start;
    }
    let last = &mut words[count - 1];
    if segment.end > last.start && segment.end + SLACK < last.end {
        last.end = (last.start + usual).max(segment.end);
    } else {
        segment.end = last.end;
    }
}

fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::{WordTime, cut_at_sentences, merge_punctuation, usual_length};

    fn words(of: &[(&str, f64, f64)]) -> Vec<WordTime> {
        let word = |&(word, start, end): &(&str, f64, f64)| WordTime {
            word: word.to_owned(),
            tokens: 1,
            start,
            end,
            probability: 1.0,
        };
        of.iter().map(word).collect()
    }

    #[test]
    fn punctuation_joins_the_word_it_belongs_to_with_its_tokens() {
        let mut found =
            words(&[(" \"", 0.0, 0.1), ("Yes", 0.1, 0.4), (",", 0.4, 0.5), ("\"", 0.5, 0.5), (" he", 0.6, 0.9)]);
        merge_punctuation(&mut found);
        let left: Vec<(&str, usize)> =
            found.iter().filter(|word| !word.word.is_empty()).map(|word| (word.word.as_str(), word.tokens)).collect();
        assert_eq!(left, [(" \"Yes,\"", 4), (" he", 1)]);
    }

    #[test]
    fn silence_at_a_sentences_end_is_not_spoken() {
        let mut found =
            words(&[(" one", 0.0, 0.4), (".", 0.4, 3.0), (" two", 3.0, 3.4), (".", 3.4, 3.5), (" three", 3.5, 8.0)]);
        let usual = usual_length(&found);
        assert!((usual - 0.4).abs() < 1e-9, "{usual}");
        cut_at_sentences(&mut found, usual);
        assert!((found[1].end - 1.2).abs() < 1e-9 && (found[4].start - 7.2).abs() < 1e-9, "{found:?}");
        assert_eq!(usual_length(&words(&[(" a", 1.0, 1.0)])), 0.0);
    }
}
