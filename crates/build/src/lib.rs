//! **Purpose.** From a tree of files to a finished image of ext2, ext3 or ext4, on all cores and
//! in one pass over the data.
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
//! | [`source`] | what the image is made of: tar archives and more, laid over each other |
//! | [`manifest`] | lists of who owns what, read and written |
//! | [`tree`] | what the image shall hold: the overlay of all sources, in memory |
//! | `target` | where the image goes, and whether it may |
//! | [`host`] | reading a directory of the host into the tree |
//! | `layout` | inode numbers, directories in final form, the size, the place of everything |
//! | `write` | reading contents and writing the image, on all cores |
//! | `read_back` | comparing the finished image with its sources, sums and manifests |
//! | `identity` | UUID and hash seed from the content |
//! | `canonical` | holes wherever there are zeroes |
//! | `options` | what is asked, and what is told |
//! | `error` | why no image is made |
//! | `recognise` | what bytes are, in words |
//!
//! **Not here.** The geometry and the files that every file system has (crate `fs`, module
//! `format`), the command line.
//!
//! **Model.** A build has three steps that each use all cores: sources are read into a tree that
//! knows everything but contents; the layout decides where each block goes, and how many there
//! must be; the image is written. Nothing is moved or changed once it is written, so there is
//! nothing to journal.
//!
//! **Crash safety.** The image gets its name when it is complete and durable.
#![forbid(unsafe_code)]

mod canonical;
mod error;
pub mod host;
mod identity;
mod layout;
pub mod manifest;
mod options;
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
pub use read_back::{Comparison, Difference, ReadBack};
pub use target::{Overwrite, Target};
pub use tree::{Content, Kind, Meta, NodeId, Tree, TreeError, Xattrs};

/// Makes an image of a tree at `target`, and replaces what was there. Durable when it returns.
///
/// # Errors
/// Everything that keeps the image from being made; then `target` is what it was before. Only
/// [`BuildError::Overwritten`] says that it is not: a block device or a part of a disk is written
/// in place, and holds no file system then.
pub fn build(
    options: &Options,
    mut tree: Tree,
    target: &Target,
    watch: Watch<'_>,
) -> BuildResult<Summary> {
    let begin = Instant::now();
    let mut options = options.clone();
    // One moment for all that is made.
    let seconds = layout::image_seconds(&options);
    options.format.time_seconds = Some(seconds);
    let made = Timestamp::new(i64::try_from(seconds).unwrap_or(i64::MAX), 0).unwrap_or_default();
    options.format.old_content = write::old_content(target, options.format.old_content);
    if options.canonical {
        canonical::find_holes(&mut tree, options.thread_count())?;
    }
    let draft = tree.take_draft().filter(|draft| draft.is_for(target));
    let place = draft.as_ref().map(|it| (it.file(), it.block_bits()));
    let settled = layout::settle(&options, tree, place)?;
    let size_bytes = settled.plan.superblock().geometry().size_bytes();
    if let Some(given_bytes) = target.room_bytes().filter(|&room| room < size_bytes) {
        return Err(BuildError::NoSpace {
            needed_bytes: size_bytes,
            given_bytes,
        });
    }
    let draft = draft.filter(|_| settled.forms.arrived.is_some());
    let output = match draft {
        Some(draft) => draft.into_begun(),
        None => write::Begun::new(target).map_err(|why| target.failed(why))?,
    };
    write::write(&settled, &options, (target, output), made, watch)?;
    let (sb, forms) = (settled.plan.superblock(), &settled.forms);
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
