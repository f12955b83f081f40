//! Room: runtime.
