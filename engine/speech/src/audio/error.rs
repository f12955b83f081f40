//! Why a file gives no audio, and what to do.

use std::path::PathBuf;

use thiserror::Error;

/// What is read, for the texts of errors.
const READABLE: &str = "WAV, AIFF, CAF, MP3, AAC, M4A, FLAC, Ogg Vorbis, Opus, WebM and MKA files are read";

/// Why a file gives no audio.
#[derive(Debug, Error)]
pub enum AudioError {
    /// The system does not let it be read.
    #[error("{} cannot be read: {source}; check the path, the permissions and the disk", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no media file that is known.
    #[error("{} is not an audio file that Linnet knows: {READABLE}; convert it to one of them", path.display())]
    NotAudio {
        /// The file.
        path: PathBuf,
    },
    /// It is a media file without audio.
    #[error("{} is a {container} file without an audio track; choose a file with sound", path.display())]
    NoAudioTrack {
        /// The file.
        path: PathBuf,
        /// The container.
        container: String,
    },
    /// Its audio is coded in a way that is not read.
    #[error("{} holds {codec} audio, which is not read ({detail}): {READABLE}; convert it to one of them", path.display())]
    UnsupportedCodec {
        /// The file.
        path: PathBuf,
        /// The codec.
        codec: String,
        /// What is missing.
        detail: String,
    },
    /// It began well, but nothing of it can be decoded.
    #[error("{} is damaged or incomplete ({detail}); copy or download it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}
