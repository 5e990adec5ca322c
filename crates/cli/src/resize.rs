//! **Purpose.** `fourscore resize`: changes the size of a file system; of one that is mounted, only
//! to a larger one.
//!
//! **Model.** An image file is made longer before the file system grows, and is cut after it has
//! shrunk. A partition or block device keeps its length, and is the default size.
//!
//! A mount of fourscore, given by its directory or its image, grows in its server, which has the
//! image locked and makes the file longer. A mount of the kernel is left to its resize2fs.
//!
//! **Not here.** How it is done (`fourscore_resize`).

use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::path::Path;

use clap::Args;
use fourscore_block::{Access, DeviceOptions};
use fourscore_check::CheckOptions;
use fourscore_ondisk::{BlockCount, BlockSize};
use fourscore_resize::{ResizeError, Resizer};

use crate::failure::{Failure, Result};
use crate::image::{ImageSpec, device, parse_size};
use crate::mount::figures::ERROR;
use crate::output::Stdout;
use crate::{foreign, live, verbosity};

/// `resize`
#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// Image file or block device, with @p2 or @OFFSET for a partition, or the directory of a mount
    pub(crate) image: ImageSpec,
    /// New size: blocks of the file system, or with K, M, G, T, or s for sectors of 512 bytes
    /// [default: the size of the image]
    #[arg(value_name = "SIZE")]
    size: Option<String>,
    /// Shrinks to the least size
    #[arg(short = 'M', conflicts_with = "size")]
    least: bool,
    /// Prints the least size in blocks, and changes nothing
    #[arg(short = 'P', conflicts_with_all = ["size", "least"])]
    print_least: bool,
    /// Shrinks without checking the file system before
    #[arg(short = 'f')]
    force: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Resize) -> Result<()> {
    let spec = &args.image;
    if let Some(point) = live::point_of(spec) {
        return grow_mounted(args, &point);
    }
    let name = spec.path.display().to_string();
    let resizer = open(spec)?;
    let before = *resizer.geometry();
    let has_blocks = device(spec, DeviceOptions::default(), Access::ReadOnly)?.len_bytes()
        >> before.block_size().bits();
    let problem = |why: ResizeError| Failure::new(name.as_str(), why);
    if args.print_least {
        let least = resizer.least().map_err(problem)?;
        return print(&format!("{}\n", least.0));
    }
    let wish = match &args.size {
        Some(text) => {
            blocks_of(text, before.block_size()).ok_or_else(|| Failure::usage(text, NOT_A_SIZE))?
        }
        None if args.least => resizer.least().map_err(problem)?.min(before.blocks()),
        None => BlockCount(has_blocks),
    };
    let after = resizer.possible(wish).map_err(problem)?;
    drop(resizer);
    if after < before.blocks() && !args.force {
        check(spec)?;
    }
    let is_file = spec.offset_bytes == 0 && spec.path.is_file();
    let old_bytes = std::fs::metadata(&spec.path).map_or(0, |found| found.len());
    let new_bytes = after.0 << before.block_size().bits();
    if is_file && new_bytes > old_bytes {
        set_length(&spec.path, new_bytes)?;
    }
    let resized = open(spec).and_then(|mut resizer| match args.least {
        true => resizer.shrink().map_err(problem),
        false => resizer.resize(wish).map_err(problem),
    });
    if resized.is_err() && is_file && new_bytes > old_bytes {
        set_length(&spec.path, old_bytes)?;
    }
    let after = resized?;
    if is_file && after.0 < before.blocks().0 {
        set_length(&spec.path, after.0 << before.block_size().bits())?;
    }
    report(&Resized {
        name: &name,
        before: before.blocks(),
        after,
        block_bytes: before.block_size().bytes(),
    })
}

/// A size before and after.
struct Resized<'a> {
    name: &'a str,
    before: BlockCount,
    after: BlockCount,
    block_bytes: usize,
}

fn report(resized: &Resized<'_>) -> Result<()> {
    if verbosity::is_quiet() {
        return Ok(());
    }
    let Resized {
        name,
        before,
        after,
        block_bytes,
    } = resized;
    let kib = block_bytes >> 10;
    let text = match after == before {
        true => format!("{name}: has {} blocks of {kib} KiB already\n", after.0),
        false => format!(
            "{name}: {} blocks of {kib} KiB, {} before\n",
            after.0, before.0
        ),
    };
    print(&text)
}

/// Has the server of the mount on `point` make its file system larger.
fn grow_mounted(args: &Resize, point: &Path) -> Result<()> {
    let name = args.image.path.display().to_string();
    let failed = |why: String| Failure::new(name.as_str(), why);
    if args.least || args.print_least {
        let why = "is mounted, and its least size is known only when it is not".to_owned();
        return Err(failed(why).advise("unmount it first: fourscore umount DIR"));
    }
    let size = args.size.as_deref().unwrap_or("-");
    let any = BlockSize::from_log(0);
    if size != "-" && any.and_then(|any| blocks_of(size, any)).is_none() {
        return Err(Failure::usage(size, NOT_A_SIZE));
    }
    let reply = live::request(point, &format!("resize {size}"))?;
    if let Some(why) = reply.strip_prefix(ERROR) {
        return Err(failed(why.to_owned()));
    }
    let mut numbers = reply.split(' ').map(str::parse::<u64>);
    let (Some(Ok(before)), Some(Ok(after)), Some(Ok(block_bytes))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return Err(failed(reply));
    };
    report(&Resized {
        name: &name,
        before: BlockCount(before),
        after: BlockCount(after),
        block_bytes: usize::try_from(block_bytes).unwrap_or(usize::MAX),
    })
}

fn print(text: &str) -> Result<()> {
    let mut out = Stdout::open()?;
    out.write(text.as_bytes())?;
    out.flush()
}

/// Refuses to move the content of a file system with errors.
fn check(spec: &ImageSpec) -> Result<()> {
    let name = spec.path.display().to_string();
    let device = device(spec, DeviceOptions::default(), Access::ReadOnly)?;
    let options = CheckOptions {
        threads: NonZeroUsize::new(crate::threads(None)).unwrap_or(NonZeroUsize::MIN),
        ..CheckOptions::default()
    };
    let report = fourscore_check::check(device, &options);
    let report = report.map_err(|why| Failure::new(name.as_str(), why))?;
    match report.findings().first() {
        Some(found) if !report.is_clean() => {
            let why = format!("has errors, such as: {found}");
            Err(Failure::new(name, why).advise("check it first: fourscore check -n, e2fsck -f"))
        }
        _ => Ok(()),
    }
}

fn open(spec: &ImageSpec) -> Result<Resizer> {
    let device = device(spec, DeviceOptions::read_write(), Access::ReadWrite)?;
    Resizer::open(device).map_err(|why| {
        let failure = Failure::new(spec.path.display().to_string(), &why);
        match why {
            ResizeError::NoFileSystem(_) => foreign::failure(spec).unwrap_or(failure),
            _ => failure,
        }
    })
}

fn set_length(path: &Path, bytes: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    let changed = file.and_then(|file| {
        file.set_len(bytes)?;
        file.sync_all()
    });
    changed.map_err(|why| Failure::new(path.display().to_string(), why))
}

/// What is said of a size that cannot be read.
pub(crate) const NOT_A_SIZE: &str =
    "is not a size: give blocks, or a number with K, M, G, T or s, as in 4G";

/// The blocks of a size as resize2fs spells it.
pub(crate) fn blocks_of(text: &str, block_size: BlockSize) -> Option<BlockCount> {
    let bits = block_size.bits();
    let blocks = match text.as_bytes().last() {
        Some(b's' | b'S') => {
            let sectors = text[..text.len() - 1].parse::<u64>().ok();
            sectors.map(|sectors| sectors >> (bits - 9))
        }
        Some(byte) if byte.is_ascii_digit() => text.parse().ok(),
        _ => parse_size(text).map(|bytes| bytes >> bits),
    };
    blocks.map(BlockCount)
}
