//! Room: library.
