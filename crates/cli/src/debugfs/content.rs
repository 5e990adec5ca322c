//! **Purpose.** The requests of `debugfs` that copy data.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::Path;

use fourscore::{FileOptions, FileType, InodeNr, Stat};

use super::session::{Session, options, two};
use crate::edit::data;
use crate::failure::{Failure, Result};
use crate::output::Stdout;
use crate::text::printable;
use crate::{cat, extract};

fn host(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn wrong_host(path: &[u8]) -> impl Fn(std::io::Error) -> Failure {
    move |why| Failure::at(path, why)
}

/// `cat FILE`
pub(super) fn cat(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    for name in arguments {
        let stat = session.stat(name)?;
        if stat.file_type != FileType::Regular {
            return Err(Failure::at(name, "is no regular file"));
        }
        cat::file(&session.image, name, &stat, &mut Vec::new(), out)?;
    }
    Ok(())
}

/// `dump [-p] FILE HOST_FILE`
pub(super) fn dump(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let (letters, rest) = options(arguments, b"p")?;
    let (name, to) = two(rest)?;
    let stat = session.stat(name)?;
    if stat.file_type != FileType::Regular {
        return Err(Failure::at(name, "is no regular file"));
    }
    // It may be standard output itself, under the name of a device.
    out.flush()?;
    let file = session.image.open_copy(host(to), 0o666)?;
    let file = cat::copy(&session.image, name, &stat, file)?;
    if letters.contains(&b'p') {
        keep_attributes(&file, &stat).map_err(wrong_host(to))?;
    }
    Ok(())
}

/// Gives a copy owner, group and permissions of its original. The owner comes first: the host
/// clears set-ID bits when it changes, and they must not be another user's.
fn keep_attributes(copy: &File, original: &Stat) -> std::io::Result<()> {
    let owned = fchown(copy, Some(original.uid), Some(original.gid));
    let kept = match owned {
        Ok(()) => 0o7777,
        Err(_) => 0o1777,
    };
    let mode = u32::from(original.mode.permissions()) & kept;
    copy.set_permissions(Permissions::from_mode(mode))?;
    owned
}

/// `rdump FILE... HOST_DIR`
pub(super) fn rdump(session: &mut Session, arguments: &[Vec<u8>], _: &mut Stdout) -> Result<()> {
    let Some((to, names)) = arguments.split_last() else {
        return Ok(());
    };
    let mut objects = Vec::with_capacity(names.len());
    for name in names {
        let nr = session.inode(name)?;
        let path = session.path(name);
        let last = path
            .rsplit(|&byte| byte == b'/')
            .find(|part| !part.is_empty());
        match last {
            Some(last) => objects.push((nr, last.to_vec())),
            // The root has no name: everything in it is copied.
            None => {
                let entries = session.fs().read_dir(nr);
                let entries = entries.map_err(|why| Failure::at(name, why))?;
                let named = entries.into_iter().map(|entry| (entry.inode, entry.name));
                objects.extend(named.filter(|(_, name)| name != b"." && name != b".."));
            }
        }
    }
    if !host(to).is_dir() {
        return Err(Failure::at(to, "is no directory of this host"));
    }
    extract::objects(&session.image, &objects, host(to), crate::threads(None))
}

/// `write HOST_FILE NAME`
pub(super) fn write(session: &mut Session, arguments: &[Vec<u8>]) -> Result<InodeNr> {
    let (from, name) = two(arguments)?;
    let metadata = fs::metadata(host(from)).map_err(wrong_host(from))?;
    let mut source = File::open(host(from)).map_err(wrong_host(from))?;
    let path = session.path(name);
    let wrong = |why| Failure::at(name, why);
    let options = FileOptions::new().write().create_new();
    let file = session
        .fs()
        .paths()
        .open_with(&path, options)
        .map_err(wrong)?;
    data::copy_from(&mut source, &printable(from), &file, 0, name)?;
    let nr = file.inode();
    file.close().map_err(wrong)?;
    let permissions = u16::try_from(metadata.permissions().mode() & 0o7777).unwrap_or(0o644);
    let set = session.fs().paths().set_permissions(&path, permissions);
    set.map(|()| nr).map_err(wrong)
}
