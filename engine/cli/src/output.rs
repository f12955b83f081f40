//! Data for people and for programs, on standard output.

use serde::Serialize;
use std::io::{self, Write};

/// Writes a line to standard output; unlike `println!` it fails, rather than panics, when nobody reads.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// Writes a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)?;
    Ok(())
}

/// Bytes for people, in powers of ten as disks are sold.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count for people: 135M, 1.2B.
pub(crate) fn count(number: u64) -> String {
    match number as f64 {
        n if n >= 999.5e6 => format!("{:.1}B", n / 1e9),
        n if n >= 999.5e3 => format!("{:.0}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        n => format!("{n}"),
    }
}

/// Columns as wide as their widest cell, two spaces apart.
pub(crate) fn table(rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        line(cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_say_them() {
        assert_eq!(
            [bytes(999), bytes(1000), bytes(96_600_000), bytes(999_960)],
            ["999 B", "1.0 kB", "96.6 MB", "1.0 MB"]
        );
        assert_eq!([count(512), count(134_515_008), count(1_235_814_400)], ["512", "135M", "1.2B"]);
    }
}
