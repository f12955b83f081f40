//! Memory for weights: zeroed, aligned to cache lines, many matrices to a chunk, chunks in huge pages where the system
//! has them.
//!
//! Streaming weights through 4 KiB pages costs a third of the bandwidth in address translation. A huge page is given
//! only to a range that covers one whole, which the matrices of a small model do not: so they share chunks.
#![allow(unsafe_code)]

use std::{
    fmt,
    ptr::NonNull,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use memmap2::MmapMut;

const HUGE_PAGE: usize = 2 << 20;
/// Address space of a chunk. Memory is taken as it is written to, so what is left over costs nothing.
const CHUNK: usize = 64 << 20;
/// Buffers begin on a line, which is also the widest vector.
const LINE: usize = 64;

/// Hands out memory for weights. Matrices made one after the other lie one after the other.
#[derive(Debug, Default)]
pub(crate) struct WeightMemory {
    /// The chunk that still has room; kept alive by the buffers in it.
    current: Mutex<Weak<Chunk>>,
}

impl WeightMemory {
    /// `length` zero bytes; None when the memory cannot be had.
    pub(crate) fn zeroed(&self, length: usize) -> Option<WeightBytes> {
        if length > CHUNK / 2 {
            return WeightBytes::new(Chunk::new(length)?, length);
        }
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = current.upgrade().and_then(|chunk| WeightBytes::new(chunk, length)) {
            return Some(bytes);
        }
        let chunk = Chunk::new(CHUNK)?;
        *current = Arc::downgrade(&chunk);
        WeightBytes::new(chunk, length)
    }
}

/// A range of address space that buffers are cut from, front to back, and that goes back to the system with the last.
struct Chunk {
    /// The first byte on a border of huge pages.
    start: NonNull<u8>,
    length: usize,
    used: AtomicUsize,
    _map: MmapMut,
}

// SAFETY: the memory behind `start` belongs to the buffers cut from it, no two of which overlap; the chunk itself only
// counts.
unsafe impl Send for Chunk {}
// SAFETY: as above; the count is atomic.
unsafe impl Sync for Chunk {}

impl fmt::Debug for Chunk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Chunk").field("length", &self.length).field("used", &self.used).finish_non_exhaustive()
    }
}

impl Chunk {
    fn new(length: usize) -> Option<Arc<Self>> {
        let mut map = MmapMut::map_anon(length.checked_add(HUGE_PAGE)?).ok()?;
        // Only a hint: without effect where the system has no huge pages to give.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let skipped = map.as_ptr().align_offset(HUGE_PAGE);
        let start = NonNull::new(map.as_mut_ptr().wrapping_add(skipped))?;
        Some(Arc::new(Self { start, length, used: AtomicUsize::new(0), _map: map }))
    }
}

/// An owned, zero-initialized byte buffer of fixed size.
#[derive(Debug)]
pub(crate) struct WeightBytes {
    pointer: NonNull<u8>,
    length: usize,
    _chunk: Arc<Chunk>,
}

// SAFETY: the bytes belong to this buffer alone and live as long as the chunk it holds; access follows its borrow.
unsafe impl Send for WeightBytes {}
// SAFETY: as above.
unsafe impl Sync for WeightBytes {}

impl WeightBytes {
    /// Cuts a buffer from what is left of a chunk; None when that is too little.
    fn new(chunk: Arc<Chunk>, length: usize) -> Option<Self> {
        let taken = length.checked_next_multiple_of(LINE)?;
        let fits = |used: usize| used.checked_add(taken).filter(|&end| end <= chunk.length.next_multiple_of(LINE));
        let offset = chunk.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        // SAFETY: the offset lies within the map, which is a huge page longer than the chunk.
        let pointer = unsafe { chunk.start.add(offset) };
        Some(Self { pointer, length, _chunk: chunk })
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the map is initialized (zeroed) for `length` bytes from here on and lives as long as this buffer.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; no other buffer has these bytes, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_apart() {
        let memory = WeightMemory::default();
        let mut buffers: Vec<WeightBytes> =
            [0, 1, 64, 1000, 3 << 20].iter().map(|&length| memory.zeroed(length).unwrap()).collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.as_slice().as_ptr().align_offset(LINE), 0);
            assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
            buffer.as_mut_slice().fill(index as u8 + 1);
        }
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(buffer.as_slice().iter().all(|&byte| byte == index as u8 + 1));
        }
    }

    #[test]
    fn matrices_of_one_model_share_a_chunk_and_a_large_one_has_its_own() {
        let memory = WeightMemory::default();
        let (small, next) = (memory.zeroed(100).unwrap(), memory.zeroed(100).unwrap());
        let large = memory.zeroed(CHUNK / 2 + 1).unwrap();
        assert_eq!(next.as_slice().as_ptr() as usize - small.as_slice().as_ptr() as usize, 128);
        assert!(Arc::ptr_eq(&small._chunk, &next._chunk));
        assert!(!Arc::ptr_eq(&small._chunk, &large._chunk));
        assert_eq!(large.as_slice().as_ptr().align_offset(HUGE_PAGE), 0);
    }

    #[test]
    fn a_chunk_goes_with_its_last_buffer_and_a_full_one_is_followed_by_another() {
        let memory = WeightMemory::default();
        let first = memory.zeroed(CHUNK / 2).unwrap();
        let chunk = Arc::downgrade(&first._chunk);
        let second = memory.zeroed(CHUNK / 2).unwrap();
        let third = memory.zeroed(CHUNK / 2).unwrap();
        assert!(Arc::ptr_eq(&first._chunk, &second._chunk) && !Arc::ptr_eq(&second._chunk, &third._chunk));
        drop(first);
        assert!(chunk.upgrade().is_some());
        drop(second);
        assert!(chunk.upgrade().is_none());
    }
}
