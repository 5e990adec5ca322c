//! **Purpose.** Builds an image of ext2, ext3 or ext4 from a tree of files, on all cores and in one
//! pass over the data.
//!
//! ```no_run
//! use fourscore_build::{Flow, Options, Overwrite, Target, Tree, build, host};
//!
//! let options = Options::new();
//! let mut tree = Tree::new();
//! host::add_directory(&mut tree, "rootfs".as_ref(), &host::Scan::all(options.thread_count()))?;
//! let target = Target::find("disk.ext4".as_ref(), Overwrite::OwnImages)?;
//! let summary = build(&options, tree, &target, &|_| Flow::Continue)?;
//! println!("{} bytes", summary.size_bytes);
//! # Ok::<(), fourscore_build::BuildError>(())
//! ```
//!
//! | module | responsibility |
//! |---|---|
//! | [`source`] | sources of files: directories, tar archives, OCI images, file system images |
//! | [`manifest`] | reads and writes lists of objects with owner, mode and type (mtree, fakeroot) |
//! | [`tree`] | the overlay of all sources, in memory |
//! | `target` | the output: which file, device or partition, and whether it may be overwritten |
//! | `partitions` | reads partition tables |
//! | [`host`] | reads a directory of the host into the tree |
//! | `layout` | assigns inode numbers and blocks, encodes directories, computes the size |
//! | `write` | reads file data and writes the image, on all cores |
//! | `read_back` | compares the finished image with its sources, writes checksums and manifests |
//! | `identity` | derives UUID and hash seed from the tree |
//! | `canonical` | turns blocks of zeroes into holes |
//! | `options` | options, progress and summary of a build |
//! | `error` | errors of a build |
//! | `recognise` | describes file types by their signatures |
//!
//! **Not here.** The geometry and the metadata that every new file system has
//! (`fourscore-mkfs`), the command line.
//!
//! **Model.** A build has three steps, each on all cores: the sources are read into a tree of
//! everything but file data; the layout assigns a block number to everything and so determines the
//! size; the image is written. No block is moved or rewritten once it is written, so a build needs
//! no journal.
//!
//! **Crash safety.** An image file is renamed into place when it is complete and durable.
#![forbid(unsafe_code)]

mod canonical;
mod error;
pub mod host;
mod identity;
mod layout;
pub mod manifest;
mod options;
mod partitions;
mod read_back;
mod recognise;
pub mod source;
mod target;
pub mod tree;
mod write;

use std::time::Instant;

use fourscore_ondisk::Timestamp;

pub use error::{BuildError, BuildResult};
pub use layout::XattrProblem;
pub use options::{Flow, Options, Phase, Progress, Size, Summary, Watch};
pub use partitions::{Partition, PartitionTable, partitions};
pub use read_back::{Comparison, Difference, ListTarget, ReadBack};
pub use target::{Location, Overwrite, Target};
pub use tree::{Content, Kind, Meta, NodeId, Tree, TreeError, Xattrs};
pub use write::{FileId, Replaces, put_in_place, read_file};

/// Builds an image of `tree` and puts it at `target`, replacing what was there. The image is
/// durable when this returns.
///
/// # Errors
/// Every error that prevents the image from being made; `target` is unchanged then. The exception
/// is [`BuildError::Overwritten`]: a block device or a partition is written in place, and holds no
/// valid file system after a failure.
pub fn build(
    options: &Options,
    mut tree: Tree,
    target: &Target,
    watch: Watch<'_>,
) -> BuildResult<Summary> {
    let begin = Instant::now();
    let mut options = options.clone();
    // All objects that the build itself creates have the same time.
    let seconds = layout::image_seconds(&options);
    options.format.time_seconds = Some(seconds);
    let made = Timestamp::new(i64::try_from(seconds).unwrap_or(i64::MAX), 0).unwrap_or_default();
    options.format.old_content = write::old_content(target, options.format.old_content);
    if options.canonical {
        canonical::find_holes(&mut tree, options.thread_count())?;
    }
    let draft = tree.take_draft().filter(|draft| draft.is_for(target));
    let draft_file = draft.as_ref().map(source::Draft::draft_file);
    let layout = layout::compute_layout(&options, tree, draft_file)?;
    let size_bytes = layout.plan.superblock().geometry().size_bytes();
    if let Some(given_bytes) = target
        .capacity_bytes()
        .filter(|&capacity| capacity < size_bytes)
    {
        return Err(BuildError::NoSpace {
            needed_bytes: size_bytes,
            given_bytes,
        });
    }
    let draft = draft.filter(|_| layout.forms.streamed.is_some());
    let output = match draft {
        Some(draft) => draft.into_new_image(),
        None => write::NewImage::new(target).map_err(|why| target.failed(why))?,
    };
    write::write(&layout, &options, target, output, made, watch)?;
    let (sb, forms) = (layout.plan.superblock(), &layout.forms);
    let order = forms.numbers.order();
    Ok(Summary {
        size_bytes: sb.geometry().size_bytes(),
        content_bytes: order
            .iter()
            .map(|&node| forms.tree.content_bytes(node))
            .sum(),
        objects: order.len() as u64 + 1,
        free_bytes: sb.free_blocks().0 << sb.geometry().block_size().bits(),
        uuid: sb.uuid(),
        comparison: options.read_back.comparison,
        elapsed: begin.elapsed(),
    })
}
