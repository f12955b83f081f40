//! The tier as a whole, on a file system that can fail.

mod damage;
mod faults;
mod limits;
mod memory_files;
mod model;
mod restore;
mod world;
