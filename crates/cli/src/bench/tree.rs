//! **Purpose.** `fourscore bench read-tree`: looking up every object of a tree, reading its
//! attributes and its data, in an image in this process or in a directory of the host.
//!
//! **Model.** One pass of one thread before the measured time fills the caches, so the measured
//! operations hit them.

use std::path::PathBuf;

use clap::Args;
use fourscore_lab::fs_tree::FsTree;
use fourscore_lab::tree::{HostTree, ReadTree};
use fourscore_lab::workload::Until;
use fourscore_lab::{MonotonicClock, Target, ThreadCount, drive};
use serde_json::json;

use crate::bench::{Extent, driven_runs};
use crate::failure::{Failure, Result};
use crate::image::{Image, ImageSpec};
use crate::output::Stdout;

/// `bench read-tree`
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Image file or block device, with @OFFSET for a partition
    #[arg(required_unless_present = "dir", conflicts_with = "dir")]
    image: Option<ImageSpec>,
    /// Directory of this host, on any file system, instead of IMAGE
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    extent: Extent,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(super) fn run(options: &Options) -> Result<()> {
    match (&options.image, &options.dir) {
        (Some(spec), _) => {
            let name = spec.path.display().to_string();
            let tree = FsTree::new(Image::open(spec)?.fs)
                .map_err(|why| Failure::new(name.as_str(), why))?;
            read(options, &name, &tree, tree.objects())
        }
        (None, Some(directory)) => {
            let name = directory.display().to_string();
            let tree = HostTree::new(directory).map_err(|why| Failure::new(name.as_str(), why))?;
            read(options, &name, &tree, tree.objects())
        }
        (None, None) => Err(Failure::usage("bench read-tree", "give IMAGE or --dir")),
    }
}

fn read(options: &Options, name: &str, target: &dyn Target, objects: u32) -> Result<()> {
    let (workload, clock) = (ReadTree { objects }, MonotonicClock::default());
    let drive = |threads, until| {
        drive(target, &workload, threads, until, &clock).map_err(|why| Failure::new(name, why))
    };
    drive(ThreadCount::ONE, Until::Steps(objects.into()))?;
    let mut out = Stdout::open()?;
    if !options.json {
        out.write(format!("{objects} objects in {name}\n").as_bytes())?;
    }
    let runs = driven_runs(&options.extent, options.json, &mut out, drive)?;
    if options.json {
        let all = json!({ "tree": name, "objects": objects, "runs": runs });
        out.write(format!("{all:#}\n").as_bytes())?;
    }
    out.flush()
}
