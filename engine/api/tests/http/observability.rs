//! What the server says about itself.

use std::time::Duration;

use axum::http::{Method, StatusCode, header};
use linnet_runtime::testing::ScriptedModel;
use serde_json::{Value, json};

use super::harness::{Harness, MODEL, request, says, user};

/// The value of a metric's line, such as `linnet_requests_total{model="m"}`.
fn value(text: &str, line: &str) -> Option<f64> {
    let line = text.lines().find(|candidate| candidate.rsplit_once(' ').is_some_and(|(name, _)| name == line))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[tokio::test]
async fn metrics_count_every_way_in_which_a_request_ends() {
    let harness = Harness::new(says("abc").error_at(12));
    let whole = |limit: u32| json!({"messages": user("hi"), "max_tokens": limit, "temperature": 0});
    assert_eq!(harness.chat(whole(50)).await.status, StatusCode::OK);
    assert_eq!(harness.chat(whole(2)).await.status, StatusCode::OK);
    // The scripted failure, wherever the steps stand by now.
    let mut failures = 0;
    for _ in 0..12 {
        failures += usize::from(harness.chat(whole(50)).await.status == StatusCode::INTERNAL_SERVER_ERROR);
    }
    assert_eq!(failures, 1);
    assert_eq!(harness.chat(json!({"model": "nope", "messages": user("hi")})).await.status, StatusCode::NOT_FOUND);
    assert_eq!(harness.get("/no/such/path").await.status, StatusCode::NOT_FOUND);

    let answer = harness.get("/metrics").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.headers[header::CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text;
    for (line, expected) in [
        (r#"linnet_requests_total{model="scripted",outcome="stop"}"#, 12.0),
        (r#"linnet_requests_total{model="scripted",outcome="length"}"#, 1.0),
        (r#"linnet_requests_total{model="scripted",outcome="error"}"#, 1.0),
        (r#"linnet_http_errors_total{code="model_not_found"}"#, 1.0),
        (r#"linnet_http_errors_total{code="generation_failed"}"#, 1.0),
        (r#"linnet_http_requests_total{route="unknown",status="404"}"#, 1.0),
        (r#"linnet_http_requests_total{route="/v1/chat/completions",status="200"}"#, 13.0),
        (r#"linnet_requests_running{model="scripted"}"#, 0.0),
        (r#"linnet_requests_waiting{model="scripted"}"#, 0.0),
        ("linnet_model_loads_total", 1.0),
    ] {
        assert_eq!(value(&text, line), Some(expected), "{line} in\n{text}");
    }
    let of_model = |name: &str| value(&text, &format!("{name}{{model=\"scripted\"}}")).unwrap();
    // "abc" and its end are four tokens; two are of the short answer, and some of the one that failed.
    assert!((50.0..=54.0).contains(&of_model("linnet_generation_tokens_total")), "{text}");
    assert!((24.0..=40.0).contains(&of_model("linnet_inter_token_latency_seconds_count")), "{text}");
    assert!((13.0..=14.0).contains(&of_model("linnet_time_to_first_token_seconds_count")), "{text}");
    assert_eq!(of_model("linnet_request_queue_time_seconds_count"), 14.0, "{text}");
    assert!(of_model("linnet_request_duration_seconds_sum") > 0.0, "{text}");
}

#[tokio::test]
async fn the_text_for_prometheus_is_well_formed() {
    let harness = Harness::new(says("abc"));
    harness.chat(json!({"messages": user("hi")})).await;
    let text = harness.get("/metrics").await.text;
    let mut typed = std::collections::HashMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(typed.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is described twice");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let known = ["", "_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| name.strip_suffix(suffix).is_some_and(|base| typed.contains_key(base)));
            assert!(known && name.starts_with("linnet_"), "{line} has no type in\n{text}");
        }
    }
    assert_eq!(typed["linnet_time_to_first_token_seconds"], "histogram");
    assert_eq!(typed["linnet_prompt_tokens_total"], "counter");
    assert_eq!(typed["linnet_uptime_seconds"], "gauge");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_counted_with_what_it_got() {
    let harness = Harness::new(ScriptedModel::noise().delay(Duration::from_millis(2)));
    let address = harness.listen().await;
    let body = json!({"messages": user("hi"), "stream": true});
    drop(super::sockets::open_and_read(address, &body, 4).await);
    harness.idle_within(Duration::from_secs(1)).await;
    let line = r#"linnet_requests_total{model="scripted",outcome="cancelled"}"#;
    for _ in 0..100 {
        if value(&harness.get("/metrics").await.text, line) == Some(1.0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not counted: {}", harness.get("/metrics").await.text);
}

#[tokio::test]
async fn stats_tell_what_each_model_does() {
    let harness = Harness::new(says("abc"));
    harness.chat(json!({"messages": user("hi")})).await;
    let stats = harness.get("/stats").await.json();
    assert_eq!(stats["version"], env!("CARGO_PKG_VERSION"));
    assert!(stats["uptime_seconds"].is_u64());
    let model = &stats["models"][0];
    assert_eq!((&model["id"], &model["state"], &model["pinned"]), (&json!(MODEL), &json!("ready"), &json!(true)));
    assert_eq!(model["health"], json!({"status": "ok"}));
    assert_eq!(model["batch"], json!({"active": 0, "max_active": 8, "queued": 0, "max_queued": 64}));
    assert_eq!(model["requests"], json!({"taken": 1, "finished": 1, "cancelled": 0, "failed": 0}));
    assert_eq!((&model["tokens"]["prompt"], &model["tokens"]["generated"]), (&json!(18), &json!(4)));
    assert!(model["tokens_per_second"]["decode"].as_f64().unwrap() > 0.0, "{model}");
    assert!(model["prompt_cache"]["entries"].is_u64() && model["ssd_cache"].is_null(), "{model}");
}

#[tokio::test]
async fn a_flush_answers_with_every_count_and_a_close_with_whether_it_was_open() {
    let harness = Harness::new(says("ok"));
    let flushed = harness.post("/admin/cache/flush", "").await;
    let body = flushed.json();
    assert_eq!(flushed.status == StatusCode::OK, body["durable"] == json!(true), "{body}");
    for name in [
        "flushedSnapshots",
        "missingSnapshots",
        "pendingSnapshots",
        "pendingSpills",
        "pendingSpillBytes",
        "droppedSpills",
        "failedSpills",
        "entries",
        "longest_durable_prefix_tokens",
    ] {
        assert!(body[name].is_u64() && body["models"][MODEL][name].is_u64(), "{name} in {body}");
    }
    assert!(body["elapsedMs"].is_f64());
    for body in ["", "{}", r#"{"session_id": "never seen"}"#] {
        assert_eq!(harness.post("/admin/cache/session/close", body).await.json(), json!({"closed": false}));
    }
    assert_eq!(harness.post("/admin/cache/session/close", "{").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(harness.post("/admin/cache/clear", "").await.json(), json!({"cleared": [MODEL]}));
}

#[tokio::test]
async fn the_tier_that_was_asked_for_is_named_in_the_answer() {
    let harness = Harness::new(says("ok"));
    let tier = async |body: Value| harness.chat(body).await.json().get("service_tier").cloned();
    assert_eq!(tier(json!({"messages": user("hi"), "service_tier": "flex"})).await, Some(json!("flex")));
    assert_eq!(tier(json!({"messages": user("hi"), "service_tier": "auto"})).await, Some(json!("default")));
    assert_eq!(tier(json!({"messages": user("hi")})).await, None);
    let mut odd = request(Method::POST, "/v1/completions", r#"{"prompt": "x"}"#);
    odd.headers_mut().insert("x-priority", "at once".parse().unwrap());
    assert_eq!(harness.send(odd).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_says_once_in_seconds_when_to_come_back() {
    let harness = Harness::new(ScriptedModel::noise().delay(Duration::from_millis(5)));
    let address = harness.listen().await;
    let body = json!({"messages": user("hi"), "stream": true});
    let mut held = Vec::new();
    // Eight run and sixty-four wait.
    for _ in 0..8 {
        held.push(super::sockets::open_and_read(address, &body, 2).await);
    }
    for _ in 0..64 {
        held.push(super::sockets::open_and_read(address, &body, 1).await);
    }
    let refused = harness.chat(json!({"messages": user("hi")})).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = refused.headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    let message = refused.message();
    assert_eq!(message.matches("try again").count(), 1, "{message}");
    assert!(message.contains(&format!("about {seconds} second")), "{message}");
    let stats = harness.get("/stats").await.json();
    assert_eq!(
        (&stats["models"][0]["batch"]["active"], &stats["models"][0]["batch"]["queued"]),
        (&json!(8), &json!(64))
    );
}
