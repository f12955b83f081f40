//! Audio files to what speech models hear: mono, 16 kHz, single precision, a piece at a time.
//!
//! Containers and codecs are `symphonia`'s, Opus is `ropus`'s, resampling is `rubato`'s. A file of hours takes the memory
//! of a packet. What cannot be read is refused with [`AudioError`], which says why and what to do; what is damaged in
//! the middle is skipped and counted.

mod error;
mod opus;
mod packets;
mod pcm;
mod resample;

use std::{
    fs::File,
    io::Cursor,
    path::{Path, PathBuf},
};

use symphonia::core::io::MediaSource;

pub use error::AudioError;
pub use pcm::{PcmError, PcmFormat, PcmStream, SampleFormat};

use packets::{Decoded, PacketReader};
use resample::Resampler;

/// What a file says of its audio.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioInfo {
    /// The container, such as `wave` or `isomp4`.
    pub container: String,
    /// The codec, such as `aac` or `opus`.
    pub codec: String,
    /// Samples per second and channel in the file.
    pub sample_rate: Option<u32>,
    /// Channels in the file.
    pub channels: Option<usize>,
    /// Length, where the file states it. It may be wrong: progress, not truth.
    pub seconds: Option<f64>,
}

/// Reads the audio of a file as mono at 16 kHz.
#[derive(Debug)]
pub struct AudioReader {
    packets: PacketReader,
    resampler: Option<Resampler>,
    mono: Vec<f32>,
    ended: bool,
}

impl AudioReader {
    /// Opens a file.
    ///
    /// # Errors
    /// [`AudioError`] when it cannot be read, holds no audio, or its codec is not known.
    pub fn open(path: &Path) -> Result<Self, AudioError> {
        let unreadable = |source| AudioError::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            return Err(AudioError::NotAudio { path: path.to_owned() });
        }
        Self::from_source(Box::new(file), path.to_owned())
    }

    /// Reads audio that is in memory, such as an upload. `name` stands for it in errors.
    ///
    /// # Errors
    /// As [`AudioReader::open`].
    pub fn from_bytes(bytes: Vec<u8>, name: &str) -> Result<Self, AudioError> {
        Self::from_source(Box::new(Cursor::new(bytes)), PathBuf::from(name))
    }

    fn from_source(source: Box<dyn MediaSource>, path: PathBuf) -> Result<Self, AudioError> {
        let packets = PacketReader::new(source, path)?;
        Ok(Self { packets, resampler: None, mono: Vec::new(), ended: false })
    }

    /// What the file says of its audio.
    #[must_use]
    pub fn info(&self) -> &AudioInfo {
        self.packets.info()
    }

    /// Packets that could not be decoded so far and were left out. More than none means that the file is damaged.
    #[must_use]
    pub fn skipped_packets(&self) -> usize {
        self.packets.skipped()
    }

    /// Appends the next piece, usually some hundredths of a second, to `samples`: mono, 16 kHz. `false` when there is no
    /// more. A file that breaks off gives what there is.
    ///
    /// # Errors
    /// [`AudioError`] when reading fails, or nothing at all can be decoded.
    pub fn read(&mut self, samples: &mut Vec<f32>) -> Result<bool, AudioError> {
        if self.ended {
            return Ok(false);
        }
        let before = samples.len();
        while samples.len() == before && !self.ended {
            self.mono.clear();
            match self.packets.next(&mut self.mono)? {
                Decoded::Samples { rate } => {
                    // Streams laid end to end may change their rate.
                    if self.resampler.as_ref().is_none_or(|resampler| resampler.rate() != rate) {
                        let damaged =
                            |detail: String| AudioError::Damaged { path: self.packets.path().to_owned(), detail };
                        let next = Resampler::new(rate).map_err(damaged)?;
                        if let Some(mut last) = self.resampler.replace(next) {
                            last.finish(samples);
                        }
                    }
                    if let Some(resampler) = &mut self.resampler {
                        resampler.push(&self.mono, samples);
                    }
                }
                Decoded::End => {
                    self.ended = true;
                    if let Some(mut resampler) = self.resampler.take() {
                        resampler.finish(samples);
                    }
                }
            }
        }
        Ok(samples.len() > before)
    }

    /// Everything that is left. For short files: an hour takes 230 MB.
    ///
    /// # Errors
    /// As [`AudioReader::read`].
    pub fn read_to_end(&mut self) -> Result<Vec<f32>, AudioError> {
        let mut samples = Vec::new();
        while self.read(&mut samples)? {}
        Ok(samples)
    }
}

#[cfg(test)]
mod tests;
