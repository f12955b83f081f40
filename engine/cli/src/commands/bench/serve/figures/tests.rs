//! What a report says of good runs, and what it refuses to say.

use super::*;
use crate::commands::bench::serve::html::page;
use crate::commands::bench::serve::record::{ArmRecord, Failure, Phase, SCHEMA, Workload};
use crate::machine::Machine;

fn exchange(group: &str, index: usize, first_ms: f64, gap_ms: f64, tokens: u64) -> Exchange {
    let events_ms: Vec<f64> = (0..tokens).map(|token| first_ms + token as f64 * gap_ms).collect();
    Exchange {
        group: group.into(),
        index,
        request_sha256: format!("request {group} {index}"),
        output_sha256: Some("text".into()),
        finished_ms: events_ms.last().copied(),
        events_ms,
        prompt_tokens: Some(30),
        completion_tokens: Some(tokens),
        finish_reason: Some("length".into()),
        ..Exchange::default()
    }
}

/// Two arms and two rounds; the second arm takes `slower` times as long.
fn record(slower: f64) -> Record {
    let arm = |name: &str| ArmRecord { name: name.into(), source: format!("serve <{name}> --port {{port}}") };
    let mut cells = Vec::new();
    for round in 0..2 {
        for (number, factor) in [(0, 1.0), (1, slower)] {
            let mut exchanges: Vec<Exchange> =
                (0..5).map(|index| exchange("decode", index, 50.0 * factor, 10.0 * factor, 101)).collect();
            exchanges.extend((0..4).map(|index| exchange("aggregate-4", index, 0.0, 10.0 * factor, 101)));
            cells.push(Cell {
                arm: number,
                round,
                ready_ms: Some(400.0),
                peak_memory: Some(300_000_000),
                flush: None,
                exchanges,
                failures: Vec::new(),
            });
        }
    }
    Record {
        schema: SCHEMA,
        linnet: "0.0.0".into(),
        begun: 1_700_000_000,
        machine: Machine::detect(),
        workload: Workload {
            seed: "s".into(),
            decode_tokens: 101,
            context_tokens: 4000,
            rounds: 2,
            phases: vec![Phase::Decode, Phase::Aggregate],
        },
        arms: vec![arm("ours"), arm("peer & co")],
        cells,
    }
}

fn line<'a>(lines: &'a [Line], work: &str) -> &'a Line {
    lines.iter().find(|line| line.metric.work.starts_with(work)).unwrap()
}

fn refusal(record: &Record, alike: Alike) -> String {
    line(&lines(record, alike), "decode").ratios[0].clone().unwrap_err()
}

#[test]
fn figures_are_medians_and_ratios_above_one_are_ours() {
    let record = record(2.0);
    let lines = lines(&record, Alike::Outputs);
    assert_eq!(lines.len(), 2, "phases that were not asked for have no line");
    let decode = line(&lines, "decode");
    assert_eq!(decode.figures[0], Ok(Figure { median: 100.0, spread: (100.0, 100.0) }));
    assert_eq!(decode.ratios, [Ok(2.0)]);
    let aggregate = line(&lines, "4 answers");
    assert_eq!(aggregate.figures[1].as_ref().unwrap().median, 202.0);
    let summary = serde_json::to_value(summary(&record, &lines)).unwrap();
    let expected = serde_json::json!({"work": "serve: decode, one answer", "unit": "tok/s", "ours": 100.0,
        "peer": 50.0, "peer_name": "peer & co", "ratio": 2.0});
    assert_eq!(summary[0], expected);
}

#[test]
fn another_number_of_tokens_refuses_the_ratio_whatever_is_allowed() {
    let mut record = record(2.0);
    record.cells[3].exchanges[2].completion_tokens = Some(100);
    for alike in [Alike::Outputs, Alike::Counts] {
        assert_eq!(refusal(&record, alike), "answers of 101 against 100 tokens");
    }
    // What is not concerned keeps its ratio.
    assert!(line(&lines(&record, Alike::Outputs), "4 answers").ratios[0].is_ok());
    record.cells[3].exchanges[2].prompt_tokens = None;
    assert_eq!(refusal(&record, Alike::Counts), "prompts of 30 against an unknown number of tokens");
}

#[test]
fn another_text_refuses_the_ratio_unless_only_counts_matter() {
    let mut record = record(2.0);
    record.cells[1].exchanges[0].output_sha256 = Some("other".into());
    assert_eq!(refusal(&record, Alike::Outputs), "1 of 10 answers have another text");
    assert_eq!(line(&lines(&record, Alike::Counts), "decode").ratios, [Ok(2.0)]);
}

#[test]
fn other_requests_are_not_compared() {
    let mut record = record(2.0);
    record.cells[0].exchanges[0].request_sha256 = "other".into();
    assert_eq!(refusal(&record, Alike::Counts), "not the same requests");
}

#[test]
fn one_failed_request_leaves_no_figure_and_is_shown() {
    let mut record = record(2.0);
    record.cells[1].exchanges[4].error = Some("status 500: <out of memory>".into());
    let lines = lines(&record, Alike::Counts);
    let decode = line(&lines, "decode");
    assert_eq!(decode.figures[1], Err("1 of 5 requests failed in round 1: status 500: <out of memory>".into()));
    assert_eq!(decode.ratios[0], Err("peer & co has no figure".into()));
    let html = page(&record, &lines, Alike::Counts, "00");
    assert!(html.contains("<li>peer &amp; co, round 1: decode request 5: status 500: &lt;out of memory&gt;</li>"));
    assert!(html.contains("refused: peer &amp; co has no figure"));
    let summary = serde_json::to_value(summary(&record, &lines)).unwrap();
    assert_eq!(summary[0]["ratio"], serde_json::Value::Null);
    assert_eq!(summary[0]["refused"], "peer & co has no figure");
}

#[test]
fn a_visit_that_broke_off_is_a_failure_and_no_shorter_run() {
    let mut record = record(2.0);
    record.cells[2].exchanges.clear();
    record.cells[2].failures.push(Failure { phase: Phase::WarmUp, reason: "the server ended".into() });
    let lines = lines(&record, Alike::Outputs);
    assert_eq!(line(&lines, "decode").figures[0], Err("not measured in round 2: the server ended".into()));
    assert!(page(&record, &lines, Alike::Outputs, "00").contains("ours, round 2: WarmUp: the server ended"));
}

#[test]
fn a_stall_is_a_gap_that_touches_the_reading_of_the_prompt() {
    let stream = |events: &[f64]| Exchange {
        group: "stall-stream".into(),
        events_ms: events.to_vec(),
        begun_ms: 1000.0,
        ..Exchange::default()
    };
    let mut prompt = exchange("stall-prompt", 0, 500.0, 10.0, 8);
    prompt.begun_ms = 2000.0;
    // Gaps: 700 before the prompt came, 400 into its beginning, 90, then 300 across its end, 900 after it.
    let stream = stream(&[100.0, 800.0, 1200.0, 1290.0, 1590.0, 2490.0]);
    assert_eq!(longest_stall(&[&stream, &prompt]), Some(400.0));
    assert_eq!(stalls(&[&stream, &prompt]).unwrap().len(), 3);
    let silent = Exchange { events_ms: Vec::new(), ..prompt };
    assert_eq!(longest_stall(&[&stream, &silent]), None);
}

#[test]
fn the_page_needs_nothing_else_and_says_what_it_is() {
    let record = record(0.5);
    let html = page(&record, &lines(&record, Alike::Outputs), Alike::Outputs, "abc");
    for (what, is_there) in [
        ("http://", false),
        ("https://", false),
        ("<script", false),
        ("src=", false),
        ("<title>Serving: ours beside peer &amp; co</title>", true),
        ("serve &lt;ours&gt; --port {port}", true),
        ("<span class=\"ratio worse\">0.50</span>", true),
        ("None: every request", true),
        ("SHA-256 <code>abc</code>", true),
    ] {
        assert_eq!(html.contains(what), is_there, "{what}");
    }
}
