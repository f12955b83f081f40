//! From requests to figures and ratios. A ratio is made only where both did the same work.

use serde::{Deserialize, Serialize};

use super::record::{Cell, Exchange, Record};
use crate::commands::bench::measure::median;

/// How alike answers must be for a ratio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Alike {
    /// The same texts.
    #[default]
    Outputs,
    /// The same numbers of tokens: engines that round differently write different texts.
    Counts,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric {
    /// What is done, in words.
    pub(crate) work: &'static str,
    /// The figure's unit.
    pub(crate) unit: &'static str,
    /// Whether more is better.
    pub(crate) more_is_better: bool,
    /// The groups of requests that it is made of.
    groups: &'static [&'static str],
    /// The figure of one visit, from the requests of its groups.
    value: fn(&[&Exchange]) -> Option<f64>,
}

/// Everything that is measured, in the order of the workload.
pub(crate) const METRICS: [Metric; 21] = [
    rate("decode, one answer", &["decode"], decode_rate),
    time("first token, new prompt of 1k", &["first-token-cold"], first_token),
    time("first token, same prompt of 1k again", &["first-token-cached"], first_token),
    time("first token, new prefix of 2k", &["prefix-cold"], first_token),
    time("first token, cached prefix of 2k", &["prefix-cached"], first_token),
    time("first token, new long context", &["context-cold"], first_token),
    time("first token, same long context again", &["context-cached"], first_token),
    rate("decode in the long context", &["context-cached"], decode_rate),
    time("first token, long context after a restart", &["restart"], first_token),
    Metric { unit: "% of cold", ..time("first token after a restart", &["context-cold", "restart"], share_of_cold) },
    rate("4 answers of 128 tokens at once", &["aggregate-4"], throughput),
    rate("8 answers of 128 tokens at once", &["aggregate-8"], throughput),
    rate("2 arrivals, 250 ms apart", &["wave-2"], throughput),
    time("2 arrivals, slowest first token", &["wave-2"], slowest_first_token),
    rate("4 arrivals, 250 ms apart", &["wave-4"], throughput),
    time("4 arrivals, slowest first token", &["wave-4"], slowest_first_token),
    rate("8 arrivals, 250 ms apart", &["wave-8"], throughput),
    time("8 arrivals, slowest first token", &["wave-8"], slowest_first_token),
    time("3 answers beside a prompt of 4k, longest stall", &["stall-stream", "stall-prompt"], longest_stall),
    time("3 answers beside a prompt of 4k, 95th percentile of gaps", &["stall-stream", "stall-prompt"], common_stall),
    time("prompt of 4k beside 3 answers, first token", &["stall-prompt"], first_token),
];

const fn rate(work: &'static str, groups: &'static [&'static str], value: fn(&[&Exchange]) -> Option<f64>) -> Metric {
    Metric { work, unit: "tok/s", more_is_better: true, groups, value }
}

const fn time(work: &'static str, groups: &'static [&'static str], value: fn(&[&Exchange]) -> Option<f64>) -> Metric {
    Metric { work, unit: "ms", more_is_better: false, groups, value }
}

/// The median over the requests of what is known of each.
fn middle(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.collect::<Option<_>>()?;
    (!values.is_empty()).then(|| median(&values))
}

fn decode_rate(exchanges: &[&Exchange]) -> Option<f64> {
    middle(exchanges.iter().map(|exchange| exchange.decode_rate()))
}

fn first_token(exchanges: &[&Exchange]) -> Option<f64> {
    middle(exchanges.iter().map(|exchange| exchange.first_ms()))
}

fn slowest_first_token(exchanges: &[&Exchange]) -> Option<f64> {
    let firsts: Vec<f64> = exchanges.iter().map(|exchange| exchange.first_ms()).collect::<Option<_>>()?;
    firsts.into_iter().reduce(f64::max)
}

fn share_of_cold(exchanges: &[&Exchange]) -> Option<f64> {
    let first = |group: &str| exchanges.iter().find(|exchange| exchange.group == group)?.first_ms();
    Some(first("restart")? / first("context-cold")? * 100.0)
}

/// All tokens from the first request to the last answer's end.
fn throughput(exchanges: &[&Exchange]) -> Option<f64> {
    let tokens: Vec<u64> = exchanges.iter().map(|exchange| exchange.completion_tokens).collect::<Option<_>>()?;
    let begun = exchanges.iter().map(|exchange| exchange.begun_ms).reduce(f64::min)?;
    let ends = exchanges.iter().map(|exchange| Some(exchange.begun_ms + exchange.finished_ms?));
    let end = ends.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)?;
    (end > begun).then(|| tokens.iter().sum::<u64>() as f64 / (end - begun) * 1000.0)
}

/// The gaps between the events of the answers that touch the time in which the prompt was read.
fn stalls(exchanges: &[&Exchange]) -> Option<Vec<f64>> {
    let prompt = exchanges.iter().find(|exchange| exchange.group == "stall-prompt")?;
    let (from, to) = (prompt.begun_ms, prompt.begun_ms + prompt.first_ms()?);
    let streams = exchanges.iter().filter(|exchange| exchange.group == "stall-stream");
    let gaps = streams.flat_map(|stream| {
        stream.events_ms.windows(2).filter_map(move |pair| {
            let (before, after) = (stream.begun_ms + pair[0], stream.begun_ms + pair[1]);
            (after > from && before < to).then_some(after - before)
        })
    });
    Some(gaps.collect())
}

fn longest_stall(exchanges: &[&Exchange]) -> Option<f64> {
    stalls(exchanges)?.into_iter().reduce(f64::max)
}

fn common_stall(exchanges: &[&Exchange]) -> Option<f64> {
    let mut gaps = stalls(exchanges)?;
    gaps.sort_by(f64::total_cmp);
    gaps.get((gaps.len() * 95 / 100).min(gaps.len().saturating_sub(1))).copied()
}

/// One arm's figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    /// The median over the rounds.
    pub(crate) median: f64,
    /// The least and the greatest.
    pub(crate) spread: (f64, f64),
}

/// One line of the report.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// What it is about.
    pub(crate) metric: Metric,
    /// For each arm its figure, or why there is none.
    pub(crate) figures: Vec<Result<Figure, String>>,
    /// For each peer the ratio, above 1 where ours is better, or why there is none.
    pub(crate) ratios: Vec<Result<f64, String>>,
}

/// All that a record says. Lines of phases that were not asked for are left out.
pub(crate) fn lines(record: &Record, alike: Alike) -> Vec<Line> {
    METRICS.iter().filter_map(|metric| line(record, metric, alike)).collect()
}

fn line(record: &Record, metric: &Metric, alike: Alike) -> Option<Line> {
    let arms: Vec<Vec<&Cell>> =
        (0..record.arms.len()).map(|arm| record.cells.iter().filter(|cell| cell.arm == arm).collect()).collect();
    let is_asked = record.cells.iter().any(|cell| !of_groups(cell, metric.groups).is_empty());
    if !is_asked {
        return None;
    }
    let figures: Vec<Result<Figure, String>> = arms.iter().map(|cells| figure(cells, metric)).collect();
    let ours = figures.first()?;
    let ratios = (1..arms.len())
        .map(|peer| {
            let (ours_figure, peer_figure) = (ours.as_ref(), figures[peer].as_ref());
            let ours_figure = ours_figure.map_err(|_| format!("{} has no figure", record.arms[0].name))?;
            let peer_figure = peer_figure.map_err(|_| format!("{} has no figure", record.arms[peer].name))?;
            same_work(&arms[0], &arms[peer], metric, alike)?;
            let ratio = ours_figure.median / peer_figure.median;
            Ok(if metric.more_is_better { ratio } else { 1.0 / ratio })
        })
        .collect();
    Some(Line { metric: *metric, figures, ratios })
}

fn of_groups<'a>(cell: &'a Cell, groups: &[&str]) -> Vec<&'a Exchange> {
    cell.exchanges.iter().filter(|exchange| groups.contains(&exchange.group.as_str())).collect()
}

/// An arm's figure over all its visits. One request that failed is enough to have none.
fn figure(cells: &[&Cell], metric: &Metric) -> Result<Figure, String> {
    if cells.is_empty() {
        return Err("was not visited".to_owned());
    }
    let mut values = Vec::with_capacity(cells.len());
    for cell in cells {
        let exchanges = of_groups(cell, metric.groups);
        let failed: Vec<&str> = exchanges.iter().filter_map(|exchange| exchange.error.as_deref()).collect();
        if let Some(first) = failed.first() {
            return Err(format!(
                "{} of {} requests failed in round {}: {first}",
                failed.len(),
                exchanges.len(),
                cell.round + 1
            ));
        }
        if metric.groups.iter().any(|group| !exchanges.iter().any(|exchange| exchange.group == *group)) {
            let reason = cell.failures.first().map_or("it was not asked", |failure| failure.reason.as_str());
            return Err(format!("not measured in round {}: {reason}", cell.round + 1));
        }
        values.push((metric.value)(&exchanges).ok_or_else(|| format!("no figure in round {}", cell.round + 1))?);
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Ok(Figure { median: median(&values), spread: (least, greatest) })
}

/// Whether two arms did the same work in every round, or what was different.
fn same_work(ours: &[&Cell], peer: &[&Cell], metric: &Metric, alike: Alike) -> Result<(), String> {
    if ours.len() != peer.len() {
        return Err(format!("{} rounds against {}", ours.len(), peer.len()));
    }
    let (mut answers, mut different) = (0, 0);
    for (ours, peer) in ours.iter().zip(peer) {
        let pair = (of_groups(ours, metric.groups), of_groups(peer, metric.groups));
        if ours.round != peer.round || pair.0.len() != pair.1.len() {
            return Err("not the same requests".to_owned());
        }
        for (ours, peer) in pair.0.iter().zip(&pair.1) {
            if ours.request_sha256 != peer.request_sha256 {
                return Err("not the same requests".to_owned());
            }
            let counts = [
                ("prompts", ours.prompt_tokens, peer.prompt_tokens),
                ("answers", ours.completion_tokens, peer.completion_tokens),
            ];
            if let Some((what, ours, peer)) = counts.into_iter().find(|(_, ours, peer)| ours != peer) {
                let count =
                    |tokens: Option<u64>| tokens.map_or_else(|| "an unknown number of".into(), |n| n.to_string());
                return Err(format!("{what} of {} against {} tokens", count(ours), count(peer)));
            }
            answers += 1;
            different += usize::from(ours.output_sha256 != peer.output_sha256);
        }
    }
    if alike == Alike::Outputs && different > 0 {
        return Err(format!("{different} of {answers} answers have another text"));
    }
    Ok(())
}

/// A line of `summary.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SummaryLine {
    work: String,
    unit: String,
    ours: Option<f64>,
    peer: Option<f64>,
    peer_name: String,
    ratio: Option<f64>,
    /// Why there is no ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// The lines for machines: one for each metric and peer.
pub(crate) fn summary(record: &Record, lines: &[Line]) -> Vec<SummaryLine> {
    let round = |value: f64, places: i32| (value * 10f64.powi(places)).round() / 10f64.powi(places);
    let mut summary = Vec::new();
    for line in lines {
        let median = |arm: usize| line.figures.get(arm)?.as_ref().ok().map(|figure| round(figure.median, 1));
        for (index, ratio) in line.ratios.iter().enumerate() {
            summary.push(SummaryLine {
                work: format!("serve: {}", line.metric.work),
                unit: line.metric.unit.to_owned(),
                ours: median(0),
                peer: median(index + 1),
                peer_name: record.arms.get(index + 1).map_or_else(String::new, |arm| arm.name.clone()),
                ratio: ratio.as_ref().ok().map(|ratio| round(*ratio, 3)),
                refused: ratio.as_ref().err().cloned(),
            });
        }
    }
    summary
}

#[cfg(test)]
mod tests;
