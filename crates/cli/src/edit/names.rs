//! **Purpose.** The verbs of `fourscore edit` that make, move and remove names.
//!
//! **References.** rm(1), mkdir(1), mv(1), ln(1), mknod(1).

use fourscore::{DeviceNr, Error, FileType, Follow, Fs, NewAttributes};

use super::verbs::{InImage, Ln, Mkdir, Mknod, Mv, Paths, Rm};
use super::{expanded, octal, wrong};
use crate::failure::{Failure, Result};

pub(super) fn rm(fs: &Fs, args: &Rm) -> Result<()> {
    for path in &expanded(fs, &args.paths)? {
        let removed = match args.recursive {
            true => fs.paths().remove_dir_all(path).or_else(|why| match why {
                // Anything but a directory is removed as without the option.
                Error::NotADirectory => fs.paths().remove_file(path),
                why => Err(why),
            }),
            false => fs.paths().remove_file(path),
        };
        match removed {
            Err(Error::NotFound) if args.force => {}
            Err(Error::IsADirectory) if !args.recursive => {
                return Err(wrong(path)(Error::IsADirectory).advise("use -r to remove it"));
            }
            removed => removed.map_err(wrong(path))?,
        }
    }
    Ok(())
}

pub(super) fn rmdir(fs: &Fs, args: &Paths) -> Result<()> {
    for path in &expanded(fs, &args.paths)? {
        fs.paths().remove_dir(path).map_err(wrong(path))?;
    }
    Ok(())
}

pub(super) fn mkdir(fs: &Fs, args: &Mkdir) -> Result<()> {
    let mode = args.mode.as_deref().map(octal).transpose()?;
    for InImage(path) in &args.paths {
        let exists = args.parents && fs.paths().exists(path).map_err(wrong(path))?;
        let made = match args.parents {
            true => fs.paths().create_dir_all(path),
            false => fs.paths().create_dir(path),
        };
        made.map_err(wrong(path))?;
        if let Some(mode) = mode.filter(|_| !exists) {
            let set = fs.paths().set_permissions(path, mode);
            set.map_err(wrong(path))?;
        }
    }
    Ok(())
}

pub(super) fn mv(fs: &Fs, args: &Mv) -> Result<()> {
    let Some((InImage(to), sources)) = args.paths.split_last() else {
        return Ok(());
    };
    let into = !args.no_target_directory && is_directory(fs, to)?;
    let sources = expanded(fs, sources)?;
    if sources.len() > 1 && !into {
        return Err(Failure::at(
            to,
            "is not a directory, which several sources need",
        ));
    }
    for from in &sources {
        let target = match into {
            true => below(to, from)?,
            false => to.clone(),
        };
        fs.paths().rename(from, &target).map_err(|why| {
            // What is at fault is the source if that is missing or lies above the target.
            let of_source = fs.paths().symlink_metadata(from).is_err()
                || matches!(why, Error::InvalidArgument(_));
            let path = if of_source { from } else { &target };
            wrong(path)(why)
        })?;
    }
    Ok(())
}

pub(super) fn ln(fs: &Fs, args: &Ln) -> Result<()> {
    let (InImage(target), InImage(link)) = (&args.target, &args.link);
    let place = match !args.no_target_directory && is_directory(fs, link)? {
        true => below(link, target)?,
        false => link.clone(),
    };
    let make = || match args.symbolic {
        true => fs.paths().symlink(target, &place),
        false => fs.paths().hard_link(target, &place),
    };
    let mut made = make();
    if args.force && matches!(made, Err(Error::Exists)) {
        fs.paths().remove_file(&place).map_err(wrong(&place))?;
        made = make();
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
