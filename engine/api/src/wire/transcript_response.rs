//! Transcripts on the wire, in OpenAI's shapes.

use axum::Json;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use linnet_speech::{Language, Task, Transcript, TranscriptSegment, TranscriptWord, to_srt, to_vtt};
use serde_json::{Value, json};

use crate::wire::audio_request::{SpeechFields, TranscriptFormat};

/// The answer with a whole transcript.
pub(crate) fn respond(fields: &SpeechFields, model: &str, text: &str, transcript: &Transcript) -> Response {
    let plain = |kind: &'static str, text: String| {
        ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response()
    };
    match fields.format {
        TranscriptFormat::Text => plain("text/plain; charset=utf-8", format!("{text}\n")),
        TranscriptFormat::Srt => plain("application/x-subrip; charset=utf-8", to_srt(&transcript.segments)),
        TranscriptFormat::Vtt => plain("text/vtt; charset=utf-8", to_vtt(&transcript.segments)),
        TranscriptFormat::Json | TranscriptFormat::VerboseJson => {
            Json(transcript_json(fields, model, text, transcript)).into_response()
        }
    }
}

/// The object of `json` and `verbose_json`.
pub(crate) fn transcript_json(fields: &SpeechFields, model: &str, text: &str, transcript: &Transcript) -> Value {
    let mut answer = json!({ "text": text });
    if fields.format == TranscriptFormat::VerboseJson {
        answer = json!({
            "task": match fields.options.task {
                Task::Transcribe => "transcribe",
                Task::Translate => "translate",
            },
            // OpenAI writes its name, not its code.
            "language": Language::find(&transcript.language).map_or("", |language| language.name),
            "duration": transcript.duration,
            "text": text,
        });
        if fields.segments {
            answer["segments"] = transcript.segments.iter().map(segment_json).collect();
        }
        if fields.options.word_timestamps {
            answer["words"] = transcript.segments.iter().flat_map(|segment| &segment.words).map(word_json).collect();
        }
    }
    answer["usage"] = json!({ "type": "duration", "seconds": transcript.duration.ceil() as u64 });
    answer["linnet"] = json!({
        "model": model,
        "language": transcript.language,
        "language_probability": transcript.language_probability,
        "duration": transcript.duration,
        "segments": transcript.segments.len(),
    });
    answer
}

fn segment_json(segment: &TranscriptSegment) -> Value {
    json!({
        "id": segment.id,
        "seek": segment.seek,
        "start": hundredths(segment.start),
        "end": hundredths(segment.end),
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    })
}

fn word_json(word: &TranscriptWord) -> Value {
    json!({
        "word": word.word.trim(),
        "start": hundredths(word.start),
        "end": hundredths(word.end),
        "probability": word.probability,
    })
}

/// Whisper's times are that exact.
fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
