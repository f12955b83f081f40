//! The loop of the thread that owns the model.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use super::{
    SpeechError, SpeechPriority,
    queue::{Job, Order, Queue},
};
use crate::{Recognizer, TranscribeError, Transcript};

type Load = dyn Fn() -> Result<Box<dyn Recognizer>, SpeechError>;

/// Works until the last handle is gone.
pub(super) fn run(queue: &Queue, load: &Load) {
    let mut model: Option<Box<dyn Recognizer>> = None;
    loop {
        match queue.next_order() {
            Order::End => break,
            Order::Load => {
                // A failure is in the status, and told to whoever asks for a text.
                let _ = ensure(queue, load, &mut model);
            }
            Order::Unload => {
                model = None;
                queue.note_unload();
            }
            Order::Recognize(job) => {
                let started = Instant::now();
                let result = ensure(queue, load, &mut model).and_then(|model| recognize(queue, model, &job));
                if matches!(&result, Err(SpeechError::Failed(_))) {
                    // Whatever state it is in, the next one is sound.
                    model = None;
                    queue.note_unload();
                }
                queue.note_end(job.samples.len(), started.elapsed(), &result);
                let _ = job.sender.send(result);
            }
        }
    }
    queue.refuse_all();
}

/// The model, loaded if need be.
fn ensure<'a>(
    queue: &Queue,
    load: &Load,
    model: &'a mut Option<Box<dyn Recognizer>>,
) -> Result<&'a mut Box<dyn Recognizer>, SpeechError> {
    if model.is_none() {
        let started = Instant::now();
        let loaded =
            catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| Err(SpeechError::Load(words_of(&*panic))));
        queue.note_load(started.elapsed(), loaded.as_ref().err());
        *model = Some(loaded?);
    }
    model.as_mut().ok_or(SpeechError::Gone)
}

fn recognize(queue: &Queue, model: &mut Box<dyn Recognizer>, job: &Job) -> Result<Transcript, SpeechError> {
    let _turn = (job.priority == SpeechPriority::Live).then(|| queue.turns().urgent());
    // A cancelled job ends at the next step; nothing else can stop the model in the middle.
    let work = || model.recognize(&job.samples, &job.options, &|| job.is_cancelled());
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(transcript)) => Ok(transcript),
        Ok(Err(error)) => Err(match error {
            TranscribeError::Cancelled => SpeechError::Cancelled,
            TranscribeError::UnknownLanguage { .. }
            | TranscribeError::LanguageNotInModel { .. }
            | TranscribeError::CannotTranslate
            | TranscribeError::NoTemperature => SpeechError::Request(error.to_string()),
            other => SpeechError::Failed(other.to_string()),
        }),
        Err(panic) => Err(SpeechError::Failed(words_of(&*panic))),
    }
}

/// What a panic said.
fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a fault of its own".to_owned())
}
