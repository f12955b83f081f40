//! Where an utterance begins and ends: a decision over the probabilities of [`crate::VadSession`].
//!
//! Pure: it sees numbers and returns events, knows no audio and no clock. Positions are samples at 16 kHz. Segments never
//! overlap and come in order; every sample belongs to at most one.

use crate::vad::VAD_CHUNK;

/// Samples per millisecond.
const PER_MS: u64 = 16;

/// From this probability on somebody begins to speak. Silero's own default (`threshold` of `get_speech_timestamps`).
const ONSET: f32 = 0.5;
/// Below this probability somebody who speaks pauses. Silero's default: `threshold - 0.15`.
const RELEASE: f32 = 0.35;
/// Speech shorter than this is a click, a breath or a knock. Silero's default of 250 ms loses short answers ("no" takes
/// about 150 ms); 120 ms is what dictation programs use.
const MIN_SPEECH_MS: u64 = 120;
/// A gap within the first [`MIN_SPEECH_MS`] that does not start the count anew. Silero's `min_silence_at_max_speech`.
const GAP_MS: u64 = 98;
/// Silence that ends an utterance. Handy keeps 15 frames of 30 ms after speech.
const HANGOVER_MS: u64 = 450;
/// Audio after the last sound that belongs to the utterance: words end softly. Less than [`HANGOVER_MS`], so that an
/// utterance is the same whether the stream ends soon after it or goes on.
const TAIL_MS: u64 = 200;
/// Audio before the onset that belongs to the utterance: the detector is sure only after the first sound, and words
/// begin softly. Handy keeps 15 frames of 30 ms too.
const PRE_ROLL_MS: u64 = 450;
/// The longest utterance. Whisper hears 30 s at once; what remains is for the padding that it was trained with.
const MAX_SEGMENT_MS: u64 = 28_000;
/// How far back from the longest end a pause to split at is looked for.
const SPLIT_SEARCH_MS: u64 = 10_000;

/// When an utterance begins and ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmenterOptions {
    /// Probability from which speech begins.
    pub onset: f32,
    /// Probability below which it pauses; at most `onset`.
    pub release: f32,
    /// Speech that is needed before it counts, in ms.
    pub min_speech_ms: u64,
    /// Silence that ends an utterance, in ms.
    pub hangover_ms: u64,
    /// Audio after the last sound that is kept, in ms; more than `hangover_ms` counts as `hangover_ms`.
    pub tail_ms: u64,
    /// Audio before the onset that is kept, in ms.
    pub pre_roll_ms: u64,
    /// Length at which an utterance is split at its quietest place, in ms.
    pub max_segment_ms: u64,
}

impl SegmenterOptions {
    /// What suits dictation and recordings.
    pub const DEFAULT: Self = Self {
        onset: ONSET,
        release: RELEASE,
        min_speech_ms: MIN_SPEECH_MS,
        hangover_ms: HANGOVER_MS,
        tail_ms: TAIL_MS,
        pre_roll_ms: PRE_ROLL_MS,
        max_segment_ms: MAX_SEGMENT_MS,
    };
}

impl Default for SegmenterOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A stretch of audio in which somebody speaks, in samples from the beginning of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The first sample, pre-roll included.
    pub start: u64,
    /// The first sample after it, the tail included.
    pub end: u64,
    /// Whether it was split because it became too long: its last word may go on in the next segment.
    pub split: bool,
}

/// What a chunk has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentEvent {
    /// Somebody speaks, since this sample (pre-roll included).
    Started {
        /// The first sample of the segment to come.
        start: u64,
    },
    /// A segment is complete.
    Ended(Segment),
}

/// Cuts a stream of probabilities into segments.
#[derive(Debug, Clone)]
pub struct Segmenter {
    options: SegmenterOptions,
    state: State,
    /// Chunks seen.
    chunks: u64,
    /// Samples up to here belong to segments that are done.
    done: u64,
}

#[derive(Debug, Clone)]
enum State {
    Silent,
    /// Something began; whether it is speech is not known yet.
    Candidate {
        first: u64,
        spoken: u64,
        last: u64,
    },
    Speaking {
        start: u64,
        /// The last chunk with speech.
        last: u64,
        /// Probabilities from `start`'s chunk on, to find a pause in.
        heard: Vec<f32>,
    },
}

impl Segmenter {
    /// A segmenter at the beginning of a stream.
    #[must_use]
    pub fn new(options: SegmenterOptions) -> Self {
        Self { options, state: State::Silent, chunks: 0, done: 0 }
    }

    /// Takes in the probability of the next [`VAD_CHUNK`] samples.
    pub fn push(&mut self, probability: f32) -> Option<SegmentEvent> {
        let chunk = self.chunks;
        self.chunks += 1;
        let speaks = probability >= self.options.release;
        match &mut self.state {
            State::Silent => {
                if probability >= self.options.onset {
                    self.state = State::Candidate { first: chunk, spoken: 1, last: chunk };
                    return self.confirm(probability);
                }
                None
            }
            State::Candidate { spoken, last, .. } => {
                if speaks {
                    (*spoken, *last) = (*spoken + 1, chunk);
                    return self.confirm(probability);
                }
                if chunks(GAP_MS) < chunk - *last {
                    self.state = State::Silent;
                }
                None
            }
            State::Speaking { start, last, heard } => {
                heard.push(probability);
                if speaks {
                    *last = chunk;
                }
                let (start, last) = (*start, *last);
                if chunk - last >= chunks(self.options.hangover_ms) {
                    self.state = State::Silent;
                    return Some(self.end(start, self.with_tail(last), false));
                }
                (samples(chunk + 1) - start >= self.options.max_segment_ms * PER_MS).then(|| self.split())
            }
        }
    }

    /// Ends the stream. What is being spoken is complete then.
    pub fn finish(&mut self) -> Option<SegmentEvent> {
        let state = std::mem::replace(&mut self.state, State::Silent);
        let event = match state {
            State::Speaking { start, last, .. } => Some(self.end(start, self.with_tail(last), false)),
            State::Silent | State::Candidate { .. } => None,
        };
        (self.chunks, self.done) = (0, 0);
        event
    }

    /// The first sample that a segment to come may still need. Earlier audio can be forgotten.
    #[must_use]
    pub fn needed_from(&self) -> u64 {
        match self.state {
            State::Silent => self.pre_rolled(self.chunks),
            State::Candidate { first, .. } => self.pre_rolled(first),
            State::Speaking { start, .. } => start,
        }
    }

    /// Whether somebody speaks now.
    #[must_use]
    pub fn is_speaking(&self) -> bool {
        matches!(self.state, State::Speaking { .. })
    }

    /// Where what is being spoken would end if nothing more were said, and whether the speaker has paused for that long
    /// already: then more silence changes nothing.
    #[must_use]
    pub fn speaking_until(&self) -> Option<(u64, bool)> {
        let State::Speaking { last, .. } = self.state else { return None };
        let is_settled = self.chunks - (last + 1) >= self.tail_chunks();
        Some((self.with_tail(last), is_settled))
    }

    fn tail_chunks(&self) -> u64 {
        chunks(self.options.tail_ms.min(self.options.hangover_ms))
    }

    /// The end of a segment whose last sound is in chunk `last`.
    fn with_tail(&self, last: u64) -> u64 {
        samples((last + 1 + self.tail_chunks()).min(self.chunks))
    }

    /// Makes a candidate with enough speech a segment.
    fn confirm(&mut self, probability: f32) -> Option<SegmentEvent> {
        let State::Candidate { first, spoken, last } = self.state else { return None };
        if spoken < chunks(self.options.min_speech_ms).max(1) {
            return None;
        }
        let start = self.pre_rolled(first);
        // What lies before the onset is no place to split at.
        let before = (last + 1 - start / VAD_CHUNK as u64) as usize;
        let mut heard = vec![1.0; before];
        heard[before - 1] = probability;
        self.state = State::Speaking { start, last, heard };
        Some(SegmentEvent::Started { start })
    }

    /// Ends the segment at its quietest place, and begins the next one there if somebody speaks after it.
    fn split(&mut self) -> SegmentEvent {
        let State::Speaking { start, last, heard } = &mut self.state else {
            return self.end(self.done, self.done, true);
        };
        let search = (chunks(SPLIT_SEARCH_MS) as usize).min(heard.len() / 2).max(1);
        let from = heard.len() - search;
        // The middle of three chunks that are quiet together: a pause between words, not a stop within one. The latest
        // of equals, so that the segment is as long as it can be.
        let quiet = |index: usize| heard[index.saturating_sub(1)..(index + 2).min(heard.len())].iter().sum::<f32>();
        let place = (from..heard.len())
            .min_by(|&a, &b| quiet(a).total_cmp(&quiet(b)).then(b.cmp(&a)))
            .unwrap_or(heard.len() - 1);
        let first_chunk = *start / VAD_CHUNK as u64;
        let cut = first_chunk + place as u64 + 1;
        let (began, rest) = (*start, heard.split_off(place + 1));
        let goes_on = rest.is_empty() || rest.iter().any(|&probability| probability >= self.options.release);
        if goes_on {
            *start = samples(cut);
            *last = (*last).max(cut);
            *heard = rest;
        } else {
            self.state = State::Silent;
        }
        self.end(began, samples(cut), goes_on)
    }

    fn end(&mut self, start: u64, end: u64, split: bool) -> SegmentEvent {
        self.done = end;
        SegmentEvent::Ended(Segment { start, end, split })
    }

    /// The start of a segment whose speech begins in chunk `first`.
    fn pre_rolled(&self, first: u64) -> u64 {
        samples(first).saturating_sub(self.options.pre_roll_ms * PER_MS).max(self.done)
    }
}

impl Default for Segmenter {
    fn default() -> Self {
        Self::new(SegmenterOptions::default())
    }
}

/// Chunks that cover a time.
fn chunks(ms: u64) -> u64 {
    (ms * PER_MS).div_ceil(VAD_CHUNK as u64)
}

/// The first sample of a chunk.
fn samples(chunk: u64) -> u64 {
    chunk * VAD_CHUNK as u64
}

#[cfg(test)]
mod tests;
