//! **Purpose.** Parses the file that `fakeroot -s FILE` saves: mode and owner of each inode.
//!
//! **Model.** A line is `dev=HEX,ino=N,mode=OCTAL,uid=N,gid=N,nlink=N,rdev=N`. A device that was
//! created under fakeroot is an empty regular file whose line has the mode of a device. A line
//! whose type does not match the inode is about a deleted file with the same inode number, and is
//! ignored.

use std::collections::HashMap;
use std::io::BufRead;

use fourscore_ondisk::inode::{DeviceNr, FileMode, FileType};

use super::mtree::read_line;
use crate::source::{Fault, Parsed, is_id};

/// Mode and owner by device and inode number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    inodes: HashMap<(u64, u64), SavedInode>,
}

/// Mode, owner and device number of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedInode {
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: DeviceNr,
}

impl Saved {
    pub(super) fn is_form_of(text: &[u8]) -> bool {
        text.starts_with(b"dev=")
    }

    /// Parses the text of the file; an error comes with its line number.
    pub(super) fn parse(mut text: impl BufRead) -> Result<Self, (usize, Fault)> {
        let mut saved = Self::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let has_line = read_line(&mut text, &mut line);
            if !has_line.map_err(|why| (number, why.into()))? {
                break;
            }
            if !line.is_empty() {
                let (key, inode) = parse_line(&line).map_err(|fault| (number, fault))?;
                saved.inodes.insert(key, inode);
            }
        }
        Ok(saved)
    }

    /// The entry of an inode, if its type matches `mode`, the mode on the host.
    pub(crate) fn lookup(&self, device: u64, inode: u64, mode: u16) -> Option<SavedInode> {
        let found = self.inodes.get(&(device, inode))?;
        let kind = |mode| FileType::from_mode(FileMode(mode));
        let (host_kind, saved_kind) = (kind(mode), kind(found.mode));
        let is_device = matches!(
            saved_kind,
            Some(FileType::CharDevice | FileType::BlockDevice)
        );
        let fits = host_kind == saved_kind || (is_device && host_kind == Some(FileType::Regular));
        fits.then_some(*found)
    }
}

fn parse_line(line: &[u8]) -> Parsed<((u64, u64), SavedInode)> {
    let mut fields = line.split(|&byte| byte == b',');
    let mut field = |name: &'static str, radix| {
        let word = fields.next().unwrap_or_default();
        let fault = |why| Fault::ManifestWord {
            word: word.to_vec(),
            why,
        };
        let value = word.strip_prefix(name.as_bytes());
        let value = value.and_then(|value| std::str::from_utf8(value).ok());
        let value = value.ok_or_else(|| fault("is not the field that fakeroot writes here"))?;
        u64::from_str_radix(value, radix).map_err(|_| fault("is not a number"))
    };
    let key = (field("dev=", 16)?, field("ino=", 10)?);
    let (mode, uid, gid) = (field("mode=", 8)?, field("uid=", 10)?, field("gid=", 10)?);
    let (_, rdev) = (field("nlink=", 10)?, field("rdev=", 10)?);
    let too_large = || Fault::ManifestWord {
        word: line.to_vec(),
        why: "has a mode or owner that is too large",
    };
    let owner = |number: u64| match u32::try_from(number).map_err(|_| too_large())? {
        id if is_id(id) => Ok(id),
        _ => Err(Fault::ManifestWord {
            word: line.to_vec(),
            why: "has the id that no user and no group has",
        }),
    };
    let inode = SavedInode {
        mode: u16::try_from(mode).map_err(|_| too_large())?,
        uid: owner(uid)?,
        gid: owner(gid)?,
        device: DeviceNr {
            major: rustix::fs::major(rdev),
            minor: rustix::fs::minor(rdev),
        },
    };
    Ok((key, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "dev=fe01,ino=77,mode=20644,uid=5,gid=6,nlink=1,rdev=259\n";

    #[test]
    fn a_device_line_matches_a_regular_file_only() {
        let saved = Saved::parse(LINE.as_bytes()).unwrap();
        let inode = saved.lookup(0xfe01, 77, 0o100_644).unwrap();
        assert_eq!((inode.mode, inode.uid, inode.gid), (0o20_644, 5, 6));
        assert_eq!((inode.device.major, inode.device.minor), (1, 3));
        assert_eq!(saved.lookup(0xfe01, 77, 0o40_755), None, "now a directory");
        assert_eq!(saved.lookup(0xfe01, 78, 0o100_644), None);
    }

    #[test]
    fn errors_have_the_number_of_the_malformed_line() {
        for (from, to) in [
            ("ino=77,", ""),
            ("uid=5", "uid=x"),
            ("gid=6", "gid=4294967295"),
            ("rdev", "r"),
            ("20644", "9"),
        ] {
            let text = [LINE, &LINE.replace(from, to)].concat();
            let (line, fault) = Saved::parse(text.as_bytes()).unwrap_err();
            assert_eq!(line, 2, "{fault}");
        }
    }
}
