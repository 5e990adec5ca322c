//! **Purpose.** Reads the sources of an image and overlays them in one tree.
//!
//! | module | responsibility |
//! |---|---|
//! | `recognise` | detects the format of a source by its content |
//! | `archive` | reads a source from a file or standard input |
//! | `tar` | reads tar archives |
//! | `oci` | reads container images |
//! | `image` | reads file systems |
//! | `overlay` | applies entries of archives to the tree |
//! | `unpack` | decompresses streams |
//! | `storage`, `sink` | store data that can be read only once |
//! | `draft` | ... directly in the image |
//! | `spool` | ... in an unlinked temporary file |
//! | `exclude`, `ids` | excluded paths, changed owners |
//! | `encoding`, `names` | text encodings, names of users and groups |
//! | `fault`, `notices` | errors, notices about attributes that are left out |

mod archive;
mod draft;
mod encoding;
mod exclude;
mod fault;
mod ids;
mod image;
mod names;
mod notices;
mod oci;
mod overlay;
mod recognise;
mod sink;
mod spool;
mod storage;
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
pub(crate) use ids::is_id;
pub use ids::{IdError, IdMap, IdRange, Owners};
pub(crate) use names::HostNames;
pub use notices::Notices;
pub use oci::{OciImage, Platform, PlatformError, Transport};
pub(crate) use spool::unlinked_file;

/// A source of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory, file or block device of the host.
    Path(PathBuf, Reading),
    /// Standard input, read in one pass.
    StandardInput(Reading),
    /// A file system of ext2, ext3 or ext4 at an offset of a file or block device.
    FileSystem {
        /// The file or block device.
        path: PathBuf,
        /// The offset of the file system in bytes.
        offset_bytes: u64,
    },
    /// A container image.
    Oci(OciImage),
}

/// How a directory or archive is interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// By its content: as a tree, or as a container image to be unpacked.
    ByContent,
    /// Always as a tree.
    AsTree,
}

/// State and options shared by all sources of an image.
#[derive(Debug)]
pub struct Context<'a> {
    /// Excluded paths.
    pub excludes: &'a Excludes,
    /// The file that fakeroot saved, for directories.
    pub saved: Option<&'a Saved>,
    /// The output. If given, data that can be read only once is written to the image as it arrives,
    /// where the options allow it.
    pub destination: Option<Destination<'a>>,
    /// A directory for unlinked temporary files with the data of compressed archives and pipes.
    pub scratch: &'a Path,
    /// Number of threads.
    pub threads: usize,
    /// Counter of objects that are read.
    pub read_objects: &'a Counter,
    /// Counter of bytes of archives that are read, after decompression.
    pub read_bytes: &'a Counter,
    /// Notices about attributes that are left out.
    pub notices: Notices,
    /// The platform to select from a multi-platform image; this machine's platform if `None`.
    pub platform: Option<&'a Platform>,
}

impl Context<'_> {
    /// Whether writing the output changes the file at this location.
    fn changes(&self, source: &Location) -> bool {
        let target = self.destination.as_ref().map(|to| to.target);
        target.is_some_and(|target| target.changes(source))
    }

    /// Returns an error if writing the output would overwrite the source.
    fn refuse_output(&self, source: &Location) -> Result<(), Fault> {
        let target = self.destination.as_ref().map(|to| to.target);
        match target.is_some_and(|target| target.overwrites(source)) {
            true => Err(Fault::IsOutput),
            false => Ok(()),
        }
    }
}

/// The options and target that [`build`](crate::build) will get.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The options of the image.
    pub options: &'a Options,
    /// The output.
    pub target: &'a Target,
}

impl Source {
    /// Parses the name of a source: `-` is standard input; `oci:DIR[:TAG]`, `dir:DIR`,
    /// `oci-archive:FILE[:TAG]` and `docker-archive:FILE[:NAME]` are container images; `tree:PATH`
    /// is a directory or archive that is taken as a tree; anything else is the path of a source
    /// whose format is detected.
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

    /// The same source, to be taken as a tree.
    #[must_use]
    pub fn as_tree(self) -> Self {
        match self {
            Self::Path(path, _) => Self::Path(path, Reading::AsTree),
            Self::StandardInput(_) => Self::StandardInput(Reading::AsTree),
            other => other,
        }
    }

    /// Overlays the source on the tree.
    ///
    /// # Errors
    /// A source that is damaged, cannot be read, is also the output, or has an object that ext4
    /// cannot store.
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
