//! **Purpose.** The verbs of `fourscore edit` that change attributes: chmod, chown, chattr and
//! setfattr.
//!
//! **References.** chmod(1), chown(1), chattr(1), setfattr(1).

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;

use fourscore::{AttributeChange, FileType, Follow, Fs, InodeFlags, InodeNr, SetXattr, Stat};

use super::ids;
use super::mode::ModeChange;
use super::verbs::{Chown, InImage, Loose, Setfattr};
use super::{Failing, at_each, wrong};
use crate::failure::{Failure, Result};

/// The letters of chattr(1) and lsattr(1).
const LETTERS: [(u8, InodeFlags); 20] = [
    (b'a', InodeFlags::APPEND_FL),
    (b'A', InodeFlags::NOATIME_FL),
    (b'c', InodeFlags::COMPR_FL),
    (b'd', InodeFlags::NODUMP_FL),
    (b'D', InodeFlags::DIRSYNC_FL),
    (b'e', InodeFlags::EXTENTS_FL),
    (b'E', InodeFlags::ENCRYPT_FL),
    (b'F', InodeFlags::CASEFOLD_FL),
    (b'i', InodeFlags::IMMUTABLE_FL),
    (b'I', InodeFlags::INDEX_FL),
    (b'j', InodeFlags::JOURNAL_DATA_FL),
    (b'm', InodeFlags::NOCOMPR_FL),
    (b'N', InodeFlags::INLINE_DATA_FL),
    (b'P', InodeFlags::PROJINHERIT_FL),
    (b's', InodeFlags::SECRM_FL),
    (b'S', InodeFlags::SYNC_FL),
    (b't', InodeFlags::NOTAIL_FL),
    (b'T', InodeFlags::TOPDIR_FL),
    (b'u', InodeFlags::UNRM_FL),
    (b'x', InodeFlags::DAX_FL),
];

/// Whether a change is made to everything in directories as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    Itself,
    Everything,
}

impl Depth {
    pub(super) fn of(recursive: bool) -> Self {
        match recursive {
            true => Self::Everything,
            false => Self::Itself,
        }
    }
}

pub(super) fn chmod(fs: &Fs, args: &Loose, failing: Failing<'_>) -> Result<()> {
    let (depth, words) = recursion(&args.words);
    let (mode, paths) = words.split_first().unwrap_or((&args.words[0], &[]));
    let change = mode.to_str().and_then(ModeChange::parse).ok_or_else(|| {
        let why = "is no mode; give an octal number, or a change as in u=rwX,go-w";
        Failure::usage(format!("chmod '{}'", mode.display()), why)
    })?;
    some("chmod", paths)?;
    let paths: Vec<_> = { paths.iter() }
        .map(|path| InImage(path.as_bytes().to_vec()))
        .collect();
    at_each(fs, &paths, failing, |path| {
        for_each(fs, path, depth, Follow::Yes, failing, |inode, stat| {
            if stat.file_type == FileType::Symlink {
                return Ok(());
            }
            let is_directory = stat.file_type == FileType::Directory;
            let permissions = change.applied(stat.mode.permissions(), is_directory);
            let change = AttributeChange {
                permissions: Some(permissions),
                ..AttributeChange::default()
            };
            fs.set_attributes(inode, &change)
        })
    })
}

pub(super) fn chown(fs: &Fs, args: &Chown, failing: Failing<'_>) -> Result<()> {
    let (uid, gid) = ids::owner(fs, &args.owner)?;
    let change = AttributeChange {
        uid,
        gid,
        ..AttributeChange::default()
    };
    // With -R no link is followed, wherever it is.
    let follow = match args.no_dereference || args.recursive {
        true => Follow::No,
        false => Follow::Yes,
    };
    at_each(fs, &args.paths, failing, |path| {
        let depth = Depth::of(args.recursive);
        for_each(fs, path, depth, follow, failing, |inode, _| {
            fs.set_attributes(inode, &change)
        })
    })
}

/// What chattr does to an inode.
#[derive(Default)]
struct FlagChange {
    set: InodeFlags,
    cleared: InodeFlags,
    only: Option<InodeFlags>,
    project: Option<u32>,
}

pub(super) fn chattr(fs: &Fs, args: &Loose, failing: Failing<'_>) -> Result<()> {
    let mut change = FlagChange::default();
    let mut depth = Depth::Itself;
    let mut words = args.words.iter().map(|word| word.as_bytes()).peekable();
    while let Some(word) = words.next_if(|word| matches!(word, [b'+' | b'-' | b'=', ..])) {
        match word {
            b"-R" => depth = Depth::Everything,
            b"--" => break,
            b"-p" => {
                let number = words.next().and_then(|text| std::str::from_utf8(text).ok());
                let number = number.and_then(|text| text.parse().ok());
                let missing = || Failure::usage("chattr -p", "give the number of a project");
                change.project = Some(number.ok_or_else(missing)?);
            }
            [b'+', letters @ ..] => change.set |= flags(letters)?,
            [b'-', letters @ ..] => change.cleared |= flags(letters)?,
            [_, letters @ ..] => change.only = Some(flags(letters)?),
            [] => {}
        }
    }
    let paths: Vec<_> = words.map(|path| InImage(path.to_vec())).collect();
    if change.set.is_empty()
        && change.cleared.is_empty()
        && change.only.is_none()
        && change.project.is_none()
    {
        let why = "give a change, as in +i, -a or =d, with the letters of lsattr, or -p PROJECT";
        return Err(Failure::usage("chattr", why));
    }
    some("chattr", &paths)?;
    at_each(fs, &paths, failing, |path| {
        for_each(fs, path, depth, Follow::Yes, failing, |inode, stat| {
            let has_none = matches!(stat.file_type, FileType::Regular | FileType::Directory);
            match has_none || depth == Depth::Itself {
                true => change.apply(fs, inode, stat),
                false => Ok(()),
            }
        })
    })
}

impl FlagChange {
    fn apply(&self, fs: &Fs, inode: InodeNr, stat: &Stat) -> fourscore::Result<()> {
        if let Some(project) = self.project {
            fs.set_project(inode, project)?;
        }
        let shown = stat.flags & InodeFlags::USER_VISIBLE;
        let modifiable = InodeFlags::USER_MODIFIABLE - InodeFlags::EXTENTS_FL;
        let mut flags = match self.only {
            Some(only) => (shown - modifiable) | only,
            None => shown,
        };
        flags = (flags | self.set) - self.cleared;
        match flags == shown {
            true => Ok(()),
            false => fs.set_flags(inode, flags),
        }
    }
}

fn flags(letters: &[u8]) -> Result<InodeFlags> {
    letters
        .iter()
        .try_fold(InodeFlags::empty(), |flags, letter| {
            let known = LETTERS.iter().find(|(known, _)| known == letter);
            let (_, flag) = known.ok_or_else(|| {
                let why = "is no flag; the letters are those of lsattr: aAcdDFijmPsStTux";
                Failure::usage(format!("chattr '{}'", char::from(*letter)), why)
            })?;
            Ok(flags | *flag)
        })
}

pub(super) fn setfattr(fs: &Fs, args: &Setfattr, failing: Failing<'_>) -> Result<()> {
    let follow = match args.no_dereference {
        true => Follow::No,
        false => Follow::Yes,
    };
    let value = match &args.value {
        Some(text) => value(text.as_bytes()).ok_or_else(|| {
            let why =
                "is no value; give text, 0x and pairs of hexadecimal digits, or 0s and base64";
            Failure::usage(format!("-v '{}'", text.display()), why)
        })?,
        None => Vec::new(),
    };
    at_each(fs, &args.paths, failing, |path| {
        let inode = fs.resolve(path, follow).map_err(wrong(path))?;
        let (name, done) = match (&args.name, &args.remove) {
            (Some(name), _) => {
                let set = fs.set_xattr(inode, name.as_bytes(), &value, SetXattr::Any);
                (name, set)
            }
            (None, Some(name)) => (name, fs.remove_xattr(inode, name.as_bytes())),
            (None, None) => return Ok(()),
        };
        done.map_err(|why| {
            let place = [path, &b": "[..], name.as_bytes()].concat();
            wrong(&place)(why)
        })
    })
}

/// The value that a text of setfattr(1) stands for.
fn value(text: &[u8]) -> Option<Vec<u8>> {
    match text {
        [b'0', b'x' | b'X', digits @ ..] => hexadecimal(digits),
        [b'0', b's' | b'S', digits @ ..] => base64(digits),
        [b'"', inner @ .., b'"'] => Some(inner.to_vec()),
        text => Some(text.to_vec()),
    }
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_chunks::<2>() else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |&[high, low]: &[u8; 2]| u8::try_from(digit(high)? << 4 | digit(low)?).ok();
    pairs.iter().map(byte).collect()
}

fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text
        .strip_suffix(b"==")
        .or(text.strip_suffix(b"="))
        .unwrap_or(text);
    let mut out = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xf_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    (digits.len() % 4 != 1).then_some(out)
}

/// Takes `-R` from the front.
fn recursion(words: &[std::ffi::OsString]) -> (Depth, &[std::ffi::OsString]) {
    match words {
        [first, rest @ ..] if first == "-R" || first == "--recursive" => (Depth::Everything, rest),
        words => (Depth::Itself, words),
    }
}

fn some<T>(verb: &str, paths: &[T]) -> Result<()> {
    match paths.is_empty() {
        true => Err(Failure::usage(verb, "give a path inside the image")),
        false => Ok(()),
    }
}

/// Calls `change` with what is at `path` and, if that is wanted, with everything below it. Symbolic
/// links below it are passed, not followed. If the change of a directory fails and the tree goes
/// on, so does the change of what is in it, as in chmod(1) and chown(1).
pub(super) fn for_each(
    fs: &Fs,
    path: &[u8],
    depth: Depth,
    follow: Follow,
    failing: Failing<'_>,
    mut change: impl FnMut(InodeNr, &Stat) -> fourscore::Result<()>,
) -> Result<()> {
    let inode = fs.resolve(path, follow).map_err(wrong(path))?;
    let mut pending = vec![(inode, path.to_vec())];
    // A tree that contains itself is not followed for ever.
    let mut entered = HashSet::new();
    while let Some((inode, path)) = pending.pop() {
        let meet = |why| failing.meet(wrong(&path)(why));
        let stat = match fs.stat(inode) {
            Ok(stat) => stat,
            Err(why) => {
                meet(why)?;
                continue;
            }
        };
        change(inode, &stat).or_else(meet)?;
        let is_directory = stat.file_type == FileType::Directory;
        if depth == Depth::Itself || !is_directory || !entered.insert(inode) {
            continue;
        }
        match fs.read_dir(inode) {
            Ok(entries) => {
                for entry in entries {
                    if !matches!(&entry.name[..], b"." | b"..") {
                        let separator: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
                        pending.push((entry.inode, [&path, separator, &entry.name].concat()));
                    }
                }
            }
            Err(why) => meet(why)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded() {
        for (text, expected) in [
            ("plain", &b"plain"[..]),
            ("\"quoted\"", b"quoted"),
            ("0x00Ff", &[0, 0xff]),
            ("0sAP8=", &[0, 0xff]),
            ("0sZm91cg==", b"four"),
            ("", b""),
        ] {
            assert_eq!(value(text.as_bytes()).as_deref(), Some(expected), "{text}");
        }
        for text in ["0x0", "0xzz", "0s*", "0sA"] {
            assert_eq!(value(text.as_bytes()), None, "{text}");
        }
    }
}
