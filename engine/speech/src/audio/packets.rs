//! The packets of a file's audio track, decoded and mixed to one channel.

use std::{
    fmt,
    io::{ErrorKind, Read, SeekFrom},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use symphonia::core::{
    codecs::{
        CodecParameters,
        audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions, CODEC_ID_NULL_AUDIO, well_known as codecs},
    },
    errors::Error,
    formats::{FormatOptions, FormatReader, Track, TrackType, probe::Hint},
    io::{MediaSource, MediaSourceStream},
    meta::MetadataOptions,
    packet::Packet,
};

use super::{
    AudioError, AudioInfo,
    opus::{OPUS_RATE, OpusPackets},
};

/// Packets in a row that may fail before the rest is given up: about a minute of MP3.
const MAX_FAILURES: usize = 2000;

/// What [`PacketReader::next`] found.
pub(super) enum Decoded {
    /// Mono samples at this rate.
    Samples {
        /// Samples per second.
        rate: u32,
    },
    /// There is no more.
    End,
}

/// The audio packets of a file.
pub(super) struct PacketReader {
    path: PathBuf,
    format: Box<dyn FormatReader>,
    track: u32,
    decoder: Decoder,
    info: AudioInfo,
    interleaved: Vec<f32>,
    decoded: usize,
    skipped: usize,
    failures: usize,
}

impl fmt::Debug for PacketReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PacketReader")
            .field("path", &self.path)
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

enum Decoder {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusPackets>),
}

impl PacketReader {
    /// Finds out what `source` is and prepares to decode its audio.
    pub(super) fn new(mut source: Box<dyn MediaSource>, path: PathBuf) -> Result<Self, AudioError> {
        let known = starts_like_media(source.as_mut())
            .map_err(|source| AudioError::Unreadable { path: path.clone(), source })?;
        let opened = guarded(|| {
            let stream = MediaSourceStream::new(source, Default::default());
            let options = (FormatOptions::default(), MetadataOptions::default());
            symphonia::default::get_probe().probe(&Hint::new(), stream, options.0, options.1)
        });
        let format = opened.map_err(|error| match error {
            Error::IoError(source) if source.kind() != ErrorKind::UnexpectedEof => {
                AudioError::Unreadable { path: path.clone(), source }
            }
            error if known => AudioError::Damaged { path: path.clone(), detail: error.to_string() },
            _ => AudioError::NotAudio { path: path.clone() },
        })?;
        let container = format.format_info().short_name.to_owned();
        let track = choose_track(format.as_ref())
            .ok_or_else(|| AudioError::NoAudioTrack { path: path.clone(), container: container.clone() })?;
        let (decoder, info) = prepare(track, container, &path)?;
        let track = track.id;
        Ok(Self { path, format, track, decoder, info, interleaved: Vec::new(), decoded: 0, skipped: 0, failures: 0 })
    }

    pub(super) fn info(&self) -> &AudioInfo {
        &self.info
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Packets left out because they could not be decoded.
    pub(super) fn skipped(&self) -> usize {
        self.skipped
    }

    /// Decodes the next packet that can be decoded and appends its samples, mixed to one channel, to `mono`.
    pub(super) fn next(&mut self, mono: &mut Vec<f32>) -> Result<Decoded, AudioError> {
        loop {
            let packet = match guarded(|| self.format.next_packet()) {
                Ok(Some(packet)) => packet,
                Ok(None) => return self.end("it holds no sound"),
                Err(Error::ResetRequired) => {
                    self.restart()?;
                    continue;
                }
                // A file that breaks off ends like this, and so does a stream whose length was never filled in.
                Err(Error::IoError(source)) if source.kind() == ErrorKind::UnexpectedEof => {
                    return self.end("it breaks off before any sound");
                }
                Err(Error::IoError(source)) => return Err(AudioError::Unreadable { path: self.path.clone(), source }),
                Err(error) => return self.end(&error.to_string()),
            };
            if packet.track_id != self.track {
                continue;
            }
            match self.decode(&packet) {
                Ok((rate, channels)) => {
                    self.failures = 0;
                    self.decoded += 1;
                    if self.interleaved.is_empty() || channels == 0 {
                        continue;
                    }
                    mix(&self.interleaved, channels, mono);
                    return Ok(Decoded::Samples { rate });
                }
                Err(detail) => {
                    self.skipped += 1;
                    self.failures += 1;
                    if self.failures >= MAX_FAILURES {
                        return self.end(&detail);
                    }
                }
            }
        }
    }

    /// Decodes a packet into `interleaved`; its sample rate and channels.
    fn decode(&mut self, packet: &Packet) -> Result<(u32, usize), String> {
        let interleaved = &mut self.interleaved;
        match &mut self.decoder {
            Decoder::Opus(opus) => {
                let trim_end = usize::try_from(packet.trim_end.get()).unwrap_or(usize::MAX);
                guarded(|| Ok(opus.decode(&packet.data, trim_end, interleaved)))
                    .map_err(|error| error.to_string())
                    .flatten()?;
                Ok((OPUS_RATE, opus.channels()))
            }
            Decoder::Symphonia(decoder) => guarded(|| {
                let buffer = decoder.decode(packet)?;
                buffer.copy_to_vec_interleaved(interleaved);
                Ok((buffer.spec().rate(), buffer.spec().channels().count()))
            })
            .map_err(|error| error.to_string()),
        }
    }

    /// The end of the file, or its refusal if it gave nothing.
    fn end(&self, detail: &str) -> Result<Decoded, AudioError> {
        if self.decoded == 0 {
            return Err(AudioError::Damaged { path: self.path.clone(), detail: detail.to_owned() });
        }
        Ok(Decoded::End)
    }

    /// A new stream begins inside the file (Ogg lays them end to end).
    fn restart(&mut self) -> Result<(), AudioError> {
        let container = self.info.container.clone();
        let track = choose_track(self.format.as_ref())
            .ok_or_else(|| AudioError::NoAudioTrack { path: self.path.clone(), container: container.clone() })?;
        self.track = track.id;
        self.decoder = prepare(track, container, &self.path)?.0;
        Ok(())
    }
}

/// The track that a player would play.
fn choose_track(format: &dyn FormatReader) -> Option<&Track> {
    format.default_track(TrackType::Audio).or_else(|| format.first_track(TrackType::Audio))
}

/// A decoder for a track, and what is known of it.
fn prepare(track: &Track, container: String, path: &Path) -> Result<(Decoder, AudioInfo), AudioError> {
    let Some(CodecParameters::Audio(parameters)) = &track.codec_params else {
        return Err(AudioError::NoAudioTrack { path: path.to_owned(), container });
    };
    let codec = codec_name(parameters);
    let unsupported =
        |detail: String| AudioError::UnsupportedCodec { path: path.to_owned(), codec: codec.clone(), detail };
    let channels = parameters.channels.as_ref().map(|channels| channels.count());
    let decoder = if parameters.codec == codecs::CODEC_ID_OPUS {
        Decoder::Opus(Box::new(OpusPackets::new(parameters.extra_data.as_deref(), channels).map_err(unsupported)?))
    } else {
        let options = AudioDecoderOptions::default();
        let made = guarded(|| symphonia::default::get_codecs().make_audio_decoder(parameters, &options));
        Decoder::Symphonia(made.map_err(|error| unsupported(error.to_string()))?)
    };
    let seconds = match (track.num_frames, parameters.sample_rate) {
        (Some(frames), Some(rate)) if rate > 0 => Some(frames as f64 / f64::from(rate)),
        _ => None,
    };
    Ok((decoder, AudioInfo { container, codec, sample_rate: parameters.sample_rate, channels, seconds }))
}

/// A name for people.
fn codec_name(parameters: &AudioCodecParameters) -> String {
    let known = [
        (codecs::CODEC_ID_OPUS, "opus"),
        (codecs::CODEC_ID_AC3, "AC-3 (Dolby Digital)"),
        (codecs::CODEC_ID_EAC3, "E-AC-3 (Dolby Digital Plus)"),
        (codecs::CODEC_ID_AC4, "AC-4"),
        (codecs::CODEC_ID_DCA, "DTS"),
        (codecs::CODEC_ID_TRUEHD, "TrueHD"),
        (codecs::CODEC_ID_WMA, "WMA"),
        (codecs::CODEC_ID_SPEEX, "Speex"),
        (codecs::CODEC_ID_WAVPACK, "WavPack"),
        (codecs::CODEC_ID_MONKEYS_AUDIO, "Monkey's Audio"),
        (codecs::CODEC_ID_MUSEPACK, "Musepack"),
        (CODEC_ID_NULL_AUDIO, "unknown"),
    ];
    let name = known.iter().find(|(id, _)| *id == parameters.codec).map(|(_, name)| (*name).to_owned());
    let decoder = || symphonia::default::get_codecs().get_audio_decoder(parameters.codec);
    name.or_else(|| decoder().map(|decoder| decoder.codec.info.short_name.to_owned()))
        .unwrap_or_else(|| format!("codec {}", parameters.codec))
}

/// The mean of all channels: what every one of them says is kept, and nothing can clip.
fn mix(interleaved: &[f32], channels: usize, mono: &mut Vec<f32>) {
    if channels == 1 {
        mono.extend_from_slice(interleaved);
        return;
    }
    let share = 1.0 / channels as f32;
    mono.extend(interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() * share));
}

/// Whether the first bytes are those of a media file, so that a later failure means damage and not another kind of file.
fn starts_like_media(source: &mut dyn MediaSource) -> std::io::Result<bool> {
    let mut start = Vec::new();
    source.take(12).read_to_end(&mut start)?;
    source.seek(SeekFrom::Start(0))?;
    let magic: [&[u8]; 8] =
        [b"RIFF", b"OggS", b"fLaC", b"FORM", b"caff", &[0x1a, 0x45, 0xdf, 0xa3], b"ID3", &[0xff, 0xfb]];
    Ok(magic.iter().any(|magic| start.starts_with(magic)) || start.get(4..8) == Some(b"ftyp"))
}

/// Runs code that reads somebody else's bytes. Where a decoder has a fault of its own, a damaged file must not end the
/// process: its panic counts as an error of the file.
fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Error::DecodeError("the decoder failed on it")))
}
