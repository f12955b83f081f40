//! Whether a microphone delivers anything at all.
//!
//! A microphone that works is never exactly silent: its noise moves the last bits. Runs of exact zeros are a device that
//! has not begun (Bluetooth gives 0.6 s of them), is muted or was taken away. That is another message to the user than
//! "nothing was said".

use crate::mel::SAMPLE_RATE;

/// Exact zeros after which a microphone does not deliver. Shorter runs come from noise gates between words.
const DEAF_SAMPLES: usize = SAMPLE_RATE / 2;

/// What a microphone does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Nothing has come yet, or zeros for less than half a second.
    Waiting,
    /// Sound, be it noise.
    Delivering,
    /// Zeros for at least half a second, up to now. Audio that came before them is still good.
    NotDelivering,
}

/// Watches samples for runs of zeros. Pure: knows no device and no clock.
#[derive(Debug, Clone, Default)]
pub struct DeliveryWatch {
    zeros: usize,
    heard: bool,
}

impl DeliveryWatch {
    /// Takes in samples at 16 kHz and says how things stand after them.
    pub fn push(&mut self, samples: &[f32]) -> Delivery {
        match samples.iter().rposition(|&sample| sample != 0.0) {
            Some(last) => {
                self.heard = true;
                self.zeros = samples.len() - last - 1;
            }
            None => self.zeros = self.zeros.saturating_add(samples.len()),
        }
        self.state()
    }

    /// How things stand.
    #[must_use]
    pub fn state(&self) -> Delivery {
        if self.zeros >= DEAF_SAMPLES {
            Delivery::NotDelivering
        } else if self.heard {
            Delivery::Delivering
        } else {
            Delivery::Waiting
        }
    }

    /// Whether anything but zeros has ever come. If not, an empty transcript means a dead microphone.
    #[must_use]
    pub fn has_heard(&self) -> bool {
        self.heard
    }
}

#[cfg(test)]
mod tests {
    use super::{Delivery, DeliveryWatch};

    #[test]
    fn zeros_at_the_beginning_and_in_the_middle_are_a_microphone_that_does_not_deliver() {
        let mut watch = DeliveryWatch::default();
        assert_eq!(watch.state(), Delivery::Waiting);
        assert_eq!(watch.push(&[0.0; 7999]), Delivery::Waiting);
        assert_eq!(watch.push(&[0.0; 1601]), Delivery::NotDelivering);
        assert!(!watch.has_heard());
        assert_eq!(watch.push(&[0.0, 1e-5, 0.0]), Delivery::Delivering);
        assert_eq!(watch.push(&[0.0; 7998]), Delivery::Delivering);
        assert_eq!(watch.push(&[0.0; 1]), Delivery::NotDelivering);
        assert!(watch.has_heard());
        assert_eq!(watch.push(&[]), Delivery::NotDelivering);
        assert_eq!(watch.push(&[-1e-6]), Delivery::Delivering);
    }
}
