//! A transcript as a file.

use clap::ValueEnum;
use linnet_speech::{Transcript, to_srt, to_vtt};
use serde_json::json;

/// How a transcript is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The text alone
    Txt,
    /// Subtitles (`SubRip`)
    Srt,
    /// Subtitles for the web (`WebVTT`)
    Vtt,
    /// Everything that is known
    Json,
}

impl Format {
    /// The ending of its files.
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Txt => "txt",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
            Self::Json => "json",
        }
    }
}

/// A transcript in a format.
pub(super) fn written(format: Format, text: &str, transcript: &Transcript) -> anyhow::Result<String> {
    Ok(match format {
        Format::Txt if text.is_empty() => String::new(),
        Format::Txt => format!("{text}\n"),
        Format::Srt => to_srt(&transcript.segments),
        Format::Vtt => to_vtt(&transcript.segments),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(&as_json(text, transcript))?),
    })
}

fn as_json(text: &str, transcript: &Transcript) -> serde_json::Value {
    let segments: Vec<_> = transcript
        .segments
        .iter()
        .map(|segment| {
            let words: Vec<_> = segment
                .words
                .iter()
                .map(|word| {
                    json!({
                        "word": word.word, "start": word.start, "end": word.end, "probability": word.probability,
                    })
                })
                .collect();
            let mut value = json!({
                "id": segment.id,
                "start": segment.start,
                "end": segment.end,
                "text": segment.text,
                "temperature": segment.temperature,
                "avg_logprob": segment.avg_logprob,
                "compression_ratio": segment.compression_ratio,
                "no_speech_prob": segment.no_speech_prob,
            });
            if !words.is_empty() {
                value["words"] = words.into();
            }
            value
        })
        .collect();
    json!({ "language": transcript.language, "duration": transcript.duration, "text": text, "segments": segments })
}
