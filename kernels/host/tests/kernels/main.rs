//! Every Metal kernel against its specification: compiled and run on this machine's processor, and on a Mac on its GPU
//! (`--features gpu`).

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[cfg(target_os = "linux")]
mod apple;
mod attention;
mod gated;
mod greedy;
mod support;
