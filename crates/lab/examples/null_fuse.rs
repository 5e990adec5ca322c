//! Mounts the null file system, which benchmarks compare others with: `null DIR [OPTIONS [FILE]]`,
//! with its content in FILE or nowhere. Serves until it is unmounted.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;

use fourscore_fuse::{Session, SessionOptions, null};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let point = arguments.next().ok_or("where is it to be mounted?")?;
    let mut options = SessionOptions {
        source: "null".into(),
        ..SessionOptions::default()
    };
    let unknown = options.take(&arguments.next().unwrap_or_default());
    if !unknown.is_empty() {
        return Err(format!("{unknown}: unknown").into());
    }
    let content = arguments.next().map(|file| {
        let mut how = File::options();
        how.read(true).write(true).open(file)
    });
    let session = Session::mount(point.as_ref(), &options)?;
    Ok(null::serve(&session, content.transpose()?, || Ok(()))?)
}
