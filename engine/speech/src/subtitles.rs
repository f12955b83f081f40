//! Transcripts as subtitle files.

use std::fmt::Write as _;

use crate::TranscriptSegment;

/// A transcript as SubRip (`.srt`): numbered, times with a comma.
#[must_use]
pub fn to_srt(segments: &[TranscriptSegment]) -> String {
    let mut text = String::new();
    for (index, segment) in spoken(segments).enumerate() {
        let (start, end) = (time(segment.start, ','), time(segment.end, ','));
        // Writing to memory does not fail.
        let _ = writeln!(text, "{}\n{start} --> {end}\n{}\n", index + 1, cue(segment));
    }
    text
}

/// A transcript as WebVTT (`.vtt`): a heading, times with a point.
#[must_use]
pub fn to_vtt(segments: &[TranscriptSegment]) -> String {
    let mut text = String::from("WEBVTT\n\n");
    for segment in spoken(segments) {
        let (start, end) = (time(segment.start, '.'), time(segment.end, '.'));
        let _ = writeln!(text, "{start} --> {end}\n{}\n", cue(segment));
    }
    text
}

fn spoken(segments: &[TranscriptSegment]) -> impl Iterator<Item = &TranscriptSegment> {
    segments.iter().filter(|segment| !segment.text.trim().is_empty())
}

/// The text of a cue. An empty line would end it, and an arrow is a line of times to a reader.
fn cue(segment: &TranscriptSegment) -> String {
    let lines = segment.text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n").replace("-->", "->")
}

/// Hours, minutes, seconds and milliseconds.
fn time(seconds: f64, point: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}{point}{:03}", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::{to_srt, to_vtt};
    use crate::TranscriptSegment;

    #[test]
    fn cues_are_numbered_and_times_are_written_to_the_millisecond() {
        let segment = |start: f64, end: f64, text: &str| TranscriptSegment {
            start,
            end,
            text: text.into(),
            ..TranscriptSegment::default()
        };
        let segments =
            [segment(0.0, 1.9996, " One."), segment(2.0, 2.5, "  "), segment(3599.9996, 10_921.25, " a --> b\n\nc ")];
        assert_eq!(
            to_srt(&segments),
            "1\n00:00:00,000 --> 00:00:02,000\nOne.\n\n2\n01:00:00,000 --> 03:02:01,250\na -> b\nc\n\n"
        );
        assert!(to_vtt(&segments).starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nOne.\n\n01:00:00.000"));
        assert_eq!((to_srt(&[]).as_str(), to_vtt(&[]).as_str()), ("", "WEBVTT\n\n"));
    }
}
