use std::fs;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{AudioError, AudioReader};
use crate::test_support::fixture;

/// Signal over difference in dB at the shift where `got` fits `expected` best, and that shift. Coders and their
/// containers delay by up to a tenth of a second.
fn likeness(got: &[f32], expected: &[f32]) -> (f32, i32) {
    let at = |shift: i32| {
        let pairs = expected.iter().enumerate().filter_map(|(index, expected)| {
            let place = usize::try_from(index as i32 + shift).ok()?;
            Some((*expected, *got.get(place)?))
        });
        let (mut signal, mut difference) = (1e-12f32, 1e-12f32);
        for (expected, got) in pairs {
            signal += expected * expected;
            difference += (expected - got) * (expected - got);
        }
        10.0 * (signal / difference).log10()
    };
    let best = (-400..2400).max_by(|&a, &b| at(a).total_cmp(&at(b))).unwrap();
    (at(best), best)
}

fn read(name: &str) -> Result<Vec<f32>, AudioError> {
    AudioReader::open(&fixture(&format!("formats/{name}")))?.read_to_end()
}

#[test]
fn every_format_gives_the_speech_that_went_in() {
    let expected = read("reference.flac").unwrap();
    assert_eq!(expected.len(), 16_000);
    // The least likeness in dB: without loss, what lies between 7.7 and 8 kHz goes with another rate; 8 bits lose their
    // steps, 8 kHz half the sound, and coders more.
    let formats = [
        ("mono-16k-16bit.wav", "pcm_s16le", 80.0),
        ("mono-16k.aiff", "pcm_s16be", 80.0),
        ("stereo-48k.flac", "flac", 28.0),
        ("mono-22k-float.wav", "pcm_f32le", 28.0),
        ("mono-32k-8bit.wav", "pcm_u8", 15.0),
        ("four-8k-24bit.wav", "pcm_s24le", 12.0),
        ("mono-8k-ulaw.wav", "pcm_mulaw", 12.0),
        ("stereo-44k.mp3", "mp3", 10.0),
        ("mono-22k.mp3", "mp3", 10.0),
        ("stereo-44k.m4a", "aac", 10.0),
        ("mono-16k.aac", "aac", 10.0),
        ("stereo-44k.ogg", "vorbis", 10.0),
        ("mono-48k.opus", "opus", 8.0),
        ("stereo-48k.webm", "opus", 8.0),
        ("six-48k.opus", "opus", 8.0),
    ];
    for (name, codec, least) in formats {
        let mut reader = AudioReader::open(&fixture(&format!("formats/{name}"))).unwrap();
        assert_eq!(reader.info().codec, codec, "{name}");
        let got = reader.read_to_end().unwrap_or_else(|error| panic!("{name}: {error}"));
        let (decibels, shift) = likeness(&got, &expected);
        println!("{name}: {decibels:.1} dB, {shift} samples late, {} samples", got.len());
        assert!(decibels > least, "{name}: {decibels} dB");
        assert!((15_900..19_000).contains(&got.len()), "{name}: {} samples", got.len());
        assert_eq!(reader.skipped_packets(), 0, "{name}");
    }
    let half = read("stereo-44k-alac.m4a").unwrap();
    assert!(likeness(&half, &expected[..8000]).0 > 25.0 && half.len() == 8000);
}

#[test]
fn opus_and_mp3_begin_where_the_sound_begins() {
    let expected = read("reference.flac").unwrap();
    for name in ["mono-48k.opus", "stereo-48k.webm", "stereo-44k.mp3"] {
        let (_, shift) = likeness(&read(name).unwrap(), &expected);
        assert!(shift.abs() <= 2, "{name} is {shift} samples late: its delay was not left out");
    }
}

#[test]
fn what_is_no_audio_is_refused_with_the_reason_and_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("speech.mp3");
    fs::write(&text, "This is a text that somebody has named like music.\n".repeat(100)).unwrap();
    let empty = folder.path().join("empty.wav");
    fs::write(&empty, "").unwrap();
    let open = |path: &std::path::Path| AudioReader::open(path).and_then(|mut reader| reader.read_to_end());
    for path in [text.as_path(), empty.as_path(), folder.path()] {
        let error = open(path).unwrap_err();
        assert!(matches!(error, AudioError::NotAudio { .. }), "{}: {error}", path.display());
        assert!(error.to_string().contains("convert it"), "{error}");
    }
    let missing = open(&folder.path().join("missing.wav")).unwrap_err();
    assert!(matches!(missing, AudioError::Unreadable { .. }), "{missing}");
    let silent = read("no-sound.mp4").unwrap_err();
    assert!(matches!(silent, AudioError::NoAudioTrack { .. }), "{silent}");
    let dolby = read("ac3.mkv").unwrap_err();
    assert!(matches!(&dolby, AudioError::UnsupportedCodec { codec, .. } if codec.contains("AC-3")), "{dolby}");
    let torn = read("torn.m4a").unwrap_err();
    assert!(matches!(torn, AudioError::Damaged { .. }), "{torn}");
}

#[test]
fn a_file_that_breaks_off_gives_what_there_is() {
    let expected = read("reference.flac").unwrap();
    let torn = read("torn.flac").unwrap();
    assert!((5000..12_000).contains(&torn.len()), "{} samples", torn.len());
    assert!(likeness(&torn, &expected[..torn.len() - 600]).0 > 25.0);
    // A recorder that writes into a pipe cannot fill in the length.
    assert_eq!(read("endless.wav").unwrap().len(), 16_000);
}

#[test]
fn a_file_in_memory_reads_like_one_on_disk() {
    let bytes = fs::read(fixture("formats/stereo-44k.mp3")).unwrap();
    let mut reader = AudioReader::from_bytes(bytes, "upload.mp3").unwrap();
    assert_eq!(reader.read_to_end().unwrap(), read("stereo-44k.mp3").unwrap());
    let error = AudioReader::from_bytes(b"no audio".to_vec(), "upload.mp3").unwrap_err();
    assert!(error.to_string().starts_with("upload.mp3 is not an audio file"), "{error}");
}

#[test]
fn damage_anywhere_ends_in_samples_or_an_error_and_never_in_a_panic() {
    let mut rng = StdRng::seed_from_u64(60);
    for entry in fs::read_dir(fixture("formats")).unwrap() {
        let path = entry.unwrap().path();
        let whole = fs::read(&path).unwrap();
        for round in 0..12 {
            let mut bytes = whole.clone();
            for _ in 0..1 + round {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
            if round % 3 == 0 {
                bytes.truncate(rng.random_range(0..bytes.len()));
            }
            let read = AudioReader::from_bytes(bytes, "damaged").and_then(|mut reader| reader.read_to_end());
            if let Ok(samples) = read {
                // Damage must not invent hours either.
                assert!(samples.len() < 200 * 16_000, "{}: {} samples", path.display(), samples.len());
            }
        }
    }
}

#[test]
fn a_long_file_takes_the_memory_of_a_piece() {
    // Ten minutes of 44.1 kHz stereo, written as they are read: 106 MB of samples that are never held.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.wav");
    let (rate, seconds) = (44_100u32, 600u32);
    let size = rate * seconds * 4;
    let mut header = b"RIFF".to_vec();
    header.extend((36 + size).to_le_bytes());
    header.extend(b"WAVEfmt \x10\0\0\0\x01\0\x02\0");
    header.extend([rate.to_le_bytes(), (rate * 4).to_le_bytes()].concat());
    header.extend(b"\x04\0\x10\0data");
    header.extend(size.to_le_bytes());
    let file = fs::File::create(&path).unwrap();
    {
        use std::os::unix::fs::FileExt;
        file.write_all_at(&header, 0).unwrap();
    }
    // The rest is a hole of zeros, which takes no disk.
    file.set_len(header.len() as u64 + u64::from(size)).unwrap();
    let mut reader = AudioReader::open(&path).unwrap();
    assert_eq!(reader.info().seconds, Some(600.0));
    let (mut piece, mut total, mut largest) = (Vec::new(), 0, 0);
    while reader.read(&mut piece).unwrap() {
        total += piece.len();
        largest = largest.max(piece.capacity());
        piece.clear();
    }
    assert_eq!(total, 600 * 16_000);
    assert!(largest < 16_000, "a piece of {largest} samples");
}
