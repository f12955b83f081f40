//! Streamed chats.

use axum::http::{StatusCode, header};
use linnet_runtime::testing::ScriptedModel;
use serde_json::{Value, json};

use super::harness::{Harness, echo, says, user};

fn content(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn a_stream_goes_from_role_to_done() {
    let harness = Harness::new(says("ab"));
    let answer = harness.chat(json!({"messages": user("hi"), "stream": true})).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.headers[header::CONTENT_TYPE], "text/event-stream");
    let chunks = answer.chunks();
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"]));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "usage was not asked for");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(content(&chunks), "ab");
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("stop")));
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
}

#[tokio::test]
async fn usage_comes_once_in_a_chunk_of_its_own_when_asked_for() {
    let harness = Harness::new(says("ab"));
    let body = json!({"messages": user("hi"), "stream": true, "stream_options": {"include_usage": true}});
    let chunks = harness.chat(body).await.chunks();
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], 21);
    assert!(others.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
}

#[tokio::test]
async fn characters_split_over_tokens_stay_whole_and_stream_equals_whole() {
    let text = "\u{1F600} \u{1F1E9}\u{1F1EA} \u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467} 한글 देवनागरी \"quoted\"\n\r\tend\u{7}";
    let harness = Harness::new(echo());
    let whole = harness.chat(json!({"messages": user(text)})).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], format!("[user] {text}\n"));
    let streamed = harness.chat(json!({"messages": user(text), "stream": true})).await;
    assert!(!streamed.text.contains('\u{FFFD}'), "{}", streamed.text);
    assert_eq!(content(&streamed.chunks()), format!("[user] {text}\n"));
}

#[tokio::test]
async fn nothing_of_a_stop_text_split_over_tokens_is_streamed() {
    let harness = Harness::new(says("aE aEN aEND b"));
    let chunks = harness.chat(json!({"messages": user("hi"), "stream": true, "stop": ["END"]})).await.chunks();
    assert_eq!(content(&chunks), "aE aEN a");
}

#[tokio::test]
async fn an_error_in_mid_stream_is_an_event_and_done_still_follows() {
    let harness = Harness::new(says("abcdef").error_at(3));
    let chunks = harness.chat(json!({"messages": user("hi"), "stream": true})).await.chunks();
    let error = &chunks.last().unwrap()["error"];
    assert_eq!(error["code"], "generation_failed");
    assert!(error["message"].as_str().unwrap().contains("scripted failure"), "{error}");
    let next = harness.chat(json!({"messages": user("hi"), "stream": true})).await.chunks();
    assert_eq!(content(&next), "abcdef");
}

#[tokio::test]
async fn what_can_be_refused_beforehand_is_a_status_and_not_a_stream() {
    let harness = Harness::new(ScriptedModel::noise().context_length(32));
    let answer = harness.chat(json!({"messages": user(&"x".repeat(100)), "stream": true})).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/json");
}
