//! **Purpose.** Writes the first inputs of every target: `fuzz-seeds FOLDER` makes a folder for
//! each target below `FOLDER`, with a file for each input.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::{env, fs, io};

use fourscore_fuzz::{seeds, targets};

fn main() -> io::Result<()> {
    let usage = || io::Error::new(io::ErrorKind::InvalidInput, "usage: fuzz-seeds FOLDER");
    let folder = env::args_os().nth(1).map(PathBuf::from).ok_or_else(usage)?;
    for (target, _) in targets::ALL {
        let folder = folder.join(target);
        fs::create_dir_all(&folder)?;
        for (nth, input) in seeds::of(target).iter().enumerate() {
            fs::write(folder.join(format!("{nth:04}")), input)?;
        }
    }
    Ok(())
}
