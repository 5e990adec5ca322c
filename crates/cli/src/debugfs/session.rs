//! **Purpose.** The image on which requests work, and the paths that they name.
//!
//! **Model.** A file is named by its path from the working directory, or by its number as `<12>`.
//! The last part of a path is not followed if it is a symbolic link.

use fourscore::{Follow, Fs, Stat};
use fourscore_ondisk::InodeNr;

use crate::failure::{Failure, Result};
use crate::image::{Image, ImageSpec};
use crate::text::printable;

/// The state between requests.
pub(super) struct Session {
    pub(super) image: Image,
    /// The name that the user gave to the image, for messages.
    name: String,
    is_writable: bool,
    /// An absolute path without a slash at its end; empty for the root.
    directory: Vec<u8>,
}

impl Session {
    pub(super) fn open(spec: &ImageSpec, to_write: bool) -> Result<Self> {
        let image = match to_write {
            true => Image::open_to_write(spec)?,
            false => Image::open(spec)?,
        };
        Ok(Self {
            image,
            name: spec.path.display().to_string(),
            is_writable: to_write,
            directory: Vec::new(),
        })
    }

    /// Makes the changes durable.
    pub(super) fn close(self) -> Result<()> {
        let Self {
            image,
            name,
            is_writable,
            ..
        } = self;
        match is_writable {
            true => image.fs.unmount().map_err(|why| Failure::new(name, why)),
            false => Ok(()),
        }
    }

    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub(super) fn fs(&self) -> &Fs {
        &self.image.fs
    }

    /// The absolute path that `name` stands for.
    pub(super) fn path(&self, name: &[u8]) -> Vec<u8> {
        match name {
            [b'/', ..] => name.to_vec(),
            _ => [&self.directory, &b"/"[..], name].concat(),
        }
    }

    /// The inode that `name` stands for: a path, or a number in angle brackets.
    pub(super) fn inode(&self, name: &[u8]) -> Result<InodeNr> {
        match number(name) {
            Some(nr) => Ok(nr),
            None => {
                let found = self.fs().resolve(&self.path(name), Follow::No);
                found.map_err(|why| Failure::at(name, why))
            }
        }
    }

    pub(super) fn stat(&self, name: &[u8]) -> Result<Stat> {
        let nr = self.inode(name)?;
        self.fs().stat(nr).map_err(|why| Failure::at(name, why))
    }

    /// The working directory.
    pub(super) fn directory(&self) -> &[u8] {
        match &self.directory[..] {
            [] => b"/",
            directory => directory,
        }
    }

    /// Changes the working directory.
    pub(super) fn enter(&mut self, name: &[u8]) -> Result<()> {
        let path = self.path(name);
        let found = self.fs().paths().read_dir(&path);
        found.map_err(|why| Failure::at(name, why))?;
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in path.split(|&byte| byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        self.directory = parts
            .iter()
            .flat_map(|part| [b"/", *part].concat())
            .collect();
        Ok(())
    }
}

/// A number in angle brackets.
fn number(name: &[u8]) -> Option<InodeNr> {
    let digits = name.strip_prefix(b"<")?.strip_suffix(b">")?;
    std::str::from_utf8(digits).ok()?.parse().ok().map(InodeNr)
}

/// The options at the beginning of `arguments`, which are single letters of `known`, and the rest.
pub(super) fn options<'a>(
    arguments: &'a [Vec<u8>],
    known: &[u8],
) -> Result<(Vec<u8>, &'a [Vec<u8>])> {
    let is_option = |word: &Vec<u8>| matches!(&word[..], [b'-', _, ..]);
    let count = arguments.iter().take_while(|word| is_option(word)).count();
    let (options, rest) = arguments.split_at(count);
    let letters: Vec<u8> = options.iter().flat_map(|word| word[1..].to_vec()).collect();
    match letters.iter().find(|letter| !known.contains(letter)) {
        Some(letter) => {
            let why = "is no option of this request";
            Err(Failure::new(format!("-{}", printable(&[*letter])), why))
        }
        None => Ok((letters, rest)),
    }
}

/// The only argument.
pub(super) fn one(arguments: &[Vec<u8>]) -> Result<&[u8]> {
    match arguments {
        [one] => Ok(one),
        _ => Err(Failure::new("request", "takes one argument")),
    }
}

/// The two arguments.
pub(super) fn two(arguments: &[Vec<u8>]) -> Result<(&[u8], &[u8])> {
    match arguments {
        [one, other] => Ok((one, other)),
        _ => Err(Failure::new("request", "takes two arguments")),
    }
}
