//! **Purpose.** The requests of `debugfs` that change names and attributes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fourscore::{
    AttributeChange, DeviceNr, Error, FileType, InodeNr, NewAttributes, SetXattr, Timestamp,
};

use super::session::{Session, one, options, two};
use crate::failure::{Failure, Result};
use crate::text::printable;
use crate::time;

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0);
const CAPABILITIES: &[u8] = b"security.capability";

fn wrong(name: &[u8]) -> impl Fn(Error) -> Failure {
    move |why| Failure::at(name, why)
}

/// `mkdir DIR`
pub(super) fn mkdir(session: &mut Session, arguments: &[Vec<u8>]) -> Result<()> {
    let name = one(arguments)?;
    let made = session.fs().paths().create_dir(session.path(name));
    made.map_err(wrong(name))
}

/// `rmdir DIR`
pub(super) fn rmdir(session: &mut Session, arguments: &[Vec<u8>]) -> Result<()> {
    let name = one(arguments)?;
    let removed = session.fs().paths().remove_dir(session.path(name));
    removed.map_err(wrong(name))
}

/// `rm FILE`
pub(super) fn rm(session: &mut Session, arguments: &[Vec<u8>]) -> Result<()> {
    let name = one(arguments)?;
    let removed = session.fs().paths().remove_file(session.path(name));
    removed.map_err(wrong(name))
}

/// `ln FILE NAME`
pub(super) fn ln(session: &mut Session, arguments: &[Vec<u8>]) -> Result<()> {
    let (file, name) = two(arguments)?;
    let nr = session.inode(file)?;
    let (dir, last) = parent(session, name)?;
    session.fs().link(nr, dir, &last).map_err(wrong(name))
}

/// `symlink NAME TARGET`
pub(super) fn symlink(session: &mut Session, arguments: &[Vec<u8>]) -> Result<()> {
    let (name, target) = two(arguments)?;
    let made = session.fs().paths().symlink(target, session.path(name));
    made.map_err(wrong(name))
}

/// `mknod NAME p|s`, `mknod NAME c|b MAJOR MINOR`
pub(super) fn mknod(session: &mut Session, arguments: &[Vec<u8>]) -> Result<InodeNr> {
    let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    let none = DeviceNr { major: 0, minor: 0 };
    let (name, kind, device) = match words[..] {
        [name, b"p"] => (name, FileType::Fifo, none),
        [name, b"s"] => (name, FileType::Socket, none),
        [name, kind @ (b"c" | b"b"), major, minor] => {
            let device = DeviceNr {
                major: unsigned(major)?,
                minor: unsigned(minor)?,
            };
            let kind = match kind {
                b"c" => FileType::CharDevice,
                _ => FileType::BlockDevice,
            };
            (name, kind, device)
        }
        _ => {
            let why = "takes p or s, or c or b with the numbers of a device";
            return Err(Failure::new("mknod", why));
        }
    };
    let (dir, last) = parent(session, name)?;
    // As in debugfs; `set_inode_field NAME mode` sets them.
    let new = OWNER.permissions(0);
    let made = session.fs().mknod(dir, &last, kind, device, &new);
    made.map_err(wrong(name))
}

/// The directory and the last part of a path.
fn parent(session: &Session, name: &[u8]) -> Result<(InodeNr, Vec<u8>)> {
    let path = session.path(name);
    let at = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    let (above, last) = (&path[..at], &path[(at + 1).min(path.len())..]);
    let above = if above.is_empty() { b"/" } else { above };
    Ok((session.inode(above)?, last.to_vec()))
}

/// `ea_set [-f HOST_FILE] FILE NAME [VALUE]`
pub(super) fn ea_set(session: &mut Session, arguments: &[Vec<u8>]) -> Result<()> {
    let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    let (file, name, value) = match words[..] {
        [b"-f", from, file, name] => {
            let value = fs::read(Path::new(OsStr::from_bytes(from)));
            (file, name, value.map_err(|why| Failure::at(from, why))?)
        }
        [file, name, value] => (file, name, value.to_vec()),
        _ => {
            let why = "takes FILE NAME VALUE, or -f HOST_FILE FILE NAME";
            return Err(Failure::new("ea_set", why));
        }
    };
    let nr = session.inode(file)?;
    let set = session.fs().set_xattr(nr, name, &value, SetXattr::Any);
    set.map_err(wrong(name))
}

/// `ea_rm FILE NAME...`
pub(super) fn ea_rm(session: &mut Session, arguments: &[Vec<u8>]) -> Result<()> {
    let (_, rest) = options(arguments, b"")?;
    let Some((file, names)) = rest.split_first() else {
        return Ok(());
    };
    let nr = session.inode(file)?;
    for name in names {
        let removed = session.fs().remove_xattr(nr, name);
        removed.map_err(wrong(name))?;
    }
    Ok(())
}

/// `set_inode_field FILE FIELD VALUE`
pub(super) fn set_inode_field(session: &mut Session, arguments: &[Vec<u8>]) -> Result<()> {
    let [file, field, value] = arguments else {
        return Err(Failure::new("set_inode_field", "takes FILE FIELD VALUE"));
    };
    let stat = session.stat(file)?;
    let mut change = AttributeChange::default();
    match &field[..] {
        b"mode" => change.permissions = Some(permissions(&stat, value)?),
        b"uid" => change.uid = Some(unsigned(value)?),
        b"gid" => change.gid = Some(unsigned(value)?),
        b"atime" => change.atime = Some(at(value)?),
        b"mtime" => change.mtime = Some(at(value)?),
        _ => {
            let why = "cannot be set; mode, uid, gid, atime and mtime can";
            return Err(Failure::at(field, why));
        }
    }
    let is_owner = change.uid.is_some() || change.gid.is_some();
    if is_owner {
        // As in debugfs, another owner takes nothing away.
        change.permissions = Some(stat.mode.permissions());
    }
    let capabilities = match is_owner {
        true => session.fs().xattr(stat.inode, CAPABILITIES).ok(),
        false => None,
    };
    let set = session.fs().set_attributes(stat.inode, &change);
    set.map_err(wrong(file))?;
    if let Some(value) = capabilities {
        let set = session
            .fs()
            .set_xattr(stat.inode, CAPABILITIES, &value, SetXattr::Any);
        set.map_err(wrong(file))?;
    }
    Ok(())
}

/// Permissions from a mode, whose type has to be that of the file.
fn permissions(stat: &fourscore::Stat, value: &[u8]) -> Result<u16> {
    let mode = unsigned(value)?;
    let is_same_type = mode & 0o170_000 == 0 || mode >> 12 == u32::from(stat.mode.0) >> 12;
    let permissions = u16::try_from(mode & 0o7777).ok();
    permissions.filter(|_| is_same_type).ok_or_else(|| {
        Failure::at(
            value,
            "has another type than the file, which cannot be changed",
        )
    })
}

/// A number: decimal, octal with 0, or hexadecimal with 0x.
pub(super) fn unsigned(text: &[u8]) -> Result<u32> {
    let digits = std::str::from_utf8(text).unwrap_or_default();
    let parsed = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => u32::from_str_radix(&digits[2..], 16),
        [b'0', _, ..] => u32::from_str_radix(&digits[1..], 8),
        _ => digits.parse(),
    };
    parsed.map_err(|_| Failure::at(text, "is no number"))
}

/// A time: `now`, `@SECONDS`, or `YYYYMMDD` with or without `HHMM` and `SS`.
fn at(text: &[u8]) -> Result<Timestamp> {
    let text = printable(text);
    let is_compact = matches!(text.len(), 8 | 12 | 14) && text.bytes().all(|b| b.is_ascii_digit());
    let spelled = match is_compact {
        true => {
            let part = |from: usize| text.get(from..from + 2).unwrap_or("00");
            let (year, month, day) = (&text[..4], part(4), part(6));
            let (hours, minutes, seconds) = (part(8), part(10), part(12));
            format!("{year}-{month}-{day}T{hours}:{minutes}:{seconds}")
        }
        false => text.clone(),
    };
    let parsed = time::parse(&spelled);
    parsed.ok_or_else(|| Failure::new(text, "is no time; give now, @SECONDS or YYYYMMDDHHMMSS"))
}
