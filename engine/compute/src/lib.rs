//! Room: compute.
