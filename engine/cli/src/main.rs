//! The headless Linnet.
fn main() {}
