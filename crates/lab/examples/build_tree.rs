//! Builds an image of a directory and prints the time of each step, for profilers and for
//! `cargo xtask bench build`.
//!
//! ```text
//! build_tree DIRECTORY IMAGE [THREADS]
//! ```
#![forbid(unsafe_code)]

use std::time::Instant;

use fourscore_build::{Flow, Options, Overwrite, Target, Tree, build, host};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(source), Some(target)) = (arguments.next(), arguments.next()) else {
        return Err("usage: build_tree DIRECTORY IMAGE [THREADS]".into());
    };
    let threads = arguments.next().map(|text| text.to_string_lossy().parse());
    let options = Options {
        threads: threads.transpose()?,
        ..Options::new()
    };
    let begin = Instant::now();
    let mut tree = Tree::new();
    let scan = host::Scan::all(options.thread_count());
    host::add_directory(&mut tree, source.as_ref(), &scan)?;
    let read = begin.elapsed();
    let target = Target::find(target.as_ref(), Overwrite::OwnImages)?;
    let summary = build(&options, tree, &target, &|_| Flow::Continue)?;
    println!(
        "{} objects, {} MiB in {} MiB: tree {:.3} s, image {:.3} s",
        summary.objects,
        summary.content_bytes >> 20,
        summary.size_bytes >> 20,
        read.as_secs_f64(),
        summary.elapsed.as_secs_f64()
    );
    Ok(())
}
