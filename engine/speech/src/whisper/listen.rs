//! One window: which text it holds, and where the next one begins.

use super::{
    TranscribeError, TranscribeObserver, TranscribeOptions, Transcriber, TranscriptSegment, TranscriptionRun,
    decode::{Decoded, Decoder},
    guards::{self, Verdict, WindowTimes},
    language::Language,
    network::Window,
    run::seconds,
    segments::{self, Cut},
    timing::WordTiming,
};
use crate::{HOP_LENGTH, SAMPLE_RATE};

/// A text for which a higher temperature than this was tried is not told to the next window (transcribe.py; faster-whisper
/// where a lower one gave the better text all the same).
const LARGEST_CONTEXT_TEMPERATURE: f32 = 0.5;

impl Transcriber {
    /// Finds the segments of a window and says how many frames are through.
    pub(super) fn listen(
        &mut self,
        run: &mut TranscriptionRun,
        window: Window,
        frames: usize,
        observer: &mut dyn TranscribeObserver,
    ) -> Result<usize, TranscribeError> {
        let language = if let Some((language, _)) = run.language {
            language
        } else {
            let detected = self.detect(window, &run.languages)?;
            run.language = Some(detected);
            detected.0
        };
        let decoded = self.decode(run, window, language, observer)?;
        if is_silent(&decoded, &run.options) || self.is_echo(run, window, language, &decoded, observer)? {
            return Ok(frames);
        }
        let Cut { pieces, mut advance, is_whole } =
            segments::cut(&decoded.tokens, self.tokenizer.special().timestamp_begin, frames);
        let offset = seconds(run.origin + run.seek);
        let mut found: Vec<TranscriptSegment> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            found.push(TranscriptSegment {
                id: 0,
                seek: run.origin + run.seek,
                start: offset + piece.start,
                end: offset + piece.end,
                text: self.tokenizer.decode(&piece.tokens),
                tokens: piece.tokens,
                temperature: decoded.temperature,
                avg_logprob: decoded.avg_logprob,
                compression_ratio: decoded.compression_ratio,
                no_speech_prob: decoded.no_speech_prob,
                words: Vec::new(),
            });
        }
        if run.options.word_timestamps {
            self.add_words(run, window, frames, language, &mut found)?;
            let place = WindowPlace { frames, whole: self.window_frames() };
            advance = after_words(run, &mut found, place, advance, is_whole);
            run.last_speech = speech_end(&found).unwrap_or(run.last_speech);
        }
        found.retain(|segment| segment.start < segment.end && !segment.text.trim().is_empty());
        if !run.options.condition_on_previous_text || decoded.tried > LARGEST_CONTEXT_TEMPERATURE {
            run.context.clear();
        } else {
            run.context.extend(found.iter().flat_map(|segment| &segment.tokens));
            let gone = run.context.len().saturating_sub(self.prompt_budget());
            run.context.drain(..gone);
        }
        for mut segment in found {
            segment.id = run.segments_before + run.segments.len();
            observer.segment(&segment);
            run.segments.push(segment);
        }
        Ok(advance)
    }

    fn add_words(
        &mut self,
        run: &TranscriptionRun,
        window: Window,
        frames: usize,
        language: Language,
        segments: &mut [TranscriptSegment],
    ) -> Result<(), TranscribeError> {
        let mut prompt = Vec::new();
        self.push_start(&mut prompt, language, run.options.task)?;
        let offset = seconds(run.origin + run.seek);
        let mut timing = WordTiming {
            network: &mut *self.network,
            tokenizer: &self.tokenizer,
            ctx: &self.ctx,
            window,
            frames,
            language,
            prompt: &prompt,
            offset,
        };
        timing.add_words(segments, run.last_speech)
    }

    /// Decodes a window. A text that goes round in circles is heard again without the text before it, which may be what
    /// holds it there.
    fn decode(
        &mut self,
        run: &mut TranscriptionRun,
        window: Window,
        language: Language,
        observer: &mut dyn TranscribeObserver,
    ) -> Result<Decoded, TranscribeError> {
        if let Some(decoded) = self.decode_with_fallback(run, window, language, observer)? {
            return Ok(decoded);
        }
        run.context.clear();
        self.decode_with_fallback(run, window, language, observer)?.ok_or(TranscribeError::NoTemperature)
    }

    /// Whether a text is nothing but a part of the prompt, read where nobody speaks. Without the prompt, speech sounds
    /// much the same, and silence does not.
    fn is_echo(
        &mut self,
        run: &TranscriptionRun,
        window: Window,
        language: Language,
        decoded: &Decoded,
        observer: &mut dyn TranscribeObserver,
    ) -> Result<bool, TranscribeError> {
        let told = self.tokenizer.decode(&run.initial_prompt.tokens);
        if !guards::echoes(&decoded.text, &told) {
            return Ok(false);
        }
        let mut prompt = Vec::new();
        self.push_start(&mut prompt, language, run.options.task)?;
        if run.options.without_timestamps {
            prompt.push(self.tokenizer.special().no_timestamps);
        }
        let unprompted = self.attempt(run, window, &prompt, 0.0, 0, observer)?;
        Ok(is_silent(&unprompted, &run.options) || !guards::resemble(&unprompted.text, &decoded.text))
    }

    /// Tries one temperature after the other until the text looks right; if none does, the likeliest that is no loop.
    /// `None` when the text loops after the text before it.
    fn decode_with_fallback(
        &mut self,
        run: &TranscriptionRun,
        window: Window,
        language: Language,
        observer: &mut dyn TranscribeObserver,
    ) -> Result<Option<Decoded>, TranscribeError> {
        let prompt = self.prompt(run, language)?;
        let eot = self.tokenizer.special().eot;
        let mut attempts: Vec<Decoded> = Vec::new();
        for (attempt, &temperature) in run.options.temperatures.iter().enumerate() {
            let decoded = self.attempt(run, window, &prompt, temperature, attempt, observer)?;
            if !run.context.is_empty() && guards::loops(&run.context, &decoded.tokens, eot) {
                return Ok(None);
            }
            if is_good(&decoded, &run.options) {
                return Ok(Some(decoded));
            }
            attempts.push(decoded);
        }
        let repeats = |decoded: &Decoded| {
            run.options.compression_ratio_threshold.is_some_and(|threshold| decoded.compression_ratio > threshold)
        };
        // As faster-whisper chooses.
        let best = attempts.into_iter().reduce(|best, other| {
            let is_better = (repeats(&best), -best.avg_logprob) > (repeats(&other), -other.avg_logprob);
            if is_better { other } else { best }
        });
        let tried = run.options.temperatures.last().copied().unwrap_or_default();
        best.map(|best| Some(Decoded { tried, ..best })).ok_or(TranscribeError::NoTemperature)
    }

    fn attempt(
        &mut self,
        run: &TranscriptionRun,
        window: Window,
        prompt: &[u32],
        temperature: f32,
        attempt: usize,
        observer: &mut dyn TranscribeObserver,
    ) -> Result<Decoded, TranscribeError> {
        let mut decoder = Decoder {
            network: &mut *self.network,
            tokenizer: &self.tokenizer,
            filter: &run.filter,
            options: &run.options,
            ctx: &self.ctx,
            is_cancelled: &|| observer.is_cancelled(),
            open: Vec::new(),
        };
        // The same audio gives the same text again.
        let seed = ((run.origin + run.seek) as u64) << 8 | attempt as u64;
        decoder.decode(window, prompt, temperature, seed)
    }
}

/// How many mel frames a window has.
#[derive(Debug, Clone, Copy)]
struct WindowPlace {
    /// That hold audio.
    frames: usize,
    /// In all.
    whole: usize,
}

/// Where the next window begins when words were timed, and which segments stay. What follows the last word is heard again
/// unless nothing is spoken there.
fn after_words(
    run: &TranscriptionRun,
    found: &mut Vec<TranscriptSegment>,
    WindowPlace { frames, whole }: WindowPlace,
    advance: usize,
    is_whole: bool,
) -> usize {
    let first = run.origin + run.seek;
    let (start, end, whole_end) = (seconds(first), seconds(first + frames), seconds(first + whole));
    let frame = |time: f64| ((time * FRAMES_PER_SECOND).round() as usize).saturating_sub(first).min(frames);
    let spoken_until = speech_end(found).filter(|&last| !is_whole && last > start);
    let mut advance = spoken_until.map_or(advance, frame);
    let Some(threshold) = run.options.hallucination_silence_threshold.map(f64::from) else { return advance };
    if spoken_until.is_some_and(|last| whole_end - last <= threshold) {
        advance = frames;
    }
    let all_frames = run.samples / HOP_LENGTH;
    let audio_end = run.mel.is_finished().then(|| seconds(run.origin + all_frames));
    match guards::judge(found, WindowTimes { start, end, whole_end, audio_end }, run.last_speech, threshold) {
        Verdict::Keep => advance,
        Verdict::GoOnAt { segments, time } => {
            found.truncate(segments);
            frame(time)
        }
        Verdict::End { segments } => {
            found.truncate(segments);
            all_frames.saturating_sub(run.seek)
        }
    }
}

/// When the last word ends; without words, the last segment. (`get_end` of transcribe.py.)
fn speech_end(segments: &[TranscriptSegment]) -> Option<f64> {
    let word = segments.iter().rev().find_map(|segment| segment.words.last()).map(|word| word.end);
    word.or_else(|| segments.last().map(|segment| segment.end))
}

/// Mel frames of a second.
const FRAMES_PER_SECOND: f64 = (SAMPLE_RATE / HOP_LENGTH) as f64;

/// Whether no other temperature need be tried.
fn is_good(decoded: &Decoded, options: &TranscribeOptions) -> bool {
    let repeats = options.compression_ratio_threshold.is_some_and(|threshold| decoded.compression_ratio > threshold);
    let is_doubtful = options.logprob_threshold.is_some_and(|threshold| decoded.avg_logprob < threshold);
    !repeats && !is_doubtful || is_silent(decoded, options)
}

/// Whether nobody speaks: silence is probable, and what was understood all the same is doubtful.
fn is_silent(decoded: &Decoded, options: &TranscribeOptions) -> bool {
    options.no_speech_threshold.is_some_and(|threshold| decoded.no_speech_prob > threshold)
        && options.logprob_threshold.is_none_or(|threshold| decoded.avg_logprob <= threshold)
}
