//! Sessions of live speech on the wire.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use linnet_speech::{
    ChineseScript, Delivery, PcmFormat, Replacement, SampleFormat, SessionOptions, Task, TextOptions, TextStage,
    WindowOptions,
};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::quote::shortened;
use crate::speech::live::LiveView;
use crate::wire::audio_request::{SpeechFields, TranscriptFormat};

/// How a session is opened.
pub(crate) struct SessionRequest {
    /// The fields that files have too.
    pub(crate) speech: SpeechFields,
    /// What the session does.
    pub(crate) options: SessionOptions,
}

impl SessionRequest {
    /// Reads the body that opens a session.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let fields = Fields::root(body)?;
        let task = match fields.optional_text("task")? {
            None | Some("transcribe") => Task::Transcribe,
            Some("translate") => Task::Translate,
            Some(_) => return Err(fields.require("task", "")?.expected("transcribe or translate")),
        };
        let speech = SpeechFields::read(&fields, task)?;
        if !matches!(speech.format, TranscriptFormat::Json | TranscriptFormat::VerboseJson) {
            return Err(fields.require("response_format", "")?.expected("json or verbose_json"));
        }
        let text = match fields.get("text") {
            Some(text) => read_text(&text.object()?)?,
            None => TextOptions::default(),
        };
        let text = TextStage::new(&text)
            .map_err(|error| ApiError::InvalidField { field: "text".to_owned(), problem: error.to_string() })?;
        let partials = fields.optional_flag("partials")?.unwrap_or(true);
        let options = SessionOptions {
            windows: WindowOptions::LIVE,
            transcribe: speech.options.clone(),
            text: Arc::new(text),
            partials,
            ahead: true,
        };
        Ok(Self { speech, options })
    }
}

/// What is made of recognised text.
fn read_text(fields: &Fields<'_>) -> Result<TextOptions, ApiError> {
    let flag = |name: &str| Ok::<_, ApiError>(fields.optional_flag(name)?.unwrap_or(false));
    let mut replacements = Vec::new();
    if let Some(list) = fields.get("replacements") {
        for item in list.list("a list of {\"from\", \"to\"}")? {
            let item = item.object()?;
            let text = |name: &str| item.require(name, "a text")?.text().map(str::to_owned);
            replacements.push(Replacement { from: text("from")?, to: text("to")? });
        }
    }
    let mut vocabulary = Vec::new();
    if let Some(list) = fields.get("vocabulary") {
        for item in list.list("a list of texts")? {
            vocabulary.push(item.text()?.to_owned());
        }
    }
    let script = match fields.get("script") {
        None => None,
        Some(script) => Some(match script.text()? {
            "zh-Hans" => ChineseScript::Simplified,
            "zh-Hant" => ChineseScript::Traditional,
            _ => return Err(script.expected("zh-Hans or zh-Hant")),
        }),
    };
    Ok(TextOptions {
        remove_fillers: flag("remove_fillers")?,
        replacements,
        spoken_punctuation: flag("spoken_punctuation")?,
        numbers_as_digits: flag("numbers_as_digits")?,
        vocabulary,
        script,
    })
}

/// What a piece of audio is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AudioKind {
    /// Bare samples.
    Pcm(PcmFormat),
    /// A file in any container.
    File,
}

/// Reads `audio/pcm;rate=16000;encoding=f32;channels=1` (these are the defaults) or the type of a file.
pub(crate) fn read_kind(headers: &HeaderMap) -> Result<AudioKind, ApiError> {
    let text = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("audio/pcm");
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
    match kind.as_str() {
        "audio/pcm" => {
            let pairs = parts.filter_map(|part| part.split_once('='));
            read_pcm(pairs.map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))).map(AudioKind::Pcm)
        }
        "application/octet-stream" | "application/ogg" => Ok(AudioKind::File),
        kind if kind.starts_with("audio/") || kind.starts_with("video/") => Ok(AudioKind::File),
        _ => Err(ApiError::UnsupportedMedia {
            found: shortened(text),
            expected: "audio/pcm;rate=16000 with 32-bit floats (encoding=s16 for whole numbers), or a file as audio/*",
        }),
    }
}

/// Reads a format from names and values.
pub(crate) fn read_pcm<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Result<PcmFormat, ApiError> {
    let mut format = PcmFormat::default();
    for (name, value) in pairs {
        let wrong = |expected: &str| ApiError::InvalidField {
            field: name.to_owned(),
            problem: format!("expected {expected}, got {:?}", shortened(value)),
        };
        match name {
            "rate" => format.rate = value.parse().map_err(|_| wrong("samples per second, such as 48000"))?,
            "channels" => format.channels = value.parse().map_err(|_| wrong("a number of channels"))?,
            "encoding" => {
                format.samples = match value {
                    "f32" => SampleFormat::F32,
                    "s16" => SampleFormat::S16,
                    _ => return Err(wrong("f32 or s16")),
                }
            }
            _ => {}
        }
    }
    Ok(format)
}

/// How a session stands.
pub(crate) fn session_json(id: &str, model: &str, view: &LiveView) -> Value {
    let (language, probability) = view.language.clone().unzip();
    json!({
        "id": id,
        "object": "audio.session",
        "model": model,
        "state": view.state.name(),
        "duration": view.duration,
        "microphone": microphone(view),
        "speech": view.has_speech,
        "language": language,
        "language_probability": probability,
        "text": { "committed": view.text.committed, "tail": view.text.tail, "final": view.text.is_final },
        "problem": view.problem,
    })
}

/// What the microphone does; one that never gave anything but zeros is not one that hears nobody.
fn microphone(view: &LiveView) -> &'static str {
    match view.delivery {
        Delivery::NotDelivering => "not_delivering",
        Delivery::Delivering => "delivering",
        Delivery::Waiting if view.has_heard => "delivering",
        Delivery::Waiting => "waiting",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn kind(text: &'static str) -> Result<AudioKind, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(text));
        read_kind(&headers)
    }

    #[test]
    fn the_type_of_audio_says_how_to_read_it() {
        assert_eq!(read_kind(&HeaderMap::new()).unwrap(), AudioKind::Pcm(PcmFormat::default()));
        let format = PcmFormat { samples: SampleFormat::S16, rate: 48_000, channels: 2 };
        assert_eq!(kind("audio/PCM; rate=48000; encoding=s16;channels=\"2\"").unwrap(), AudioKind::Pcm(format));
        assert_eq!(kind("audio/wav").unwrap(), AudioKind::File);
        assert!(matches!(kind("text/plain"), Err(ApiError::UnsupportedMedia { .. })));
        assert!(kind("audio/pcm;rate=fast").unwrap_err().to_string().contains("`rate`"));
    }

    #[test]
    fn a_session_answers_with_objects_only() {
        let error = SessionRequest::read(&json!({"response_format": "srt"})).err().unwrap().to_string();
        assert!(error.contains("json or verbose_json"), "{error}");
        let body = json!({"partials": false, "text": {"replacements": [{"from": "new line", "to": "\n"}]}});
        assert!(!SessionRequest::read(&body).unwrap().options.partials);
    }
}
