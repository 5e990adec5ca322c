//! **Purpose.** What fakeroot saves of its session (`fakeroot -s FILE`): whose each inode is.
//!
//! **Model.** A line is `dev=HEX,ino=N,mode=OCTAL,uid=N,gid=N,nlink=N,rdev=N`. A device that a
//! normal user made is an empty file with the mode of a device. A line whose kind is not that of
//! the inode is of one that is gone, and does not count.

use std::collections::HashMap;
use std::io::BufRead;

use fourscore_ondisk::inode::{DeviceNr, FileMode, FileType};

use super::mtree::push_line;
use crate::source::{Fault, Parsed};

/// Modes and owners by device and inode number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    inodes: HashMap<(u64, u64), Said>,
}

/// What is said of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: DeviceNr,
}

impl Saved {
    pub(super) fn is_form_of(text: &[u8]) -> bool {
        text.starts_with(b"dev=")
    }

    /// From the text of the file; the error comes with the number of its line.
    pub(super) fn parse(mut text: impl BufRead) -> Result<Self, (usize, Fault)> {
        let mut saved = Self::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let is_there = push_line(&mut text, &mut line);
            if !is_there.map_err(|why| (number, why.into()))? {
                break;
            }
            if !line.is_empty() {
                let (key, said) = parse_line(&line).map_err(|fault| (number, fault))?;
                saved.inodes.insert(key, said);
            }
        }
        Ok(saved)
    }

    /// What is said of the inode of this number, which the host says has this mode.
    pub(crate) fn of(&self, device: u64, inode: u64, mode: u16) -> Option<Said> {
        let said = self.inodes.get(&(device, inode))?;
        let kind = |mode| FileType::from_mode(FileMode(mode));
        let (is, shall_be) = (kind(mode), kind(said.mode));
        let is_device = matches!(shall_be, Some(FileType::CharDevice | FileType::BlockDevice));
        let fits = is == shall_be || (is_device && is == Some(FileType::Regular));
        fits.then_some(*said)
    }
}

fn parse_line(line: &[u8]) -> Parsed<((u64, u64), Said)> {
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
    let said = Said {
        mode: u16::try_from(mode).map_err(|_| too_large())?,
        uid: u32::try_from(uid).map_err(|_| too_large())?,
        gid: u32::try_from(gid).map_err(|_| too_large())?,
        device: DeviceNr {
            major: rustix::fs::major(rdev),
            minor: rustix::fs::minor(rdev),
        },
    };
    Ok((key, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "dev=fe01,ino=77,mode=20644,uid=5,gid=6,nlink=1,rdev=259\n";

    #[test]
    fn a_device_is_a_file_and_nothing_else() {
        let saved = Saved::parse(LINE.as_bytes()).unwrap();
        let said = saved.of(0xfe01, 77, 0o100_644).unwrap();
        assert_eq!((said.mode, said.uid, said.gid), (0o20_644, 5, 6));
        assert_eq!((said.device.major, said.device.minor), (1, 3));
        assert_eq!(saved.of(0xfe01, 77, 0o40_755), None, "a directory by now");
        assert_eq!(saved.of(0xfe01, 78, 0o100_644), None);
    }

    #[test]
    fn malformed_lines_are_named() {
        for (from, to) in [
            ("ino=77,", ""),
            ("uid=5", "uid=x"),
            ("rdev", "r"),
            ("20644", "9"),
        ] {
            let text = [LINE, &LINE.replace(from, to)].concat();
            let (line, fault) = Saved::parse(text.as_bytes()).unwrap_err();
            assert_eq!(line, 2, "{fault}");
        }
    }
}
