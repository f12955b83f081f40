//! The text of a session, and how windows are put together.

use super::partial::PartialText;
use crate::{Language, Transcript, TranscriptSegment, TranscriptWord, windows::SpeechWindow};

/// The text of a session at some moment. The whole text is `committed` and `tail` one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionText {
    /// Text that will not change any more, only grow.
    pub committed: String,
    /// What follows it as far as it is understood; it may change.
    pub tail: String,
    /// Whether all is said and all of it is final.
    pub is_final: bool,
}

impl SessionText {
    pub(super) fn new(finished: &str, partial: &PartialText, language: &str, is_final: bool) -> Self {
        if is_final {
            return Self { committed: finished.to_owned(), tail: String::new(), is_final };
        }
        let committed = joined(finished, &partial.committed().concat(), language);
        let whole = joined(&committed, &partial.tail().concat(), language);
        let tail = whole[committed.len()..].to_owned();
        Self { committed, tail, is_final }
    }

    /// Committed text and tail together.
    #[must_use]
    pub fn whole(&self) -> String {
        format!("{}{}", self.committed, self.tail)
    }
}

/// Two texts one after the other: with a space between them where the language writes one and none is there.
pub(super) fn joined(before: &str, after: &str, language: &str) -> String {
    let is_written_without = Language::find(language).is_some_and(Language::is_written_without_spaces);
    let needs_space = !is_written_without
        && !before.is_empty()
        && !after.is_empty()
        && !before.ends_with(char::is_whitespace)
        && !after.starts_with(char::is_whitespace);
    format!("{before}{}{after}", if needs_space { " " } else { "" })
}

/// A window's transcript with the times of the stream and its segments counted on from `segments`.
pub(super) fn in_stream_time(window: &SpeechWindow, transcript: &Transcript, segments: usize) -> Transcript {
    let frames = |seconds: f64| (seconds * 100.0).round() as usize;
    let word = |word: &TranscriptWord| TranscriptWord {
        start: window.time_in_stream(word.start, false),
        end: window.time_in_stream(word.end, true),
        ..word.clone()
    };
    let segment = |(index, segment): (usize, &TranscriptSegment)| TranscriptSegment {
        id: segments + index,
        seek: frames(window.time_in_stream(segment.seek as f64 / 100.0, false)),
        start: window.time_in_stream(segment.start, false),
        end: window.time_in_stream(segment.end, true),
        words: segment.words.iter().map(word).collect(),
        ..segment.clone()
    };
    Transcript { segments: transcript.segments.iter().enumerate().map(segment).collect(), ..transcript.clone() }
}
