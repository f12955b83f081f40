//! Which recordings are meant, and where their texts go.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Endings of files that are taken from a folder. Any file may be named itself.
const ENDINGS: [&str; 15] =
    ["wav", "mp3", "m4a", "mp4", "aac", "flac", "ogg", "oga", "opus", "webm", "mka", "mkv", "aif", "aiff", "caf"];

/// A recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recording {
    /// Its file.
    pub(super) path: PathBuf,
    /// Where its texts go, without an ending.
    stem: PathBuf,
}

impl Recording {
    /// Where its text with that ending goes.
    pub(super) fn output(&self, extension: &str) -> PathBuf {
        let mut name = self.stem.clone().into_os_string();
        name.push(".");
        name.push(extension);
        name.into()
    }
}

/// The recordings that files and folders name. In `output` they keep their folders' structure.
pub(super) fn find(named: &[PathBuf], output: Option<&Path>) -> anyhow::Result<Vec<Recording>> {
    let mut found = Vec::new();
    for path in named {
        if path.is_dir() {
            let before = found.len();
            walk(path, path, output, &mut found)?;
            if found.len() == before {
                bail!("{} holds no audio files", path.display());
            }
        } else {
            let relative = path.file_name().map(PathBuf::from).unwrap_or_default();
            found.push(recording(path, &relative, output));
        }
    }
    // Two files of one name would overwrite each other's text.
    let mut stems = HashSet::new();
    for recording in &mut found {
        if !stems.insert(recording.stem.clone()) {
            recording.stem = match (output, recording.path.file_name()) {
                (Some(folder), Some(name)) => folder.join(name),
                _ => recording.path.clone(),
            };
            if !stems.insert(recording.stem.clone()) {
                bail!("two recordings are called {}; transcribe them one by one", recording.stem.display());
            }
        }
    }
    Ok(found)
}

fn walk(root: &Path, folder: &Path, output: Option<&Path>, found: &mut Vec<Recording>) -> anyhow::Result<()> {
    let read = || format!("cannot read the folder {}", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(read)? {
        paths.push(entry.with_context(read)?.path());
    }
    paths.sort();
    for path in paths {
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        if path.is_dir() && !is_hidden {
            // Links may lead in circles.
            if !path.is_symlink() {
                walk(root, &path, output, found)?;
            }
        } else if !is_hidden && ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) {
            let relative = path.strip_prefix(root).unwrap_or(&path).to_owned();
            let recording = recording(&path, &relative, output);
            if let (Some(_), Some(parent)) = (output, recording.stem.parent()) {
                std::fs::create_dir_all(parent)
                    .with_context(|| format!("cannot make the folder {}", parent.display()))?;
            }
            found.push(recording);
        }
    }
    Ok(())
}

fn recording(path: &Path, relative: &Path, output: Option<&Path>) -> Recording {
    let whole = output.map_or_else(|| path.to_owned(), |folder| folder.join(relative));
    Recording { path: path.to_owned(), stem: whole.with_extension("") }
}

#[cfg(test)]
mod tests {
    use super::find;
    use std::path::Path;

    #[test]
    fn folders_are_walked_and_texts_keep_their_structure() {
        let home = tempfile::tempdir().unwrap();
        let inside = |name: &str| home.path().join(name);
        std::fs::create_dir_all(inside("in/sub")).unwrap();
        for name in ["in/b.MP3", "in/a.wav", "in/notes.txt", "in/.hidden.wav", "in/sub/c.opus", "in/a.flac"] {
            std::fs::write(inside(name), "").unwrap();
        }
        let out = inside("out");
        let found = find(&[inside("in")], Some(&out)).unwrap();
        let outputs: Vec<_> = found.iter().map(|recording| recording.output("txt")).collect();
        let expected = ["a.txt", "a.wav.txt", "b.txt", "sub/c.txt"];
        assert_eq!(outputs, expected.map(|name| out.join(name)));
        let beside = find(&[inside("in/a.wav")], None).unwrap();
        assert_eq!(beside[0].output("srt"), inside("in/a.srt"));
        std::fs::create_dir(inside("empty")).unwrap();
        assert!(find(&[inside("empty")], None).unwrap_err().to_string().contains("no audio files"));
        // A file that is not there is told when it is opened.
        assert_eq!(find(&[Path::new("x.wav").into()], None).unwrap().len(), 1);
    }
}
