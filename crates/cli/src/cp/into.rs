//! **Purpose.** Copies sources into an image: decides at which path each source goes.
//!
//! **Not here.** Copying an object to its path ([`super::copier`]).
//!
//! **Model.** As in GNU cp: into the destination if that is a directory, also through a symbolic
//! link, and else to that path. A source that ends with `.` or `..` is merged into the destination.
//! At the end the file system is unmounted, so that everything is durable.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fourscore::{Error, FileType, Follow};
use fourscore_build::Location;

use super::copier::{Copier, From, Manner, To};
use super::original::{InImage, Original};
use super::{Cp, Side};
use crate::edit::ids;
use crate::failure::{Failure, Result};
use crate::image::{Image, ImageSpec};
use crate::walk::host::HostTree;
use crate::walk::image::ImageTree;
use crate::walk::source::Entry;

/// Copies `sources` to the path `to` of an image.
pub(super) fn copy(spec: &ImageSpec, sources: &[Side], to: &Path, args: &Cp) -> Result<()> {
    let image = Image::open_to_write(spec)?;
    let copied = Job::new(&image, spec, to, args).and_then(|job| job.copy(sources));
    let name = spec.path.display().to_string();
    let unmounted = image.fs.unmount().map_err(|why| Failure::new(name, why));
    copied.and(unmounted)
}

struct Job<'i> {
    image: &'i Image,
    location: Location,
    to: &'i [u8],
    /// Whether `to` is a directory, or a symbolic link to one.
    is_directory: bool,
    /// Whether sources go into it.
    into: bool,
    manner: Manner,
}

impl<'i> Job<'i> {
    fn new(image: &'i Image, spec: &ImageSpec, to: &'i Path, args: &Cp) -> Result<Self> {
        let to = to.as_os_str().as_bytes();
        let (uid, gid) = match &args.owner {
            Some(owner) => ids::owner(&*image.fs, owner)?,
            None => (None, None),
        };
        let is_directory = match image.fs.resolve(to, Follow::Yes) {
            Ok(inode) => {
                let stat = image.fs.stat(inode);
                stat.map_err(|why| image.failure(to, why))?.file_type == FileType::Directory
            }
            Err(Error::NotFound) => false,
            Err(why) => return Err(image.failure(to, why)),
        };
        Ok(Self {
            image,
            location: location(spec)?,
            to,
            is_directory,
            into: is_directory && !args.no_target_directory,
            manner: Manner {
                recursive: args.recursive || args.archive,
                archive: args.archive,
                no_clobber: args.no_clobber,
                uid,
                gid,
            },
        })
    }

    fn copy(&self, sources: &[Side]) -> Result<()> {
        if !self.into && sources.len() > 1 {
            let place = self.image.shown(self.to);
            let why = "is not a directory, which several sources need";
            return Err(Failure::usage(place, why));
        }
        let mut copier = Copier::new(self.image, 0, self.manner);
        // Open images, each with its number.
        let mut images = Vec::new();
        for side in sources {
            let copied = match side {
                Side::Stream => self.stream(&mut copier),
                Side::Host(path) => self.host(path, &mut copier),
                Side::Image(spec, path) => self.image_object(spec, path, &mut images, &mut copier),
            };
            if let Err(failure) = copied {
                copier.problems.report(&failure);
            }
        }
        copier.problems.result()
    }

    /// Copies `path` of an image, which is opened if it is none of `images`. The one that is copied
    /// into is recognised by where it is stored: the source may be another name of its file, or a
    /// loop device or a partition.
    fn image_object(
        &self,
        spec: &ImageSpec,
        path: &Path,
        images: &mut Vec<(Location, Image)>,
        copier: &mut Copier<'_>,
    ) -> Result<()> {
        let at = location(spec)?;
        if at.begins_as(&self.location) {
            return self.inside(self.image, 0, path, copier);
        }
        let known = images.iter().position(|(known, _)| known.begins_as(&at));
        let nr = match known {
            Some(nr) => nr,
            None => {
                images.push((at, Image::open(spec)?));
                images.len() - 1
            }
        };
        let (_, image) = &images[nr];
        self.inside(image, nr + 1, path, copier)
    }

    /// The place of the copy of a source.
    fn place(&self, source: &[u8]) -> Result<To> {
        let name = last_component(source);
        let is_merged = matches!(name, b"" | b"." | b"..");
        let has_slash = self.to.ends_with(b"/");
        let path = match self.into && !is_merged {
            true => [self.to, b"/", name].concat(),
            // A symbolic link to the directory is followed.
            false if self.is_directory && (self.into || has_slash) => [self.to, b"/."].concat(),
            false => self.to.to_vec(),
        };
        let end = path.iter().rposition(|&byte| byte != b'/');
        let path = path[..end.map_or(0, |end| end + 1)].to_vec();
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let parent = &path[..slash.unwrap_or(0)];
        let dir = self.image.fs.resolve(parent, Follow::Yes);
        let dir = dir.map_err(|why| self.image.failure(&path, why))?;
        let has_slash = has_slash && !self.is_directory;
        Ok(To {
            dir,
            path,
            has_slash,
        })
    }

    fn stream(&self, copier: &mut Copier<'_>) -> Result<()> {
        if self.into {
            let why = "is a directory, and standard input has no name for a file in it";
            return Err(self.image.failure(self.to, why));
        }
        copier.stream(std::io::stdin().lock(), &self.place(self.to)?)
    }

    fn host(&self, path: &Path, copier: &mut Copier<'_>) -> Result<()> {
        let place = self.place(path.as_os_str().as_bytes())?;
        let bytes = path.as_os_str().as_bytes();
        let is_plain = !matches!(last_component(bytes), b"" | b"." | b"..");
        // Neither option follows a symbolic link, unless a slash is behind it.
        let is_itself = self.manner.recursive && is_plain && !bytes.ends_with(b"/");
        match path.file_name().filter(|_| is_itself) {
            Some(name) => {
                let parent = path
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty());
                let tree = HostTree::open(parent.unwrap_or(Path::new(".")))?;
                let entry = Entry::Named(name.as_bytes(), 0);
                object(copier, &tree, entry, path, &place)
            }
            None => {
                let tree = HostTree::open(path)?;
                object(copier, &tree, Entry::Itself, path, &place)
            }
        }
    }

    fn inside(
        &self,
        image: &Image,
        number: usize,
        path: &Path,
        copier: &mut Copier<'_>,
    ) -> Result<()> {
        for path in image.expand(path)? {
            self.one_inside(image, number, &path, copier)?;
        }
        Ok(())
    }

    fn one_inside(
        &self,
        image: &Image,
        number: usize,
        path: &Path,
        copier: &mut Copier<'_>,
    ) -> Result<()> {
        let bytes = path.as_os_str().as_bytes();
        let place = self.place(bytes)?;
        let follow = match self.manner.recursive && !bytes.ends_with(b"/") {
            true => Follow::No,
            false => Follow::Yes,
        };
        let inode = image.resolve(path, follow)?;
        let tree = InImage {
            tree: ImageTree::new(image, inode),
            image,
            number,
        };
        let shown = PathBuf::from(image.shown(bytes));
        object(copier, &tree, Entry::Itself, &shown, &place)
    }
}

fn object<S: Original>(
    copier: &mut Copier<'_>,
    tree: &S,
    entry: Entry<'_>,
    path: &Path,
    to: &To,
) -> Result<()> {
    let open = tree.root()?;
    let from = From {
        tree,
        open: &open,
        entry,
        path,
    };
    copier.object(&from, to);
    Ok(())
}

fn location(spec: &ImageSpec) -> Result<Location> {
    let found = spec.location();
    found.map_err(|why| Failure::new(spec.path.display().to_string(), why))
}

/// The last component of a path; slashes behind it do not count.
fn last_component(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/');
    let path = &path[..end.map_or(0, |end| end + 1)];
    let slash = path.iter().rposition(|&byte| byte == b'/');
    &path[slash.map_or(0, |slash| slash + 1)..]
}
