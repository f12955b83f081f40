use std::sync::Arc;

use linnet_kernels::{Context, Isa};

use super::{SileroVad, VAD_CHUNK, VadError, VadSession};
use crate::test_support::{CLIPS, clip, fixture, noise, tensor};

/// Largest difference to the package's model under onnxruntime that is allowed. Sums in another order give about 1e-6.
const TOLERANCE: f32 = 1e-4;

fn probabilities(session: &mut VadSession, samples: &[f32], piece: usize) -> Vec<f32> {
    let mut found = Vec::new();
    samples.chunks(piece).for_each(|piece| session.push(piece, &mut found).unwrap());
    session.finish(&mut found).unwrap();
    found
}

fn bundled() -> Arc<SileroVad> {
    Arc::new(SileroVad::bundled().unwrap())
}

fn on(isa: Isa) -> Arc<SileroVad> {
    let weights = std::fs::read(fixture("../../../../assets/silero/silero_vad_16k.safetensors")).unwrap();
    Arc::new(SileroVad::from_bytes(&weights, Context::with_isa(isa, 1)).unwrap())
}

fn worst(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn probabilities_are_those_of_the_package_on_every_level() {
    let file = std::fs::read(fixture("vad.safetensors")).unwrap();
    let mut heard: Vec<(&str, Vec<f32>)> = CLIPS.iter().map(|name| (*name, clip(name))).collect();
    let kennedy = heard[0].1.clone();
    heard.push(("noise-loud", noise(1, 80_000, 0.5)));
    heard.push(("noise-soft", noise(2, 80_000, 0.003)));
    heard.push(("silence", vec![0.0; 80_000]));
    heard.push(("jfk-in-noise", kennedy.iter().zip(noise(3, kennedy.len(), 0.05)).map(|(a, b)| a + b).collect()));
    heard.push(("jfk-soft", kennedy.iter().map(|sample| sample * 0.01).collect()));
    for isa in Isa::available() {
        let mut session = VadSession::new(on(isa));
        for (name, samples) in &heard {
            let error = worst(&probabilities(&mut session, samples, 1600), &tensor(&file, name));
            println!("{isa:?} {name}: largest difference {error:e}");
            assert!(error < TOLERANCE, "{isa:?} {name}: {error:e}");
        }
    }
}

#[test]
fn the_size_of_the_pieces_does_not_matter() {
    let model = bundled();
    let speech = clip("librivox-0880");
    let whole = probabilities(&mut VadSession::new(Arc::clone(&model)), &speech, speech.len());
    assert_eq!(whole.len(), speech.len().div_ceil(VAD_CHUNK));
    for piece in [37, VAD_CHUNK, 1600, 20_000] {
        let cut = probabilities(&mut VadSession::new(Arc::clone(&model)), &speech, piece);
        assert!(worst(&cut, &whole) < 1e-5, "pieces of {piece}");
    }
}

#[test]
fn nothing_of_a_session_is_left_in_the_next() {
    let model = bundled();
    let (speech, other) = (clip("librivox-0930"), clip("jfk"));
    let fresh = probabilities(&mut VadSession::new(Arc::clone(&model)), &speech, 1600);
    let mut session = VadSession::new(Arc::clone(&model));
    session.push(&other[..50_001], &mut Vec::new()).unwrap();
    session.reset();
    assert_eq!(probabilities(&mut session, &speech, 1600), fresh, "after a reset");
    assert_eq!(probabilities(&mut session, &speech, 1600), fresh, "after an end");
    // Two sessions side by side do not hear each other.
    let (mut a, mut b) = (VadSession::new(Arc::clone(&model)), VadSession::new(model));
    let (mut found, mut ignored) = (Vec::new(), Vec::new());
    for (a_piece, b_piece) in speech.chunks(1600).zip(other.chunks(1600)) {
        a.push(a_piece, &mut found).unwrap();
        b.push(b_piece, &mut ignored).unwrap();
    }
    a.finish(&mut found).unwrap();
    assert_eq!(found, fresh);
}

#[test]
fn a_sample_that_is_no_number_does_not_deafen_the_session() {
    let mut session = VadSession::new(bundled());
    let mut speech = clip("librivox-0930");
    speech[100] = f32::NAN;
    speech[200] = f32::NEG_INFINITY;
    let found = probabilities(&mut session, &speech, 1600);
    assert!(found.iter().all(|probability| (0.0..=1.0).contains(probability)));
    assert!(found.iter().any(|&probability| probability > 0.9));
}

#[test]
fn weights_of_another_network_are_refused_by_name() {
    assert!(matches!(SileroVad::from_bytes(b"no such thing", Context::new(1)), Err(VadError::Unreadable(_))));
    let mut weights = std::fs::read(fixture("../../../../assets/silero/silero_vad_16k.safetensors")).unwrap();
    let at = weights.windows(12).position(|window| window == b"[128,129,3],").unwrap();
    weights[at..at + 12].copy_from_slice(b"[129,128,3],");
    let error = SileroVad::from_bytes(&weights, Context::new(1)).unwrap_err().to_string();
    assert!(error.contains("conv1.weight") && error.contains("[128, 129, 3]"), "{error}");
}
