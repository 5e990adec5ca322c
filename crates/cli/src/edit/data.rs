//! **Purpose.** The verbs of `fourscore edit` that change the data and the times of files.
//!
//! **Model.** Data is copied in pieces, so that a file of any length takes the memory of one.
//!
//! **References.** truncate(1), touch(1).

use std::io::{ErrorKind, Read};

use fourscore::{AttributeChange, Error, File, FileOptions, FileType, Follow, Fs, Timestamp};

use super::verbs::{InImage, Touch, Truncate, Write};
use super::{Failing, Input, at_each, octal, wrong};
use crate::failure::{Failure, Result};
use crate::image::parse_size;
use crate::time;

/// The size of the copy buffer.
const COPY_BYTES: usize = 1 << 20;

pub(super) fn write(fs: &Fs, args: &Write, input: Input) -> Result<()> {
    let InImage(path) = &args.path;
    let mut source = input.open()?;
    let mut options = FileOptions::new().write().create();
    if !args.append {
        options = options.truncate();
    }
    let mode = args.mode.as_deref().map(octal).transpose()?;
    let mode = match mode {
        // The mode is not that of a file that exists, and the umask does not apply to it.
        Some(mode) if !fs.paths().exists(path).map_err(wrong(path))? => Some(mode),
        _ => None,
    };
    let file = fs.paths().open_with(path, options);
    let file = file.map_err(wrong(path))?;
    let at = match args.append {
        true => file.metadata().map_err(wrong(path))?.size_bytes,
        false => 0,
    };
    copy_from(&mut source.reader, &source.name, &file, at, path)?;
    file.close().map_err(wrong(path))?;
    match mode {
        Some(mode) => fs.paths().set_permissions(path, mode).map_err(wrong(path)),
        None => Ok(()),
    }
}

/// Copies what `reader`, called `name`, has to `file` at `path`, from byte `at` on.
pub(crate) fn copy_from(
    reader: &mut dyn Read,
    name: &str,
    file: &File<&Fs>,
    mut at: u64,
    path: &[u8],
) -> Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::new(name, error)),
        };
        file.write_all_at(&buffer[..count], at)
            .map_err(wrong(path))?;
        at += count as u64;
    }
}

pub(super) fn truncate(fs: &Fs, args: &Truncate, failing: Failing<'_>) -> Result<()> {
    let (sign, digits) = match args.size.as_bytes().first() {
        Some(sign @ (b'+' | b'-')) => (Some(*sign), &args.size[1..]),
        _ => (None, args.size.as_str()),
    };
    let number = parse_size(digits).filter(|_| !digits.is_empty());
    let number = number.ok_or_else(|| {
        let why = "is no size; give bytes with K, M, G or T, and + or - to change the size";
        Failure::usage(format!("-s '{}'", args.size), why)
    })?;
    at_each(fs, &args.paths, failing, |path| {
        if !existing_file(fs, path, args.no_create)? {
            return Ok(());
        }
        let file = fs.paths().open_with(path, FileOptions::new().write());
        let resized = file.and_then(|file| {
            let size = file.metadata()?.size_bytes;
            file.set_len(match sign {
                Some(b'+') => size.checked_add(number).ok_or(Error::FileTooLarge)?,
                Some(_) => size.saturating_sub(number),
                None => number,
            })?;
            file.close()
        });
        resized.map_err(wrong(path))
    })
}

pub(super) fn touch(fs: &Fs, args: &Touch, failing: Failing<'_>) -> Result<()> {
    let time = match &args.date {
        Some(text) => parse_time(text)?,
        None => time::now(),
    };
    let both = args.access == args.modification;
    let change = AttributeChange {
        atime: (both || args.access).then_some(time),
        mtime: (both || args.modification).then_some(time),
        ..AttributeChange::default()
    };
    let follow = match args.no_dereference {
        true => Follow::No,
        false => Follow::Yes,
    };
    at_each(fs, &args.paths, failing, |path| {
        let no_create = args.no_create || args.no_dereference;
        let exists = existing_file(fs, path, no_create)?;
        // What -h does not make is missing.
        if exists || !args.no_create {
            let set = fs
                .resolve(path, follow)
                .and_then(|inode| fs.set_attributes(inode, &change));
            set.map_err(wrong(path))?;
        }
        Ok(())
    })
}

/// Makes an empty file if there is nothing at `path`. Returns whether there is something then.
fn existing_file(fs: &Fs, path: &[u8], no_create: bool) -> Result<bool> {
    match fs.paths().symlink_metadata(path) {
        Ok(stat) if stat.file_type != FileType::Symlink => return Ok(true),
        Ok(_) if no_create => return Ok(true),
        Ok(_) | Err(Error::NotFound) => {}
        Err(why) => return Err(wrong(path)(why)),
    }
    if no_create {
        return Ok(false);
    }
    match fs.paths().exists(path) {
        Ok(true) => Ok(true),
        Ok(false) => {
            let options = FileOptions::new().write().create();
            let made = fs.paths().open_with(path, options);
            made.and_then(fourscore::File::close).map_err(wrong(path))?;
            Ok(true)
        }
        Err(why) => Err(wrong(path)(why)),
    }
}

fn parse_time(text: &str) -> Result<Timestamp> {
    time::parse(text).ok_or_else(|| {
        let why = "is no time; give @SECONDS, 2026-01-31, or 2026-01-31T12:00:00Z";
        Failure::usage(format!("-d '{text}'"), why)
    })
}
