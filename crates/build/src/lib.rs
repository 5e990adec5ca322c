//! **Purpose.** From a tree of files to a finished image of ext2, ext3 or ext4, on all cores and
//! in one pass over the data.
//!
//! ```no_run
//! use fourscore_build::{Flow, Options, Tree, build, host};
//!
//! let options = Options::new();
//! let mut tree = Tree::new();
//! host::add_directory(&mut tree, "rootfs".as_ref(), &host::Scan::all(options.thread_count()))?;
//! let summary = build(&options, tree, "disk.ext4".as_ref(), &|_| Flow::Continue)?;
//! println!("{} bytes", summary.size_bytes);
//! # Ok::<(), fourscore_build::BuildError>(())
//! ```
//!
//! | module | responsibility |
//! |---|---|
//! | [`source`] | what the image is made of: tar archives and more, laid over each other |
//! | [`manifest`] | lists of who owns what, read and written |
//! | [`tree`] | what the image shall hold: the overlay of all sources, in memory |
//! | [`host`] | reading a directory of the host into the tree |
//! | `layout` | inode numbers, directories in final form, the size, the place of everything |
//! | `write` | reading contents and writing the image, on all cores |
//! | `read_back` | comparing the finished image with its sources, sums and manifests |
//! | `identity` | UUID and hash seed from the content |
//! | `options` | what is asked, and what is told |
//! | `error` | why no image is made |
//! | `bytes` | numbers into buffers |
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

mod bytes;
mod error;
pub mod host;
mod identity;
mod layout;
pub mod manifest;
mod options;
mod read_back;
pub mod source;
pub mod tree;
mod write;

use std::path::Path;
use std::time::Instant;

use fourscore_ondisk::Timestamp;

pub use error::{BuildError, BuildResult};
pub use layout::XattrProblem;
pub use options::{Flow, Options, Phase, Progress, Size, Summary, Watch};
pub use read_back::{Comparison, Difference, ReadBack};
pub use tree::{Content, Kind, Meta, NodeId, Tree, TreeError, Xattrs};

/// Makes an image of a tree at `target`, and replaces what was there. Durable when it returns.
///
/// # Errors
/// Everything that keeps the image from being made; then `target` is what it was before. (A block
/// device is written in place, and holds no file system then.)
pub fn build(
    options: &Options,
    mut tree: Tree,
    target: &Path,
    watch: Watch<'_>,
) -> BuildResult<Summary> {
    let begin = Instant::now();
    let mut options = options.clone();
    // One moment for all that is made.
    let seconds = layout::image_seconds(&options);
    options.format.time_seconds = Some(seconds);
    let made = Timestamp::new(i64::try_from(seconds).unwrap_or(i64::MAX), 0).unwrap_or_default();
    options.format.old_content = write::old_content(target, options.format.old_content);
    let draft = tree.take_draft().filter(|draft| draft.is_for(target));
    let place = draft.as_ref().map(|it| (it.file(), it.block_bits()));
    let settled = layout::settle(&options, tree, place)?;
    let draft = draft.filter(|_| settled.forms.arrived.is_some());
    let output = match draft {
        Some(draft) => draft.into_begun(),
        None => write::Begun::new(target)?,
    };
    write::write(&settled, &options, output, made, watch)?;
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
