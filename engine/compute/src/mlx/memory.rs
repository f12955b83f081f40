//! How much memory MLX may use, from what the machine has.
#![allow(unsafe_code)]

use super::{failure, graph::Graph};
use crate::{ComputeError, Result};
use std::{cell::Cell, ffi::CStr};

/// The most that MLX keeps of freed buffers, so that a step finds its memory without asking the system.
const MOST_CACHED: usize = 2 << 30;
/// The least, and what a small machine has.
const LEAST_CACHED: usize = 64 << 20;

/// The limits set for this process's device.
#[derive(Debug)]
pub(super) struct Memory {
    /// Bytes that arrays may take in all.
    limit: usize,
    /// Bytes of one float of activations, once one was seen.
    element: Cell<usize>,
}

impl Memory {
    /// Reads what the device has and sets MLX's limits: arrays stay within what the device works on well, freed buffers
    /// are kept up to an eighth of that, and on a Mac that much may stay wired.
    pub(super) fn new(graph: &Graph) -> Result<Self> {
        // On Apple's GPUs, more than this is paged; elsewhere MLX's own limit is a share of what the device has.
        let recommended = device_size(c"max_recommended_working_set_size");
        let mut limit = 0;
        // SAFETY: writes the number it is asked for.
        check("memory limit", unsafe { mlx_sys::mlx_get_memory_limit(&mut limit) })?;
        let limit = recommended.unwrap_or(limit);
        let cached = (limit / 8).clamp(LEAST_CACHED, MOST_CACHED);
        let mut before = 0;
        // SAFETY: as above.
        unsafe {
            check("memory limit", mlx_sys::mlx_set_memory_limit(&mut before, limit))?;
            check("cache limit", mlx_sys::mlx_set_cache_limit(&mut before, cached))?;
            if graph.is_gpu() && recommended.is_some() {
                check("wired limit", mlx_sys::mlx_set_wired_limit(&mut before, limit))?;
            }
        }
        Ok(Self { limit, element: Cell::new(size_of::<u16>()) })
    }

    /// Refuses an allocation that would not fit beside what is there.
    pub(super) fn admit(&self, what: &'static str, bytes: usize) -> Result<()> {
        let used = self.used()?;
        if used.saturating_add(bytes) <= self.limit {
            return Ok(());
        }
        Err(ComputeError::OutOfMemory { what, needed: bytes, used, limit: self.limit })
    }

    /// Bytes that could still be taken.
    pub(super) fn free(&self) -> Result<usize> {
        Ok(self.limit.saturating_sub(self.used()?))
    }

    #[allow(clippy::unused_self)] // memory is the process's; the limits are this value's
    fn used(&self) -> Result<usize> {
        let mut used = 0;
        // SAFETY: writes the number it is asked for.
        check("active memory", unsafe { mlx_sys::mlx_get_active_memory(&mut used) })?;
        Ok(used)
    }

    /// Bytes of one float of activations; 2 until a model says otherwise.
    pub(super) fn element_bytes(&self) -> usize {
        self.element.get()
    }

    /// Notes the type of a model's activations.
    pub(super) fn note_element(&self, bytes: usize) {
        self.element.set(bytes);
    }
}

fn check(operation: &'static str, status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(failure::take(operation).into()) }
}

/// A number that MLX knows of its default device.
fn device_size(key: &CStr) -> Option<usize> {
    let mut value = 0;
    // SAFETY: handles are made, used and freed here.
    let status = unsafe {
        let mut device = mlx_sys::mlx_device_new();
        let mut info = mlx_sys::mlx_device_info_new();
        let mut status = mlx_sys::mlx_get_default_device(&mut device);
        if status == 0 {
            status = mlx_sys::mlx_device_info_get(&mut info, device);
        }
        let mut exists = false;
        if status == 0 {
            status = mlx_sys::mlx_device_info_has_key(&mut exists, info, key.as_ptr());
        }
        if status == 0 && exists {
            status = mlx_sys::mlx_device_info_get_size(&mut value, info, key.as_ptr());
        }
        mlx_sys::mlx_device_info_free(info);
        mlx_sys::mlx_device_free(device);
        status
    };
    (status == 0 && value > 0).then_some(value)
}
