//! Memory for weights: zeroed, aligned to 64 bytes, in huge pages where the system has them.
#![allow(unsafe_code)]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
};

/// Allocations from this size on are aligned to it and asked to lie in huge pages: streaming gigabytes of weights
/// through 4 KiB pages costs a sizeable part of the bandwidth in address translation.
const HUGE_PAGE: usize = 2 << 20;
/// Alignment of smaller allocations: a cache line, and the widest vector.
const LINE: usize = 64;

/// An owned, zero-initialized byte buffer of fixed size.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: the buffer is plain owned memory; access follows the borrow of the struct.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `length` zero bytes; None when the memory cannot be had.
    pub(crate) fn zeroed(length: usize) -> Option<Self> {
        if length == 0 {
            return Some(Self { pointer: NonNull::dangling(), length });
        }
        let layout = Self::layout(length)?;
        // SAFETY: the layout's size is not zero.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { pointer, length })
    }

    /// Asks for huge pages behind the buffer. A hint: without effect where the system has none to give. Meant to be
    /// called before the first write.
    pub(crate) fn prefer_huge_pages(&self) {
        if self.length >= HUGE_PAGE {
            advise_huge_pages(self.as_slice());
        }
    }

    fn layout(length: usize) -> Option<Layout> {
        Layout::from_size_align(length, if length >= HUGE_PAGE { HUGE_PAGE } else { LINE }).ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialized (zeroed) for `length` bytes and borrowed with the struct.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(memory: &[u8]) {
    // SAFETY: whole pages inside the borrowed range, whose start is aligned to one; the advice changes no content.
    unsafe {
        libc::madvise(memory.as_ptr().cast_mut().cast(), memory.len() & !(4096 - 1), libc::MADV_HUGEPAGE);
    }
}

/// Other systems take no such advice.
#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: &[u8]) {}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.length > 0
            && let Some(layout) = Self::layout(self.length)
        {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe { dealloc(self.pointer.as_ptr(), layout) };
        }
    }
}
