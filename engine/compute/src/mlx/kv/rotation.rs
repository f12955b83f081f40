//! Where the tokens of a sliding window lie: the bookkeeping of mlx-lm 0.32.2's `RotatingKVCache` and
//! `BatchRotatingKVCache` (`mlx_lm/models/cache.py`) without their arrays. Layers of one window share it.

use super::GROWTH;

/// The state of one window in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::mlx) struct Rotation {
    /// How many tokens the window holds.
    pub(in crate::mlx) window: usize,
    /// Tokens seen, padding included.
    pub(in crate::mlx) offset: usize,
    /// Where the next token goes.
    pub(in crate::mlx) index: usize,
    /// Tokens there is room for now.
    pub(in crate::mlx) size: usize,
    /// Whether tokens wrap around.
    pub(in crate::mlx) rotated: bool,
    /// Places before each row's first token; below zero once real tokens were dropped.
    pub(in crate::mlx) left_padding: Vec<i64>,
}

/// What a layer does with its arrays to take in new tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    /// Writes in place.
    InPlace {
        /// Keep only the first tokens before growing.
        cut: Option<usize>,
        /// Room to add for this many tokens.
        grow: usize,
        /// Drop this many of the oldest.
        trim: usize,
        /// Where to write.
        at: usize,
        /// How many tokens attention sees.
        view: usize,
    },
    /// Puts what is there in the order of time, drops the oldest, and appends.
    Append {
        /// How to order it.
        order: Order,
        /// Drop this many of the oldest.
        trim: usize,
    },
}

/// How tokens come into the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// They are.
    Kept,
    /// The oldest stands here.
    Rolled(usize),
    /// Those from here on are unused.
    Cut(usize),
}

impl Rotation {
    /// An empty window for `rows` rows.
    pub(super) fn new(window: usize, rows: usize) -> Self {
        Self { window, offset: 0, index: 0, size: 0, rotated: false, left_padding: vec![0; rows] }
    }

    /// The order of the tokens now, and how many there are in it.
    pub(super) fn order(&self) -> (Order, usize) {
        if self.index == self.size {
            (Order::Kept, self.size)
        } else if self.rotated {
            (Order::Rolled(self.index), self.size)
        } else {
            (Order::Cut(self.index), self.index)
        }
    }

    /// Takes in `length` tokens.
    pub(super) fn advance(&mut self, length: usize) -> Write {
        if length == 1 { self.advance_in_place() } else { self.append(length) }
    }

    fn advance_in_place(&mut self) -> Write {
        let previous = self.offset;
        let mut grow = 0;
        if self.size == 0 || (previous >= self.size && self.size < self.window) {
            grow = GROWTH.min(self.window.saturating_sub(previous));
            self.size += grow;
            self.index = previous;
        }
        let trim = self.size.saturating_sub(self.window);
        if trim > 0 {
            self.size = self.window;
            self.index = self.window;
            self.drop_oldest(trim);
        }
        if self.index == self.window {
            self.rotated = true;
            self.index = 0;
        }
        if self.rotated {
            self.drop_oldest(1);
        }
        let at = self.index;
        self.offset += 1;
        self.index += 1;
        let view = if self.offset < self.size { self.offset } else { self.size };
        Write::InPlace { cut: None, grow, trim, at, view }
    }

    pub(super) fn append(&mut self, length: usize) -> Write {
        if self.size == 0 {
            self.offset += length;
            self.size = length;
            self.index = length;
            return Write::Append { order: Order::Kept, trim: 0 };
        }
        let (order, ordered) = self.order();
        self.rotated = false;
        // Every new token still sees a whole window, so the oldest token is kept as the first new one needs it.
        let trim = (ordered + 1).saturating_sub(self.window);
        self.drop_oldest(trim);
        self.offset += length;
        self.size = ordered - trim + length;
        self.index = self.size;
        Write::Append { order, trim }
    }

    fn drop_oldest(&mut self, tokens: usize) {
        for padding in &mut self.left_padding {
            *padding -= tokens as i64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays the writes on a list of positions and returns what attention sees.
    fn play(held: &mut Vec<Option<usize>>, write: &Write, positions: &[usize]) -> Vec<usize> {
        match write {
            Write::InPlace { cut, grow, trim, at, view } => {
                assert_eq!(*cut, None);
                held.extend(std::iter::repeat_n(None, *grow));
                held.drain(..trim);
                held[*at] = Some(positions[0]);
                held[..*view].iter().map(|held| held.unwrap()).collect()
            }
            Write::Append { order, trim } => {
                match order {
                    Order::Kept => {}
                    Order::Rolled(index) => held.rotate_left(*index),
                    Order::Cut(index) => held.truncate(*index),
                }
                held.drain(..trim);
                held.extend(positions.iter().copied().map(Some));
                held.iter().map(|held| held.unwrap()).collect()
            }
        }
    }

    #[test]
    fn attention_always_sees_the_latest_window_and_each_token_once() {
        for window in [1, 4, 300] {
            let mut rotation = Rotation::new(window, 1);
            let mut held = Vec::new();
            let mut position = 0;
            for step in 0..700 {
                let length = [1, 1, 1, 5, 1, 2, 1, 1][step % 8];
                let positions: Vec<usize> = (position..position + length).collect();
                let write = rotation.advance(length);
                let mut seen = play(&mut held, &write, &positions);
                position += length;
                seen.sort_unstable();
                // The first of several new tokens sees `window - 1` tokens before itself.
                let least = position.saturating_sub(window + length - 1);
                assert_eq!(seen, (least..position).collect::<Vec<_>>(), "window {window}, step {step}");
                assert_eq!(rotation.offset, position);
                assert_eq!(rotation.size, held.len());
            }
        }
    }
}
