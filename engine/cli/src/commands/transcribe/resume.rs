//! What an interrupted run had finished.
//!
//! Every window that was recognised is written to a file under Linnet's folder at once, a line each. A later run over the
//! same recording with the same model and options cuts the same windows and takes their texts from there. The file is named
//! after a digest of all that, is readable for its owner only, and goes away when the whole text is there.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use linnet_speech::{SAMPLE_RATE, SpeechWindow, Transcript, TranscriptSegment, TranscriptWord};
use serde::{Deserialize, Serialize};

/// The windows of one recording that were finished before, and those that are now.
pub(super) struct Resume {
    path: PathBuf,
    file: File,
    known: HashMap<(u64, u64), Transcript>,
    known_samples: u64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    start: u64,
    end: u64,
    language: String,
    language_probability: f32,
    duration: f64,
    segments: Vec<SavedSegment>,
}

#[derive(Serialize, Deserialize)]
struct SavedSegment {
    seek: usize,
    start: f64,
    end: f64,
    text: String,
    tokens: Vec<u32>,
    temperature: f32,
    avg_logprob: f32,
    compression_ratio: f32,
    no_speech_prob: f32,
    words: Vec<(String, f64, f64, f32)>,
}

impl Resume {
    /// What is known of a recording under `key`, which names model and options.
    pub(super) fn open(folder: &Path, recording: &Path, key: &str, fresh: bool) -> anyhow::Result<Self> {
        let facts = std::fs::metadata(recording).with_context(|| format!("cannot read {}", recording.display()))?;
        let modified = facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let whole = std::fs::canonicalize(recording).unwrap_or_else(|_| recording.to_owned());
        let name = format!("{} {} {modified:?} {key}", whole.display(), facts.len());
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let path = folder.join(format!("{}.jsonl", &blake3::hash(name.as_bytes()).to_hex()[..32]));
        if fresh {
            // That there is none is as good.
            let _ = std::fs::remove_file(&path);
        }
        let (known, sound) = read(&path);
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).with_context(|| format!("cannot write {}", path.display()))?;
        // A line that was cut off would spoil the next one.
        file.set_len(sound).with_context(|| format!("cannot write {}", path.display()))?;
        let known_samples = known.keys().map(|(start, end)| end - start).sum();
        Ok(Self { path, file, known, known_samples })
    }

    /// How many windows were finished before.
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }

    /// How much audio they hold.
    pub(super) fn known_seconds(&self) -> f64 {
        self.known_samples as f64 / SAMPLE_RATE as f64
    }

    /// The text of a window, if it was finished before.
    pub(super) fn take(&mut self, window: &SpeechWindow) -> Option<Transcript> {
        self.known.remove(&(window.start(), window.end()))
    }

    /// Keeps the text of a window.
    pub(super) fn put(&mut self, window: &SpeechWindow, transcript: &Transcript) -> anyhow::Result<()> {
        let line = serde_json::to_string(&Line::of(window.start(), window.end(), transcript))?;
        self.file
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("cannot write {}; free some room on the disk", self.path.display()))
    }

    /// The whole text is there.
    pub(super) fn done(self) {
        // What is left over is found by the next run over the same recording, if there ever is one.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The windows in a file, and how many bytes of it are whole lines.
fn read(path: &Path) -> (HashMap<(u64, u64), Transcript>, u64) {
    let (mut known, mut sound) = (HashMap::new(), 0);
    let Ok(file) = File::open(path) else { return (known, sound) };
    let mut reader = BufReader::new(file);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        let Ok(read) = serde_json::from_str::<Line>(&line) else { break };
        if !line.ends_with('\n') {
            break;
        }
        sound += line.len() as u64;
        known.insert((read.start, read.end), read.into_transcript());
        line.clear();
    }
    (known, sound)
}

impl Line {
    fn of(start: u64, end: u64, transcript: &Transcript) -> Self {
        let word = |word: &TranscriptWord| (word.word.clone(), word.start, word.end, word.probability);
        let segment = |segment: &TranscriptSegment| SavedSegment {
            seek: segment.seek,
            start: segment.start,
            end: segment.end,
            text: segment.text.clone(),
            tokens: segment.tokens.clone(),
            temperature: segment.temperature,
            avg_logprob: segment.avg_logprob,
            compression_ratio: segment.compression_ratio,
            no_speech_prob: segment.no_speech_prob,
            words: segment.words.iter().map(word).collect(),
        };
        Self {
            start,
            end,
            language: transcript.language.clone(),
            language_probability: transcript.language_probability,
            duration: transcript.duration,
            segments: transcript.segments.iter().map(segment).collect(),
        }
    }

    fn into_transcript(self) -> Transcript {
        let word = |(word, start, end, probability)| TranscriptWord { word, start, end, probability };
        let segment = |(id, saved): (usize, SavedSegment)| TranscriptSegment {
            id,
            seek: saved.seek,
            start: saved.start,
            end: saved.end,
            text: saved.text,
            tokens: saved.tokens,
            temperature: saved.temperature,
            avg_logprob: saved.avg_logprob,
            compression_ratio: saved.compression_ratio,
            no_speech_prob: saved.no_speech_prob,
            words: saved.words.into_iter().map(word).collect(),
        };
        Transcript {
            language: self.language,
            language_probability: self.language_probability,
            duration: self.duration,
            segments: self.segments.into_iter().enumerate().map(segment).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, Resume, read};
    use linnet_speech::{Transcript, TranscriptSegment, TranscriptWord};
    use std::io::Write;

    #[test]
    fn a_transcript_comes_back_as_it_was_and_a_line_that_was_cut_off_is_left_out() {
        let word = TranscriptWord { word: " hé".into(), start: 0.25, end: 0.5, probability: 0.75 };
        let segment = TranscriptSegment {
            text: " hé".into(),
            tokens: vec![1, 2],
            words: vec![word],
            ..TranscriptSegment::default()
        };
        let transcript =
            Transcript { language: "fr".into(), language_probability: 0.5, duration: 2.0, segments: vec![segment] };
        let home = tempfile::tempdir().unwrap();
        let (recording, folder) = (home.path().join("a.wav"), home.path().join("t"));
        std::fs::write(&recording, "x").unwrap();
        let mut resume = Resume::open(&folder, &recording, "model", false).unwrap();
        let line = serde_json::to_string(&Line::of(5, 16_005, &transcript)).unwrap();
        resume.file.write_all(format!("{line}\n{{\"start\": 7").as_bytes()).unwrap();
        let again = Resume::open(&folder, &recording, "model", false).unwrap();
        assert_eq!((again.known(), again.known_seconds()), (1, 1.0));
        assert_eq!(again.known[&(5, 16_005)], transcript);
        assert_eq!(read(&again.path).1, line.len() as u64 + 1);
        assert_eq!(std::fs::metadata(&again.path).unwrap().len(), line.len() as u64 + 1);
        assert_eq!(Resume::open(&folder, &recording, "another model", false).unwrap().known(), 0);
        assert_eq!(Resume::open(&folder, &recording, "model", true).unwrap().known(), 0);
    }
}
