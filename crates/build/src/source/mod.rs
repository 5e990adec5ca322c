//! **Purpose.** What an image is made of: sources that are laid over each other in one tree.
//!
//! | module | responsibility |
//! |---|---|
//! | `archive` | a tar in a file or on standard input |
//! | `tar` | reading archives |
//! | `oci` | images in an OCI layout |
//! | `overlay` | what an entry does to the tree |
//! | `unpack` | compressed streams |
//! | `keep`, `sink` | what cannot be read twice |
//! | `draft` | ... goes into the image at once |
//! | `spool` | ... or waits in a file without a name |
//! | `exclude`, `ids` | what stays out, whose the rest is |
//! | `encoding`, `names` | bytes as text, names of users and groups |
//! | `fault`, `notices` | what is wrong with an entry, what was left out |

mod archive;
mod draft;
mod encoding;
mod exclude;
mod fault;
mod ids;
mod keep;
mod names;
mod notices;
mod oci;
mod overlay;
mod sink;
mod spool;
mod tar;
mod unpack;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fourscore_sync::{Counter, Mutex};

use crate::host::{self, Scan};
use crate::manifest::Saved;
use crate::options::Options;
use crate::tree::Tree;

pub(crate) use draft::Draft;
pub(crate) use encoding::{from_base64, push_base64};
pub use exclude::{Excludes, PatternError};
pub(crate) use fault::Parsed;
pub use fault::{Fault, SourceError};
pub use ids::{IdError, IdMap, IdRange, Owner, Owners};
pub(crate) use names::HostNames;
pub use notices::Notices;
pub use oci::OciImage;
pub(crate) use spool::nameless;

/// Something that an image is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of this host.
    Directory(PathBuf),
    /// A tar archive in a file: plain, or compressed with gzip or zstd.
    Archive(PathBuf),
    /// A tar archive on standard input, read in one pass.
    StandardInput,
    /// An image in an OCI layout.
    Oci(OciImage),
}

/// What all sources of an image share while they are read.
#[derive(Debug)]
pub struct Context<'a> {
    /// What stays out.
    pub excludes: &'a Excludes,
    /// What fakeroot said of the files of directories.
    pub saved: Option<&'a Saved>,
    /// The image to be. With it, contents that can be read only once go there at once, in the
    /// order in which they arrive, where it can be begun like that.
    pub destination: Option<Destination<'a>>,
    /// A directory with room for the other contents of compressed archives and pipes; files in it
    /// have no name.
    pub scratch: &'a Path,
    /// How many threads may work at once.
    pub threads: usize,
    /// Counts objects of directories and entries of archives as they are read.
    pub read_objects: &'a Counter,
    /// Counts the bytes of archives, unpacked, as they are read.
    pub read_bytes: &'a Counter,
    /// What was left out, for the user to read.
    pub notices: Notices,
}

/// What the tree will be given to [`build`](crate::build) with.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// What is asked of the image.
    pub options: &'a Options,
    /// Where it goes.
    pub target: &'a Path,
}

impl Source {
    /// What the user means by `text`: `-` is standard input, `oci:DIR[:TAG]` an
    /// image in an OCI layout, anything else the path of a directory or an archive.
    #[must_use]
    pub fn parse(text: &OsStr) -> Self {
        let oci = text.to_str().and_then(|text| text.strip_prefix("oci:"));
        match (oci, text.as_bytes()) {
            (Some(image), _) => Self::Oci(OciImage::parse(image)),
            (None, b"-") => Self::StandardInput,
            (None, _) if Path::new(text).is_dir() => Self::Directory(text.into()),
            (None, _) => Self::Archive(text.into()),
        }
    }

    /// Lays the source over what the tree holds.
    ///
    /// # Errors
    /// A source that is damaged, cannot be read, or holds what ext4 cannot hold.
    pub fn add_to(&self, tree: &mut Tree, context: &mut Context) -> Result<(), SourceError> {
        match self {
            Self::Directory(path) => {
                let left_out = Mutex::new(Notices::default());
                let scan = Scan {
                    threads: context.threads,
                    keep: &|path| !context.excludes.matches(path),
                    saved: context.saved,
                    found: Some(context.read_objects),
                    left_out: Some(&left_out),
                };
                let added = host::add_directory(tree, path, &scan);
                context.notices.append(left_out.into_inner());
                added.map_err(|error| SourceError {
                    place: path.display().to_string(),
                    entry: None,
                    fault: Fault::Directory(Box::new(error)),
                })
            }
            Self::Archive(path) => archive::add_file(tree, path, context),
            Self::StandardInput => archive::add_stdin(tree, context),
            Self::Oci(image) => image.add_to(tree, context),
        }
    }
}
