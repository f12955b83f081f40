//! Writes the `bindings.rs` that mlx-sys includes: `mlx-bindings MLX_C_FOLDER FORCED_HEADER OUTPUT`.

use std::error::Error;
use std::path::PathBuf;

/// The very builder that mlx-sys's build script uses.
mod bindgen_config {
    #![allow(dead_code)]
    include!(concat!(env!("MLX_SYS_SOURCE"), "/src/bindgen_config.rs"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [mlx_c, forced, output] = arguments.as_slice() else {
        return Err("usage: mlx-bindings MLX_C_FOLDER FORCED_HEADER OUTPUT".into());
    };
    let headers = bindgen_config::discover_headers(mlx_c)?;
    bindgen_config::builder(mlx_c, &headers)
        .clang_arg(format!("-include{}", forced.display()))
        .generate()?
        .write_to_file(output)?;
    Ok(())
}
