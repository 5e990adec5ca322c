//! Writes the completions for all shells that clap knows: `completions DIRECTORY`. Used by
//! `cargo xtask completions`.

use std::error::Error;
use std::path::PathBuf;

use clap::ValueEnum;
use clap_complete::{Shell, generate_to};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os()
        .nth(1)
        .ok_or("usage: completions DIRECTORY")?;
    let directory = PathBuf::from(directory);
    std::fs::create_dir_all(&directory)?;
    let mut command = fourscore_cli::command();
    for &shell in Shell::value_variants() {
        generate_to(shell, &mut command, "fourscore", &directory)?;
    }
    Ok(())
}
