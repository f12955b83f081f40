//! Text in pieces: what was heard, and what a step has put in for good.

/// A part of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// As it was recognised; later steps may change it.
    Heard(String),
    /// As it stays.
    Fixed(String),
}

/// The text of all pieces. Spaces around line ends belong to nobody: they stood between words that are gone.
pub(super) fn join(pieces: &[Piece]) -> String {
    let mut joined = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        let (Piece::Heard(text) | Piece::Fixed(text)) = piece;
        let mut text = text.as_str();
        let begins = if joined.is_empty() { index > 0 } else { joined.ends_with(['\n', '\t']) };
        if begins && matches!(piece, Piece::Heard(_)) {
            text = text.trim_start_matches(' ');
        }
        if text.starts_with(['\n', '\t']) {
            joined.truncate(joined.trim_end_matches(' ').len());
        }
        joined.push_str(text);
    }
    joined
}
