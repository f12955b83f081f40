//! How the softmax of one block of keys is joined with that of the blocks before it.
//!
//! Each block's softmax is taken by itself, and blocks begin at fixed positions of a sequence. They are joined from the
//! first to the last by one formula, whoever does it: the task that goes through them in turn, or, where a row's keys were
//! dealt to several tasks, the caller afterwards. So a query's result has the same bits alone and in company, on one thread
//! and on many, as a step of its own and as part of a longer prompt.

#![allow(unsafe_code)]

use crate::simd::{Vector, VectorKernel};

/// What two parts of a softmax are multiplied with so that both are relative to the larger maximum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Join {
    /// The larger maximum.
    pub(super) maximum: f32,
    earlier: f32,
    later: f32,
}

impl Join {
    /// From the largest score of the earlier blocks (-inf where there are none) and of the next.
    #[inline(always)]
    pub(super) fn new(earlier: f32, later: f32) -> Self {
        let maximum = if later > earlier || later.is_nan() { later } else { earlier };
        Self { maximum, earlier: (earlier - maximum).exp(), later: (later - maximum).exp() }
    }

    /// The joint sum of weights.
    #[inline(always)]
    pub(super) fn sum(&self, earlier: f32, later: f32) -> f32 {
        earlier * self.earlier + later * self.later
    }

    /// The joint weighted values.
    #[inline(always)]
    pub(super) fn vectors<V: Vector>(&self, earlier: V, later: V) -> V {
        // SAFETY: a vector exists only where its instruction set does.
        unsafe { later.mul_add(V::splat(self.later), earlier.mul(V::splat(self.earlier))) }
    }
}

/// [`Join::vectors`] for a whole head, as a kernel. The head's size is a multiple of the lanes.
pub(super) struct JoinOutputs<'a> {
    pub(super) join: Join,
    pub(super) earlier: &'a mut [f32],
    pub(super) later: &'a [f32],
}

impl VectorKernel for JoinOutputs<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        for (earlier, later) in self.earlier.chunks_exact_mut(V::LANES).zip(self.later.chunks_exact(V::LANES)) {
            // SAFETY: both chunks have LANES elements; the instruction set is the caller's promise.
            unsafe {
                let joined = self.join.vectors(V::load(earlier.as_ptr()), V::load(later.as_ptr()));
                joined.store(earlier.as_mut_ptr());
            }
        }
    }
}
