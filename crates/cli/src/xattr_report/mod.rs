//! **Purpose.** `fourscore xattr-report`: which attribute blocks and values inodes share, what they
//! could share, and whether a sharing cache would pay.
//!
//! **Model.** One pass over the inode tables ([`scan`]). Nothing that the image says about sharing
//! is believed: users are counted, contents are compared, and a count or a hash that does not match
//! is a fault, which is reported and makes the exit status 1.
//!
//! | module | responsibility |
//! |---|---|
//! | [`scan`] | the pass over the inode tables |
//! | [`blocks`], [`values`] | attribute blocks, and values in inodes, with their users |
//! | [`contents`] | distinct contents, found by hash and compared by bytes |
//! | [`hashes`] | the hashes of entries |
//! | [`clock`] | a simulated cache |
//! | [`volume`] | reads blocks and inodes |
//! | [`faults`] | what is wrong with the image |
//! | [`figures`] | sums, and the advice |
//! | [`output`] | text and JSON |
//!
//! # Invariants
//! The work is linear in the inodes of the image, and the memory in its attribute blocks and
//! values, about 150 bytes for each. A simulated cache takes no more than the cache would.

mod blocks;
mod clock;
mod contents;
mod faults;
mod figures;
mod hashes;
mod output;
mod scan;
mod values;
mod volume;

use clap::Args;

use crate::failure::{Result, message};
use crate::image::{Image, ImageSpec, parse_size};
use crate::output::Stdout;

/// `xattr-report`
#[derive(Debug, Args)]
pub(crate) struct XattrReport {
    /// Image file or block device, with @OFFSET for a partition
    image: ImageSpec,
    /// Sizes of the caches to simulate, with K, M or G
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "16K,64K,256K,1M,4M",
        value_parser = cache_size,
        value_name = "SIZE,.."
    )]
    cache: Vec<u64>,
    /// Lists all attribute blocks too
    #[arg(long)]
    blocks: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// The largest simulated cache: the simulation needs as much memory.
const MAX_CACHE_BYTES: u64 = 16 << 30;

fn cache_size(text: &str) -> std::result::Result<u64, String> {
    let size =
        parse_size(text).filter(|bytes| (clock::ENTRY_BYTES..=MAX_CACHE_BYTES).contains(bytes));
    size.ok_or_else(|| {
        let least = clock::ENTRY_BYTES;
        format!("give a number of bytes from {least} to 16G, with K, M or G, as in 256K")
    })
}

/// Runs the verb.
pub(crate) fn run(args: &XattrReport) -> Result<()> {
    let image = Image::open(&args.image)?;
    if image.fs.has_fast_commits() {
        let why = "inodes that only fast commits remove still count as users (mount and unmount \
                   the image first)";
        message(&image.problem(why).to_string());
    }
    let scan = scan::Scan::of(&image, &args.cache)?;
    let report = output::Report::of(&scan, args.blocks)?;
    let mut out = Stdout::open()?;
    if args.json {
        out.write(format!("{:#}\n", report.to_json()).as_bytes())?;
    } else {
        out.write(report.to_text().as_bytes())?;
    }
    out.flush()?;
    scan.faults.result(&image)
}
