//! Activations on the host, with their memory used over and over.

use std::{cell::RefCell, rc::Rc};

/// The most idle buffers kept for reuse.
const IDLE_BUFFERS: usize = 32;

/// A value `[rows, columns]` of floats. Clones share their memory.
#[derive(Debug, Clone)]
pub struct CpuTensor {
    buffer: Rc<Buffer>,
    rows: usize,
    columns: usize,
}

#[derive(Debug)]
struct Buffer {
    /// At least as long as the tensor; what lies beyond is left over from earlier uses.
    data: Vec<f32>,
    home: Arena,
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        let mut data = self.home.take(self.data.len());
        data[..self.data.len()].copy_from_slice(&self.data);
        Self { data, home: self.home.clone() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.data));
    }
}

/// Buffers between uses. A step makes and drops hundreds of tensors; without this, large ones would be mapped and
/// cleared by the system each time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arena {
    idle: Rc<RefCell<Vec<Vec<f32>>>>,
}

impl Arena {
    /// A tensor whose elements are unspecified: the caller writes all of them.
    pub(crate) fn tensor(&self, rows: usize, columns: usize) -> CpuTensor {
        let buffer = Buffer { data: self.take(rows * columns), home: self.clone() };
        CpuTensor { buffer: Rc::new(buffer), rows, columns }
    }

    /// The smallest idle buffer that is long enough, or else a new one.
    fn take(&self, length: usize) -> Vec<f32> {
        let mut idle = self.idle.borrow_mut();
        let best = idle
            .iter()
            .enumerate()
            .filter(|(_, buffer)| buffer.len() >= length)
            .min_by_key(|(_, buffer)| buffer.len())
            .map(|(index, _)| index);
        match best {
            // A buffer far too large would be missed where it is needed.
            Some(index) if idle[index].len() <= length.saturating_mul(4).max(4096) => idle.swap_remove(index),
            _ => vec![0.0; length],
        }
    }

    fn give_back(&self, data: Vec<f32>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() == IDLE_BUFFERS {
            idle.swap_remove(0);
        }
        idle.push(data);
    }
}

impl CpuTensor {
    /// How many lines it has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How long each line is.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All elements, line by line.
    #[must_use]
    pub fn data(&self) -> &[f32] {
        &self.buffer.data[..self.rows * self.columns]
    }

    /// All elements, to be written. A tensor that a clone shares gets a copy of its own first.
    pub(crate) fn data_mut(&mut self) -> &mut [f32] {
        let length = self.rows * self.columns;
        &mut Rc::make_mut(&mut self.buffer).data[..length]
    }
}
