//! **Purpose.** `fourscore cp`: copies into an image, or out of one.
//!
//! | module | responsibility |
//! |---|---|
//! | [`into`] | copies objects of the host into an image |
//!
//! **Not here.** Creating objects on the host ([`mod@crate::extract`]).
//!
//! **Model.** As cp(1): without `-a` only files and their permissions are copied, and existing
//! files are overwritten. With `-a` trees are copied with owners, times, extended attributes and
//! links; existing directories are merged, and no other existing object is replaced.

mod into;

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use fourscore::Follow;
use fourscore_ondisk::InodeNr;

use crate::extract;
use crate::facts::{Facts, Kind};
use crate::failure::{Failure, Problems, Result};
use crate::image::{Image, ImageSpec};

/// `cp`
#[derive(Debug, Args)]
pub(crate) struct Cp {
    /// Copies directories with their contents, and all attributes
    #[arg(short = 'a', long = "archive")]
    archive: bool,
    /// Sources and, last, the destination; a path inside an image is IMAGE:PATH
    #[arg(required = true, num_args = 2.., value_name = "SRC... DST")]
    paths: Vec<OsString>,
}

/// One of the paths.
#[derive(Debug)]
enum Side {
    Host(PathBuf),
    Image(ImageSpec, PathBuf),
}

impl Side {
    /// The text before a colon is an image if such a file exists. A path of the host that contains
    /// a colon can begin with `./`.
    fn parse(text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':');
        for (at, _) in colons {
            let (image, path) = (&bytes[..at], &bytes[at + 1..]);
            let spec = ImageSpec::parse(OsStr::from_bytes(image))
                .map_err(|why| Failure::usage(text.to_string_lossy(), why))?;
            if !image.starts_with(b"./") && spec.path.exists() && !spec.path.is_dir() {
                return Ok(Self::Image(spec, PathBuf::from(OsStr::from_bytes(path))));
            }
        }
        Ok(Self::Host(PathBuf::from(text)))
    }
}

/// Runs `cp`.
pub(crate) fn run(args: &Cp) -> Result<()> {
    let (last, sources) = args.paths.split_last().expect("clap requires two");
    let sources: Vec<_> = sources
        .iter()
        .map(|path| Side::parse(path))
        .collect::<Result<_>>()?;
    match Side::parse(last)? {
        Side::Image(spec, to) => {
            let from = sources.iter().map(|side| match side {
                Side::Host(path) => Ok(path.as_path()),
                Side::Image(..) => Err(one_side_only()),
            });
            into::copy(&spec, &from.collect::<Result<Vec<_>>>()?, &to, args.archive)
        }
        Side::Host(to) => {
            let to = Destination {
                path: &to,
                is_dir: to.is_dir(),
            };
            if sources.len() > 1 && !to.is_dir {
                return Err(not_a_directory(to.path));
            }
            let mut by_image: Vec<(ImageSpec, Vec<PathBuf>)> = Vec::new();
            for side in sources {
                let Side::Image(spec, path) = side else {
                    return Err(one_side_only());
                };
                match by_image.iter_mut().find(|(known, _)| *known == spec) {
                    Some((_, paths)) => paths.push(path),
                    None => by_image.push((spec, vec![path])),
                }
            }
            let problems = Problems::default();
            for (spec, paths) in &by_image {
                let image = Image::open(spec)?;
                out(&image, paths, to, args.archive, &problems);
            }
            problems.result()
        }
    }
}

fn one_side_only() -> Failure {
    let why =
        "either the sources or the destination must be in an image, as in disk.img:/etc/fstab";
    Failure::usage("cp", why)
}

fn not_a_directory(to: &Path) -> Failure {
    Failure::usage(
        to.display().to_string(),
        "is not a directory, which several sources need",
    )
}

/// The destination of a copy on the host.
#[derive(Clone, Copy)]
struct Destination<'p> {
    path: &'p Path,
    /// Whether it is an existing directory, into which the sources are copied.
    is_dir: bool,
}

/// Copies `paths` out of `image` and reports problems.
fn out(image: &Image, paths: &[PathBuf], to: Destination<'_>, archive: bool, problems: &Problems) {
    let mut objects = Vec::new();
    for path in paths {
        let copied = match archive {
            true => object_at(image, path, to).map(|object| objects.push(object)),
            false => file_out(image, path, to),
        };
        if let Err(failure) = copied {
            problems.report(&failure);
        }
    }
    let parent = match to.is_dir {
        true => to.path,
        false => parent_of(to.path),
    };
    // All at once, so that hard links among them are kept.
    if !objects.is_empty()
        && let Err(failure) = extract::objects(image, &objects, parent, crate::threads(None))
    {
        problems.report(&failure);
    }
}

fn parent_of(path: &Path) -> &Path {
    let parent = path.parent();
    let named = parent.filter(|parent| !parent.as_os_str().is_empty());
    named.unwrap_or(Path::new("."))
}

/// The inode at a path of the image, and the name of the copy.
fn object_at(image: &Image, from: &Path, to: Destination<'_>) -> Result<(InodeNr, Vec<u8>)> {
    let inode = image.resolve(from, Follow::No)?;
    let name = match to.is_dir {
        true => from.file_name(),
        false => to.path.file_name(),
    };
    let path = from.as_os_str().as_bytes();
    let name = name.ok_or_else(|| {
        let failure = image.failure(path, "has no name for the copy");
        failure.advise("use extract to copy the whole tree")
    })?;
    Ok((inode, name.as_bytes().to_vec()))
}

/// Copies a regular file with its permissions.
fn file_out(image: &Image, from: &Path, to: Destination<'_>) -> Result<()> {
    let inode = image.resolve(from, Follow::Yes)?;
    let path = from.as_os_str().as_bytes();
    let stat = image
        .fs
        .stat(inode)
        .map_err(|why| image.failure(path, why))?;
    let facts = Facts::from(&stat);
    if facts.kind != Kind::File {
        let why = format_args!("is a {}", facts.kind.name());
        return Err(image.failure(path, why).advise("use -a to copy it"));
    }
    let target = match from.file_name() {
        Some(name) if to.is_dir => to.path.join(name),
        _ => to.path.to_owned(),
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(facts.permissions & 0o777)
        .open(&target)
        .map_err(|why| Failure::new(target.display().to_string(), why))?;
    let copied = extract::copy_content(image, &stat, &file, &mut Vec::new());
    copied.map_err(|why| image.failure(path, why))
}
