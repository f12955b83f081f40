//! The backend on MLX against exact numbers of mlx-lm on the same build of MLX (`fixtures/make_mlx.py`), and what it
//! promises beyond them.
#![cfg(feature = "mlx")]
// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "mlx/caches.rs"]
mod caches;
#[path = "mlx/draws.rs"]
mod draws;
#[path = "mlx/fixture.rs"]
mod fixture;
#[path = "mlx/kept.rs"]
mod kept;
#[path = "mlx/limits.rs"]
mod limits;
#[path = "mlx/operations.rs"]
mod operations;
#[path = "mlx/table_model.rs"]
mod table_model;
#[path = "mlx/transfers.rs"]
mod transfers;
