//! The tier as a whole.
