//! Writes the man pages, one for the command and one for each verb: `man DIRECTORY`. Used by
//! `cargo xtask man`.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: man DIRECTORY")?;
    let directory = PathBuf::from(directory);
    std::fs::create_dir_all(&directory)?;
    clap_mangen::generate_to(fourscore_cli::command(), &directory)?;
    Ok(())
}
