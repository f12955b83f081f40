//! Audio of any length to text, window by window.
//!
//! After `transcribe()` of openai/whisper's transcribe.py.

use std::{path::Path, sync::Arc};

use linnet_kernels::Context;

use super::{
    TranscribeError, TranscribeOptions,
    filter::LogitFilter,
    language::Language,
    network::{StepRow, WhisperNetwork, Window},
    options::Task,
    prompt::InitialPrompt,
    run::{ResumePoint, TranscriptionRun, seconds},
    tokenizer::WhisperTokenizer,
    transcript::{Transcript, TranscriptSegment},
};
use crate::{HOP_LENGTH, MelFrontEnd, MelStream, N_FFT};

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
    pub(super) network: Box<dyn WhisperNetwork>,
    pub(super) tokenizer: WhisperTokenizer,
    front_end: Arc<MelFrontEnd>,
    pub(super) ctx: Context,
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

    pub(super) fn window_frames(&self) -> usize {
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

    /// Tokens that fit before a window (decoding.py: half of the context, less the token that begins them).
    pub(super) fn prompt_budget(&self) -> usize {
        (self.network.dimensions().n_text_ctx / 2).saturating_sub(1)
    }

    /// What a window is told before it is heard.
    pub(super) fn prompt(&self, run: &TranscriptionRun, language: Language) -> Result<Vec<u32>, TranscribeError> {
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
    pub(super) fn push_start(
        &self,
        prompt: &mut Vec<u32>,
        language: Language,
        task: Task,
    ) -> Result<(), TranscribeError> {
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
    pub(super) fn detect(&mut self, window: Window, among: &[Language]) -> Result<(Language, f32), TranscribeError> {
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

#[cfg(test)]
mod tests;
