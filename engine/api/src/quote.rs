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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_long_is_cut_and_never_inside_a_character() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(cut("ééé", 3), "ééé");
        assert_eq!(cut("éééé", 3), "ééé...");
    }
}
