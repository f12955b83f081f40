//! Nothing of what users write reaches a log, the statistics or the metrics, however a request ends.
//!
//! A program of its own, because it listens to everything that the process logs.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    dead_code,
    reason = "helpers of tests stand outside of test functions, this program needs few of them, and json! reads best by value"
)]

#[path = "http/harness.rs"]
mod harness;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, header};
use linnet_runtime::testing::ScriptedModel;
use serde_json::{Value, json};
use tower::ServiceExt;

use harness::{Harness, echo, request};

/// What is looked for. Error texts repeat some of a request, so it is short enough to be repeated whole.
const MARKER: &str = "zq7marker";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn marked() -> Value {
    json!([{"role": "system", "content": MARKER}, {"role": "user", "content": format!("say {MARKER} twice")}])
}

/// Bodies that hold the marker wherever a client may write something, for both routes.
fn bodies() -> Vec<(&'static str, String)> {
    let chat = |extra: Value| {
        let mut body = json!({"messages": marked(), "max_tokens": 40});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ("/v1/chat/completions", body.to_string())
    };
    let text = |body: Value| ("/v1/completions", body.to_string());
    vec![
        chat(json!({})),
        chat(json!({"stream": true, "stream_options": {"include_usage": true}})),
        chat(json!({"logprobs": true, "top_logprobs": 3})),
        chat(json!({"stop": [MARKER], "user": MARKER, "metadata": {"note": MARKER}})),
        chat(json!({"tools": [{"type": "function", "function": {"name": MARKER}}]})),
        chat(json!({"chat_template_kwargs": {"mood": MARKER}})),
        chat(json!({"session_id": MARKER, "prompt_cache_key": MARKER})),
        chat(json!({"session_id": format!("{MARKER}{}", "x".repeat(600))})),
        chat(json!({"model": MARKER})),
        chat(json!({"temperature": MARKER})),
        chat(json!({"service_tier": MARKER})),
        chat(json!({"reasoning_effort": MARKER, "response_format": {"type": MARKER}})),
        chat(json!({"max_tokens": 1_000_000})),
        chat(json!({"messages": [{"role": MARKER, "content": MARKER}]})),
        chat(json!({"messages": [{"role": "user", "content": [{"type": MARKER}]}]})),
        chat(json!({"messages": [{"role": "user", "content": "forbidden"}, {"role": "user", "content": MARKER}]})),
        text(json!({"prompt": MARKER})),
        text(json!({"prompt": [MARKER], "stream": true})),
        text(json!({"prompt": MARKER, "suffix": MARKER})),
        text(json!({"prompt": MARKER.repeat(1000)})),
        text(json!({"prompt": {MARKER: 1}})),
        ("/v1/chat/completions", format!("{{\"messages\": {MARKER}")),
        ("/v1/completions", format!("\"{MARKER}\"")),
        ("/v1/completions", format!("{{\"{MARKER}\": 1, \"{MARKER}\": 2}}")),
        ("/admin/models/load", json!({"model": MARKER}).to_string()),
        ("/admin/models/unload", json!({"model": MARKER}).to_string()),
        ("/admin/models/pin", json!({"model": MARKER, "pinned": MARKER}).to_string()),
        ("/admin/cache/flush", json!({"model": MARKER}).to_string()),
        ("/admin/cache/clear", json!({"model": [MARKER]}).to_string()),
        ("/admin/cache/session/close", json!({"session_id": MARKER}).to_string()),
        ("/no/such/zq7marker", json!({"prompt": MARKER}).to_string()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_a_user_writes_is_logged_or_counted() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::level_filters::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .init();

    let failing = Harness::new(ScriptedModel::noise().error_at(2).delay(Duration::from_millis(1)));
    let harnesses = [Harness::new(echo()), failing];
    let mut answered = 0;
    for harness in &harnesses {
        for (path, body) in bodies() {
            let mut marked = request(Method::POST, path, body.clone());
            for name in ["x-session-affinity", "session_id", "user-agent", "authorization"] {
                marked.headers_mut().insert(name, MARKER.parse().unwrap());
            }
            answered += usize::from(harness.send(marked).await.text.contains(MARKER));
            answered += usize::from(harness.post(path, body).await.text.contains(MARKER));
        }
        for path in ["/v1/models/zq7marker", "/stats?q=zq7marker", "/zq7marker"] {
            harness.get(path).await;
            harness.send(request(Method::from_bytes(b"ZQ7MARKER").unwrap(), path, Body::empty())).await;
        }
        for (name, value) in [(header::HOST, "zq7marker.example"), (header::ORIGIN, "http://zq7marker.example")] {
            let mut odd = request(Method::GET, "/health", Body::empty());
            odd.headers_mut().insert(name, value.parse().unwrap());
            assert_eq!(harness.send(odd).await.status, 403);
        }
        let mut odd = request(Method::POST, "/v1/completions", r#"{"prompt": "x"}"#);
        odd.headers_mut().insert("x-priority", MARKER.parse().unwrap());
        assert_eq!(harness.send(odd).await.status, 400);
        // A client that leaves half-way.
        let body = json!({"messages": marked(), "stream": true}).to_string();
        drop(harness.router.clone().oneshot(request(Method::POST, "/v1/chat/completions", body)).await.unwrap());
        harness.idle_within(Duration::from_secs(5)).await;
    }
    // Otherwise this looked at nothing.
    assert!(answered > 30, "{answered} answers held the marker");
    for harness in &harnesses {
        for path in ["/stats", "/metrics", "/health", "/v1/models"] {
            let text = harness.get(path).await.text.to_lowercase();
            assert!(!text.contains(MARKER), "{path}: {text}");
        }
    }
    let text = String::from_utf8_lossy(&log.0.lock().unwrap()).to_lowercase();
    let found: Vec<&str> = text.lines().filter(|line| line.contains(MARKER)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(text.contains("answer finished") && text.contains("answer failed") && text.contains("cancelled"), "{text}");
    assert!(text.contains("trace") || text.contains("debug"), "the log was not listened to at every level");
}
