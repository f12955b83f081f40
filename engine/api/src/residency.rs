//! Which models are in memory: loaded when a request names them, unloaded when others need the room or nobody asks.
//!
//! [`decision`] decides, as functions of sizes and times; [`ModelManager`] obeys it and counts who uses what; [`source`]
//! is what it knows of the disk, [`memory`] of the machine.

mod decision;
mod manager;
mod memory;
mod source;
mod state;

pub use decision::{LoadDecision, MemoryState, Resident, Shortage, Use, decide_load, next_idle_unload};
pub use manager::{ModelManager, ResidencyOptions};
pub use memory::{MemoryMeter, SystemMemory};
pub use source::{ModelFacts, ModelKind, ModelSource};
