//! Chat templates render byte for byte what Python's Jinja renders, and fail where it fails.
//!
//! `templates/make_golden.py` wrote the expected texts with the transformers library.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
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

#[test]
fn real_templates_render_as_python_does() {
    let golden: Golden = read("golden.json");
    let special_tokens = SpecialTokens::from_maps(&golden.special_tokens, &Map::new());
    let mut compared = 0;
    let mut differences = Vec::new();
    for (name, outcomes) in &golden.templates {
        let template = std::fs::read_to_string(folder().join(format!("{name}.jinja"))).unwrap();
        for wanted in outcomes {
            for case_name in &wanted.cases {
                let case = &golden.cases[case_name];
                let (got, detail) = outcome(&template, &special_tokens, &input(case, case.variables.clone()));
                compared += 1;
                if got != expected(&wanted.outcome) {
                    differences.push(format!(
                        "{name} / {case_name}:\n  ours   {got:?} {detail}\n  python {:?}",
                        wanted.outcome
                    ));
                }
            }
        }
    }
    assert!(golden.templates.len() >= 40 && compared >= 1000, "{} templates", golden.templates.len());
    assert!(differences.is_empty(), "{} of {compared} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn snippets_render_as_python_does() {
    let golden: Golden = read("golden.json");
    let snippets: Vec<Expected> = read("snippets.json");
    let variables: Map<String, Value> = read("snippet_context.json");
    let special_tokens = SpecialTokens::from_maps(&golden.special_tokens, &Map::new());
    let mut differences = Vec::new();
    for snippet in &snippets {
        let (got, detail) =
            outcome(&snippet.template, &special_tokens, &input(&golden.cases["user"], variables.clone()));
        if got != expected(&snippet.outcome) {
            differences
                .push(format!("{}\n  ours   {got:?} {detail}\n  python {:?}", snippet.template, snippet.outcome));
        }
    }
    assert!(snippets.len() >= 500, "{} snippets", snippets.len());
    assert!(differences.is_empty(), "{} of {} differ:\n{}", differences.len(), snippets.len(), differences.join("\n"));
}
