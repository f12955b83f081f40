//! Transcriptions and sessions, with a scripted speech model that hears the real detector's windows.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use linnet_api::{
    ApiError, ApiState, ModelFacts, ModelKind, ServerOptions, SingleModel, SpeechManager, SpeechSource, router,
};
use linnet_runtime::testing::ScriptedModel;
use linnet_speech::{
    Recognizer, SpeechEngineOptions, SpeechError, TranscribeError, TranscribeOptions, Transcript, TranscriptSegment,
    TranscriptWord,
};
use serde_json::{Value, json};

use super::harness::{Answer, Harness, MODEL, request, served};

const SPEECH: &str = "whisper-scripted";

#[derive(Default)]
struct Script {
    heard: AtomicUsize,
    fails: AtomicBool,
    waits: AtomicBool,
    is_waiting: AtomicBool,
}

struct Source(Arc<Script>);

struct Scripted(Arc<Script>);

impl SpeechSource for Source {
    fn list(&self) -> Result<Vec<ModelFacts>, ApiError> {
        Ok(vec![ModelFacts { id: SPEECH.into(), kind: ModelKind::Speech, ..ModelFacts::default() }])
    }

    fn find(&self, name: Option<&str>) -> Result<ModelFacts, ApiError> {
        match name {
            None | Some(SPEECH) => Ok(self.list()?.remove(0)),
            Some(other) => Err(ApiError::model_not_found(other, vec![SPEECH.into()])),
        }
    }

    fn load(&self, _: &str) -> Result<Box<dyn Recognizer>, SpeechError> {
        Ok(Box::new(Scripted(Arc::clone(&self.0))))
    }
}

impl Recognizer for Scripted {
    fn recognize(
        &mut self,
        samples: &[f32],
        options: &TranscribeOptions,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Transcript, TranscribeError> {
        if self.0.fails.load(Ordering::SeqCst) {
            return Err(TranscribeError::NotFinite);
        }
        while self.0.waits.load(Ordering::SeqCst) {
            self.0.is_waiting.store(true, Ordering::SeqCst);
            if is_cancelled() {
                self.0.is_waiting.store(false, Ordering::SeqCst);
                return Err(TranscribeError::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.heard.fetch_add(1, Ordering::SeqCst);
        let seconds = samples.len() as f64 / 16_000.0;
        let words: Vec<TranscriptWord> = (0..seconds as usize)
            .map(|second| TranscriptWord {
                word: format!(" word{second}"),
                start: second as f64,
                end: second as f64 + 0.9,
                probability: 0.9,
            })
            .collect();
        let text = words.iter().map(|word| word.word.as_str()).collect();
        let segment = TranscriptSegment {
            end: seconds,
            text,
            tokens: vec![1, 2],
            words: if options.word_timestamps { words } else { Vec::new() },
            ..TranscriptSegment::default()
        };
        let language = options.languages.first().cloned().unwrap_or_else(|| "en".into());
        Ok(Transcript { language, language_probability: 1.0, duration: seconds, segments: vec![segment] })
    }
}

struct Server {
    harness: Harness,
    script: Arc<Script>,
    speech: Arc<SpeechManager>,
}

fn server() -> Server {
    server_with(ServerOptions::default(), SpeechManager::DEFAULT_SESSION_IDLE)
}

fn server_with(options: ServerOptions, idle: Duration) -> Server {
    let script = Arc::new(Script::default());
    let source = Arc::new(Source(Arc::clone(&script)));
    let speech = SpeechManager::new(source, SpeechEngineOptions::default(), idle).unwrap();
    let (model, _) = served(MODEL, ScriptedModel::noise());
    let provider = Arc::new(SingleModel::new(model, 1_700_000_000));
    let mut harness = Harness::with_provider(provider.clone(), options.clone());
    harness.state = ApiState::with_speech(options, provider, Some(Arc::clone(&speech)));
    harness.router = router(Arc::clone(&harness.state));
    Server { harness, script, speech }
}

fn clip(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../speech/tests/fixtures/speech/{name}.flac"));
    std::fs::read(path).unwrap()
}

fn quiet(seconds: usize) -> Vec<u8> {
    let mut state = 7u32;
    let mut bytes = Vec::new();
    for _ in 0..seconds * 16_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let sample = (f64::from(state >> 8) / f64::from(1 << 23) - 1.0) as f32 * 0.001;
        bytes.extend(sample.to_le_bytes());
    }
    bytes
}

/// A WAV file of floats.
fn wav(samples: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(b"RIFF");
    file.extend((samples.len() as u32 + 36).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    for (value, bytes) in [(3u32, 2), (1, 2), (16_000, 4), (64_000, 4), (4, 2), (32, 2)] {
        file.extend(&value.to_le_bytes()[..bytes]);
    }
    file.extend(b"data");
    file.extend((samples.len() as u32).to_le_bytes());
    file.extend(samples);
    file
}

fn form(path: &str, file: &[u8], fields: &[(&str, &str)]) -> Request<Body> {
    let mut body = Vec::new();
    for (name, value) in fields {
        body.extend(format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").bytes());
    }
    body.extend(b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.flac\"\r\n\r\n");
    body.extend(file);
    body.extend(b"\r\n--XX--\r\n");
    let mut request = request(Method::POST, path, Body::from(body));
    request.headers_mut().insert(header::CONTENT_TYPE, "multipart/form-data; boundary=XX".parse().unwrap());
    request
}

impl Server {
    async fn transcribe(&self, file: &[u8], fields: &[(&str, &str)]) -> Answer {
        self.harness.send(form("/v1/audio/transcriptions", file, fields)).await
    }

    async fn open(&self, body: Value) -> String {
        let answer = self.harness.post("/v1/audio/sessions", body.to_string()).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    async fn send(&self, id: &str, kind: &'static str, bytes: Vec<u8>) -> Answer {
        let mut request = request(Method::POST, &format!("/v1/audio/sessions/{id}/audio"), Body::from(bytes));
        request.headers_mut().insert(header::CONTENT_TYPE, kind.parse().unwrap());
        self.harness.send(request).await
    }

    async fn finish(&self, id: &str) -> Answer {
        self.harness.post(&format!("/v1/audio/sessions/{id}/finish"), Body::empty()).await
    }
}

#[tokio::test]
async fn a_recording_is_answered_in_each_format() {
    let server = server();
    let answer = server.transcribe(&clip("jfk"), &[("model", "whisper-1")]).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let text = answer.json()["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("word0 word1 word2"), "{text}");
    assert_eq!(answer.json()["usage"], json!({"type": "duration", "seconds": 11}));
    assert_eq!(answer.json()["linnet"]["model"], SPEECH);

    let answer = server.transcribe(&clip("jfk"), &[("response_format", "text")]).await;
    assert_eq!(answer.text, format!("{text}\n"));
    let answer = server.transcribe(&clip("jfk"), &[("response_format", "srt")]).await;
    assert!(answer.text.starts_with("1\n00:00:00,"), "{}", answer.text);
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/x-subrip; charset=utf-8");
    let answer = server.transcribe(&clip("jfk"), &[("response_format", "vtt")]).await;
    assert!(answer.text.starts_with("WEBVTT\n\n00:00:00."), "{}", answer.text);

    let verbose = [
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "word"),
        ("timestamp_granularities[]", "segment"),
        ("language", "en"),
    ];
    let answer = server.transcribe(&clip("jfk"), &verbose).await.json();
    assert_eq!((&answer["task"], &answer["language"]), (&json!("transcribe"), &json!("english")));
    assert!((answer["duration"].as_f64().unwrap() - 11.0).abs() < 0.1);
    assert_eq!(answer["words"][0]["word"], "word0");
    assert_eq!(answer["segments"][0]["tokens"], json!([1, 2]));
    let translated = server.harness.send(form("/v1/audio/translations", &clip("jfk"), &verbose[..1])).await;
    assert_eq!(translated.json()["task"], "translate");
}

#[tokio::test]
async fn a_stream_gives_the_same_text_in_pieces() {
    let server = server();
    let whole = server.transcribe(&clip("jfk"), &[]).await.json()["text"].clone();
    let answer = server.transcribe(&clip("jfk"), &[("stream", "true")]).await;
    let chunks = answer.chunks();
    let (done, deltas) = chunks.split_last().unwrap();
    assert!(deltas.iter().all(|chunk| chunk["type"] == "transcript.text.delta"));
    let pieces: String = deltas.iter().map(|chunk| chunk["delta"].as_str().unwrap()).collect();
    assert_eq!((done["type"].as_str().unwrap(), &done["text"]), ("transcript.text.done", &whole));
    assert_eq!(Value::from(pieces), whole);
}

#[tokio::test]
async fn a_recording_without_speech_is_an_empty_text_and_loads_nothing() {
    let server = server();
    for fields in [&[][..], &[("response_format", "text")], &[("response_format", "srt")]] {
        let answer = server.transcribe(&wav(&quiet(3)), fields).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        assert!(answer.text.trim().is_empty() || answer.json()["text"] == "", "{}", answer.text);
    }
    assert_eq!(server.script.heard.load(Ordering::SeqCst), 0);
    assert!(server.speech.statuses().iter().all(|(_, status)| !status.loaded));
    // Whoever wants all of it recognised, speech or not, says so.
    assert!(server.transcribe(&wav(&quiet(3)), &[("vad", "false")]).await.json()["text"] != "");
}

#[tokio::test]
async fn base64_and_data_urls_do_as_a_file() {
    use base64::Engine as _;
    let server = server();
    let data = base64::engine::general_purpose::STANDARD.encode(clip("librivox-0880"));
    for body in [
        json!({"file": data}),
        json!({"input_audio": {"data": format!("data:audio/flac;base64,{data}"), "format": "flac"}}),
    ] {
        let mut request = request(Method::POST, "/v1/audio/transcriptions", Body::from(body.to_string()));
        request.headers_mut().insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        let answer = server.harness.send(request).await;
        assert!(answer.json()["text"].as_str().unwrap().starts_with("word0"), "{}", answer.text);
    }
}

/// A file, fields, and the status, code and words of the refusal.
type Refusal = (Vec<u8>, Vec<(&'static str, &'static str)>, u16, &'static str, &'static str);

#[tokio::test]
async fn bad_requests_get_an_error_with_status_code_and_remedy() {
    let server = server_with(
        ServerOptions { audio_limit: 400_000, ..ServerOptions::default() },
        SpeechManager::DEFAULT_SESSION_IDLE,
    );
    let jfk = clip("jfk");
    let cases: Vec<Refusal> = vec![
        (b"this is text".to_vec(), vec![], 400, "invalid_audio", "not an audio file"),
        (Vec::new(), vec![], 400, "invalid_value", "is empty"),
        (wav(&quiet(1)[..400]), vec![], 400, "invalid_value", "at least 0.1 s"),
        (jfk.clone(), vec![("model", "whisper-huge")], 404, "model_not_found", SPEECH),
        (jfk.clone(), vec![("model", MODEL)], 400, "wrong_model_kind", "is a text model"),
        (jfk.clone(), vec![("response_format", "xml")], 400, "invalid_value", "json, text, srt"),
        (jfk.clone(), vec![("temperature", "warm")], 400, "invalid_value", "from 0 to 1"),
        (wav(&quiet(7)), vec![], 413, "body_too_large", "400000"),
    ];
    for (file, fields, status, code, words) in cases {
        let answer = server.transcribe(&file, &fields).await;
        assert_eq!(answer.status.as_u16(), status, "{code}: {}", answer.text);
        assert_eq!(answer.json()["error"]["code"], code, "{}", answer.text);
        assert!(answer.message().contains(words), "{}", answer.text);
    }
    let mut plain = request(Method::POST, "/v1/audio/transcriptions", Body::from("x"));
    plain.headers_mut().insert(header::CONTENT_TYPE, "text/plain".parse().unwrap());
    assert_eq!(server.harness.send(plain).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let mut broken = form("/v1/audio/transcriptions", &jfk, &[]);
    broken.headers_mut().insert(header::CONTENT_TYPE, "multipart/form-data".parse().unwrap());
    assert_eq!(server.harness.send(broken).await.json()["error"]["code"], "invalid_form");
    let chat = server.harness.chat(json!({"model": SPEECH, "messages": [{"role": "user", "content": "hi"}]})).await;
    assert_eq!((chat.status.as_u16(), chat.json()["error"]["code"].as_str()), (400, Some("wrong_model_kind")));
    assert!(chat.message().contains("/v1/audio/transcriptions"));
}

#[tokio::test]
async fn without_speech_models_the_routes_say_how_to_get_one() {
    let harness = Harness::new(ScriptedModel::noise());
    let answer = harness.send(form("/v1/audio/transcriptions", &clip("jfk"), &[])).await;
    assert_eq!(answer.json()["error"]["code"], "no_speech_model");
    assert!(answer.message().contains("linnet pull whisper-tiny.en"));
}

#[tokio::test]
async fn models_statistics_and_metrics_tell_of_speech() {
    let server = server();
    server.transcribe(&clip("jfk"), &[]).await;
    let models = server.harness.get("/v1/models").await.json()["data"].clone();
    let kinds: Vec<(&str, &str)> = models
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["linnet"]["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(kinds, [(MODEL, "text"), (SPEECH, "speech")]);
    assert_eq!(server.harness.get(&format!("/v1/models/{SPEECH}")).await.json()["loaded"], true);
    assert_eq!(server.harness.get("/v1/models/whisper-huge").await.status, StatusCode::NOT_FOUND);
    let speech = server.harness.get("/stats").await.json()["speech"].clone();
    assert_eq!(speech["models"][0]["windows"]["finished"], 1);
    assert!(speech["models"][0]["audio_seconds"].as_f64().unwrap() > 9.0);
    let metrics = server.harness.get("/metrics").await.text;
    assert!(metrics.contains(&format!("linnet_speech_windows_finished_total{{model=\"{SPEECH}\"}} 1")), "{metrics}");
    assert!(metrics.contains("linnet_speech_sessions 0"));
}

#[tokio::test]
async fn a_session_takes_pieces_of_any_kind_and_gives_the_text() {
    let server = server();
    let id = server.open(json!({"language": "en"})).await;
    let answer = server.send(&id, "audio/flac", clip("librivox-0880")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let state = server.send(&id, "audio/pcm;rate=16000", quiet(4)).await.json();
    assert_eq!((state["state"].as_str(), state["microphone"].as_str()), (Some("open"), Some("delivering")));
    assert!(state["duration"].as_f64().unwrap() > 6.0 && state["speech"] == true);
    // The first sentence is recognised while the next may be spoken.
    let mut state = Value::Null;
    for _ in 0..500 {
        state = server.harness.get(&format!("/v1/audio/sessions/{id}")).await.json();
        if state["text"]["committed"].as_str().is_some_and(|text| text.starts_with("word0")) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(state["text"]["committed"].as_str().unwrap().starts_with("word0"), "{state}");
    server.send(&id, "audio/flac", clip("librivox-0930")).await;
    let done = server.finish(&id).await;
    assert_eq!(done.status, StatusCode::OK, "{}", done.text);
    let text = done.json()["text"].as_str().unwrap().to_owned();
    assert_eq!(text.matches("word0").count(), 2, "{text}");
    let state = server.harness.get(&format!("/v1/audio/sessions/{id}")).await.json();
    assert_eq!((&state["state"], &state["text"]["committed"]), (&json!("finished"), &json!(text)));

    for answer in [server.send(&id, "audio/pcm", quiet(1)).await, server.finish(&id).await] {
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (StatusCode::CONFLICT, Some("session_finished"))
        );
    }
    let path = format!("/v1/audio/sessions/{id}");
    assert_eq!(server.harness.send(request(Method::DELETE, &path, Body::empty())).await.status, StatusCode::NO_CONTENT);
    assert_eq!(server.harness.send(request(Method::DELETE, &path, Body::empty())).await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.harness.get(&path).await.json()["error"]["code"], "session_not_found");
    assert_eq!(server.send(&id, "text/plain", Vec::new()).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_microphone_that_gives_zeros_is_told_from_one_that_hears_nobody() {
    let server = server();
    let id = server.open(json!({})).await;
    let state = server.send(&id, "audio/pcm", vec![0; 4 * 16_000]).await.json();
    assert_eq!((state["microphone"].as_str(), state["speech"].as_bool()), (Some("not_delivering"), Some(false)));
    let state = server.send(&id, "audio/pcm", quiet(1)).await.json();
    assert_eq!(state["microphone"], "delivering");
    assert_eq!(server.finish(&id).await.json()["text"], "");
    assert_eq!(server.script.heard.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_failing_model_keeps_the_audio_and_finishing_again_gives_the_text() {
    let server = server();
    let id = server.open(json!({"partials": false})).await;
    server.script.fails.store(true, Ordering::SeqCst);
    server.send(&id, "audio/flac", clip("jfk")).await;
    let failed = server.finish(&id).await;
    assert_eq!((failed.status.as_u16(), failed.json()["error"]["code"].as_str()), (500, Some("transcription_failed")));
    let state = server.harness.get(&format!("/v1/audio/sessions/{id}")).await.json();
    assert_eq!(state["state"], "failed");
    server.script.fails.store(false, Ordering::SeqCst);
    let done = server.finish(&id).await;
    assert!(done.json()["text"].as_str().unwrap().starts_with("word0"), "{}", done.text);
}

#[tokio::test]
async fn sessions_are_limited_and_forgotten_when_nobody_uses_them() {
    let server = server_with(ServerOptions::default(), Duration::from_millis(400));
    let mut ids = Vec::new();
    for _ in 0..64 {
        ids.push(server.open(json!({})).await);
    }
    let refused = server.harness.post("/v1/audio/sessions", "{}").await;
    assert_eq!((refused.status.as_u16(), refused.json()["error"]["code"].as_str()), (429, Some("too_many_sessions")));
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(server.harness.get(&format!("/v1/audio/sessions/{}", ids[0])).await.status, StatusCode::NOT_FOUND);
    server.open(json!({})).await;
    // Forgotten without anybody asking: the model is needed no more.
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(server.speech.statuses()[0].1.holds, 0);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_work() {
    let server = server();
    server.script.waits.store(true, Ordering::SeqCst);
    let running = tokio::time::timeout(Duration::from_millis(1500), server.transcribe(&clip("jfk"), &[])).await;
    assert!(running.is_err());
    for _ in 0..500 {
        if server.speech.statuses()[0].1.cancelled == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", server.speech.statuses());
}

#[tokio::test]
async fn guards_hold_for_speech_too() {
    let options = ServerOptions { api_key: Some("secret".into()), ..ServerOptions::default() };
    let server = server_with(options, SpeechManager::DEFAULT_SESSION_IDLE);
    assert_eq!(server.transcribe(&clip("jfk"), &[]).await.status, StatusCode::UNAUTHORIZED);
    let mut foreign = request(Method::GET, "/v1/audio/stream", Body::empty());
    foreign.headers_mut().insert(header::ORIGIN, "https://evil.example".parse().unwrap());
    assert_eq!(server.harness.send(foreign).await.status, StatusCode::FORBIDDEN);
}
