use std::sync::Arc;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{Segment, SegmentEvent, Segmenter, SegmenterOptions, VAD_CHUNK};
use crate::{
    test_support::{clip, noise},
    vad::{SileroVad, VadSession},
};

const CHUNK: u64 = VAD_CHUNK as u64;

/// Runs of (chunks, probability).
fn segments(runs: &[(usize, f32)]) -> Vec<Segment> {
    let mut segmenter = Segmenter::default();
    let probabilities = runs.iter().flat_map(|&(count, probability)| std::iter::repeat_n(probability, count));
    let mut events: Vec<SegmentEvent> = probabilities.filter_map(|p| segmenter.push(p)).collect();
    events.extend(segmenter.finish());
    ended(&events)
}

fn ended(events: &[SegmentEvent]) -> Vec<Segment> {
    let segment = |event: &SegmentEvent| match event {
        SegmentEvent::Ended(segment) => Some(*segment),
        SegmentEvent::Started { .. } => None,
    };
    events.iter().filter_map(segment).collect()
}

/// What the real detector and the segmenter make of samples.
fn heard(samples: &[f32]) -> Vec<Segment> {
    let mut probabilities = Vec::new();
    let mut session = VadSession::new(Arc::new(SileroVad::bundled().unwrap()));
    session.push(samples, &mut probabilities).unwrap();
    session.finish(&mut probabilities).unwrap();
    let mut segmenter = Segmenter::default();
    let mut events: Vec<SegmentEvent> = probabilities.into_iter().filter_map(|p| segmenter.push(p)).collect();
    events.extend(segmenter.finish());
    ended(&events)
}

/// What it is, runs of (chunks, probability), what comes of it.
type Row = (&'static str, &'static [(usize, f32)], Vec<Segment>);

#[test]
fn utterances_begin_and_end_where_the_table_says() {
    let plain = |start: u64, end: u64| Segment { start: start * CHUNK, end: end * CHUNK, split: false };
    // Pre-roll is 450 ms (7200 samples, 14.06 chunks), hang-over 15 chunks, the tail 7, the least speech 4 chunks.
    let rolled = |onset: u64, end: u64| Segment { start: onset * CHUNK - 7200, ..plain(0, end) };
    let table: &[Row] = &[
        ("silence", &[(200, 0.02)], vec![]),
        ("a hum just below the onset", &[(200, 0.49)], vec![]),
        ("a click", &[(50, 0.0), (1, 0.99), (50, 0.0)], vec![]),
        ("a short breath", &[(50, 0.0), (3, 0.8), (50, 0.0)], vec![]),
        (
            "clicks, each alone",
            &[(20, 0.0), (1, 0.9), (10, 0.0), (1, 0.9), (10, 0.0), (1, 0.9), (9, 0.0), (1, 0.9)],
            vec![],
        ),
        ("a short word", &[(50, 0.0), (4, 0.9), (50, 0.0)], vec![rolled(50, 50 + 4 + 7)]),
        ("from the very first sample", &[(20, 0.9), (40, 0.0)], vec![plain(0, 27)]),
        ("just after the beginning", &[(3, 0.1), (20, 0.9), (40, 0.0)], vec![plain(0, 30)]),
        ("to the very end", &[(30, 0.0), (20, 0.9)], vec![rolled(30, 50)]),
        ("a soft middle is still speech", &[(30, 0.0), (5, 0.9), (40, 0.36), (40, 0.0)], vec![rolled(30, 82)]),
        (
            "a pause shorter than the hang-over",
            &[(30, 0.0), (9, 0.9), (14, 0.1), (9, 0.9), (30, 0.0)],
            vec![rolled(30, 69)],
        ),
        (
            "two utterances do not share samples",
            &[(30, 0.0), (9, 0.9), (15, 0.1), (9, 0.9), (30, 0.0)],
            vec![rolled(30, 46), Segment { start: 46 * CHUNK, ..plain(0, 70) }],
        ),
        ("nothing at all", &[], vec![]),
    ];
    for (what, runs, expected) in table {
        assert_eq!(&segments(runs), expected, "{what}");
    }
}

#[test]
fn a_long_utterance_is_split_at_its_quietest_pause_and_nothing_is_lost() {
    // 28 s are 875 chunks; a pause of 100 ms at 700, a shorter dip at 860.
    let found = segments(&[(700, 0.95), (3, 0.1), (157, 0.95), (1, 0.3), (500, 0.95), (40, 0.0)]);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], Segment { start: 0, end: 702 * CHUNK, split: true });
    assert_eq!(found[1], Segment { start: 702 * CHUNK, end: 1368 * CHUNK, split: false });
    // Without any pause it is split all the same.
    let endless = segments(&[(2000, 0.95), (40, 0.0)]);
    assert!(endless.iter().all(|segment| segment.end - segment.start <= 28_000 * 16));
    assert!(endless.windows(2).all(|pair| pair[0].end == pair[1].start), "{endless:?}");
}

#[test]
fn any_probabilities_give_segments_in_order_without_overlap() {
    let mut rng = StdRng::seed_from_u64(70);
    for round in 0..200 {
        let options = SegmenterOptions {
            min_speech_ms: rng.random_range(0..400),
            hangover_ms: rng.random_range(32..900),
            pre_roll_ms: rng.random_range(0..900),
            max_segment_ms: rng.random_range(1000..28_000),
            ..SegmenterOptions::default()
        };
        let mut segmenter = Segmenter::new(options);
        let (mut level, mut done, mut open, mut fed) = (0.0f32, 0, None, 0);
        let mut events = Vec::new();
        for _ in 0..rng.random_range(0..3000) {
            if rng.random_bool(0.05) {
                level = rng.random();
            }
            let before = segmenter.needed_from();
            let event = segmenter.push((level + rng.random_range(-0.2..0.2)).clamp(0.0, 1.0));
            fed += CHUNK;
            if let Some(event) = event {
                events.push((before, event));
            }
            assert!(segmenter.needed_from() <= fed && segmenter.needed_from() >= done);
            // Beside the pre-roll, what may become speech: at most 13 chunks of it, with gaps of three between.
            assert!(segmenter.is_speaking() || fed - segmenter.needed_from() <= options.pre_roll_ms * 16 + 80 * CHUNK);
        }
        events.extend(segmenter.finish().map(|event| (0, event)));
        for (needed, event) in events {
            match event {
                SegmentEvent::Started { start } => {
                    assert!(start >= done && start >= needed, "round {round}: audio before {needed} is gone");
                    open = Some(start);
                }
                SegmentEvent::Ended(segment) => {
                    assert_eq!(open, Some(segment.start), "round {round}");
                    assert!(segment.end > segment.start && segment.end <= fed);
                    assert!(segment.end - segment.start <= options.max_segment_ms * 16 + CHUNK);
                    done = segment.end;
                    open = segment.split.then_some(segment.end);
                }
            }
        }
        assert_eq!(open, None, "round {round}: a segment never ended");
    }
}

#[test]
fn real_speech_from_the_first_sample_keeps_its_first_word() {
    // The clip begins with a third of a second before "And so".
    let speech = clip("jfk");
    let onset = 5200;
    let found = heard(&speech[onset..]);
    assert_eq!(found[0].start, 0);
    let found = heard(&speech);
    assert!(found[0].start <= onset as u64, "{found:?}");
    let end = found.last().unwrap().end;
    assert!(end >= 10 * 16_000, "{found:?}");
}

#[test]
fn silence_noise_hum_clicks_and_knocks_give_nothing() {
    let seconds = 5 * 16_000;
    let tone = |hertz: f32, level: f32| -> Vec<f32> {
        (0..seconds).map(|index| (index as f32 * hertz * std::f32::consts::TAU / 16_000.0).sin() * level).collect()
    };
    // A fan: noise through a low pass, over a hum.
    let fan = |level: f32| -> Vec<f32> {
        let mut low = 0.0;
        noise(5, seconds, 1.0)
            .iter()
            .zip(tone(100.0, 0.2))
            .map(|(sample, hum)| {
                low += 0.05 * (sample - low);
                (low * 3.0 + hum) * level
            })
            .collect()
    };
    // Keys: a burst of 8 ms that dies away, five in a second.
    let typing = |level: f32| -> Vec<f32> {
        let burst = |(index, sample): (usize, f32)| sample * (-((index % 3200) as f32) / 40.0).exp() * level;
        noise(6, seconds, 1.0).into_iter().enumerate().map(burst).collect()
    };
    // Breath: noise that swells and fades for half a second, every two seconds.
    let breath = |level: f32| -> Vec<f32> {
        let swell = |(index, sample): (usize, f32)| {
            let phase = (index % 32_000) as f32 / 8000.0;
            if phase < 1.0 { sample * (phase * std::f32::consts::PI).sin() * level } else { 0.0 }
        };
        noise(8, seconds, 1.0).into_iter().enumerate().map(swell).collect()
    };
    assert_eq!(heard(&vec![0.0; seconds]), []);
    for level in [0.01, 0.05, 0.3] {
        assert_eq!(heard(&noise(9, seconds, level)), [], "room noise at {level}");
        assert_eq!(heard(&fan(level)), [], "fan at {level}");
        assert_eq!(heard(&typing(level)), [], "typing at {level}");
        assert_eq!(heard(&breath(level)), [], "breath at {level}");
        assert_eq!(heard(&tone(440.0, level)), [], "tone at {level}");
    }
}

#[test]
fn soft_speech_is_heard() {
    let speech = clip("librivox-0870");
    let power: f32 = speech.iter().map(|sample| sample * sample).sum::<f32>() / speech.len() as f32;
    // -45 dBFS.
    let gain = 10f32.powf(-45.0 / 20.0) / power.sqrt();
    let soft: Vec<f32> = speech.iter().map(|sample| sample * gain).collect();
    let (loud, soft) = (heard(&speech), heard(&soft));
    let length = |segments: &[Segment]| segments.iter().map(|segment| segment.end - segment.start).sum::<u64>();
    assert!(length(&soft) * 10 >= length(&loud) * 9, "{soft:?} of {loud:?}");
}
