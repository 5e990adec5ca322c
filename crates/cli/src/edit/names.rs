//! **Purpose.** The verbs of `fourscore edit` that make, move and remove names.
//!
//! **References.** rm(1), mkdir(1), mv(1), ln(1), mknod(1).

use fourscore::{DeviceNr, Error, FileType, Follow, Fs, InodeFlags, InodeNr, NewAttributes};

use super::mode::ModeChange;
use super::verbs::{InImage, Ln, Mkdir, Mknod, Mv, Paths, Rm};
use super::{Failing, at_each, expanded, octal, wrong};
use crate::failure::{Failure, Result};

pub(super) fn rm(fs: &Fs, args: &Rm, failing: Failing<'_>) -> Result<()> {
    at_each(fs, &args.paths, failing, |path| {
        let removed = match args.recursive {
            true => fs.paths().remove_dir_all(path).or_else(|why| match why {
                // Anything but a directory is removed as without the option.
                Error::NotADirectory => fs.paths().remove_file(path),
                why => Err(why),
            }),
            false => fs.paths().remove_file(path),
        };
        match removed {
            Err(Error::NotFound) if args.force => Ok(()),
            Err(Error::IsADirectory) if !args.recursive => {
                Err(wrong(path)(Error::IsADirectory).advise("use -r to remove it"))
            }
            removed => removed.map_err(wrong(path)),
        }
    })
}

pub(super) fn rmdir(fs: &Fs, args: &Paths, failing: Failing<'_>) -> Result<()> {
    at_each(fs, &args.paths, failing, |path| {
        fs.paths().remove_dir(path).map_err(wrong(path))
    })
}

pub(super) fn mkdir(fs: &Fs, args: &Mkdir, failing: Failing<'_>) -> Result<()> {
    let mode = args.mode.as_deref().map(octal).transpose()?;
    let mode = args.mode.as_deref().filter(|_| mode.is_some());
    let change = mode.and_then(ModeChange::parse);
    let make = |path: &[u8]| {
        let exists = args.parents && fs.paths().exists(path)?;
        match args.parents {
            true => fs.paths().create_dir_all(path)?,
            false => fs.paths().create_dir(path)?,
        }
        let Some(change) = change.as_ref().filter(|_| !exists) else {
            return Ok(());
        };
        // As chmod, it keeps a set-group-ID bit that the directory has inherited.
        let stat = fs.paths().metadata(path)?;
        let permissions = change.applied(stat.mode.permissions(), true);
        fs.paths().set_permissions(path, permissions)
    };
    for InImage(path) in &args.paths {
        let made = make(path).map_err(wrong(path));
        made.or_else(|failure| failing.meet(failure))?;
    }
    Ok(())
}

pub(super) fn mv(fs: &Fs, args: &Mv, failing: Failing<'_>) -> Result<()> {
    let Some((InImage(to), sources)) = args.paths.split_last() else {
        return Ok(());
    };
    let into = !args.no_target_directory && is_directory(fs, to)?;
    let sources = expanded(fs, sources, failing)?;
    if sources.len() > 1 && !into {
        return Err(Failure::at(
            to,
            "is not a directory, which several sources need",
        ));
    }
    for from in &sources {
        let moved = move_one(fs, from, to, into);
        moved.or_else(|failure| failing.meet(failure))?;
    }
    Ok(())
}

/// Moves `from` to `to`, or into that directory.
fn move_one(fs: &Fs, from: &[u8], to: &[u8], into: bool) -> Result<()> {
    let target = match into {
        true => below(to, from)?,
        false => to.to_vec(),
    };
    // rename(2) would leave both names of one file, and succeed.
    if are_links(fs, from, &target)? {
        return Err(same_file(from, &target));
    }
    fs.paths().rename(from, &target).map_err(|why| {
        // What is at fault is the source if that is missing or lies above the target.
        let of_source =
            fs.paths().symlink_metadata(from).is_err() || matches!(why, Error::InvalidArgument(_));
        let path = if of_source { from } else { &target };
        wrong(path)(why)
    })
}

/// A name that exists: its directory, itself, and the inode.
struct Entry<'p> {
    dir: InodeNr,
    name: &'p [u8],
    inode: InodeNr,
}

/// The name at `path`, unless it is missing, or has to be a directory.
fn entry<'p>(fs: &Fs, path: &'p [u8]) -> Option<Entry<'p>> {
    let (parent, name) = split(path);
    if matches!(name, b"" | b"." | b"..") || path.ends_with(b"/") {
        return None;
    }
    let dir = fs.resolve(parent, Follow::Yes).ok()?;
    let inode = fs.lookup(dir, name).ok()?;
    Some(Entry { dir, name, inode })
}

/// Whether two paths are different names of one file.
///
/// # Errors
/// If they are the same name.
fn are_links(fs: &Fs, one: &[u8], other: &[u8]) -> Result<bool> {
    let (Some(first), Some(second)) = (entry(fs, one), entry(fs, other)) else {
        return Ok(false);
    };
    if first.inode != second.inode {
        return Ok(false);
    }
    if first.dir != second.dir {
        return Ok(true);
    }
    if first.name == second.name {
        return Err(same_file(one, other));
    }
    // Names that differ in case only may be one.
    let stat = fs.stat(first.dir).map_err(wrong(one))?;
    Ok(!stat.flags.contains(InodeFlags::CASEFOLD_FL))
}

fn same_file(one: &[u8], other: &[u8]) -> Failure {
    let other = crate::text::printable(other);
    Failure::at(one, format_args!("and {other} are the same file"))
}

/// Replaces what is at `place`, which exists, by the link that `make` makes: under another name,
/// which is moved there then. If anything fails, what was there stays.
fn replace_by_link(
    fs: &Fs,
    args: &Ln,
    place: &[u8],
    make: impl Fn(&[u8]) -> fourscore::Result<()>,
) -> Result<()> {
    let InImage(target) = &args.target;
    let follow = match args.symbolic {
        true => Follow::Yes,
        false => Follow::No,
    };
    if let (Some(found), Ok(inode)) = (entry(fs, place), fs.resolve(target, follow))
        && found.inode == inode
    {
        let links = fs.stat(inode).map_err(wrong(target))?.links;
        if links == 1 || !are_links(fs, target, place)? {
            return Err(same_file(target, place));
        }
        if !args.symbolic {
            return Ok(());
        }
    }
    let (parent, _) = split(place);
    let mut attempt = 0_u32;
    let other = loop {
        let other = [parent, format!(".ln-{attempt}").as_bytes()].concat();
        match make(&other) {
            Err(Error::Exists) => attempt += 1,
            made => break made.map(|()| other),
        }
    };
    let other = other.map_err(wrong(place))?;
    fs.paths().rename(&other, place).map_err(|why| {
        // The first error is the one that counts.
        let _ = fs.paths().remove_file(&other);
        wrong(place)(why)
    })
}

pub(super) fn ln(fs: &Fs, args: &Ln) -> Result<()> {
    let (InImage(target), InImage(link)) = (&args.target, &args.link);
    let place = match !args.no_target_directory && is_directory(fs, link)? {
        true => below(link, target)?,
        false => link.clone(),
    };
    let make = |place: &[u8]| match args.symbolic {
        true => fs.paths().symlink(target, place),
        false => fs.paths().hard_link(target, place),
    };
    let made = make(&place);
    if args.force && matches!(made, Err(Error::Exists)) {
        return replace_by_link(fs, args, &place, make);
    }
    made.map_err(|why| {
        let missing = || fs.paths().symlink_metadata(target).is_err();
        let of_target = !args.symbolic
            && (matches!(why, Error::NotPermitted | Error::TooManyLinks) || missing());
        let path = if of_target { target } else { &place };
        match why {
            Error::Exists => wrong(path)(why).advise("use -f to replace it"),
            why => wrong(path)(why),
        }
    })
}

pub(super) fn mknod(fs: &Fs, args: &Mknod) -> Result<()> {
    let InImage(path) = &args.path;
    let kind = match args.kind.as_str() {
        "b" => FileType::BlockDevice,
        "c" | "u" => FileType::CharDevice,
        "p" => FileType::Fifo,
        _ => FileType::Socket,
    };
    let is_device = matches!(kind, FileType::BlockDevice | FileType::CharDevice);
    let device = match (args.major, args.minor) {
        (Some(major), Some(minor)) if is_device => DeviceNr { major, minor },
        (None, None) if !is_device => DeviceNr { major: 0, minor: 0 },
        _ if is_device => {
            return Err(Failure::usage("mknod", "a device needs MAJOR and MINOR"));
        }
        _ => {
            return Err(Failure::usage(
                "mknod",
                "a fifo and a socket have no numbers",
            ));
        }
    };
    let permissions = match &args.mode {
        Some(mode) => octal(mode)?,
        None => 0o644,
    };
    let new = NewAttributes::default().permissions(permissions);
    let (parent, name) = split(path);
    let made = fs
        .resolve(parent, Follow::Yes)
        .and_then(|dir| fs.mknod(dir, name, kind, device, &new));
    made.map(drop).map_err(wrong(path))
}

/// Whether there is a directory at `path`, or a symbolic link to one.
fn is_directory(fs: &Fs, path: &[u8]) -> Result<bool> {
    match fs.paths().metadata(path) {
        Ok(stat) => Ok(stat.file_type == FileType::Directory),
        Err(Error::NotFound) => Ok(false),
        Err(why) => Err(wrong(path)(why)),
    }
}

/// The path of something named as the last component of `from` in the directory `dir`.
fn below(dir: &[u8], from: &[u8]) -> Result<Vec<u8>> {
    match split(from).1 {
        b"" | b"." | b".." => Err(Failure::at(from, "has no name for the directory")),
        name => Ok([dir, b"/", name].concat()),
    }
}

/// The directory and the name of a path; slashes at its end do not count.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/');
    let path = &path[..end.map_or(0, |end| end + 1)];
    let slash = path.iter().rposition(|&byte| byte == b'/');
    path.split_at(slash.map_or(0, |slash| slash + 1))
}
