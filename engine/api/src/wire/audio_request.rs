//! The fields of requests for transcripts: OpenAI's, and ours beside them.
//!
//! A form has texts only, so numbers, flags and lists are also read from texts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use linnet_speech::{Language, Task, TranscribeOptions};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Field, Fields};
use crate::form::Form;
use crate::quote::shortened;

/// The widest beam; more costs memory and finds nothing.
const WIDEST_BEAM: i64 = 16;

/// The most terms of a vocabulary.
const MOST_TERMS: usize = 1000;

/// How a transcript is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TranscriptFormat {
    /// The text in an object.
    Json,
    /// The text alone.
    Text,
    /// SubRip.
    Srt,
    /// Everything that is known.
    VerboseJson,
    /// WebVTT.
    Vtt,
}

/// What a recording or a stream of speech is transcribed with.
#[derive(Debug, Clone)]
pub(crate) struct SpeechFields {
    /// The model's name; `None` takes the default.
    pub(crate) model: Option<String>,
    /// How to recognise.
    pub(crate) options: TranscribeOptions,
    /// How to answer.
    pub(crate) format: TranscriptFormat,
    /// Whether segments were asked for.
    pub(crate) segments: bool,
}

/// A recording to transcribe.
pub(crate) struct TranscriptionRequest {
    /// How.
    pub(crate) speech: SpeechFields,
    /// The file's bytes.
    pub(crate) file: Vec<u8>,
    /// Its name, for errors.
    pub(crate) file_name: String,
    /// Whether the answer comes in pieces.
    pub(crate) stream: bool,
    /// Whether only what is spoken is recognised.
    pub(crate) vad: bool,
}

impl TranscriptionRequest {
    /// Reads a form.
    pub(crate) fn from_form(form: Form, task: Task) -> Result<Self, ApiError> {
        let missing = || ApiError::InvalidField {
            field: "file".to_owned(),
            problem: "expected a file, but it is missing".to_owned(),
        };
        let file = form.file.ok_or_else(missing)?;
        let body = Value::Object(typed(form.fields));
        Self::read(&Fields::root(&body)?, file, form.file_name, task)
    }

    /// Reads a JSON body, which carries its audio as base64 or as a data URL.
    pub(crate) fn from_json(body: &Value, task: Task) -> Result<Self, ApiError> {
        let fields = Fields::root(body)?;
        let nested = match fields.get("input_audio") {
            Some(audio) => audio.object()?.get("data"),
            None => None,
        };
        let file = match fields.get("file").or_else(|| fields.get("audio")).or(nested) {
            Some(file) => file,
            None => fields.require("file", "the audio as base64 or a data URL")?,
        };
        let bytes = decode(&file)?;
        let name = fields.optional_text("filename")?.map(str::to_owned);
        Self::read(&fields, bytes, name, task)
    }

    fn read(fields: &Fields<'_>, file: Vec<u8>, name: Option<String>, task: Task) -> Result<Self, ApiError> {
        if file.is_empty() {
            let problem = "is empty; send a file with sound".to_owned();
            return Err(ApiError::InvalidField { field: "file".to_owned(), problem });
        }
        Ok(Self {
            speech: SpeechFields::read(fields, task)?,
            file,
            file_name: name
                .filter(|name| !name.is_empty())
                .map_or_else(|| "the file".to_owned(), |name| shortened(&name)),
            stream: fields.optional_flag("stream")?.unwrap_or(false),
            vad: fields.optional_flag("vad")?.unwrap_or(true),
        })
    }
}

impl SpeechFields {
    /// Reads the fields that files and streams share.
    pub(crate) fn read(fields: &Fields<'_>, task: Task) -> Result<Self, ApiError> {
        let format = read_format(fields)?;
        let (segments, words) = read_granularities(fields, format)?;
        let temperature = fields.optional_number("temperature", 0.0..=1.0)?.filter(|temperature| *temperature > 0.0);
        let default = TranscribeOptions::default();
        let beam_size = fields.optional_integer("beam_size", 1..=WIDEST_BEAM)?.unwrap_or(1);
        if temperature.is_some() && beam_size > 1 {
            let problem = "needs temperature 0: above it, words are drawn".to_owned();
            return Err(ApiError::Unsupported { field: "beam_size".to_owned(), problem });
        }
        let prompt = fields.optional_text("prompt")?.map(str::trim).filter(|prompt| !prompt.is_empty());
        let options = TranscribeOptions {
            task,
            languages: read_languages(fields)?,
            beam_size: usize::try_from(beam_size).unwrap_or(1),
            // As OpenAI's: without a temperature, or with 0, further ones are tried where the text looks wrong.
            temperatures: temperature.map_or(default.temperatures.clone(), |temperature| vec![temperature]),
            initial_prompt: prompt.map(str::to_owned),
            vocabulary: read_list(fields, "vocabulary")?,
            condition_on_previous_text: fields.optional_flag("condition_on_previous_text")?.unwrap_or(true),
            word_timestamps: words,
            ..default
        };
        let model = fields.optional_text("model")?.filter(|name| !name.is_empty()).map(str::to_owned);
        Ok(Self { model, options, format, segments })
    }
}

fn read_format(fields: &Fields<'_>) -> Result<TranscriptFormat, ApiError> {
    let Some(field) = fields.get("response_format") else { return Ok(TranscriptFormat::Json) };
    match field.text()? {
        "json" => Ok(TranscriptFormat::Json),
        "text" => Ok(TranscriptFormat::Text),
        "srt" => Ok(TranscriptFormat::Srt),
        "verbose_json" => Ok(TranscriptFormat::VerboseJson),
        "vtt" => Ok(TranscriptFormat::Vtt),
        "diarized_json" => Err(field.unsupported("this server does not tell speakers apart; use json or verbose_json")),
        _ => Err(field.expected("json, text, srt, verbose_json or vtt")),
    }
}

/// Whether segments and words get times.
fn read_granularities(fields: &Fields<'_>, format: TranscriptFormat) -> Result<(bool, bool), ApiError> {
    const NAMES: [&str; 2] = ["timestamp_granularities", "timestamp_granularities[]"];
    let Some(field) = NAMES.iter().find_map(|name| fields.get(name)) else { return Ok((true, false)) };
    if format != TranscriptFormat::VerboseJson {
        return Err(field.unsupported("times stand in verbose_json only; set response_format to it"));
    }
    let (mut segments, mut words) = (false, false);
    for item in texts(&field)? {
        match item.as_str() {
            "segment" => segments = true,
            "word" => words = true,
            _ => return Err(field.expected("a list of \"segment\" and \"word\"")),
        }
    }
    Ok((segments, words))
}

fn read_languages(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let mut languages = Vec::new();
    for name in ["language", "languages"] {
        let Some(field) = fields.get(name) else { continue };
        for text in texts(&field)? {
            if text.eq_ignore_ascii_case("auto") {
                continue;
            }
            let language =
                Language::find(&text).ok_or_else(|| field.expected("a language, such as `de` or `german`"))?;
            languages.push(language.code.to_owned());
        }
    }
    languages.sort_unstable();
    languages.dedup();
    Ok(languages)
}

fn read_list(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let Some(field) = fields.get(name) else { return Ok(Vec::new()) };
    let list = texts(&field)?;
    if list.len() > MOST_TERMS { Err(field.expected(&format!("at most {MOST_TERMS} terms"))) } else { Ok(list) }
}

/// A list of texts, or a text with commas.
fn texts(field: &Field<'_>) -> Result<Vec<String>, ApiError> {
    let texts: Vec<String> = match field.value {
        Value::String(text) => text.split(',').map(str::to_owned).collect(),
        _ => field
            .list("a list of texts")?
            .iter()
            .map(|item| item.text().map(str::to_owned))
            .collect::<Result<_, _>>()?,
    };
    Ok(texts.into_iter().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect())
}

/// Numbers and flags of a form, which come as texts.
fn typed(mut fields: Map<String, Value>) -> Map<String, Value> {
    for name in ["temperature", "stream", "vad", "beam_size", "condition_on_previous_text"] {
        let Some(Value::String(text)) = fields.get(name) else { continue };
        let text = text.trim();
        let value = match text.to_ascii_lowercase().as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            "" => Some(Value::Null),
            number => serde_json::from_str::<Value>(number).ok().filter(Value::is_number),
        };
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    }
    fields
}

fn decode(file: &Field<'_>) -> Result<Vec<u8>, ApiError> {
    let text = file.text()?;
    let data = match text.strip_prefix("data:") {
        Some(rest) => rest
            .split_once(";base64,")
            .map(|(_, data)| data)
            .ok_or_else(|| file.unsupported("data URLs must be base64"))?,
        None => text,
    };
    let unreadable = |error: base64::DecodeError| ApiError::InvalidField {
        field: file.path().to_owned(),
        problem: format!("is not base64: {error}"),
    };
    STANDARD.decode(data.trim()).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "json! reads best by value")]
    fn read(body: Value) -> Result<TranscriptionRequest, ApiError> {
        TranscriptionRequest::from_json(&body, Task::Transcribe)
    }

    #[test]
    fn a_form_and_a_json_body_mean_the_same() {
        let mut fields = Map::new();
        for (name, text) in [
            ("model", "whisper-1"),
            ("temperature", "0.2"),
            ("stream", "True"),
            ("vad", "false"),
            ("language", "German"),
            ("vocabulary", "Linnet, Silero ,"),
            ("response_format", "verbose_json"),
        ] {
            fields.insert(name.into(), text.into());
        }
        fields.insert("timestamp_granularities".into(), json!(["word"]));
        let form = Form { fields, file: Some(b"RIFF".to_vec()), file_name: Some("a.wav".into()) };
        let form = TranscriptionRequest::from_form(form, Task::Transcribe).unwrap();
        let body = read(json!({
            "model": "whisper-1", "temperature": 0.2, "stream": true, "vad": false, "language": "de",
            "vocabulary": ["Linnet", "Silero"], "response_format": "verbose_json",
            "timestamp_granularities": ["word"], "file": "data:audio/wav;base64,UklGRg==", "filename": "a.wav",
        }))
        .unwrap();
        for request in [form, body] {
            let TranscriptionRequest { speech, file, file_name, stream, vad } = request;
            assert_eq!((file.as_slice(), file_name.as_str(), stream, vad), (&b"RIFF"[..], "a.wav", true, false));
            assert_eq!(speech.options.temperatures, [0.2]);
            assert_eq!(speech.options.languages, ["de"]);
            assert_eq!(speech.options.vocabulary, ["Linnet", "Silero"]);
            assert_eq!((speech.segments, speech.options.word_timestamps), (false, true));
            assert_eq!(speech.format, TranscriptFormat::VerboseJson);
        }
    }

    #[test]
    fn defaults_are_openais() {
        let request = read(json!({"file": "UklGRg=="})).unwrap();
        assert_eq!(request.speech.options, TranscribeOptions::default());
        assert!(request.vad && !request.stream && request.speech.model.is_none());
        assert_eq!(read(json!({"input_audio": {"data": "UklGRg=="}})).unwrap().file, b"RIFF");
    }

    #[test]
    fn what_is_not_done_is_refused_with_its_field() {
        let refused = |extra: Value| {
            let mut body = json!({"file": "UklGRg=="});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            read(body).err().unwrap().to_string()
        };
        assert!(refused(json!({"response_format": "diarized_json"})).contains("speakers"));
        assert!(refused(json!({"response_format": "xml"})).contains("`response_format`: expected json, text"));
        assert!(refused(json!({"timestamp_granularities": ["word"]})).contains("verbose_json"));
        assert!(refused(json!({"language": "klingon"})).contains("a language, such as"));
        assert!(refused(json!({"temperature": 1.5})).contains("from 0 to 1"));
        assert!(refused(json!({"temperature": 0.5, "beam_size": 5})).contains("`beam_size`: needs temperature 0"));
        assert!(refused(json!({"file": ""})).contains("`file`: is empty"));
        assert!(refused(json!({"file": "no base64!"})).contains("is not base64"));
        assert!(read(json!({})).err().unwrap().to_string().contains("`file`: expected the audio"));
    }
}
