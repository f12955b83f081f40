//! What an error may repeat of a client's text: enough to recognise it, never all of a long one.

/// The longest piece of a client's text that an error repeats, in characters.
const QUOTED_CHARACTERS: usize = 40;

/// The text, cut after [`QUOTED_CHARACTERS`].
pub(crate) fn shortened(text: &str) -> String {
    cut(text, QUOTED_CHARACTERS)
}

/// The text, cut after `limit` characters.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A number of bytes for people, in decimal units as disks and memory are sold.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 2] = [(1_000_000_000, "GB"), (1_000_000, "MB")];
    for (size, unit) in UNITS {
        // From 999.95 on it would be written as 1000.0 of the smaller unit.
        if bytes >= size - size / 20_000 {
            return format!("{:.1} {unit}", bytes as f64 / size as f64);
        }
    }
    format!("{:.1} kB", bytes as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_long_is_cut_and_never_inside_a_character() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(cut("ééé", 3), "ééé");
        assert_eq!(cut("éééé", 3), "ééé...");
    }

    #[test]
    fn bytes_are_written_in_the_unit_that_reads_best() {
        for (bytes, text) in [
            (0, "0.0 kB"),
            (1_500, "1.5 kB"),
            (97_300_000, "97.3 MB"),
            (999_960_000, "1.0 GB"),
            (999_900_000, "999.9 MB"),
            (16_000_000_000, "16.0 GB"),
        ] {
            assert_eq!(bytes_text(bytes), text);
        }
    }
}
