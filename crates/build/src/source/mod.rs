//! **Purpose.** What an image is made of: sources that are laid over each other in one tree.
//!
//! | module | responsibility |
//! |---|---|
//! | `recognise` | what a source is, by its content |
//! | `archive` | what is in a file or on standard input |
//! | `tar` | reading archives |
//! | `oci` | container images |
//! | `image` | file systems |
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
mod image;
mod keep;
mod names;
mod notices;
mod oci;
mod overlay;
mod recognise;
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
use crate::target::{Location, Target};
use crate::tree::Tree;

pub(crate) use draft::Draft;
pub(crate) use encoding::{from_base64, push_base64};
pub use exclude::{Excludes, PatternError};
pub(crate) use fault::Parsed;
pub use fault::{Fault, SourceError};
pub use ids::{IdError, IdMap, IdRange, Owner, Owners};
pub(crate) use names::HostNames;
pub use notices::Notices;
pub use oci::{OciImage, Platform, PlatformError, Transport};
pub(crate) use spool::nameless;

/// Something that an image is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What is at a path of this host: a directory, a file or a block device.
    Path(PathBuf, Reading),
    /// What comes on standard input, read in one pass.
    StandardInput(Reading),
    /// A file system of ext2, ext3 or ext4 that begins at a byte of a file or block device.
    FileSystem {
        /// The file or block device.
        path: PathBuf,
        /// Where in it the file system begins, in bytes.
        offset_bytes: u64,
    },
    /// A container image.
    Oci(OciImage),
}

/// How a directory or archive is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As what its content says it is: a tree, or a container image that is unpacked.
    ByContent,
    /// As a tree, whatever it is a tree of.
    AsTree,
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
    /// What images are to run on, where there are several; else what this machine is.
    pub platform: Option<&'a Platform>,
}

impl Context<'_> {
    /// Whether writing the image changes the file that a source is in.
    fn changes(&self, source: &Location) -> bool {
        let target = self.destination.as_ref().map(|to| to.target);
        target.is_some_and(|target| target.changes(source))
    }

    /// Refuses a source that the image would overwrite.
    fn refuse_output(&self, source: &Location) -> Result<(), Fault> {
        let target = self.destination.as_ref().map(|to| to.target);
        match target.is_some_and(|target| target.overwrites(source)) {
            true => Err(Fault::IsOutput),
            false => Ok(()),
        }
    }
}

/// What the tree will be given to [`build`](crate::build) with.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// What is asked of the image.
    pub options: &'a Options,
    /// Where it goes.
    pub target: &'a Target,
}

impl Source {
    /// What the user means by `text`: `-` is standard input, `oci:DIR[:TAG]`, `dir:DIR`,
    /// `oci-archive:FILE[:TAG]` and `docker-archive:FILE[:NAME]` container images, `tree:PATH` a
    /// directory or archive as it stands, and anything else the path of what its content says.
    #[must_use]
    pub fn parse(text: &OsStr) -> Self {
        if let Some(image) = text.to_str().and_then(OciImage::parse) {
            return Self::Oci(image);
        }
        match text.as_bytes() {
            b"-" => Self::StandardInput(Reading::ByContent),
            bytes => match bytes.strip_prefix(b"tree:") {
                Some(path) => Self::Path(OsStr::from_bytes(path).into(), Reading::AsTree),
                None => Self::Path(text.into(), Reading::ByContent),
            },
        }
    }

    /// The same directory or archive, as a tree.
    #[must_use]
    pub fn as_tree(self) -> Self {
        match self {
            Self::Path(path, _) => Self::Path(path, Reading::AsTree),
            Self::StandardInput(_) => Self::StandardInput(Reading::AsTree),
            other => other,
        }
    }

    /// Lays the source over what the tree holds.
    ///
    /// # Errors
    /// A source that is damaged, cannot be read, is also the output, or holds what ext4 cannot
    /// hold.
    pub fn add_to(&self, tree: &mut Tree, context: &mut Context<'_>) -> Result<(), SourceError> {
        match self {
            Self::Path(path, reading) if path.is_dir() => {
                let image = match reading {
                    Reading::ByContent => recognise::directory(path),
                    Reading::AsTree => None,
                };
                match image {
                    Some(transport) => {
                        let (path, tag) = (path.clone(), None);
                        let image = OciImage {
                            transport,
                            path,
                            tag,
                        };
                        image.add_to(tree, context)
                    }
                    None => add_directory(tree, path, context),
                }
            }
            Self::Path(path, reading) => archive::add_file(tree, path, *reading, context),
            Self::StandardInput(reading) => archive::add_stdin(tree, *reading, context),
            Self::FileSystem { path, offset_bytes } => {
                image::add(tree, path, *offset_bytes, context)
            }
            Self::Oci(image) => image.add_to(tree, context),
        }
    }
}

fn add_directory(
    tree: &mut Tree,
    path: &Path,
    context: &mut Context<'_>,
) -> Result<(), SourceError> {
    let target = context.destination.as_ref().map(|to| to.target);
    let output = target.and_then(|target| target.path_in(path));
    let output = output.filter(|output| !context.excludes.contain(output.as_os_str().as_bytes()));
    if let Some(output) = output {
        return Err(SourceError {
            place: path.display().to_string(),
            entry: Some(output.into_os_string().into_encoded_bytes()),
            fault: Fault::IsOutput,
        });
    }
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
