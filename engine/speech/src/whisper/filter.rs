//! Which token may come next: the rules that logits go through before one is chosen.
//!
//! After `SuppressBlank`, `SuppressTokens` and `ApplyTimestampRules` of openai/whisper's decoding.py.

use linnet_kernels::{Context, log_sum_exp};

use super::{TranscribeOptions, tokenizer::WhisperTokenizer};

/// Seconds between two times that tokens can name.
pub(crate) const TIME_PRECISION: f64 = 0.02;

/// The rules for one transcription.
#[derive(Debug)]
pub(crate) struct LogitFilter {
    pub(super) suppressed: Vec<u32>,
    pub(super) blank: Vec<u32>,
    pub(super) eot: usize,
    pub(super) timestamp_begin: usize,
    /// The last token with which a window may begin; `None` where no times are written.
    pub(super) last_initial: Option<usize>,
}

impl LogitFilter {
    pub(crate) fn new(tokenizer: &WhisperTokenizer, options: &TranscribeOptions) -> Self {
        let special = tokenizer.special();
        let mut suppressed = options.suppress_tokens.clone().unwrap_or_else(|| tokenizer.non_speech().to_vec());
        suppressed.extend([
            special.transcribe,
            special.translate,
            special.sot,
            special.sot_prev,
            special.sot_lm,
            special.no_speech,
            special.no_timestamps,
        ]);
        suppressed.sort_unstable();
        suppressed.dedup();
        let initial = (f64::from(options.max_initial_timestamp.max(0.0)) / TIME_PRECISION).round() as usize;
        let timestamp_begin = special.timestamp_begin as usize;
        Self {
            suppressed,
            blank: tokenizer.blank().to_vec(),
            eot: special.eot as usize,
            timestamp_begin,
            last_initial: (!options.without_timestamps).then(|| timestamp_begin.saturating_add(initial)),
        }
    }

    /// Makes the tokens that may not follow `sampled`, the tokens after the prompt, impossible. Gives the logarithm of the
    /// sum of what is left: a token's log-probability is its logit less this.
    pub(crate) fn apply(&self, ctx: &Context, line: &mut [f32], sampled: &[u32]) -> f32 {
        for &token in &self.suppressed {
            forbid(line, token as usize..token as usize + 1);
        }
        if sampled.is_empty() {
            for &token in &self.blank {
                forbid(line, token as usize..token as usize + 1);
            }
        }
        let Some(last_initial) = self.last_initial else {
            forbid(line, self.timestamp_begin..usize::MAX);
            return log_sum_exp(ctx, line);
        };
        self.forbid_times(line, sampled);
        if sampled.is_empty() {
            forbid(line, 0..self.timestamp_begin);
            forbid(line, last_initial.saturating_add(1)..usize::MAX);
        }
        let (text, times) = line.split_at_mut(self.timestamp_begin.min(line.len()));
        let likeliest = text[linnet_kernels::argmax(text)];
        let all_times = log_sum_exp(ctx, times);
        if all_times > likeliest {
            // Some time is likelier than any one piece of text.
            text.fill(f32::NEG_INFINITY);
            return all_times;
        }
        let text = log_sum_exp(ctx, text);
        let larger = text.max(all_times);
        larger + ((text - larger).exp() + (all_times - larger).exp()).ln()
    }

    /// Times come in pairs, except for one before the end, and never go back.
    fn forbid_times(&self, line: &mut [f32], sampled: &[u32]) {
        let is_time = |token: &u32| *token as usize >= self.timestamp_begin;
        let last = sampled.last().is_some_and(is_time);
        let last_but_one = sampled.len() < 2 || is_time(&sampled[sampled.len() - 2]);
        if last && last_but_one {
            forbid(line, self.timestamp_begin..usize::MAX);
        } else if last {
            forbid(line, 0..self.eot);
        }
        if let Some(&time) = sampled.iter().rev().find(|token| is_time(token)) {
            // The second of a pair may be equal to the first; the end of a segment lies behind its beginning.
            let earliest = time as usize + usize::from(!last || last_but_one);
            forbid(line, self.timestamp_begin..earliest);
        }
    }
}

fn forbid(line: &mut [f32], tokens: std::ops::Range<usize>) {
    let end = tokens.end.min(line.len());
    if let Some(tokens) = line.get_mut(tokens.start.min(end)..end) {
        tokens.fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use linnet_kernels::Context;

    use super::LogitFilter;

    const LENGTH: usize = 12;

    /// Text 0 to 4, the end 5, special 6 and 7, times 8 to 11.
    fn filter() -> LogitFilter {
        LogitFilter { suppressed: vec![6, 7], blank: vec![1, 5], eot: 5, timestamp_begin: 8, last_initial: Some(9) }
    }

    fn left(filter: &LogitFilter, logits: [f32; LENGTH], sampled: &[u32]) -> (Vec<usize>, f32) {
        let mut line = logits;
        let sum = filter.apply(&Context::new(1), &mut line, sampled);
        let kept: Vec<usize> = (0..LENGTH).filter(|&token| line[token].is_finite()).collect();
        let expected = kept.iter().map(|&token| logits[token].exp()).sum::<f32>().ln();
        assert!((sum - expected).abs() < 1e-5, "{sum} is not {expected}");
        (kept, sum)
    }

    /// Every text is likelier than all times together.
    const TEXT: [f32; LENGTH] = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0];

    #[test]
    fn a_window_begins_with_a_time_that_is_early_enough() {
        assert_eq!(left(&filter(), TEXT, &[]).0, [8, 9]);
    }

    #[test]
    fn text_follows_a_first_time_and_a_pair_and_times_never_go_back() {
        let filter = filter();
        assert_eq!(left(&filter, TEXT, &[8]).0, [0, 1, 2, 3, 4, 5]);
        assert_eq!(left(&filter, TEXT, &[8, 2]).0, [0, 1, 2, 3, 4, 5, 9, 10, 11]);
        // One time after text: the same again begins the next segment, or the text ends.
        assert_eq!(left(&filter, TEXT, &[8, 2, 10]).0, [5, 10, 11]);
        assert_eq!(left(&filter, TEXT, &[8, 2, 10, 10]).0, [0, 1, 2, 3, 4, 5]);
        assert_eq!(left(&filter, TEXT, &[8, 2, 10, 10, 3]).0, [0, 1, 2, 3, 4, 5, 11]);
    }

    #[test]
    fn times_that_are_likelier_together_than_any_text_come_next() {
        let mut logits = TEXT;
        logits[9..].fill(8.5);
        assert_eq!(left(&filter(), logits, &[8, 2]).0, [9, 10, 11]);
    }

    #[test]
    fn without_timestamps_there_is_text_alone_and_no_blank_at_the_beginning() {
        let filter = LogitFilter { last_initial: None, ..filter() };
        assert_eq!(left(&filter, TEXT, &[]).0, [0, 2, 3, 4]);
        assert_eq!(left(&filter, TEXT, &[2]).0, [0, 1, 2, 3, 4, 5]);
    }
}
