//! Writing results to standard output: JSON, tables, figures for people.

use std::io::{self, Write};

use serde::Serialize;

/// Writes a line. A closed pipe comes back as an error, which ends the command quietly.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")
}

/// Writes a piece of text at once.
pub(crate) fn piece(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(&serde_json::to_string_pretty(value)?)?)
}

/// Lays out rows in columns; the first row is the heading. Columns whose heading begins with a blank are set flush
/// right.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.trim().chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let is_right: Vec<bool> =
        rows.first().map(|row| row.iter().map(|cell| cell.starts_with(' ')).collect()).unwrap_or_default();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let (cell, width) = (cell.trim(), widths[column]);
            if is_right.get(column) == Some(&true) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A number of bytes for people, in units of 1000 as disks and downloads are sold.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 9.95 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// A number of weights for people: 135M, 1.5B.
pub(crate) fn parameters(count: u64) -> String {
    let (value, unit) = match count {
        0..=999_499 => (count as f64 / 1e3, "K"),
        999_500..=999_499_999 => (count as f64 / 1e6, "M"),
        _ => (count as f64 / 1e9, "B"),
    };
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well_at_every_size() {
        let sizes = [0, 999, 1000, 9_949, 9_950, 999_499, 999_500, 135_000_000, 4_700_000_000, 5_000_000_000_000_000];
        let shown = sizes.map(bytes);
        assert_eq!(
            shown,
            ["0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "999 kB", "1.0 MB", "135 MB", "4.7 GB", "5000 TB"]
        );
        assert_eq!([134_515_008, 1_543_714_304, 5_000].map(parameters), ["135M", "1.5B", "5.0K"]);
    }

    #[test]
    fn columns_line_up_also_with_wide_characters_and_short_rows() {
        let rows = [vec!["NAME", " SIZE", "NOTE"], vec!["é", "5 B", ""], vec!["longer", "123 B", "x"], vec!["last"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
        assert_eq!(table(&rows), "NAME     SIZE  NOTE\né         5 B\nlonger  123 B  x\nlast");
    }
}
