//! How much happens per second, over the last ten.

use std::time::Duration;

/// Seconds that are looked back on.
const WINDOW: usize = 10;

/// Counts of the last seconds.
#[derive(Debug, Default)]
pub(super) struct RateWindow {
    /// One count for each second, at its number modulo the window's length.
    counts: [u64; WINDOW],
    /// The second that was counted last.
    latest: u64,
}

impl RateWindow {
    /// Counts what happens now; times must not go back.
    pub(super) fn add(&mut self, now: Duration, count: u64) {
        self.advance(now.as_secs());
        self.counts[self.latest as usize % WINDOW] += count;
    }

    /// The mean over the window, or over the time since the start if that is shorter.
    pub(super) fn per_second(&mut self, now: Duration) -> f64 {
        self.advance(now.as_secs());
        // The second that runs is not full yet.
        let full = self.latest.min(WINDOW as u64 - 1) as f64;
        let seconds = full + now.as_secs_f64().fract();
        let total = self.counts.iter().sum::<u64>() as f64;
        total / seconds.max(1.0)
    }

    fn advance(&mut self, second: u64) {
        for passed in (self.latest + 1..=second).take(WINDOW) {
            self.counts[passed as usize % WINDOW] = 0;
        }
        if second > self.latest + WINDOW as u64 {
            self.counts = [0; WINDOW];
        }
        self.latest = self.latest.max(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_steady_stream_shows_its_rate_and_a_pause_lets_it_fall_to_nothing() {
        let mut window = RateWindow::default();
        for tenth in 0..300 {
            window.add(at(f64::from(tenth) / 10.0), 5);
        }
        assert!((window.per_second(at(30.0)) - 50.0).abs() < 0.1, "{}", window.per_second(at(30.0)));
        assert!((window.per_second(at(35.0)) - 25.0).abs() < 3.0);
        assert_eq!(window.per_second(at(40.0)), 0.0);
        window.add(at(1_000_000.5), 10);
        assert!((window.per_second(at(1_000_000.5)) - 10.0 / 9.5).abs() < 1e-9);
    }

    #[test]
    fn the_first_second_is_no_burst() {
        let mut window = RateWindow::default();
        window.add(at(0.01), 7);
        assert_eq!(window.per_second(at(0.02)), 7.0);
        assert_eq!(window.per_second(at(2.0)), 3.5);
    }
}
