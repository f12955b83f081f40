//! Opus packets to samples, with `ropus` (a port of the reference decoder, bit for bit).

use ropus::OpusMSDecoder;

/// The rate that Opus is decoded at, and that its headers count in.
pub(super) const OPUS_RATE: u32 = 48_000;

/// The longest packet: 120 ms (RFC 6716, section 3.2.5).
const MAX_FRAMES: usize = OPUS_RATE as usize * 120 / 1000;

/// The decoder of one Opus track.
pub(super) struct OpusPackets {
    decoder: OpusMSDecoder,
    channels: usize,
    /// Frames at the beginning that belong to no sound.
    skip: usize,
    gain: f32,
    pcm: Vec<i16>,
}

/// The identification header (RFC 7845, section 5.1; in MP4 the box `dOps`, with version 0 and big-endian numbers).
struct Head {
    channels: u8,
    pre_skip: u16,
    /// In 1/256 dB.
    gain: i16,
    streams: u8,
    coupled: u8,
    mapping: Vec<u8>,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let fields = bytes.strip_prefix(b"OpusHead")?;
        let (&[version, channels, skip_0, skip_1, _, _, _, _, gain_0, gain_1, family], table) =
            fields.split_first_chunk::<11>()?;
        let number = if version == 0 { u16::from_be_bytes } else { u16::from_le_bytes };
        let (streams, coupled, mapping) = match (family, table) {
            (0, _) => (1, channels.checked_sub(1).filter(|&coupled| coupled <= 1)?, vec![0, 1]),
            (_, [streams, coupled, mapping @ ..]) => (*streams, *coupled, mapping.to_vec()),
            _ => return None,
        };
        let gain = number([gain_0, gain_1]) as i16;
        let pre_skip = number([skip_0, skip_1]);
        (mapping.len() >= usize::from(channels)).then_some(Self { channels, pre_skip, gain, streams, coupled, mapping })
    }

    /// What holds where a file has no header.
    fn plain(channels: usize) -> Option<Self> {
        let channels = u8::try_from(channels).ok().filter(|channels| (1..=2).contains(channels))?;
        Some(Self { channels, pre_skip: 0, gain: 0, streams: 1, coupled: channels - 1, mapping: vec![0, 1] })
    }
}

impl OpusPackets {
    /// A decoder after a track's identification header, or for `channels` where there is none.
    pub(super) fn new(head: Option<&[u8]>, channels: Option<usize>) -> Result<Self, String> {
        let head = match head {
            Some(bytes) => Head::read(bytes),
            None => Head::plain(channels.unwrap_or(1)),
        };
        let head = head.ok_or("its header is not understood")?;
        let (count, streams, coupled) = (head.channels.into(), head.streams.into(), head.coupled.into());
        let decoder = OpusMSDecoder::new(OPUS_RATE as i32, count, streams, coupled, &head.mapping)
            .map_err(|code| format!("its channels are not understood: {code}"))?;
        let channels = usize::from(head.channels);
        Ok(Self {
            decoder,
            channels,
            skip: head.pre_skip.into(),
            gain: 10f32.powf(f32::from(head.gain) / (20.0 * 256.0)) / 32_768.0,
            pcm: vec![0; MAX_FRAMES * channels],
        })
    }

    /// Channels of what is decoded.
    pub(super) fn channels(&self) -> usize {
        self.channels
    }

    /// Decodes a packet into interleaved samples, without `trim_end` frames at its end.
    pub(super) fn decode(&mut self, packet: &[u8], trim_end: usize, interleaved: &mut Vec<f32>) -> Result<(), String> {
        interleaved.clear();
        let length = i32::try_from(packet.len()).map_err(|_| "a packet of more than 2 GiB".to_owned())?;
        // An empty packet would ask for what was lost to be guessed.
        if length == 0 {
            return Err("an empty packet".to_owned());
        }
        let frames = self
            .decoder
            .decode(Some(packet), length, &mut self.pcm, MAX_FRAMES as i32, false)
            .map_err(|code| format!("Opus error {code}"))?;
        let frames = usize::try_from(frames).unwrap_or_default().saturating_sub(trim_end);
        let skipped = self.skip.min(frames);
        self.skip -= skipped;
        let pcm = &self.pcm[skipped * self.channels..frames * self.channels];
        interleaved.extend(pcm.iter().map(|&sample| f32::from(sample) * self.gain));
        Ok(())
    }
}
