//! The tokens of a window, cut at their times.
//!
//! After the loop in `transcribe()` of openai/whisper's transcribe.py.

use super::filter::TIME_PRECISION;

/// Mel frames from one time that a token can name to the next.
const FRAMES_PER_TIME: usize = 2;

/// A part of a window's tokens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    /// Seconds from the window's beginning.
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) tokens: Vec<u32>,
}

/// What a window's tokens say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cut {
    pub(crate) pieces: Vec<Piece>,
    /// Mel frames from the window's beginning to the next window's.
    pub(crate) advance: usize,
    /// Whether one single time ends the tokens: nothing is spoken between it and the window's end.
    pub(crate) is_whole: bool,
}

/// Cuts the tokens of a window of `frames` mel frames. What follows the last pair of times was cut off by the window's end
/// and is heard again in the next one.
pub(crate) fn cut(tokens: &[u32], timestamp_begin: u32, frames: usize) -> Cut {
    let is_time = |index: usize| tokens[index] >= timestamp_begin;
    let seconds = |token: u32| f64::from(token - timestamp_begin) * TIME_PRECISION;
    let length = tokens.len();
    let is_whole = length > 1 && is_time(length - 1) && !is_time(length - 2);
    let mut ends: Vec<usize> = (1..length).filter(|&index| is_time(index - 1) && is_time(index)).collect();
    if ends.is_empty() {
        let last = tokens.iter().rev().copied().find(|&token| token >= timestamp_begin);
        let end = last.filter(|&time| time != timestamp_begin).map_or(frames as f64 / 100.0, seconds);
        return Cut { pieces: vec![Piece { start: 0.0, end, tokens: tokens.to_vec() }], advance: frames, is_whole };
    }
    if is_whole {
        ends.push(length);
    }
    let mut pieces = Vec::with_capacity(ends.len());
    let mut begin = 0;
    for &end in &ends {
        let tokens = &tokens[begin..end];
        let time = |token: Option<&u32>| token.map_or(0.0, |&token| seconds(token.max(timestamp_begin)));
        pieces.push(Piece { start: time(tokens.first()), end: time(tokens.last()), tokens: tokens.to_vec() });
        begin = end;
    }
    let last = tokens[begin - 1].saturating_sub(timestamp_begin) as usize * FRAMES_PER_TIME;
    Cut { pieces, advance: if is_whole { frames } else { last }, is_whole }
}

#[cfg(test)]
mod tests {
    use super::{Cut, Piece, cut};

    /// The first time.
    const T: u32 = 100;

    fn piece(start: f64, end: f64, tokens: &[u32]) -> Piece {
        Piece { start, end, tokens: tokens.to_vec() }
    }

    #[test]
    fn pairs_of_times_cut_and_what_follows_the_last_is_heard_again() {
        let tokens = [T, 1, 2, T + 50, T + 50, 3, T + 100, T + 100, 4];
        let pieces = vec![piece(0.0, 1.0, &tokens[..4]), piece(1.0, 2.0, &tokens[4..7])];
        assert_eq!(cut(&tokens, T, 3000), Cut { pieces, advance: 200, is_whole: false });
    }

    #[test]
    fn a_single_time_at_the_end_leaves_silence_to_the_windows_end() {
        let tokens = [T, 1, T + 50, T + 60, 3, T + 100];
        let pieces = vec![piece(0.0, 1.0, &tokens[..3]), piece(1.2, 2.0, &tokens[3..])];
        assert_eq!(cut(&tokens, T, 1500), Cut { pieces, advance: 1500, is_whole: true });
        let alone = [T, 1, 2, T + 75];
        let pieces = vec![piece(0.0, 1.5, &alone)];
        assert_eq!(cut(&alone, T, 3000), Cut { pieces, advance: 3000, is_whole: true });
    }

    #[test]
    fn without_a_second_time_the_text_lasts_as_long_as_the_window() {
        for tokens in [&[T, 1, 2][..], &[1, 2]] {
            let pieces = vec![piece(0.0, 12.0, tokens)];
            assert_eq!(cut(tokens, T, 1200), Cut { pieces, advance: 1200, is_whole: false });
        }
        assert_eq!(cut(&[], T, 1200).pieces, [piece(0.0, 12.0, &[])]);
    }
}
