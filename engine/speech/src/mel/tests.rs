use std::sync::Arc;

use safetensors::SafeTensors;

use super::{MelError, MelFrontEnd, MelStream, filters::MelFilters};
use crate::test_support::{clip, fixture, noise, tensor};

/// In units of the normalized spectrogram, whose range is 2 (80 dB). Both sides transform in single precision, in
/// different orders; the quietest bins of a frame carry the rounding of the loudest. Measured: see the test's message.
const TOLERANCE: f32 = 2e-4;

fn front_end(n_mels: usize) -> Arc<MelFrontEnd> {
    Arc::new(MelFrontEnd::new(n_mels).unwrap())
}

fn reference() -> Vec<u8> {
    std::fs::read(fixture("mel.safetensors")).unwrap()
}

fn worst(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn filters_are_librosas() {
    let file = reference();
    for count in [80, 128] {
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let at = tensors.tensor(&format!("filters-{count}.at")).unwrap();
        let at = at.data().chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap()) as usize);
        let expected: Vec<(usize, f32)> = at.zip(tensor(&file, &format!("filters-{count}.value"))).collect();
        let got = MelFilters::slaney(count).entries();
        assert_eq!(got.len(), expected.len());
        for ((place, weight), (expected_place, expected)) in got.into_iter().zip(expected) {
            assert_eq!(place, expected_place);
            assert!((weight - expected).abs() <= 2e-7 * expected, "filter entry {place}: {weight:e} for {expected:e}");
        }
    }
}

#[test]
fn spectrograms_are_the_references() {
    let file = reference();
    let speech = clip("jfk");
    for n_mels in [80, 128] {
        let front_end = front_end(n_mels);
        let second = front_end.log_mel(&speech[..16_000], 0).unwrap();
        let window = front_end.log_mel(&speech, 480_000 - speech.len()).unwrap();
        assert_eq!(window.len(), 3000 * n_mels);
        let window: Vec<f32> = window.chunks_exact(n_mels).step_by(41).flatten().copied().collect();
        let hiss = front_end.log_mel(&noise(7, 4000, 0.01), 0).unwrap();
        for (name, got) in [("second", second), ("window", window), ("noise", hiss)] {
            let error = worst(&got, &tensor(&file, &format!("{name}-{n_mels}")));
            println!("{name}, {n_mels} filters: largest difference {error:e}");
            assert!(error < TOLERANCE, "{name}, {n_mels} filters: {error:e}");
        }
    }
}

#[test]
fn pieces_of_any_size_give_the_same_numbers_as_the_whole() {
    let front_end = front_end(80);
    let speech = &clip("librivox-0930")[..20_123];
    for padding in [0, 1, 159, 160, 5000] {
        let whole = front_end.log_mel(speech, padding).unwrap();
        assert_eq!(whole.len(), (speech.len() + padding) / 160 * 80);
        for piece in [1, 7, 160, 200, 201, 400, 1601, 20_000] {
            let mut stream = MelStream::new(Arc::clone(&front_end));
            speech.chunks(piece).for_each(|piece| stream.push(piece));
            stream.finish(padding).unwrap();
            assert_eq!(stream.normalized(0..usize::MAX), whole, "pieces of {piece}, padding {padding}");
        }
    }
}

#[test]
fn discarded_frames_are_gone_and_the_others_unchanged() {
    let front_end = front_end(128);
    let speech = clip("librivox-0880");
    let whole = front_end.log_mel(&speech, 0).unwrap();
    let mut stream = MelStream::new(Arc::clone(&front_end));
    for piece in speech.chunks(3000) {
        stream.push(piece);
        stream.discard_before(stream.frames().saturating_sub(50));
        assert!(stream.log_mel.len() <= 70 * 128 && stream.waiting.len() < 3000 + 400, "memory grows");
    }
    stream.finish(0).unwrap();
    let first = stream.frames() - 20;
    assert_eq!(stream.normalized(first..usize::MAX), whole[first * 128..]);
    assert!(stream.normalized(0..10).is_empty());
}

#[test]
fn too_little_is_refused_and_silence_is_a_flat_floor() {
    let front_end = front_end(80);
    assert_eq!(front_end.log_mel(&[0.1; 200], 0), Err(MelError::TooShort { samples: 200 }));
    assert_eq!(front_end.log_mel(&[], 0), Err(MelError::TooShort { samples: 0 }));
    assert_eq!(front_end.log_mel(&[0.1; 201], 0).unwrap().len(), 80);
    assert!(matches!(MelFrontEnd::new(64), Err(MelError::UnknownFilters { n_mels: 64 })));
    // log10(1e-10) is -10; (-10 + 4) / 4.
    assert_eq!(front_end.log_mel(&[], 3200).unwrap(), vec![-1.5; 20 * 80]);
}

#[test]
fn a_sample_that_is_no_number_spoils_nothing_else() {
    let front_end = front_end(80);
    let mut samples = noise(1, 3200, 0.1);
    samples[1000] = f32::NAN;
    samples[1001] = f32::INFINITY;
    let spoilt = front_end.log_mel(&samples, 0).unwrap();
    samples[1000..1002].fill(0.0);
    assert_eq!(spoilt, front_end.log_mel(&samples, 0).unwrap());
}
