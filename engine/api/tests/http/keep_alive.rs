//! A long prefill on a paused clock. See <https://github.com/ddalcu/mlx-serve/blob/main/docs/gotchas/server-http.md>:
//! a keep-alive that waits for tokens cannot help while there are none.

use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use axum::http::Method;
use futures::StreamExt;
use linnet_runtime::testing::{BYTE_EOS, Next, ScriptedModel};
use serde_json::json;
use tower::ServiceExt;

use super::harness::{Harness, request, user};

#[tokio::test(start_paused = true)]
async fn a_minute_of_prefill_is_bridged_by_comments() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    // The first step lasts until the test lets it go.
    let harness = Harness::new(ScriptedModel::new(move |_| {
        let _ = wait.lock().unwrap().recv();
        Next::Token(BYTE_EOS)
    }));
    let body = json!({"messages": user("hi"), "stream": true}).to_string();
    let response = harness.router.clone().oneshot(request(Method::POST, "/v1/chat/completions", body)).await.unwrap();
    let mut frames = response.into_body().into_data_stream();
    let opening = frames.next().await.unwrap().unwrap();
    assert!(opening.starts_with(b"data: "), "{opening:?}");

    let started = tokio::time::Instant::now();
    for _ in 0..6 {
        let before = tokio::time::Instant::now();
        let frame = frames.next().await.unwrap().unwrap();
        assert_eq!(&frame[..], b": keep-alive\n\n");
        assert!(before.elapsed() <= Duration::from_secs(11), "{:?} of silence", before.elapsed());
    }
    assert!(started.elapsed() >= Duration::from_secs(59), "{:?}", started.elapsed());

    drop(release);
    let mut rest = String::new();
    while let Some(frame) = frames.next().await {
        rest.push_str(std::str::from_utf8(&frame.unwrap()).unwrap());
    }
    assert!(rest.contains("\"finish_reason\":\"stop\"") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
}
