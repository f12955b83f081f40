//! Whole and streamed text completions.

use axum::http::StatusCode;
use linnet_runtime::testing::ScriptedModel;
use serde_json::json;

use super::harness::{Harness, MODEL};

#[tokio::test]
async fn a_text_is_continued_in_openai_shape() {
    let harness = Harness::new(ScriptedModel::says(3, "def"));
    let answer = harness.complete(json!({"model": MODEL, "prompt": "abc"})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"], json!([{"index": 0, "text": "def", "logprobs": null, "finish_reason": "stop"}]));
    assert_eq!(body["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn tokens_are_a_prompt_too() {
    let harness = Harness::new(ScriptedModel::says(3, "def"));
    for prompt in [json!([97, 98, 99]), json!([[97, 98, 99]]), json!(["abc"])] {
        assert_eq!(harness.complete(json!({ "prompt": prompt })).await.json()["choices"][0]["text"], "def");
    }
    let unknown = harness.complete(json!({"prompt": [97, 98, 99_999]})).await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    assert!(unknown.message().contains("99999"), "{}", unknown.text);
    let empty = harness.complete(json!({"prompt": ""})).await;
    assert_eq!(empty.status, StatusCode::BAD_REQUEST, "{}", empty.text);
}

#[tokio::test]
async fn a_request_without_a_limit_ends_after_sixteen_tokens() {
    let harness = Harness::new(ScriptedModel::noise());
    let body = harness.complete(json!({"prompt": "abc"})).await.json();
    assert_eq!(body["usage"]["completion_tokens"], 16);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn stream_and_whole_answer_carry_the_same_text_and_probabilities() {
    let harness = Harness::new(ScriptedModel::noise());
    let body = json!({"prompt": "abc", "max_tokens": 40, "temperature": 0, "logprobs": 2});
    let whole = harness.complete(body.clone()).await.json();
    let mut streamed = body;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let chunks = harness.complete(streamed).await.chunks();
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(whole["choices"][0]["text"], text.as_str());
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let joined: Vec<_> = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["logprobs"][list].as_array().cloned())
            .flatten()
            .collect();
        assert_eq!(whole["choices"][0]["logprobs"][list], json!(joined), "{list}");
    }
    // The times are each answer's own.
    for count in ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"] {
        assert_eq!(chunks.last().unwrap()["usage"][count], whole["usage"][count], "{count}");
    }
    assert_eq!(chunks.last().unwrap()["choices"], json!([]));
}
