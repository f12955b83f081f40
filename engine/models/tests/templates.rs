//! Chat templates render byte for byte what Python's Jinja renders, and fail where it fails.
//!
//! `templates/make_golden.py` wrote the expected texts with the transformers library.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use linnet_models::{ChatTemplate, ClockTime, SpecialTokens, TemplateError, TemplateInput};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Golden {
    special_tokens: Map<String, Value>,
    cases: BTreeMap<String, Case>,
    templates: BTreeMap<String, Vec<Expected>>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: Map<String, Value>,
}

#[derive(Deserialize)]
struct Expected {
    #[serde(default)]
    cases: Vec<String>,
    #[serde(default)]
    template: String,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Deserialize, Debug, PartialEq, Clone)]
struct Outcome {
    text: Option<String>,
    kind: Option<String>,
    message: Option<String>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/templates")
}

fn read<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

fn input<'a>(case: &'a Case, variables: Map<String, Value>) -> TemplateInput<'a> {
    TemplateInput {
        messages: &case.messages,
        tools: case.tools.as_deref(),
        documents: None,
        add_generation_prompt: case.add_generation_prompt,
        continue_final_message: case.continue_final_message,
        variables,
        now: ClockTime::new(2025, 3, 7, 9, 5, 4).unwrap(),
    }
}

/// What we made of a template in the words of the golden file: the text, or the kind of error, with the message only
/// where the template itself raised it.
fn outcome(template: &str, special_tokens: &SpecialTokens, input: &TemplateInput<'_>) -> (Outcome, String) {
    let result = ChatTemplate::from_text(template, special_tokens.clone()).and_then(|template| template.render(input));
    let failed = |kind: &str, message: Option<&str>| Outcome {
        text: None,
        kind: Some(kind.to_owned()),
        message: message.map(str::to_owned),
    };
    match result {
        Ok(text) => (Outcome { text: Some(text), kind: None, message: None }, String::new()),
        Err(error) => {
            let outcome = match &error {
                TemplateError::Raised { message, .. } => failed("raised", Some(message)),
                TemplateError::Syntax { .. } => failed("syntax", None),
                _ => failed("error", None),
            };
            (outcome, error.to_string())
        }
    }
}

fn expected(outcome: &Outcome) -> Outcome {
    let raised = outcome.kind.as_deref() == Some("raised");
    Outcome { message: outcome.message.clone().filter(|_| raised), ..outcome.clone() }
}

/// What is known to differ, with the reasons in `docs/decisions/chat-templates.md`: the names of snippets or of
/// `template / case`. The tests fail when an entry no longer differs, so the list cannot outlive its reasons.
fn known_differences(name: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    text.trim_end().split("\n====\n").map(str::to_owned).collect()
}

fn assert_only(differences: &BTreeMap<String, String>, known: &BTreeSet<String>) {
    let unknown = differences.iter().filter(|(key, _)| !known.contains(*key));
    let new: Vec<&str> = unknown.map(|(_, text)| text.as_str()).collect();
    assert!(new.is_empty(), "{} differ that should agree:\n{}", new.len(), new.join("\n"));
    let gone: Vec<&String> = known.iter().filter(|key| !differences.contains_key(*key)).collect();
    assert!(gone.is_empty(), "these agree now, take them from the list of known differences: {gone:?}");
}

#[test]
fn real_templates_render_as_python_does() {
    let golden: Golden = read("golden.json");
    let special_tokens = SpecialTokens::from_maps(&golden.special_tokens, &Map::new());
    let mut compared = 0;
    let mut differences = BTreeMap::new();
    for (name, outcomes) in &golden.templates {
        let template = std::fs::read_to_string(folder().join(format!("{name}.jinja"))).unwrap();
        for wanted in outcomes {
            for case_name in &wanted.cases {
                let case = &golden.cases[case_name];
                let (got, detail) = outcome(&template, &special_tokens, &input(case, case.variables.clone()));
                compared += 1;
                if got != expected(&wanted.outcome) {
                    let key = format!("{name} / {case_name}");
                    let text = format!("{key}:\n  ours   {got:?} {detail}\n  python {:?}", wanted.outcome);
                    differences.insert(key, text);
                }
            }
        }
    }
    assert!(golden.templates.len() >= 40 && compared >= 1000, "{} templates", golden.templates.len());
    assert_only(&differences, &known_differences("known_template_differences.txt"));
}

#[test]
fn snippets_render_as_python_does() {
    let golden: Golden = read("golden.json");
    let snippets: Vec<Expected> = read("snippets.json");
    let variables: Map<String, Value> = read("snippet_context.json");
    let special_tokens = SpecialTokens::from_maps(&golden.special_tokens, &Map::new());
    let mut differences = BTreeMap::new();
    for snippet in &snippets {
        let (got, detail) =
            outcome(&snippet.template, &special_tokens, &input(&golden.cases["user"], variables.clone()));
        if got != expected(&snippet.outcome) {
            let key = snippet.template.clone();
            let text = format!("{key}\n  ours   {got:?} {detail}\n  python {:?}", snippet.outcome);
            differences.insert(key, text);
        }
    }
    assert!(snippets.len() >= 500, "{} snippets", snippets.len());
    assert_only(&differences, &known_differences("known_snippet_differences.txt"));
}
