//! Audio of any length to text, window by window.
//!
//! After `transcribe()` of openai/whisper's transcribe.py.

use std::{path::Path, sync::Arc};

use linnet_kernels::Context;

use super::{
    TranscribeError, TranscribeOptions,
    decode::{Decoded, Decoder},
    filter::LogitFilter,
    guards::{self, Verdict, WindowTimes},
    language::Language,
    network::{StepRow, WhisperNetwork, Window},
    options::Task,
    prompt::InitialPrompt,
    run::{ResumePoint, TranscriptionRun, seconds},
    segments::{self, Cut},
    timing::WordTiming,
    tokenizer::WhisperTokenizer,
    transcript::{Transcript, TranscriptSegment},
};
use crate::{HOP_LENGTH, MelFrontEnd, MelStream, N_FFT, SAMPLE_RATE};

/// A text found at a higher temperature than this is not told to the next window (transcribe.py).
const LARGEST_CONTEXT_TEMPERATURE: f32 = 0.5;

/// Who watches a transcription.
pub trait TranscribeObserver {
    /// A segment was found.
    fn segment(&mut self, _segment: &TranscriptSegment) {}

    /// So many seconds of the audio are transcribed.
    fn progress(&mut self, _seconds: f64) {}

    /// Whether to give up; asked before every step of the network.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody watches.
impl TranscribeObserver for () {}

/// A loaded Whisper model: audio to text. It belongs to the thread that made it.
pub struct Transcriber {
    network: Box<dyn WhisperNetwork>,
    tokenizer: WhisperTokenizer,
    front_end: Arc<MelFrontEnd>,
    ctx: Context,
}

impl Transcriber {
    /// Takes a network and the tokenizer that lies in its folder.
    ///
    /// # Errors
    /// When the tokenizer or the number of mel bins does not suit.
    pub fn new(network: Box<dyn WhisperNetwork>, folder: &Path) -> Result<Self, TranscribeError> {
        let tokenizer = WhisperTokenizer::load(folder, network.dimensions().n_vocab)?;
        Self::with_tokenizer(network, tokenizer)
    }

    /// Takes a network and its tokenizer.
    ///
    /// # Errors
    /// When the number of mel bins is none of Whisper's.
    pub fn with_tokenizer(
        network: Box<dyn WhisperNetwork>,
        tokenizer: WhisperTokenizer,
    ) -> Result<Self, TranscribeError> {
        let front_end = Arc::new(MelFrontEnd::new(network.dimensions().n_mels)?);
        Ok(Self { network, tokenizer, front_end, ctx: Context::new(1) })
    }

    /// The model's tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &WhisperTokenizer {
        &self.tokenizer
    }

    /// Transcribes mono samples at 16 kHz, all of which are there.
    ///
    /// # Errors
    /// [`TranscribeError`].
    pub fn transcribe(
        &mut self,
        samples: &[f32],
        options: TranscribeOptions,
        observer: &mut dyn TranscribeObserver,
    ) -> Result<Transcript, TranscribeError> {
        let mut run = self.begin(options)?;
        // The loudest moment of all decides how the quiet ones look: it is known before the first window is heard.
        run.push_only(samples);
        self.finish(&mut run, observer)?;
        Ok(run.into_transcript())
    }

    /// Begins a transcription of audio that comes in pieces.
    ///
    /// # Errors
    /// When the options do not suit the model.
    pub fn begin(&self, options: TranscribeOptions) -> Result<TranscriptionRun, TranscribeError> {
        self.resume(options, ResumePoint::default())
    }

    /// Takes a transcription up again; the samples pushed are those from the point's frame on.
    ///
    /// # Errors
    /// As [`Transcriber::begin`].
    pub fn resume(&self, options: TranscribeOptions, at: ResumePoint) -> Result<TranscriptionRun, TranscribeError> {
        let languages = self.languages(&options)?;
        let initial_prompt = InitialPrompt::new(&self.tokenizer, &options, self.prompt_budget())?;
        Ok(TranscriptionRun {
            filter: LogitFilter::new(&self.tokenizer, &options),
            mel: MelStream::new(Arc::clone(&self.front_end)),
            samples: 0,
            origin: at.frame,
            seek: 0,
            language: at.language.or(match languages[..] {
                [only] => Some((only, 1.0)),
                _ => None,
            }),
            languages,
            initial_prompt,
            context: at.context,
            last_speech: seconds(at.frame),
            segments_before: at.segments,
            segments: Vec::new(),
            options,
        })
    }

    /// Takes in samples and transcribes every window of 30 s that they fill.
    ///
    /// # Errors
    /// [`TranscribeError`]. The run can go on: the window that failed is tried again with the next call.
    pub fn push(
        &mut self,
        run: &mut TranscriptionRun,
        samples: &[f32],
        observer: &mut dyn TranscribeObserver,
    ) -> Result<(), TranscribeError> {
        // In pieces of half a window, so that a whole file at once takes no more room than its spectrogram's window.
        for piece in samples.chunks(self.window_frames() / 2 * HOP_LENGTH) {
            run.push_only(piece);
            while run.mel.frames() - run.seek >= self.window_frames() {
                self.window(run, self.window_frames(), observer)?;
            }
        }
        Ok(())
    }

    /// Ends the audio and transcribes what is left of it.
    ///
    /// # Errors
    /// As [`Transcriber::push`].
    pub fn finish(
        &mut self,
        run: &mut TranscriptionRun,
        observer: &mut dyn TranscribeObserver,
    ) -> Result<(), TranscribeError> {
        let frames = run.samples / HOP_LENGTH;
        if !run.mel.is_finished() {
            run.mel.finish(N_FFT)?;
        }
        while run.seek < frames {
            self.window(run, (frames - run.seek).min(self.window_frames()), observer)?;
        }
        Ok(())
    }

    fn window_frames(&self) -> usize {
        2 * self.network.dimensions().n_audio_ctx
    }

    /// Transcribes one window of `frames` frames.
    fn window(
        &mut self,
        run: &mut TranscriptionRun,
        frames: usize,
        observer: &mut dyn TranscribeObserver,
    ) -> Result<(), TranscribeError> {
        if observer.is_cancelled() {
            return Err(TranscribeError::Cancelled);
        }
        let mut mel = run.mel.normalized(run.seek..run.seek + frames);
        mel.resize(self.window_frames() * self.front_end.n_mels(), 0.0);
        let window = self.network.encode(&mel)?;
        let found = self.listen(run, window, frames, observer);
        self.network.release(window);
        let advance = found?;
        // A window whose text ends where it begins must not be heard for ever.
        run.seek += if advance == 0 { frames } else { advance };
        run.mel.discard_before(run.seek);
        observer.progress(run.transcribed());
        Ok(())
    }

    /// Finds the segments of a window and says how many frames are through.
    fn listen(
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
            advance = after_words(run, &mut found, frames, advance, is_whole);
            run.last_speech = last_word_end(&found).unwrap_or(run.last_speech);
        }
        found.retain(|segment| segment.start < segment.end && !segment.text.trim().is_empty());
        if !run.options.condition_on_previous_text || decoded.temperature > LARGEST_CONTEXT_TEMPERATURE {
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

    /// Tokens that fit before a window (decoding.py: half of the context, less the token that begins them).
    fn prompt_budget(&self) -> usize {
        (self.network.dimensions().n_text_ctx / 2).saturating_sub(1)
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
        best.map(Some).ok_or(TranscribeError::NoTemperature)
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

    /// What a window is told before it is heard.
    fn prompt(&self, run: &TranscriptionRun, language: Language) -> Result<Vec<u32>, TranscribeError> {
        let special = self.tokenizer.special();
        let initial = &run.initial_prompt.tokens;
        let budget = self.prompt_budget().saturating_sub(initial.len());
        let context = &run.context[run.context.len().saturating_sub(budget)..];
        let mut prompt = Vec::with_capacity(self.prompt_budget() + 5);
        if !(initial.is_empty() && context.is_empty()) {
            prompt.push(special.sot_prev);
            prompt.extend(initial.iter().chain(context));
        }
        self.push_start(&mut prompt, language, run.options.task)?;
        if run.options.without_timestamps {
            prompt.push(special.no_timestamps);
        }
        Ok(prompt)
    }

    /// The start of transcript, the language and the task.
    fn push_start(&self, prompt: &mut Vec<u32>, language: Language, task: Task) -> Result<(), TranscribeError> {
        let special = self.tokenizer.special();
        prompt.push(special.sot);
        if special.is_multilingual() {
            prompt.push(self.language_token(language)?);
            prompt.push(match task {
                Task::Transcribe => special.transcribe,
                Task::Translate => special.translate,
            });
        }
        Ok(())
    }

    fn language_token(&self, language: Language) -> Result<u32, TranscribeError> {
        self.tokenizer.special().language(language).ok_or(TranscribeError::LanguageNotInModel {
            language: language.name,
            remedy: "whisper-large-v3 or whisper-large-v3-turbo",
        })
    }

    /// The languages that the options name, as far as the model knows them.
    fn languages(&self, options: &TranscribeOptions) -> Result<Vec<Language>, TranscribeError> {
        let mut languages = Vec::with_capacity(options.languages.len());
        for name in &options.languages {
            let unknown = || TranscribeError::UnknownLanguage { name: name.clone() };
            languages.push(Language::find(name).ok_or_else(unknown)?);
        }
        let english = super::language::LANGUAGES[0];
        if !self.tokenizer.special().is_multilingual() {
            if options.task == Task::Translate {
                return Err(TranscribeError::CannotTranslate);
            }
            return match languages.iter().find(|&&language| language != english) {
                Some(other) if !languages.contains(&english) => Err(TranscribeError::LanguageNotInModel {
                    language: other.name,
                    remedy: "a multilingual model, such as whisper-base",
                }),
                _ => Ok(vec![english]),
            };
        }
        for &language in &languages {
            self.language_token(language)?;
        }
        Ok(languages)
    }

    /// The likeliest of some languages, or of all, and how probable it is among them (`detect_language` of decoding.py).
    fn detect(&mut self, window: Window, among: &[Language]) -> Result<(Language, f32), TranscribeError> {
        let special = *self.tokenizer.special();
        let sequence = self.network.open(window)?;
        let mut line = Vec::new();
        let row = StepRow { sequence, tokens: &[special.sot], outputs: 0..1 };
        let stepped = self.network.step(&[row], &mut line);
        self.network.close(sequence);
        stepped?;
        let all = &super::language::LANGUAGES[..special.languages];
        let candidates: Vec<(Language, f32)> = if among.is_empty() { all } else { among }
            .iter()
            .filter_map(|&language| Some((language, line[special.language(language)? as usize])))
            .collect();
        let logits: Vec<f32> = candidates.iter().map(|&(_, logit)| logit).collect();
        let sum = linnet_kernels::log_sum_exp(&self.ctx, &logits);
        if !sum.is_finite() {
            return Err(TranscribeError::NotFinite);
        }
        let (language, logit) = candidates[linnet_kernels::argmax(&logits)];
        Ok((language, (logit - sum).exp()))
    }
}

impl TranscriptionRun {
    fn push_only(&mut self, samples: &[f32]) {
        self.samples += samples.len();
        self.mel.push(samples);
    }
}

/// Where the next window begins when words were timed, and which segments stay. What follows the last word is heard again
/// unless nothing is spoken there.
fn after_words(
    run: &TranscriptionRun,
    found: &mut Vec<TranscriptSegment>,
    frames: usize,
    advance: usize,
    is_whole: bool,
) -> usize {
    let first = run.origin + run.seek;
    let (start, end) = (seconds(first), seconds(first + frames));
    let frame = |time: f64| ((time * FRAMES_PER_SECOND).round() as usize).saturating_sub(first).min(frames);
    let spoken_until = last_word_end(found).filter(|&last| !is_whole && last > start);
    let mut advance = spoken_until.map_or(advance, frame);
    let Some(threshold) = run.options.hallucination_silence_threshold.map(f64::from) else { return advance };
    if spoken_until.is_some_and(|last| end - last <= threshold) {
        advance = frames;
    }
    let audio_end = run.mel.is_finished().then(|| seconds(run.origin + run.samples / HOP_LENGTH));
    match guards::judge(found, WindowTimes { start, end, audio_end }, run.last_speech, threshold) {
        Verdict::Keep => advance,
        Verdict::GoOnAt { segments, time } => {
            found.truncate(segments);
            frame(time)
        }
        Verdict::End { segments } => {
            found.truncate(segments);
            frames
        }
    }
}

fn last_word_end(segments: &[TranscriptSegment]) -> Option<f64> {
    segments.iter().rev().find_map(|segment| segment.words.last()).map(|word| word.end)
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
