//! Whole answers to chats.

use axum::http::{StatusCode, header};
use linnet_api::{SamplingOverrides, ServerOptions};
use linnet_models::{ChatTemplate, SpecialTokens};
use linnet_runtime::testing::{Next, ScriptedModel};
use serde_json::{Value, json};

use super::harness::{Harness, MODEL, echo, says, user};

#[tokio::test]
async fn a_chat_is_answered_in_openai_shape() {
    let harness = Harness::new(says("Paris."));
    let answer = harness.chat(json!({"model": MODEL, "messages": user("hi"), "max_tokens": 20})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let mut body = answer.json();
    assert!(body["id"].take().as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["created"].take().as_u64().unwrap() > 1_700_000_000);
    let mut time = |name: &str| body["usage"].as_object_mut().unwrap().remove(name).unwrap().as_f64().unwrap();
    let parts = ["queue_time", "prompt_time", "completion_time"].map(&mut time);
    let total = time("total_time");
    assert!(parts.iter().all(|seconds| (0.0..10.0).contains(seconds)), "{parts:?}");
    assert!((parts.iter().sum::<f64>() - total).abs() < 1e-9 && total > 0.0, "{parts:?} {total}");
    assert_eq!(
        body,
        json!({
            "id": null, "object": "chat.completion", "created": null, "model": MODEL, "system_fingerprint": null,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "Paris.", "refusal": null},
                "logprobs": null,
                "finish_reason": "stop",
            }],
            // "[user] hi\n<answer>" is 18 byte tokens; "Paris." and the end are 7.
            "usage": {"prompt_tokens": 18, "completion_tokens": 7, "total_tokens": 25,
                "prompt_tokens_details": {"cached_tokens": 0}},
        })
    );
    assert!(answer.headers.contains_key("x-request-id"));
}

#[tokio::test]
async fn the_model_may_be_left_out_and_a_wrong_one_is_404_with_the_right_ones() {
    let harness = Harness::new(says("ok"));
    assert_eq!(harness.chat(json!({"messages": user("hi")})).await.status, StatusCode::OK);
    let answer = harness.chat(json!({"model": "gpt-x", "messages": user("hi")})).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(answer.json()["error"]["code"], "model_not_found");
    assert_eq!(answer.message(), "there is no model `gpt-x` here; installed: scripted");
}

#[tokio::test]
async fn the_prompt_holds_all_roles_and_every_text_part_in_order() {
    let harness = Harness::new(echo());
    let messages = json!([
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two "},
            {"type": "text", "text": "three"}]},
        {"role": "assistant", "content": "four", "reasoning": "hm"},
        {"role": "tool", "content": "five", "tool_call_id": "c"},
    ]);
    let answer = harness.chat(json!({"messages": messages, "temperature": 0})).await;
    assert_eq!(
        answer.json()["choices"][0]["message"]["content"],
        "[system] be kind\n[user] one two three\n[assistant] four\n[tool] five\n"
    );
}

#[tokio::test]
async fn tools_and_template_variables_reach_the_template() {
    let harness = Harness::new(echo());
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let body = json!({"messages": user("hi"), "tools": tools, "chat_template_kwargs": {"mood": "calm"}});
    let text = harness.chat(body.clone()).await.json()["choices"][0]["message"]["content"].to_string();
    assert!(text.contains("function") && text.contains("mood=calm"), "{text}");
    let mut without = body;
    without["tool_choice"] = json!("none");
    let text = harness.chat(without).await.json()["choices"][0]["message"]["content"].to_string();
    assert!(!text.contains("function"), "{text}");
}

#[tokio::test]
async fn a_template_that_refuses_gives_400_with_its_own_words() {
    let harness = Harness::new(echo());
    let answer = harness.chat(json!({"messages": user("forbidden")})).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.message().contains("no such talk here"), "{}", answer.text);
}

#[tokio::test]
async fn a_base_model_without_template_says_which_route_to_use() {
    let harness = Harness::with_model(echo(), ServerOptions::default(), |model| model.template = None);
    let answer = harness.chat(json!({"messages": user("hi")})).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.message().contains("/v1/completions"), "{}", answer.text);
}

#[tokio::test]
async fn context_overflow_names_both_figures() {
    let harness = Harness::new(echo().context_length(64));
    let answer = harness.chat(json!({"messages": user("hi"), "max_tokens": 1000})).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded");
    let text = answer.message();
    assert!(text.contains("18") && text.contains("1000") && text.contains("64"), "{text}");
    let long = harness.chat(json!({"messages": user(&"x".repeat(100))})).await;
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded", "{}", long.text);
}

#[tokio::test]
async fn max_tokens_ends_with_length() {
    let harness = Harness::new(says("abcdefgh"));
    let answer = harness.chat(json!({"messages": user("hi"), "max_completion_tokens": 3})).await;
    let choice = &answer.json()["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("abc"), &json!("length")));
}

#[tokio::test]
async fn stop_is_honoured_on_both_routes_and_in_both_modes() {
    let harness = Harness::new(ScriptedModel::new(|tokens| {
        let start = tokens.iter().rposition(|token| *token == u32::from(b'>')).map_or(0, |at| at + 1);
        Next::Token(b"one END two".get(tokens.len() - start).map_or(256, |byte| u32::from(*byte)))
    }));
    for stop in [json!("END"), json!(["never", "END"])] {
        let chat = harness.chat(json!({"messages": user("hi"), "stop": stop})).await.json();
        assert_eq!(chat["choices"][0]["message"]["content"], "one ");
        assert_eq!(chat["choices"][0]["finish_reason"], "stop");
        let text = harness.complete(json!({"prompt": "go>", "stop": stop, "max_tokens": 30})).await.json();
        assert_eq!(text["choices"][0]["text"], "one ");
        for (path, body) in [
            ("/v1/chat/completions", json!({"messages": user("hi"), "stop": stop, "stream": true})),
            ("/v1/completions", json!({"prompt": "go>", "stop": stop, "stream": true, "max_tokens": 30})),
        ] {
            let answer = harness.post(path, body.to_string()).await;
            assert!(!answer.text.contains('D') || !answer.text.contains("END"), "{}", answer.text);
            let chunks = answer.chunks();
            let text: String = chunks.iter().map(|chunk| piece(chunk).to_owned()).collect();
            assert_eq!(text, "one ");
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
        }
    }
}

fn piece(chunk: &Value) -> &str {
    let choice = &chunk["choices"][0];
    choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default()
}

#[tokio::test]
async fn probabilities_come_in_openai_shape() {
    let harness = Harness::new(says("é"));
    let body = json!({"messages": user("hi"), "logprobs": true, "top_logprobs": 2, "temperature": 0});
    let answer = harness.chat(body.clone()).await.json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content[0]["token"], "bytes:\\xc3");
    assert_eq!(content[0]["bytes"], json!([0xc3]));
    assert_eq!(content[1]["bytes"], json!([0xa9]));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(content[0]["top_logprobs"][0]["bytes"], json!([0xc3]));
    assert!(content[0]["logprob"].as_f64().unwrap() > -0.01);

    let mut streamed = body;
    streamed["stream"] = json!(true);
    let chunks = harness.chat(streamed).await.chunks();
    let entries: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(entries, content);
}

#[tokio::test]
async fn a_request_stands_above_the_server_and_the_server_above_the_model() {
    // Two tokens of nearly the same logit: greedy always takes the first, a high temperature takes both.
    let coin = || {
        ScriptedModel::new(|_| {
            let mut logits = vec![-100.0; 257];
            logits[usize::from(b'a')] = 1.0;
            logits[usize::from(b'b')] = 0.9;
            Next::Logits(logits)
        })
    };
    let answer = async |harness: &Harness, temperature: Value| {
        let body = json!({"messages": user("hi"), "max_tokens": 64, "seed": 7, "temperature": temperature});
        harness.chat(body).await.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let greedy = "a".repeat(64);
    let at = |temperature: f32| SamplingOverrides { temperature: Some(temperature), ..SamplingOverrides::default() };

    let built_in = Harness::new(coin());
    assert_ne!(answer(&built_in, json!(null)).await, greedy);
    assert_eq!(answer(&built_in, json!(0)).await, greedy);

    let model = Harness::with_model(coin(), ServerOptions::default(), |model| model.sampling = at(0.0));
    assert_eq!(answer(&model, json!(null)).await, greedy);
    assert_ne!(answer(&model, json!(1)).await, greedy);

    let options = ServerOptions { sampling: at(1.0), ..ServerOptions::default() };
    let server = Harness::with_model(coin(), options, |model| model.sampling = at(0.0));
    assert_ne!(answer(&server, json!(null)).await, greedy);
    assert_eq!(answer(&server, json!(0)).await, greedy);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_answer() {
    let harness = Harness::new(ScriptedModel::noise());
    let body = json!({"messages": user("hi"), "max_tokens": 30, "temperature": 1.5, "seed": -5});
    let first = harness.chat(body.clone()).await.json();
    let second = harness.chat(body).await.json();
    assert_eq!(first["choices"], second["choices"]);
}

#[tokio::test]
async fn fifty_chats_with_a_title_request_beside_each_all_finish() {
    let harness = Harness::new(echo());
    for _ in 0..50 {
        let (chat, title) = tokio::join!(
            harness.chat(json!({"messages": user("tell me more"), "stream": true})),
            harness.chat(json!({"messages": user("title please"), "max_tokens": 40})),
        );
        assert_eq!(chat.chunks().last().unwrap()["choices"][0]["finish_reason"], "stop");
        assert_eq!(title.json()["choices"][0]["message"]["content"], "[user] title please\n");
    }
}

#[tokio::test]
async fn a_failed_step_is_a_500_and_the_next_request_works() {
    let harness = Harness::new(says("ok").error_at(0));
    let answer = harness.chat(json!({"messages": user("hi")})).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer.json()["error"]["code"], "generation_failed");
    assert_eq!(harness.chat(json!({"messages": user("hi")})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_turn_of_tool_calls_alone_suits_templates_that_ask_for_silence_and_those_that_add_to_it() {
    let call = json!({"role": "assistant", "content": null,
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    for (template, expected) in [
        ("{% for m in messages %}{% if m.content is none %}silent{% endif %}{% endfor %}<answer>", "silent"),
        ("{% for m in messages %}{{ '(' + m.content + ')' }}{% endfor %}<answer>", "()(x)"),
    ] {
        let harness = Harness::with_model(echo(), ServerOptions::default(), |model| {
            model.template = Some(ChatTemplate::from_text(template, SpecialTokens::default()).unwrap());
        });
        let messages = json!([call, {"role": "user", "content": "x"}]);
        let answer = harness.chat(json!({ "messages": messages })).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        assert_eq!(answer.json()["choices"][0]["message"]["content"], expected);
    }
}

#[tokio::test]
async fn health_and_models_tell_what_is_there() {
    let harness = Harness::new(says("ok"));
    let health = harness.get("/health").await.json();
    assert_eq!(
        health,
        json!({"status": "ok", "active": 0, "queued": 0, "model": MODEL, "version": env!("CARGO_PKG_VERSION")})
    );
    let models = harness.get("/v1/models").await.json();
    assert_eq!(models["object"], "list");
    let card = models["data"][0].clone();
    assert_eq!((&card["id"], &card["object"]), (&json!(MODEL), &json!("model")));
    assert_eq!((&card["created"], &card["context_length"]), (&json!(1_700_000_000), &json!(4096)));
    assert_eq!(harness.get("/v1/models/scripted").await.json(), card);
    // What a chat may call the model, its card answers to as well.
    assert_eq!(harness.get("/v1/models/Scripted").await.json(), card);
    let missing = harness.get("/v1/models/some/other").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert!(missing.message().contains("`some/other`"), "{}", missing.text);
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_json() {
    let harness = Harness::new(says("ok"));
    let unknown = harness.get("/v1/chat/completion").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert!(unknown.message().contains("POST /v1/chat/completions"), "{}", unknown.text);
    let wrong = harness.get("/v1/chat/completions").await;
    assert_eq!(wrong.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(wrong.headers[header::ALLOW], "POST");
    assert_eq!(wrong.json()["error"]["code"], "method_not_allowed");
}
