//! The runner itself: what it offers to kernels, and what it refuses.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod faults;
mod features;
mod support;
