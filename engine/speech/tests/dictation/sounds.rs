//! Sounds that are no speech, made from noise and sines, so that they are the same everywhere.

use std::f32::consts::TAU;

const RATE: f32 = 16_000.0;

/// A generator of numbers from -1 to 1.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(self.0 >> 8) / f64::from(1 << 23) - 1.0) as f32
    }
}

/// The level of samples: root mean square in dB of full scale.
pub(crate) fn level(samples: &[f32]) -> f32 {
    let power = samples.iter().map(|sample| f64::from(sample * sample)).sum::<f64>() / samples.len() as f64;
    10.0 * power.max(1e-20).log10() as f32
}

/// The sound at another level.
pub(crate) fn at_level(mut samples: Vec<f32>, dbfs: f32) -> Vec<f32> {
    let gain = 10f32.powf((dbfs - level(&samples)) / 20.0);
    samples.iter_mut().for_each(|sample| *sample = (*sample * gain).clamp(-1.0, 1.0));
    samples
}

/// A hiss.
pub(crate) fn white(count: usize) -> Vec<f32> {
    let mut noise = Noise(1);
    (0..count).map(|_| noise.next()).collect()
}

/// A room: noise whose low tones are louder.
pub(crate) fn room(count: usize) -> Vec<f32> {
    low(&white(count), 400.0)
}

/// A fan: the noise of air, and the hum of a motor with its overtones, swaying a little.
pub(crate) fn fan(count: usize) -> Vec<f32> {
    let air = low(&white(count), 900.0);
    air.iter()
        .enumerate()
        .map(|(index, air)| {
            let time = index as f32 / RATE;
            let sway = 1.0 + 0.2 * (TAU * 0.7 * time).sin();
            let hum: f32 = (1..6).map(|tone| (TAU * 118.0 * tone as f32 * time).sin() / tone as f32).sum();
            air * sway + 0.05 * hum
        })
        .collect()
}

/// Music: plucked chords, four to a bar, each tone with its overtones.
pub(crate) fn music(count: usize) -> Vec<f32> {
    const CHORDS: [[f32; 3]; 4] =
        [[261.6, 329.6, 392.0], [220.0, 261.6, 329.6], [174.6, 220.0, 261.6], [196.0, 246.9, 293.7]];
    (0..count)
        .map(|index| {
            let time = index as f32 / RATE;
            let since = time % 0.4;
            let chord = CHORDS[(time / 1.6) as usize % CHORDS.len()];
            let pluck = (-4.0 * since).exp() * (since * 200.0).min(1.0);
            chord
                .iter()
                .flat_map(|tone| (1..5).map(move |over| (TAU * tone * over as f32 * time).sin() / (over * over) as f32))
                .sum::<f32>()
                * pluck
        })
        .collect()
}

/// Breath that comes and goes, in and out, with the mouth's colour.
pub(crate) fn breathing(count: usize) -> Vec<f32> {
    let noise = white(count);
    let (bright, dark) = (low(&noise, 2500.0), low(&noise, 500.0));
    bright
        .iter()
        .zip(&dark)
        .enumerate()
        .map(|(index, (bright, dark))| {
            let swell = (TAU * 0.35 * index as f32 / RATE).sin();
            (bright - dark) * swell * swell
        })
        .collect()
}

/// Keys that are struck: two clicks each, six times a second, never quite evenly.
pub(crate) fn typing(count: usize) -> Vec<f32> {
    let mut noise = Noise(5);
    let mut samples = vec![0.0f32; count];
    let mut place = 1000.0f32;
    while (place as usize) < count {
        for (offset, strength) in [(0, 1.0), (1100, 0.5)] {
            for step in 0..400 {
                let index = place as usize + offset + step;
                if let Some(sample) = samples.get_mut(index) {
                    *sample += noise.next() * strength * (-(step as f32) / 60.0).exp();
                }
            }
        }
        place += RATE * (0.14 + 0.06 * noise.next());
    }
    // The room it happens in.
    samples.iter_mut().zip(room(count)).for_each(|(sample, room)| *sample += 0.005 * room);
    samples
}

/// The tones below a frequency, falling off above it (one pole).
fn low(samples: &[f32], hertz: f32) -> Vec<f32> {
    let share = 1.0 - (-TAU * hertz / RATE).exp();
    let mut held = 0.0;
    samples
        .iter()
        .map(|sample| {
            held += share * (sample - held);
            held
        })
        .collect()
}
