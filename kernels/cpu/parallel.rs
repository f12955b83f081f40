//! How the simple kernels share their rows between the workers of the pool.

#![allow(unsafe_code)]

use crate::Context;

/// Below this many elements a kernel runs on the calling thread: waking the pool would cost more than it saves.
pub(crate) const INLINE_ELEMENTS: usize = 20_000;

/// A pointer that workers share; each writes a part of its own.
struct SharedPointer(*mut f32);

// SAFETY: the pointer is only used to cut disjoint parts out of a slice that its owner has lent for the whole call.
unsafe impl Sync for SharedPointer {}

/// Cuts `data` into whole rows of `cols` elements and calls `work(first_row, rows)` with one contiguous part per worker.
/// Small data is done at once on the caller. `cols` must divide the length.
pub(crate) fn for_row_parts(ctx: &Context, data: &mut [f32], cols: usize, work: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    if data.is_empty() {
        return;
    }
    assert!(cols > 0 && data.len().is_multiple_of(cols), "{} elements do not make rows of {cols}", data.len());
    let rows = data.len() / cols;
    let threads = ctx.pool().threads();
    if data.len() < INLINE_ELEMENTS || threads == 1 || rows == 1 {
        work(0, data);
        return;
    }
    let base = SharedPointer(data.as_mut_ptr());
    let base = &base;
    ctx.pool().run(&|worker| {
        let (start, end) = (rows * worker / threads, rows * (worker + 1) / threads);
        if start < end {
            // SAFETY: `start..end` lies within the rows, differs from every other worker's range, and `data` outlives
            // the call, which returns only when all workers are done.
            let part = unsafe { std::slice::from_raw_parts_mut(base.0.add(start * cols), (end - start) * cols) };
            work(start, part);
        }
    });
}

/// [`for_row_parts`] for work that knows no rows: parts begin at multiples of 16 elements (one cache line) and
/// `work(first_element, part)` sees where its part begins.
pub(crate) fn for_element_parts(ctx: &Context, data: &mut [f32], work: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    const LINE: usize = 16;
    let whole = data.len() / LINE * LINE;
    let (lines, tail) = data.split_at_mut(whole);
    for_row_parts(ctx, lines, LINE, &|row, part| work(row * LINE, part));
    if !tail.is_empty() {
        work(whole, tail);
    }
}
