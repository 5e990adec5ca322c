//! **Purpose.** `fourscore resize`: changes the size of a file system; of one that is mounted, only
//! to a larger one.
//!
//! **Model.** An image file is made longer before the file system grows, and is cut after it has
//! shrunk. A partition or block device keeps its length, and is the default size.
//!
//! **Invariants.** The file is never shorter than the file system that its superblock states. If
//! growing fails, the file keeps what the file system has got by then; if that is not known,
//! because the log must be replayed first, the file keeps its new length.
//!
//! **Locking.** One descriptor holds the lock from the first look at the file system to the last
//! change of the length, and all lengths are those of that descriptor. With the feature `mmp`,
//! other hosts are kept away in the same time, but for `-P`, which changes nothing.
//!
//! A mount of fourscore, given by its directory or its image, grows in its server, which has the
//! image locked and makes the file longer. A mount of the kernel is left to its resize2fs.
//!
//! **Not here.** How it is done (`fourscore_resize`).

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;

use clap::Args;
use fourscore_block::{Access, BlockDevice, DeviceOptions, Window};
use fourscore_check::CheckOptions;
use fourscore_ondisk::{BlockCount, BlockSize};
use fourscore_resize::{ResizeError, Resizer};
use fourscore_sync::Arc;
use rustix::fs::FileType;

use crate::failure::{Failure, Result, message};
use crate::image::{ImageSpec, device, parse_size};
use crate::mount::figures::ERROR;
use crate::output::Stdout;
use crate::{foreign, live, signals, verbosity};

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
    let held = Held::open(spec)?;
    let mut resizer = held.resizer()?;
    let problem = |why: ResizeError| Failure::new(name.as_str(), why);
    if args.print_least {
        let least = resizer.least().map_err(problem)?;
        return print(&format!("{}\n", least.0));
    }
    signals::release_at_end()?;
    resizer.claim().map_err(problem)?;
    let before = *resizer.geometry();
    let bits = before.block_size().bits();
    let wish = match &args.size {
        Some(text) => {
            blocks_of(text, before.block_size()).ok_or_else(|| Failure::usage(text, NOT_A_SIZE))?
        }
        None if args.least => resizer.least().map_err(problem)?.min(before.blocks()),
        None => BlockCount(held.device.len_bytes() >> bits),
    };
    let after = resizer.possible(wish).map_err(problem)?;
    if after < before.blocks() && !args.force {
        held.check()?;
    }
    let old_bytes = held.len_bytes()?;
    if held.file()?.is_some() {
        // It will be cut.
        resizer.discard_behind();
    }
    let is_ready = held.lengthen(after.0 << bits);
    let resized = is_ready.and_then(|()| match args.least {
        true => resizer.shrink().map_err(problem),
        false => resizer.resize(wish).map_err(problem),
    });
    let after = match resized {
        Ok(after) => after,
        Err(failure) => {
            // It is opened again below, which claims it again.
            drop(resizer);
            let has_bytes = held.cut_back(old_bytes);
            let has_grown = has_bytes.is_some_and(|bytes| bytes > before.size_bytes());
            return Err(match has_grown {
                true => failure.advise(HAS_GROWN),
                false => failure,
            });
        }
    };
    if after < before.blocks() {
        held.cut(after.0 << bits)?;
    }
    resizer.release().map_err(problem)?;
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

/// Advice for a file system that has grown when something failed behind the step that makes it so.
const HAS_GROWN: &str = "the file system has the new size; make room on the host, then check it: \
                         fourscore check -y";

/// An image that is open for writing, with its lock.
struct Held<'s> {
    spec: &'s ImageSpec,
    device: Arc<dyn BlockDevice>,
}

impl<'s> Held<'s> {
    fn open(spec: &'s ImageSpec) -> Result<Self> {
        let device = device(spec, DeviceOptions::read_write(), Access::ReadWrite)?;
        Ok(Self { spec, device })
    }

    fn resizer(&self) -> Result<Resizer> {
        Resizer::open(Arc::clone(&self.device)).map_err(|why| {
            let failure = Failure::new(self.name(), &why);
            match why {
                ResizeError::NoFileSystem(_) => foreign::failure(self.spec).unwrap_or(failure),
                _ => failure,
            }
        })
    }

    /// Refuses to move the content of a file system with errors.
    fn check(&self) -> Result<()> {
        let device = Arc::new(Window::read_only(Arc::clone(&self.device)));
        let options = CheckOptions {
            threads: NonZeroUsize::new(crate::threads(None)).unwrap_or(NonZeroUsize::MIN),
            ..CheckOptions::default()
        };
        let report = fourscore_check::check(device, &options);
        let report = report.map_err(|why| Failure::new(self.name(), why))?;
        match report.findings().first() {
            Some(found) if !report.is_clean() => {
                let why = format!("has errors, such as: {found}");
                let failure = Failure::new(self.name(), why);
                Err(failure.advise("check it first: fourscore check -n, e2fsck -f"))
            }
            _ => Ok(()),
        }
    }

    fn name(&self) -> String {
        self.spec.path.display().to_string()
    }

    /// The descriptor of an image file that is one file system; `None` for a block device or a
    /// part of a disk, whose length stays.
    fn file(&self) -> Result<Option<&File>> {
        let range = self.device.host_range(0..0);
        let Some(range) = range.filter(|_| self.spec.offset_bytes == 0) else {
            return Ok(None);
        };
        let found = rustix::fs::fstat(range.file).map_err(|why| self.failure(why))?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        Ok(is_file.then_some(range.file))
    }

    /// The length of the image file now; 0 for anything else.
    fn len_bytes(&self) -> Result<u64> {
        let Some(file) = self.file()? else {
            return Ok(0);
        };
        let found = rustix::fs::fstat(file).map_err(|why| self.failure(why))?;
        Ok(u64::try_from(found.st_size).unwrap_or(0))
    }

    /// Makes an image file at least so long, durably. It never becomes shorter.
    fn lengthen(&self, bytes: u64) -> Result<()> {
        let Some(file) = self.file()? else {
            return Ok(());
        };
        if self.len_bytes()? >= bytes {
            return Ok(());
        }
        rustix::fs::ftruncate(file, bytes).map_err(|why| self.failure(why))?;
        let known = self.device.lengthen(bytes);
        let durable = known.and_then(|_| self.device.flush());
        durable.map_err(|why| self.failure(why))
    }

    /// Makes an image file at most so long, durably.
    fn cut(&self, bytes: u64) -> Result<()> {
        let Some(file) = self.file()? else {
            return Ok(());
        };
        if self.len_bytes()? <= bytes {
            return Ok(());
        }
        rustix::fs::ftruncate(file, bytes).map_err(|why| self.failure(why))?;
        self.device.flush().map_err(|why| self.failure(why))
    }

    /// Makes a file that was lengthened as short as the file system allows, but not shorter than
    /// it was. Returns the bytes of the file system; `None` if they are not known: a log that must
    /// be replayed may have either size, and then the file stays as long as it is.
    fn cut_back(&self, old_bytes: u64) -> Option<u64> {
        let mut resizer = Resizer::open(Arc::clone(&self.device)).ok()?;
        resizer.claim().ok()?;
        let has_bytes = resizer.geometry().size_bytes();
        if let Err(failure) = self.cut(old_bytes.max(has_bytes)) {
            message(&failure.to_string());
        }
        Some(has_bytes)
    }

    fn failure(&self, why: impl Into<io::Error>) -> Failure {
        Failure::new(self.name(), why.into())
    }
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
