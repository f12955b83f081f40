//! The report as one HTML page that needs nothing else.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use super::figures::{Alike, Figure, Line};
use super::record::{Cell, Exchange, Record};
use crate::output;

/// Runs that differ by more than this, the greatest from the least, are marked.
const STEADY: f64 = 1.15;

const STYLE: &str = include_str!("report.css");

/// The page. A function of what was measured and nothing else.
pub(crate) fn page(record: &Record, lines: &[Line], alike: Alike, raw_sha256: &str) -> String {
    let mut html = String::new();
    // Writing to a text cannot fail.
    let _ = write_page(&mut html, record, lines, alike, raw_sha256);
    html
}

fn write_page(
    html: &mut String,
    record: &Record,
    lines: &[Line],
    alike: Alike,
    raw_sha256: &str,
) -> Result<(), std::fmt::Error> {
    let names: Vec<&str> = record.arms.iter().map(|arm| arm.name.as_str()).collect();
    let title = escape(&names.join(" beside "));
    write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Serving: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Serving: {title}</h1>\n"
    )?;
    write_heading(html, record, alike)?;
    write_figures(html, &names, lines)?;
    write_stalls(html, record)?;
    write_failures(html, record)?;
    write_arms(html, record)?;
    writeln!(
        html,
        "<p class=\"quiet\">Every request with its times, counts and hashes is in raw.json (SHA-256 <code>{}</code>). It \
         holds no text of prompts or answers.</p>\n</body>\n</html>",
        escape(raw_sha256)
    )
}

fn write_heading(html: &mut String, record: &Record, alike: Alike) -> Result<(), std::fmt::Error> {
    let begun = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(record.begun));
    let machine = &record.machine;
    let memory = machine.memory_bytes.map_or_else(String::new, |bytes| format!(", {} of memory", output::bytes(bytes)));
    writeln!(
        html,
        "<p class=\"quiet\">{begun} &middot; {}, {} cores{memory} &middot; linnet {} &middot; rounds: {}, arms taken in turn \
         &middot; seed <code>{}</code></p>",
        escape(machine.processor.as_deref().unwrap_or(&machine.system)),
        machine.physical_cores,
        escape(&record.linnet),
        record.workload.rounds,
        escape(&record.workload.seed),
    )?;
    let rule = match alike {
        Alike::Outputs => "the same texts came back",
        Alike::Counts => {
            "the same numbers of tokens came back (the texts may differ: engines that round differently write differently)"
        }
    };
    writeln!(
        html,
        "<p>Figures are medians over the rounds, with the least and the greatest below. A ratio above 1 means that {} is \
         better. There is one only where the same was asked, nothing failed, and {rule}.</p>",
        escape(record.arms.first().map_or("the first arm", |arm| &arm.name))
    )
}

fn write_figures(html: &mut String, names: &[&str], lines: &[Line]) -> Result<(), std::fmt::Error> {
    html.push_str("<h2>Figures</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>Work</th><th>Unit</th>");
    for name in names {
        write!(html, "<th class=\"number\">{}</th>", escape(name))?;
    }
    for name in names.iter().skip(1) {
        write!(html, "<th class=\"number\">ratio to {}</th>", escape(name))?;
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for line in lines {
        let better = if line.metric.more_is_better { "more is better" } else { "less is better" };
        write!(
            html,
            "<tr><td>{}</td><td title=\"{better}\">{}</td>",
            escape(line.metric.work),
            escape(line.metric.unit)
        )?;
        for figure in &line.figures {
            write_figure(html, figure)?;
        }
        for ratio in &line.ratios {
            match ratio {
                Ok(ratio) => {
                    let class = if *ratio >= 1.0 { "better" } else { "worse" };
                    write!(html, "<td class=\"number\"><span class=\"ratio {class}\">{ratio:.2}</span></td>")?;
                }
                Err(reason) => {
                    write!(
                        html,
                        "<td class=\"number\"><span class=\"refused\">refused: {}</span></td>",
                        escape(reason)
                    )?;
                }
            }
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    writeln!(
        html,
        "<p class=\"quiet\">± marks figures whose rounds differ by more than {:.0}%.</p>",
        (STEADY - 1.0) * 100.0
    )
}

fn write_figure(html: &mut String, figure: &Result<Figure, String>) -> Result<(), std::fmt::Error> {
    match figure {
        Ok(Figure { median, spread: (least, greatest) }) => {
            let class = if greatest / least > STEADY { " unstable" } else { "" };
            write!(
                html,
                "<td class=\"number\"><span class=\"value{class}\">{}</span><span class=\"spread\">{} to {}</span></td>",
                number(*median),
                number(*least),
                number(*greatest)
            )
        }
        Err(reason) => write!(html, "<td class=\"number\"><span class=\"failed\">{}</span></td>", escape(reason)),
    }
}

/// The running answers beside the long prompt, one picture for each arm's first round.
fn write_stalls(html: &mut String, record: &Record) -> Result<(), std::fmt::Error> {
    let is_stall = |exchange: &&Exchange| exchange.group.starts_with("stall-");
    let cells: Vec<&Cell> =
        record.cells.iter().filter(|cell| cell.round == 0 && cell.exchanges.iter().any(|e| is_stall(&e))).collect();
    if cells.is_empty() {
        return Ok(());
    }
    html.push_str(
        "<h2>Answers beside a long prompt</h2>\n<p class=\"quiet\">Each stroke is a piece of text that reached the \
        client; the shaded time is that in which the prompt was read.</p>\n",
    );
    for cell in cells {
        let exchanges: Vec<&Exchange> = cell.exchanges.iter().filter(is_stall).collect();
        let end = |exchange: &&Exchange| exchange.begun_ms + exchange.finished_ms.unwrap_or(0.0);
        let from = exchanges.iter().map(|exchange| exchange.begun_ms).fold(f64::INFINITY, f64::min);
        let to = exchanges.iter().map(end).fold(from + 1.0, f64::max);
        let (width, row) = (1000.0, 22.0);
        let x = |at: f64| (at - from) / (to - from) * width;
        let height = row * exchanges.len() as f64 + 18.0;
        let name = record.arms.get(cell.arm).map_or("", |arm| &arm.name);
        write!(html, "<h3>{}</h3><svg viewBox=\"0 0 {} {height}\" role=\"img\">", escape(name), width + 50.0)?;
        if let Some(prompt) = exchanges.iter().find(|exchange| exchange.group == "stall-prompt")
            && let Some(first) = prompt.first_ms()
        {
            let (left, right) = (x(prompt.begun_ms), x(prompt.begun_ms + first));
            let wide = right - left;
            write!(html, "<rect class=\"window\" x=\"{left:.1}\" y=\"0\" width=\"{wide:.1}\" height=\"{height}\"/>")?;
        }
        for (number, exchange) in exchanges.iter().enumerate() {
            let (top, bottom) = (row * number as f64 + 5.0, row * (number + 1) as f64);
            let label = if exchange.group == "stall-prompt" { "prompt" } else { "answer" };
            write!(html, "<text x=\"{:.0}\" y=\"{:.0}\">{label}</text>", width + 6.0, bottom - 4.0)?;
            html.push_str("<path class=\"event\" d=\"");
            for event in &exchange.events_ms {
                write!(html, "M{:.1} {top}V{bottom}", x(exchange.begun_ms + event))?;
            }
            html.push_str("\"/>");
        }
        writeln!(
            html,
            "<text x=\"4\" y=\"{:.0}\">0 s</text><text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{:.1} s</text></svg>",
            height - 4.0,
            width - 4.0,
            height - 4.0,
            (to - from) / 1000.0
        )?;
    }
    Ok(())
}

fn write_failures(html: &mut String, record: &Record) -> Result<(), std::fmt::Error> {
    html.push_str("<h2>Failures</h2>\n");
    let mut items = String::new();
    for cell in &record.cells {
        let name = record.arms.get(cell.arm).map_or("", |arm| &arm.name);
        let place = format!("{}, round {}", escape(name), cell.round + 1);
        for failure in &cell.failures {
            writeln!(items, "<li>{place}: {:?}: {}</li>", failure.phase, escape(&failure.reason))?;
        }
        for exchange in &cell.exchanges {
            let Some(error) = &exchange.error else { continue };
            let group = escape(&exchange.group);
            writeln!(items, "<li>{place}: {group} request {}: {}</li>", exchange.index + 1, escape(error))?;
        }
    }
    if items.is_empty() {
        html.push_str("<p>None: every request of every arm was answered to its end.</p>\n");
    } else {
        write!(html, "<ul class=\"failures\">\n{items}</ul>\n")?;
    }
    Ok(())
}

fn write_arms(html: &mut String, record: &Record) -> Result<(), std::fmt::Error> {
    html.push_str(
        "<h2>Arms</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>Name</th><th>Command or address</th>\
         <th class=\"number\">ready</th><th class=\"number\">most memory</th><th>flush before the restart</th>\
         </tr></thead>\n<tbody>\n",
    );
    for (number, arm) in record.arms.iter().enumerate() {
        let cells: Vec<&Cell> = record.cells.iter().filter(|cell| cell.arm == number).collect();
        let ready = cells.iter().filter_map(|cell| cell.ready_ms).reduce(f64::min);
        let memory = cells.iter().filter_map(|cell| cell.peak_memory).max();
        let flush = cells.iter().find_map(|cell| cell.flush.as_ref()).map_or_else(
            || "not offered".to_owned(),
            |flush| match flush.durable {
                Some(true) => format!("durable, {:.0} ms", flush.took_ms),
                Some(false) => format!("not durable (status {})", flush.status),
                None => format!("status {}", flush.status),
            },
        );
        writeln!(
            html,
            "<tr><td>{}</td><td><code>{}</code></td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{flush}\
             </td></tr>",
            escape(&arm.name),
            escape(&arm.source),
            ready.map_or_else(|| "ran already".to_owned(), |ready| format!("{ready:.0} ms")),
            memory.map_or_else(|| "unknown".to_owned(), output::bytes),
        )?;
    }
    html.push_str("</tbody></table></div>\n");
    Ok(())
}

/// A figure with as many places as it deserves.
fn number(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
