//! A server around a scripted model whose tokens are bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use linnet_api::{ApiState, ModelProvider, SamplingOverrides, ServedModel, ServerOptions, SingleModel, router};
use linnet_models::{ChatTemplate, SpecialTokens, Tokenizer};
use linnet_runtime::testing::{Next, Probe, ScriptedModel, byte_text};
use linnet_runtime::{Engine, EngineOptions};
use serde_json::{Value, json};
use tower::ServiceExt;

/// What every prompt of [`TEMPLATE`] ends with.
pub(crate) const MARK: &str = "<answer>";

/// Writes each message as `[role] content`, then tools and kwargs, and refuses one word.
const TEMPLATE: &str = "{% for message in messages %}\
{% if message.content == 'forbidden' %}{{ raise_exception('no such talk here') }}{% endif %}\
[{{ message.role }}] {{ message.content }}\n{% endfor %}\
{% if tools %}{{ tools | tojson }}\n{% endif %}\
{% if mood is defined %}mood={{ mood }}\n{% endif %}\
{% if add_generation_prompt %}<answer>{% endif %}";

pub(crate) const MODEL: &str = "scripted";

/// A server that is not on a socket.
pub(crate) struct Harness {
    pub(crate) state: Arc<ApiState>,
    pub(crate) router: Router,
    engine: Option<Engine>,
    probe: Option<Probe>,
}

/// An answer that has been read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }

    /// The data of every event of a stream.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }

    /// Every event but the last, which must be `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", self.text);
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

impl Harness {
    pub(crate) fn new(model: ScriptedModel) -> Self {
        Self::with_options(model, ServerOptions::default())
    }

    pub(crate) fn with_options(model: ScriptedModel, options: ServerOptions) -> Self {
        Self::with_model(model, options, |_| {})
    }

    pub(crate) fn with_model(
        model: ScriptedModel,
        options: ServerOptions,
        change: impl FnOnce(&mut ServedModel),
    ) -> Self {
        let (mut model, probe) = served(MODEL, model);
        let engine = model.engine.clone();
        change(&mut model);
        let harness = Self::with_provider(Arc::new(SingleModel::new(model, 1_700_000_000)), options);
        Self { engine: Some(engine), probe: Some(probe), ..harness }
    }

    /// A server of other models than the one scripted model.
    pub(crate) fn with_provider(provider: Arc<dyn ModelProvider>, options: ServerOptions) -> Self {
        let state = ApiState::new(options, provider);
        Self { router: router(Arc::clone(&state)), state, engine: None, probe: None }
    }

    /// The scripted model's engine.
    pub(crate) fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    pub(crate) fn probe(&self) -> &Probe {
        self.probe.as_ref().unwrap()
    }

    /// Sends a request as a local client would and reads the whole answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status: parts.status, headers: parts.headers, text }
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(request(Method::POST, path, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(request(Method::GET, path, Body::empty())).await
    }

    pub(crate) async fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", body.to_string()).await
    }

    pub(crate) async fn complete(&self, body: Value) -> Answer {
        self.post("/v1/completions", body.to_string()).await
    }

    /// Serves on a loopback port until the test ends.
    pub(crate) async fn listen(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(linnet_api::serve(listener, Arc::clone(&self.state), std::future::pending()));
        address
    }

    /// Waits until no request is active or queued; fails after `limit`.
    pub(crate) async fn idle_within(&self, limit: Duration) {
        let wait = async {
            loop {
                let status = self.engine().status();
                if status.active == 0 && status.queued == 0 && self.probe().open_slots() == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(limit, wait).await.is_err() {
            panic!("still at work after {limit:?}: {:?}", self.engine().status());
        }
    }
}

/// A scripted model, ready to be served under a name.
pub(crate) fn served(id: &str, model: ScriptedModel) -> (ServedModel, Probe) {
    let probe = model.probe();
    let engine = Engine::start(id, EngineOptions::default(), byte_text(), move || Ok(model)).unwrap();
    let template = ChatTemplate::from_text(TEMPLATE, SpecialTokens::default()).unwrap();
    (ServedModel::new(id, engine, byte_tokenizer(), Some(template), SamplingOverrides::default()), probe)
}

pub(crate) fn request(method: Method, path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost:5466")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.into())
        .unwrap()
}

/// A conversation of one user message.
pub(crate) fn user(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}

/// A model that repeats the prompt that its template made, up to the mark.
pub(crate) fn echo() -> ScriptedModel {
    ScriptedModel::new(|tokens| {
        let mark: Vec<u32> = MARK.bytes().map(u32::from).collect();
        let start = tokens.windows(mark.len()).position(|window| window == mark).unwrap_or(tokens.len());
        let said = tokens.len().saturating_sub(start + mark.len());
        let next = tokens[..start].get(said).copied();
        Next::Token(next.unwrap_or(linnet_runtime::testing::BYTE_EOS))
    })
}

/// A model that answers every chat with `text`.
pub(crate) fn says(text: &'static str) -> ScriptedModel {
    ScriptedModel::new(move |tokens| {
        let mark: Vec<u32> = MARK.bytes().map(u32::from).collect();
        let start = tokens.windows(mark.len()).position(|window| window == mark).map(|start| start + mark.len());
        let said = tokens.len() - start.unwrap_or(tokens.len());
        let next = text.as_bytes().get(said).copied().map(u32::from);
        Next::Token(next.unwrap_or(linnet_runtime::testing::BYTE_EOS))
    })
}

/// A tokenizer whose token `n` is the byte `n`.
pub(crate) fn byte_tokenizer() -> Tokenizer {
    // GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100 on.
    let mut shifted = 0x100;
    let vocabulary: serde_json::Map<String, Value> = (0u32..256)
        .map(|byte| {
            let is_printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if is_printable {
                byte
            } else {
                shifted += 1;
                shifted - 1
            };
            (char::from_u32(code).unwrap().to_string(), json!(byte))
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    });
    Tokenizer::from_json(tokenizer.to_string().as_bytes(), SpecialTokens::default()).unwrap()
}
