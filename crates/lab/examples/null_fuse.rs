//! Mounts the null FUSE file system, the upper bound of what a FUSE mount can do, for
//! `cargo xtask bench fuse`. Serves until it is unmounted.
//!
//! ```text
//! null_fuse DIRECTORY [OPTIONS [FILE]]
//! ```
//!
//! File data is written to FILE and read from it, or dropped if none is given.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;

use fourscore_fuse::{Session, SessionOptions, null};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let point = arguments
        .next()
        .ok_or("usage: null_fuse DIRECTORY [OPTIONS [FILE]]")?;
    let mut options = SessionOptions {
        source: "null".into(),
        ..SessionOptions::default()
    };
    let unknown = options.take(&arguments.next().unwrap_or_default());
    if !unknown.is_empty() {
        return Err(format!("{unknown}: unknown mount option").into());
    }
    let data = arguments
        .next()
        .map(|path| File::options().read(true).write(true).open(path));
    let session = Session::mount(point.as_ref(), &options)?;
    Ok(null::serve(&session, data.transpose()?, || Ok(()))?)
}
