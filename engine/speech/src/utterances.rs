//! Utterances cut out of a stream of samples: the detector, the segmenter, and the audio that may still be needed.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    segment::{Segment, SegmentEvent, Segmenter, SegmenterOptions},
    vad::{SileroVad, VAD_CHUNK, VadError, VadSession},
};

/// Somebody's words, as sound.
#[derive(Debug, Clone, PartialEq)]
pub struct Utterance {
    /// Where it lies in the stream.
    pub segment: Segment,
    /// Its samples: mono, 16 kHz.
    pub samples: Vec<f32>,
}

/// Cuts a stream, live or from a file, into utterances. Silence is forgotten as it passes, so that hours take the memory
/// of the longest utterance.
#[derive(Debug)]
pub struct UtteranceStream {
    vad: VadSession,
    segmenter: Segmenter,
    probabilities: Vec<f32>,
    /// Samples from `first` on.
    kept: VecDeque<f32>,
    first: u64,
}

impl UtteranceStream {
    /// A stream at its beginning.
    #[must_use]
    pub fn new(vad: Arc<SileroVad>, options: SegmenterOptions) -> Self {
        Self {
            vad: VadSession::new(vad),
            segmenter: Segmenter::new(options),
            probabilities: Vec::new(),
            kept: VecDeque::new(),
            first: 0,
        }
    }

    /// Takes in any number of samples (mono, 16 kHz) and appends the utterances that they complete.
    ///
    /// # Errors
    /// [`VadError`] when memory is short.
    pub fn push(&mut self, samples: &[f32], utterances: &mut Vec<Utterance>) -> Result<(), VadError> {
        // In pieces, so that a whole file at once is not kept a second time.
        for piece in samples.chunks(32 * VAD_CHUNK) {
            self.kept.extend(piece);
            self.vad.push(piece, &mut self.probabilities)?;
            self.decide(utterances);
        }
        Ok(())
    }

    /// Ends the stream and appends what was being spoken. The stream is new afterwards.
    ///
    /// # Errors
    /// As [`UtteranceStream::push`].
    pub fn finish(&mut self, utterances: &mut Vec<Utterance>) -> Result<(), VadError> {
        self.vad.finish(&mut self.probabilities)?;
        self.decide(utterances);
        if let Some(SegmentEvent::Ended(segment)) = self.segmenter.finish() {
            utterances.extend(self.cut(segment));
        }
        self.kept.clear();
        self.first = 0;
        Ok(())
    }

    /// The samples of what is being spoken, pre-roll included: what a partial transcript is made of. Nothing while nobody
    /// speaks.
    #[must_use]
    pub fn speaking(&self) -> Option<Utterance> {
        if !self.segmenter.is_speaking() {
            return None;
        }
        let end = self.first + self.kept.len() as u64;
        self.cut(Segment { start: self.segmenter.needed_from(), end, split: false })
    }

    /// As [`UtteranceStream::speaking`], but as the utterance will be if nothing more is said, and whether it is certain to be
    /// that then: the speaker has paused for long enough.
    #[must_use]
    pub fn speaking_trimmed(&self) -> Option<(Utterance, bool)> {
        let (end, is_settled) = self.segmenter.speaking_until()?;
        Some((self.cut(Segment { start: self.segmenter.needed_from(), end, split: false })?, is_settled))
    }

    /// The first sample that an utterance to come may have.
    #[must_use]
    pub fn next_start(&self) -> u64 {
        self.segmenter.needed_from()
    }

    fn decide(&mut self, utterances: &mut Vec<Utterance>) {
        for probability in std::mem::take(&mut self.probabilities) {
            if let Some(SegmentEvent::Ended(segment)) = self.segmenter.push(probability) {
                utterances.extend(self.cut(segment));
            }
        }
        let gone = usize::try_from(self.segmenter.needed_from().saturating_sub(self.first)).unwrap_or(usize::MAX);
        let gone = gone.min(self.kept.len());
        self.kept.drain(..gone);
        self.first += gone as u64;
    }

    /// The audio of a segment. The last chunk of a stream is judged with silence behind it, which is not part of it.
    fn cut(&self, mut segment: Segment) -> Option<Utterance> {
        let known = self.first + self.kept.len() as u64;
        segment.end = segment.end.min(known);
        let from = usize::try_from(segment.start.checked_sub(self.first)?).ok()?;
        let to = usize::try_from(segment.end.checked_sub(self.first)?).ok()?;
        (from < to).then(|| Utterance { segment, samples: self.kept.range(from..to).copied().collect() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Utterance, UtteranceStream};
    use crate::{
        SegmenterOptions, SileroVad,
        test_support::{clip, noise},
    };

    fn stream() -> UtteranceStream {
        UtteranceStream::new(Arc::new(SileroVad::bundled().unwrap()), SegmenterOptions::default())
    }

    fn cut(stream: &mut UtteranceStream, samples: &[f32], piece: usize) -> Vec<Utterance> {
        let mut found = Vec::new();
        samples.chunks(piece).for_each(|piece| stream.push(piece, &mut found).unwrap());
        stream.finish(&mut found).unwrap();
        found
    }

    /// Three sentences with two seconds of faint noise between them.
    fn reading() -> Vec<f32> {
        let mut samples = Vec::new();
        for name in ["librivox-0880", "librivox-0930", "librivox-0890"] {
            samples.extend(clip(name));
            samples.extend(noise(4, 32_000, 0.001));
        }
        samples
    }

    #[test]
    fn utterances_hold_the_samples_that_their_place_says_whatever_the_pieces() {
        let samples = reading();
        let mut stream = stream();
        let whole = cut(&mut stream, &samples, samples.len());
        assert_eq!(whole.len(), 3);
        for utterance in &whole {
            let place = utterance.segment.start as usize..utterance.segment.end as usize;
            assert_eq!(utterance.samples, samples[place]);
        }
        for piece in [100, 1600, 30_000] {
            assert_eq!(cut(&mut stream, &samples, piece), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn silence_is_forgotten_and_speech_is_at_hand_while_it_is_spoken() {
        let mut stream = stream();
        let mut found = Vec::new();
        for _ in 0..60 {
            stream.push(&noise(9, 16_000, 0.001), &mut found).unwrap();
            assert!(stream.kept.len() < 2 * 16_000 && stream.speaking().is_none());
        }
        let speech = clip("librivox-0870");
        stream.push(&speech[..48_000], &mut found).unwrap();
        let speaking = stream.speaking().unwrap();
        assert!(found.is_empty() && speaking.samples.len() > 40_000);
        assert!(speaking.samples.ends_with(&speech[40_000..48_000]));
        stream.finish(&mut found).unwrap();
        assert_eq!((found.len(), stream.kept.len()), (1, 0));
    }
}
