//! The microphone, through the system's sound.

use std::sync::mpsc::Sender;

use anyhow::{Context, anyhow};
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{Device, ErrorKind, FromSample, SampleFormat, SizedSample, Stream, SupportedStreamConfig};
use linnet_speech::PcmFormat;

use super::Heard;

/// A microphone that is being listened to; dropped, it is closed.
pub(super) struct Microphone {
    name: String,
    format: PcmFormat,
    _stream: Stream,
}

/// The names of all microphones.
pub(super) fn names() -> anyhow::Result<Vec<String>> {
    let devices = cpal::default_host().input_devices().context("the system tells of no microphones")?;
    Ok(devices.map(|device| name_of(&device)).collect())
}

impl Microphone {
    /// Opens the microphone of that name, or the system's own; samples go to `sender`. A microphone that was named and is
    /// not there is never replaced by another.
    pub(super) fn open(name: Option<&str>, sender: Sender<Heard>) -> anyhow::Result<Self> {
        let host = cpal::default_host();
        let device = match name {
            Some(name) => {
                let mut devices = host.input_devices().context("the system tells of no microphones")?;
                devices.find(|device| name_of(device) == name).ok_or_else(|| {
                    anyhow!("there is no microphone \"{name}\"; `linnet listen --list-devices` lists them")
                })?
            }
            None => host.default_input_device().context("this machine has no microphone")?,
        };
        let name = name_of(&device);
        let config =
            device.default_input_config().with_context(|| format!("the microphone \"{name}\" cannot be used"))?;
        let format = PcmFormat { rate: config.sample_rate(), channels: config.channels(), ..PcmFormat::default() };
        let stream = build(&device, &config, sender).with_context(|| {
            format!("the microphone \"{name}\" cannot be opened; is it plugged in, and may the terminal use it?")
        })?;
        stream.play().with_context(|| format!("the microphone \"{name}\" cannot be started"))?;
        Ok(Self { name, format, _stream: stream })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What its samples are once they are floats.
    pub(super) fn format(&self) -> PcmFormat {
        self.format
    }
}

fn name_of(device: &Device) -> String {
    device.description().map_or_else(|_| "unknown".to_owned(), |description| description.name().to_owned())
}

fn build(device: &Device, config: &SupportedStreamConfig, sender: Sender<Heard>) -> anyhow::Result<Stream> {
    Ok(match config.sample_format() {
        SampleFormat::F32 => stream::<f32>(device, config, sender)?,
        SampleFormat::F64 => stream::<f64>(device, config, sender)?,
        SampleFormat::I8 => stream::<i8>(device, config, sender)?,
        SampleFormat::I16 => stream::<i16>(device, config, sender)?,
        SampleFormat::I32 => stream::<i32>(device, config, sender)?,
        SampleFormat::U8 => stream::<u8>(device, config, sender)?,
        SampleFormat::U16 => stream::<u16>(device, config, sender)?,
        SampleFormat::U32 => stream::<u32>(device, config, sender)?,
        other => return Err(anyhow!("its samples are {other}, which is not read")),
    })
}

fn stream<S>(device: &Device, config: &SupportedStreamConfig, sender: Sender<Heard>) -> Result<Stream, cpal::Error>
where
    S: SizedSample,
    f32: FromSample<S>,
{
    let errors = sender.clone();
    device.build_input_stream(
        (*config).into(),
        move |data: &[S], _| {
            // Nobody listens any more when the loop has ended.
            let _ = sender.send(Heard::Samples(data.iter().map(|&sample| f32::from_sample_(sample)).collect()));
        },
        move |error: cpal::Error| match error.kind() {
            // A gap in the sound, or a thread without privileges: the stream goes on.
            ErrorKind::Xrun | ErrorKind::RealtimeDenied => {}
            _ => {
                let _ = errors.send(Heard::Lost(error.to_string()));
            }
        },
        None,
    )
}
