use std::sync::Arc;

use super::{SpeechWindow, WindowOptions, WindowStream};
use crate::{
    SAMPLE_RATE, SileroVad,
    test_support::{clip, noise},
};

/// Sentences with so many seconds of faint noise after each.
pub(crate) fn reading(pauses: &[f64]) -> Vec<f32> {
    let names = ["librivox-0880", "librivox-0930", "librivox-0890", "jfk", "librivox-0870"];
    let mut samples = Vec::new();
    for (index, pause) in pauses.iter().enumerate() {
        samples.extend(clip(names[index % names.len()]));
        samples.extend(noise(4, (pause * SAMPLE_RATE as f64) as usize, 0.001));
    }
    samples
}

fn windows(options: WindowOptions, samples: &[f32], piece: usize) -> Vec<SpeechWindow> {
    let mut stream = WindowStream::new(Arc::new(SileroVad::bundled().unwrap()), options);
    let mut closed = Vec::new();
    samples.chunks(piece).for_each(|piece| stream.push(piece, &mut closed).unwrap());
    stream.finish(&mut closed).unwrap();
    closed
}

#[test]
fn windows_are_the_same_however_the_audio_was_cut() {
    let samples = reading(&[0.7, 3.5, 1.0, 0.2]);
    for options in [WindowOptions::FILE, WindowOptions::LIVE] {
        let whole = windows(options, &samples, samples.len());
        assert!(whole.len() > 1);
        for piece in [160, 1601, 40_000] {
            assert_eq!(windows(options, &samples, piece), whole, "pieces of {piece}");
        }
        for window in &whole {
            assert!(window.samples().len() <= options.longest_ms * 16);
            let place = window.start() as usize..window.end() as usize;
            assert!(samples[place].starts_with(&window.samples()[..1000]));
        }
    }
}

#[test]
fn a_long_pause_closes_a_window_and_a_short_one_does_not() {
    let short = windows(WindowOptions::FILE, &reading(&[1.0, 1.0]), 1600);
    let long = windows(WindowOptions::FILE, &reading(&[5.0, 1.0]), 1600);
    assert!(short.len() < long.len(), "{} {}", short.len(), long.len());
    // It is closed as soon as nothing can join it any more.
    let mut stream = WindowStream::new(Arc::new(SileroVad::bundled().unwrap()), WindowOptions::FILE);
    let mut closed = Vec::new();
    stream.push(&reading(&[0.0]), &mut closed).unwrap();
    let before = closed.len();
    stream.push(&noise(5, 5 * SAMPLE_RATE, 0.001), &mut closed).unwrap();
    assert_eq!(closed.len(), before + 1);
    assert!(stream.open().is_none());
}

#[test]
fn times_are_those_of_the_stream_again() {
    let samples = reading(&[2.2, 1.0]);
    let windows = windows(WindowOptions::FILE, &samples, samples.len());
    let two = windows.iter().find(|window| window.parts.len() > 1).unwrap();
    let seam = two.parts[0].samples as f64 / 16_000.0;
    let (first, second) = (&two.parts[0], &two.parts[1]);
    let end_of_first = (first.start + first.samples as u64) as f64 / 16_000.0;
    assert!((two.time_in_stream(seam, true) - end_of_first).abs() < 1e-9);
    assert!((two.time_in_stream(seam, false) - second.start as f64 / 16_000.0).abs() < 1e-9);
    assert!((two.time_in_stream(seam + 1.0, false) - second.start as f64 / 16_000.0 - 1.0).abs() < 1e-9);
    assert!((two.time_in_stream(99.0, true) - two.end() as f64 / 16_000.0).abs() < 1e-9);
}

#[test]
fn what_is_spoken_is_settled_in_a_pause_and_stays_as_it_is_at_the_end() {
    let speech = clip("librivox-0880");
    let mut stream = WindowStream::new(Arc::new(SileroVad::bundled().unwrap()), WindowOptions::LIVE);
    let mut closed = Vec::new();
    stream.push(&speech[..24_000], &mut closed).unwrap();
    assert!(!stream.open().unwrap().is_settled);
    stream.push(&speech[24_000..], &mut closed).unwrap();
    stream.push(&noise(6, 6000, 0.001), &mut closed).unwrap();
    let settled = stream.open().unwrap();
    assert!(settled.is_settled);
    stream.push(&noise(7, 4000, 0.001), &mut closed).unwrap();
    stream.finish(&mut closed).unwrap();
    assert!(closed.last().unwrap().is_same(&settled.window));
    assert_eq!(closed.last().unwrap().samples(), settled.window.samples());
}
