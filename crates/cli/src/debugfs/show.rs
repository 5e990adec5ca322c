//! **Purpose.** The requests of `debugfs` that print what is in the file system.

use std::fmt::Write as _;

use fourscore::{FileType, Stat, Xattr, XattrPlace};
use fourscore_ondisk::extent::ExtentState;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::{InodeNr, LogicalBlock};

use super::change::unsigned;
use super::session::{Session, one, options, two};
use crate::facts::{Facts, Time};
use crate::failure::{Failure, Result};
use crate::output::Stdout;
use crate::text::printable;
use crate::time::{self, Zone};

/// The width of a terminal, at which short lists are broken.
const COLUMNS: usize = 80;

/// `ls [-l] [-p] [DIR]`
pub(super) fn ls(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let (letters, rest) = options(arguments, b"lpd")?;
    let name = rest.first().map_or(&b"."[..], Vec::as_slice);
    let dir = session.stat(name)?;
    if dir.file_type != FileType::Directory {
        return Err(Failure::at(name, "is no directory"));
    }
    let entries = session.fs().read_dir(dir.inode);
    let entries = entries.map_err(|why| Failure::at(name, why))?;
    let (mut text, mut column) = (Vec::new(), 0);
    for entry in &entries {
        let stat = |nr| session.fs().stat(nr);
        let stat = || stat(entry.inode).map_err(|why| Failure::at(&entry.name, why));
        if letters.contains(&b'p') {
            push_parsable(&mut text, &stat()?, &out.shown(&entry.name));
        } else if letters.contains(&b'l') {
            push_long(&mut text, &stat()?, &escaped(&entry.name));
        } else {
            push_short(&mut text, &mut column, entry.inode, &entry.name);
        }
    }
    text.push(b'\n');
    out.write(&text)
}

fn push_parsable(text: &mut Vec<u8>, stat: &Stat, name: &[u8]) {
    let (mode, uid, gid) = (stat.mode.0, stat.uid, stat.gid);
    let head = format!("/{}/{mode:06o}/{uid}/{gid}/", stat.inode);
    text.extend_from_slice(head.as_bytes());
    text.extend_from_slice(name);
    match stat.file_type {
        FileType::Directory => text.extend_from_slice(b"//\n"),
        _ => text.extend_from_slice(format!("/{}/\n", stat.size_bytes).as_bytes()),
    }
}

fn push_long(text: &mut Vec<u8>, stat: &Stat, name: &[u8]) {
    let head = format!(
        "{:>7} {:>7o} ({})  {:>5}  {:>5}  {:>6} {} ",
        stat.inode.0,
        stat.mode.0,
        type_in_directory(stat.file_type),
        stat.uid,
        stat.gid,
        stat.size_bytes,
        time::day_and_minutes(Facts::from(stat).mtime, Zone::Local),
    );
    text.extend_from_slice(head.as_bytes());
    text.extend_from_slice(name);
    text.push(b'\n');
}

/// A name as `ls` prints it, but for `-p`, which prints it as it is: a byte that is no visible
/// character of ASCII or a backslash has its two hexadecimal digits.
fn escaped(name: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'\\' => text.extend_from_slice(b"\\x5c"),
            b' '..=b'~' => text.push(byte),
            byte => text.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    text
}

/// The number of a type in a directory entry.
fn type_in_directory(kind: FileType) -> u8 {
    match kind {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::CharDevice => 3,
        FileType::BlockDevice => 4,
        FileType::Fifo => 5,
        FileType::Socket => 6,
        FileType::Symlink => 7,
    }
}

fn push_short(text: &mut Vec<u8>, column: &mut usize, nr: InodeNr, name: &[u8]) {
    let entry_bytes = (8 + name.len()).next_multiple_of(4);
    let head = format!(" {nr}  ({entry_bytes}) ");
    let name = escaped(name);
    let width = head.len() + name.len() + 3;
    if *column + width > COLUMNS {
        text.push(b'\n');
        *column = 0;
    }
    *column += width;
    text.extend_from_slice(head.as_bytes());
    text.extend_from_slice(&name);
    text.extend_from_slice(b"   ");
}

/// `stat FILE`
pub(super) fn stat(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let name = one(arguments)?;
    let stat = session.stat(name)?;
    let wrong = |why| Failure::at(name, why);
    let mut text = attributes(&stat, acl_block(session, &stat)?);
    let xattrs = session.fs().xattrs(stat.inode).map_err(wrong)?;
    push_xattrs(&mut text, &xattrs);
    if let Some(device) = stat.device {
        let (major, minor) = (device.major, device.minor);
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "Device major/minor number: {major:02}:{minor:02} (hex {major:02x}:{minor:02x})"
        );
    }
    let mut text = text.into_bytes();
    if stat.file_type == FileType::Symlink && stat.sectors == 0 {
        let target = session.fs().read_link(stat.inode).map_err(wrong)?;
        text.extend([&b"Fast link dest: \""[..], &out.shown(&target), b"\"\n"].concat());
    } else if stat.device.is_none() && !stat.flags.contains(InodeFlags::INLINE_DATA_FL) {
        text.extend(map(session, name, &stat)?.into_bytes());
    }
    out.write(&text)
}

/// The lines of `stat` that are the same for all types.
fn attributes(stat: &Stat, acl_block: u64) -> String {
    let facts = Facts::from(stat);
    let kind = match stat.file_type {
        FileType::Regular => "regular",
        FileType::CharDevice => "character special",
        FileType::BlockDevice => "block special",
        FileType::Fifo => "FIFO",
        FileType::Symlink => "symlink",
        FileType::Directory => "directory",
        FileType::Socket => "socket",
    };
    let mut text = format!(
        "Inode: {}   Type: {}    Mode:  0{:03o}   Flags: 0x{:x}\n\
         Generation: {}    Version: 0x{:08x}:{:08x}\n\
         User: {:5}   Group: {:5}   Project: {:5}   Size: {}\n\
         File ACL: {acl_block}\n\
         Links: {}   Blockcount: {}\n\
         Fragment:  Address: 0    Number: 0    Size: 0\n",
        stat.inode,
        kind,
        facts.permissions,
        stat.flags.bits(),
        stat.generation,
        stat.version >> 32,
        stat.version & u64::from(u32::MAX),
        stat.uid,
        stat.gid,
        stat.project_id,
        stat.size_bytes,
        stat.links,
        stat.sectors,
    );
    let times = [
        (" ctime", facts.ctime),
        (" atime", facts.atime),
        (" mtime", facts.mtime),
    ];
    for (name, at) in times
        .into_iter()
        .chain(facts.btime.map(|at| ("crtime", at)))
    {
        push_time(&mut text, name, at);
    }
    text
}

fn push_time(text: &mut String, name: &str, at: Time) {
    let seconds = at.seconds.rem_euclid(1 << 32);
    let epoch = ((at.seconds - (seconds << 32 >> 32)) >> 32) & 3;
    let extra = (i64::from(at.nanoseconds) << 2) | epoch;
    let shown = time::ctime(at, Zone::Local);
    // Writing into a String cannot fail.
    let _ = writeln!(text, "{name}: 0x{seconds:08x}:{extra:08x} -- {shown}");
}

/// The block of extended attributes, or 0.
fn acl_block(session: &Session, stat: &Stat) -> Result<u64> {
    let place = session.fs().xattr_place(stat.inode);
    let place = place.map_err(|why| session.image.problem(why))?;
    let block_size = session.fs().geometry().block_size();
    Ok(match place {
        Some(XattrPlace::InBlock(bytes)) => bytes.start >> block_size.bits(),
        _ => 0,
    })
}

/// The runs of a file, in lines.
fn map(session: &Session, name: &[u8], stat: &Stat) -> Result<String> {
    let extents = session.fs().extents(stat.inode);
    let extents = extents.map_err(|why| Failure::at(name, why))?;
    let head = match stat.flags.contains(InodeFlags::EXTENTS_FL) {
        true => "EXTENTS:\n",
        false => "BLOCKS:\n",
    };
    let range = |first: u64, blocks: u64| match blocks {
        1 => first.to_string(),
        _ => format!("{first}-{}", first + blocks - 1),
    };
    let runs: Vec<String> = { extents.iter() }
        .map(|extent| {
            let blocks = u64::from(extent.blocks);
            let logical = range(u64::from(extent.logical.0), blocks);
            let physical = range(extent.physical.0, blocks);
            match extent.state {
                ExtentState::Written => format!("({logical}):{physical}"),
                ExtentState::Unwritten => format!("({logical}[u]):{physical}"),
            }
        })
        .collect();
    Ok(format!("{head}{}\n", runs.join(", ")))
}

fn push_xattrs(text: &mut String, xattrs: &[Xattr]) {
    if !xattrs.is_empty() {
        text.push_str("Extended attributes:\n");
    }
    for xattr in xattrs {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  {}", attribute(xattr, Form::Guessed));
    }
}

/// How a value is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As text if all of it can be printed.
    Guessed,
    Hex,
}

fn attribute(xattr: &Xattr, form: Form) -> String {
    let (name, value) = (printable(&xattr.name), &xattr.value);
    let is_text = value.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let shown = match is_text && form == Form::Guessed {
        true => format!("\"{}\"", String::from_utf8_lossy(value)),
        false => value.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x} ");
            text
        }),
    };
    format!("{name} ({}) = {shown}", value.len())
}

/// `ea_list FILE`
pub(super) fn ea_list(
    session: &mut Session,
    arguments: &[Vec<u8>],
    out: &mut Stdout,
) -> Result<()> {
    let name = one(arguments)?;
    let xattrs = session.fs().xattrs(session.inode(name)?);
    let mut text = String::new();
    push_xattrs(&mut text, &xattrs.map_err(|why| Failure::at(name, why))?);
    out.write(text.as_bytes())
}

/// `ea_get [-x] [-V] FILE NAME`
pub(super) fn ea_get(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let (letters, rest) = options(arguments, b"xV")?;
    let (file, name) = two(rest)?;
    let value = session.fs().xattr(session.inode(file)?, name);
    let value = value.map_err(|why| Failure::at(name, why))?;
    if letters.contains(&b'V') {
        out.write(&value)?;
        return out.write(b"\n");
    }
    let form = match letters.contains(&b'x') {
        true => Form::Hex,
        false => Form::Guessed,
    };
    let name = name.to_vec();
    let text = attribute(&Xattr { name, value }, form);
    out.write(format!("{text}\n\n").as_bytes())
}

/// `blocks FILE`
pub(super) fn blocks(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let name = one(arguments)?;
    let extents = session.fs().extents(session.inode(name)?);
    for extent in extents.map_err(|why| Failure::at(name, why))? {
        let first = extent.physical.0;
        let numbers = (first..first + u64::from(extent.blocks)).map(|block| format!("{block} "));
        out.write(numbers.collect::<String>().as_bytes())?;
    }
    out.write(b"\n")
}

/// `bmap FILE BLOCK`: the place of a block, 0 in a hole.
pub(super) fn bmap(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let (name, block) = two(arguments)?;
    let block = unsigned(block)?;
    let extents = session.fs().extents(session.inode(name)?);
    let extents = extents.map_err(|why| Failure::at(name, why))?;
    let found = extents
        .iter()
        .find(|extent| (extent.logical..extent.logical_end()).contains(&LogicalBlock(block)));
    let place = found.map_or(0, |extent| {
        extent.physical.0 + u64::from(block - extent.logical.0)
    });
    let state = match found.map(|extent| extent.state) {
        Some(ExtentState::Unwritten) => " (uninit)",
        _ => "",
    };
    out.write(format!("{place}{state}\n").as_bytes())
}

/// `ncheck [-c] INODE...`: the paths of inodes.
pub(super) fn ncheck(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let (_, rest) = options(arguments, b"c")?;
    let mut wanted = Vec::with_capacity(rest.len());
    for text in rest {
        let digits = text
            .strip_prefix(b"<")
            .and_then(|text| text.strip_suffix(b">"));
        let digits = std::str::from_utf8(digits.unwrap_or(text)).ok();
        let nr = digits.and_then(|digits| digits.parse().ok()).map(InodeNr);
        wanted.push(nr.ok_or_else(|| Failure::at(text, "is no number of an inode"))?);
    }
    out.write(b"Inode\tPathname\n")?;
    for found in session.fs().paths().walk("/") {
        let found = found.map_err(|why| session.image.problem(why))?;
        if wanted.contains(&found.inode) {
            let line = format!("{}\t{}\n", found.inode, printable(&found.path));
            out.write(line.as_bytes())?;
        }
    }
    Ok(())
}

/// `testi FILE`
pub(super) fn testi(session: &mut Session, arguments: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let nr = session.inode(one(arguments)?)?;
    let place = session.fs().geometry().inode_group(nr);
    let (group, index) = place.ok_or_else(|| Failure::new(nr.to_string(), "is no inode"))?;
    let bitmap = session.fs().inode_bitmap(group);
    let bitmap = bitmap.map_err(|why| session.image.problem(why))?;
    let state = match bitmap.is_used(index.0) {
        true => "marked",
        false => "not",
    };
    out.write(format!("Inode {nr} is {state} in use\n").as_bytes())
}

/// `features`
pub(super) fn features(session: &mut Session, _: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let features = session.fs().superblock().features();
    let names: Vec<_> = features.iter().map(|feature| feature.to_string()).collect();
    out.write(format!("Filesystem features: {}\n", names.join(" ")).as_bytes())
}

/// `pwd`
pub(super) fn pwd(session: &mut Session, _: &[Vec<u8>], out: &mut Stdout) -> Result<()> {
    let nr = session.inode(b".")?;
    let path = printable(session.directory());
    let text = format!("[pwd]   INODE: {nr:>6}  PATH: {path}\n[root]  INODE:      2  PATH: /\n");
    out.write(text.as_bytes())
}

/// `cd DIR`
pub(super) fn cd(session: &mut Session, arguments: &[Vec<u8>], _: &mut Stdout) -> Result<()> {
    session.enter(one(arguments)?)
}
