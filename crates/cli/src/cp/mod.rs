//! **Purpose.** `fourscore cp`: copies into an image, or out of one.
//!
//! | module | responsibility |
//! |---|---|
//! | [`into`] | copies sources into an image: where each goes |
//! | [`copier`] | copies an object to a path of an image |
//! | [`original`] | sources: trees of the host and of images |
//!
//! **Not here.** Creating objects on the host ([`mod@crate::extract`]).
//!
//! **Model.** Into an image as GNU cp: without `-r` and `-a` only files and their permissions are
//! copied; `-r` copies trees with permissions, `-a` with owners, times, extended attributes and
//! hard links. Existing files are written over, directories are merged. Out of an image `-r` is
//! `-a`, which replaces no existing object.

mod copier;
mod into;
mod original;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use fourscore::Follow;
use fourscore_ondisk::InodeNr;

use crate::extract;
use crate::facts::{Facts, Kind};
use crate::failure::{Failure, Problems, Result};
use crate::image::{Image, ImageSpec};
use crate::output::Stdout;

/// `cp`
#[derive(Debug, Args)]
pub(crate) struct Cp {
    /// Copies directories with their contents, and all attributes
    #[arg(short = 'a', long = "archive")]
    archive: bool,
    /// Copies directories with their contents
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Leaves what exists as it is
    #[arg(short = 'n', long)]
    no_clobber: bool,
    /// The destination is a name, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Owner of all copies in an image: OWNER, OWNER:GROUP or :GROUP, numbers or names that the
    /// image has
    #[arg(long)]
    owner: Option<String>,
    /// Sources and, last, the destination; a path inside an image is IMAGE:PATH, and - is standard
    /// input or output
    #[arg(required = true, num_args = 2.., value_name = "SRC... DST")]
    paths: Vec<OsString>,
}

/// One of the paths.
#[derive(Debug)]
enum Side {
    Host(PathBuf),
    Image(ImageSpec, PathBuf),
    /// Standard input or output.
    Stream,
}

impl Side {
    /// The text before a colon is an image if such a file exists. A path that begins with `./` is
    /// one of the host, whatever it contains.
    fn parse(text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Ok(Self::Stream);
        }
        if bytes.starts_with(b"./") {
            return Ok(Self::Host(PathBuf::from(text)));
        }
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':');
        for (at, _) in colons {
            let (image, path) = (&bytes[..at], &bytes[at + 1..]);
            let spec = ImageSpec::parse(OsStr::from_bytes(image))
                .map_err(|why| Failure::usage(text.to_string_lossy(), why))?;
            if spec.path.exists() && !spec.path.is_dir() {
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
    let is_image = |side: &Side| matches!(side, Side::Image(..));
    match Side::parse(last)? {
        Side::Image(spec, to) => into::copy(&spec, &sources, &to, args),
        _ if !sources.iter().all(is_image) => Err(one_side_only()),
        _ if args.owner.is_some() => {
            let why = "applies to copies in an image; use extract as root to keep owners";
            Err(Failure::usage("--owner", why))
        }
        Side::Stream => to_stdout(&sources, args),
        Side::Host(to) => to_host(sources, &to, args),
    }
}

/// Writes a file to standard output.
fn to_stdout(sources: &[Side], args: &Cp) -> Result<()> {
    match sources {
        [Side::Image(spec, path)] if !args.archive && !args.recursive => {
            let image = Image::open(spec)?;
            let mut out = Stdout::open()?;
            crate::cat::path(&image, path, &mut Vec::new(), &mut out)?;
            out.finish()
        }
        [_] => {
            let why = "copies one file; extract IMAGE - makes an archive of a tree";
            Err(Failure::usage("-", why))
        }
        _ => Err(Failure::usage("-", "takes one source; use cat for several")),
    }
}

fn to_host(sources: Vec<Side>, to: &Path, args: &Cp) -> Result<()> {
    let to = Destination {
        path: to,
        is_dir: to.is_dir() && !args.no_target_directory,
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
        let mut expanded = Vec::new();
        for path in paths {
            expanded.extend(image.expand(path)?);
        }
        if expanded.len() > 1 && !to.is_dir {
            return Err(not_a_directory(to.path));
        }
        out(&image, &expanded, to, args, &problems);
    }
    problems.result()
}

fn one_side_only() -> Failure {
    let why = "the sources or the destination must be in an image, as in disk.img:/etc/fstab";
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

impl Destination<'_> {
    /// The path of the copy of `from`.
    fn of(&self, from: &Path) -> PathBuf {
        match from.file_name() {
            Some(name) if self.is_dir => self.path.join(name),
            _ => self.path.to_owned(),
        }
    }
}

/// Copies `paths` out of `image` and reports problems.
fn out(image: &Image, paths: &[PathBuf], to: Destination<'_>, args: &Cp, problems: &Problems) {
    let mut objects = Vec::new();
    for path in paths {
        if args.no_clobber && to.of(path).symlink_metadata().is_ok() {
            continue;
        }
        let copied = match args.archive || args.recursive {
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
        let why = format!("is a {}", facts.kind.name());
        return Err(image.failure(path, why).advise("use -a to copy it"));
    }
    let target = to.of(from);
    let file = image.open_copy(&target, facts.permissions & 0o777)?;
    crate::cat::copy(image, path, &stat, file).map(drop)
}
