//! Where chat templates come from, and what they may not do to their host.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linnet_models::{ChatTemplate, ClockTime, SpecialTokens, TemplateError, TemplateInput, Tokenizer, prompt_tokens};
use serde_json::{Value, json};

fn model(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    folder
}

fn user(text: &str) -> Vec<Value> {
    vec![json!({"role": "user", "content": text})]
}

fn render(folder: &Path, tools: Option<&[Value]>) -> Result<String, TemplateError> {
    let messages = user("hi");
    ChatTemplate::load(folder)?.unwrap().render(&TemplateInput { tools, ..TemplateInput::new(&messages) })
}

fn render_text(template: &str) -> Result<String, TemplateError> {
    let messages = user("hi");
    ChatTemplate::from_text(template, SpecialTokens::default())?.render(&TemplateInput::new(&messages))
}

#[test]
fn a_template_is_found_in_each_of_its_places() {
    let config = |template: &Value| json!({"chat_template": template, "bos_token": "<s>"}).to_string();
    let text = config(&json!("T{{ bos_token }}"));
    assert_eq!(render(model(&[("tokenizer_config.json", &text)]).path(), None).unwrap(), "T<s>");
    let list = config(&json!([{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]));
    let listed = model(&[("tokenizer_config.json", &list)]);
    assert_eq!(render(listed.path(), None).unwrap(), "D");
    assert_eq!(render(listed.path(), Some(&[])).unwrap(), "U");
    let pointer = config(&json!("chat_template_file.jinja"));
    let pointed = model(&[("tokenizer_config.json", &pointer), ("chat_template_file.jinja", "F{{ bos_token }}")]);
    assert_eq!(render(pointed.path(), None).unwrap(), "F<s>");
    let separate = model(&[("chat_template.json", "{\"chat_template\": \"J\"}")]);
    assert_eq!(render(separate.path(), None).unwrap(), "J");
    let jinja = model(&[
        ("chat_template.jinja", "X\n"),
        ("tokenizer_config.json", &text),
        ("additional_chat_templates/tool_use.jinja", "XU"),
        ("additional_chat_templates/notes.txt", "no template"),
    ]);
    assert_eq!(render(jinja.path(), None).unwrap(), "X");
    assert_eq!(render(jinja.path(), Some(&[])).unwrap(), "XU");
}

#[test]
fn a_model_without_a_template_is_no_error() {
    for files in
        [&[][..], &[("tokenizer_config.json", "{\"chat_template\": null}")], &[("tokenizer_config.json", "{}")]]
    {
        assert!(ChatTemplate::load(model(files).path()).unwrap().is_none());
    }
}

#[test]
fn special_tokens_come_from_either_file_as_text_or_object() {
    let folder = model(&[
        ("chat_template.jinja", "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}"),
        ("tokenizer_config.json", "{\"bos_token\": {\"content\": \"<b>\"}, \"pad_token\": null}"),
        ("special_tokens_map.json", "{\"bos_token\": \"<other>\", \"eos_token\": \"<e>\"}"),
    ]);
    assert_eq!(render(folder.path(), None).unwrap(), "<b>|<e>|False");
}

#[test]
fn a_pointer_out_of_the_folder_or_to_nothing_is_refused_by_name() {
    for name in ["../secret.jinja", "/etc/secret.jinja", "missing.jinja"] {
        let config = json!({"chat_template": name}).to_string();
        let error = ChatTemplate::load(model(&[("tokenizer_config.json", &config)]).path()).unwrap_err();
        assert!(matches!(error, TemplateError::Read { .. }) && error.to_string().contains("jinja"), "{error}");
    }
    let odd = ChatTemplate::load(model(&[("tokenizer_config.json", "{\"chat_template\": 5}")]).path());
    assert!(matches!(odd, Err(TemplateError::UnknownForm { .. })));
    let list =
        ChatTemplate::load(model(&[("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"x\"}]}")]).path());
    assert!(matches!(list, Err(TemplateError::UnknownForm { .. })));
    let named = model(&[("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"\"}]}")]);
    assert!(matches!(render(named.path(), None), Err(TemplateError::NoDefault { names }) if names == ["rag"]));
}

#[test]
fn errors_carry_the_line_of_the_template_and_say_whose_fault_it_is() {
    let syntax = render_text("a\n{% if %}").unwrap_err();
    assert!(matches!(syntax, TemplateError::Syntax { line: 2, .. }) && !syntax.is_request_fault(), "{syntax}");
    let raised =
        render_text("a\n\n{% for m in messages %}\n{{ raise_exception('no ' ~ m.role) }}{% endfor %}").unwrap_err();
    assert!(matches!(&raised, TemplateError::Raised { line: 4, message } if message == "no user"), "{raised}");
    assert!(raised.is_request_fault());
    let missing = render_text("\n{{ messages[0].name.first }}").unwrap_err();
    assert!(matches!(missing, TemplateError::Render { line: 2, .. }) && missing.is_request_fault(), "{missing}");
    let in_macro = render_text("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}").unwrap_err();
    assert!(matches!(&in_macro, TemplateError::Raised { message, .. } if message == "deep"), "{in_macro}");
}

#[test]
fn a_hostile_template_ends_soon_and_leaves_the_host_alive() {
    let hostile = [
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 99999999999 }}",
        "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        "{% set ns = namespace(x={}) %}{% for i in range(99999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x|string|length }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ ','.join(range(99999)|map('string')|list * 9999) }}",
        "{{ 'x'.ljust(99999999999) }}",
        "{{ ('\\t' * 99999).expandtabs(65536) }}",
        "{{ 'x'|center(65535) * 99999 }}",
        "{{ range(99999)|list|tojson(indent=1000) }}",
        "{{ strftime_now('%99999999d' * 9999) }}",
        "{{ ('%4096d' * 99999)|length }}{{ strftime_now('%4000d' * 99999) }}",
        "{{ ('a\\n' * 999999)|indent(65535) }}",
    ];
    for template in hostile {
        let begin = Instant::now();
        let result = render_text(template);
        assert!(result.is_err(), "{template} made {} bytes", result.map_or(0, |text| text.len()));
        assert!(begin.elapsed() < Duration::from_secs(20), "{template} took {:?}", begin.elapsed());
    }
    let endless = render_text(hostile[0]).unwrap_err();
    assert!(matches!(endless, TemplateError::TooExpensive { .. }), "{endless}");
}

#[test]
fn nesting_as_deep_as_json_allows_is_no_danger() {
    let mut deep = json!("x");
    for _ in 0..120 {
        deep = json!([{"a": deep}]);
    }
    let messages = vec![json!({"role": "user", "content": deep})];
    let template = ChatTemplate::from_text("{{ messages }}{{ messages|string }}", SpecialTokens::default()).unwrap();
    assert!(template.render(&TemplateInput::new(&messages)).unwrap().len() > 1000);
}

#[test]
fn a_long_real_conversation_stays_within_the_budget() {
    let template =
        std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/templates/qwen3.jinja")).unwrap();
    let template = ChatTemplate::from_text(&template, SpecialTokens::default()).unwrap();
    let text = "A sentence of some forty characters or so. ".repeat(25);
    let mut messages = Vec::new();
    for _ in 0..500 {
        messages.push(json!({"role": "user", "content": text}));
        messages.push(json!({"role": "assistant", "content": text}));
    }
    let rendered = template.render(&TemplateInput::new(&messages)).unwrap();
    assert!(rendered.len() > 1_000_000);
}

#[test]
fn continuing_the_final_message_needs_one_and_no_generation_prompt() {
    let template = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
    let template = ChatTemplate::from_text(template, SpecialTokens::default()).unwrap();
    let input = |messages: &'static [Value], add_generation_prompt: bool| TemplateInput {
        continue_final_message: true,
        add_generation_prompt,
        ..TemplateInput::new(messages)
    };
    let messages: &'static [Value] = Vec::leak(user("The answer "));
    assert_eq!(template.render(&input(messages, false)).unwrap(), "<The answer");
    let both = template.render(&input(messages, true)).unwrap_err();
    assert!(matches!(both, TemplateError::ContinueWithGenerationPrompt));
    for last in
        [json!({"role": "user", "content": null}), json!({"role": "user"}), json!({"content": [{"type": "image"}]})]
    {
        let messages: &'static [Value] = Vec::leak(vec![last]);
        assert!(matches!(template.render(&input(messages, false)), Err(TemplateError::CannotContinue { .. })));
    }
    let dropping = ChatTemplate::from_text("nothing", SpecialTokens::default()).unwrap();
    assert!(matches!(dropping.render(&input(messages, false)), Err(TemplateError::CannotContinue { .. })));
}

#[test]
fn variables_of_the_request_win_over_special_tokens_but_not_over_the_messages() {
    let template = ChatTemplate::from_text(
        "{{ bos_token }}{{ enable_thinking }}{{ messages | length }}",
        SpecialTokens::from_maps(json!({"bos_token": "<s>"}).as_object().unwrap(), &serde_json::Map::new()),
    )
    .unwrap();
    let messages = user("hi");
    let mut input = TemplateInput::new(&messages);
    assert_eq!(template.render(&input).unwrap(), "<s>1");
    input.variables = json!({"bos_token": "B", "enable_thinking": false, "messages": []}).as_object().unwrap().clone();
    assert_eq!(template.render(&input).unwrap(), "BFalse1");
}

#[test]
fn the_clock_can_be_set_and_runs_by_itself() {
    let template = ChatTemplate::from_text("{{ strftime_now('%Y') }}", SpecialTokens::default()).unwrap();
    let messages = user("hi");
    let mut input = TemplateInput::new(&messages);
    assert!(template.render(&input).unwrap().parse::<u32>().unwrap() >= 2025);
    input.now = ClockTime::new(1999, 12, 31, 23, 59, 59).unwrap();
    assert_eq!(template.render(&input).unwrap(), "1999");
    assert!(ClockTime::new(2025, 2, 29, 0, 0, 0).is_none());
}

#[test]
fn a_prompt_holds_the_beginning_token_once() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers/byte_level");
    let tokenizer = Tokenizer::load(&folder).unwrap();
    let text = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
    let template = ChatTemplate::from_text(text, SpecialTokens::load(&folder).unwrap()).unwrap();
    let messages = user("Hello");
    let ids = prompt_tokens(&tokenizer, &template, &TemplateInput::new(&messages)).unwrap();
    assert_eq!(ids.iter().filter(|id| Some(**id) == tokenizer.bos()).count(), 1);
    assert_eq!(tokenizer.decode_with_special_tokens(&ids), "<|begin|><|im_start|>Hello<|im_end|>");
}
