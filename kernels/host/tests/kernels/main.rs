//! Every Metal kernel, compiled and run on this machine, against its specification.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod apple;
mod attention;
mod gated;
mod greedy;
mod support;
