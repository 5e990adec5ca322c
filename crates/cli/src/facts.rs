//! **Purpose.** The attributes of an object, in an image or on the host, so that the walk, the tar
//! writer and the listings share their code.

use crate::text::{push_i64, push_nanoseconds};

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
    /// A type field that no file system defines.
    Unknown,
}

impl Kind {
    /// The type in the upper four bits of a mode (`S_IFMT`).
    pub(crate) fn from_mode(mode: u32) -> Self {
        match mode >> 12 & 0xf {
            0x1 => Self::Fifo,
            0x2 => Self::CharDevice,
            0x4 => Self::Directory,
            0x6 => Self::BlockDevice,
            0x8 => Self::File,
            0xa => Self::Symlink,
            0xc => Self::Socket,
            _ => Self::Unknown,
        }
    }

    /// The letter that `find -printf %y` prints.
    pub(crate) fn letter(self) -> u8 {
        match self {
            Self::File => b'f',
            Self::Directory => b'd',
            Self::Symlink => b'l',
            Self::CharDevice => b'c',
            Self::BlockDevice => b'b',
            Self::Fifo => b'p',
            Self::Socket => b's',
            Self::Unknown => b'?',
        }
    }

    /// Whether the object has a device number.
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }

    /// The name that stat(1) uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::File => "regular file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::CharDevice => "character special file",
            Self::BlockDevice => "block special file",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Unknown => "unknown",
        }
    }
}

/// A time: seconds since 1970 (negative before) and nanoseconds after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

impl Time {
    /// Appends `seconds.nanoseconds`, as `find -printf %T@` prints it for times after 1970.
    pub(crate) fn push(self, out: &mut Vec<u8>) {
        push_i64(out, self.seconds);
        out.push(b'.');
        push_nanoseconds(out, self.nanoseconds);
    }
}

/// The fields of statx(2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) inode: u64,
    pub(crate) kind: Kind,
    /// Permission, setuid, setgid and sticky bits.
    pub(crate) permissions: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u64,
    pub(crate) size_bytes: u64,
    /// Blocks of 512 bytes.
    pub(crate) blocks_512: u64,
    pub(crate) rdev_major: u32,
    pub(crate) rdev_minor: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    /// Time of creation, if the file system stores it.
    pub(crate) btime: Option<Time>,
    /// False if the object is known to have no extended attributes.
    pub(crate) may_have_attributes: bool,
}

/// The ten characters at the beginning of a line of `ls -l`.
pub(crate) fn mode_string(kind: Kind, permissions: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        Kind::File => '-',
        other => char::from(other.letter()),
    });
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (class, (bit, with_x, without_x)) in special.into_iter().enumerate() {
        let bits = permissions >> (6 - 3 * class);
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (permissions & bit != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => with_x,
            (true, false) => without_x,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_prints_them() {
        assert_eq!(mode_string(Kind::File, 0o644), "-rw-r--r--");
        assert_eq!(mode_string(Kind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_string(Kind::File, 0o6750), "-rwsr-s---");
        assert_eq!(mode_string(Kind::File, 0o7000), "---S--S--T");
        assert_eq!(mode_string(Kind::Symlink, 0o777), "lrwxrwxrwx");
    }

    #[test]
    fn kinds_come_from_the_mode() {
        assert_eq!(Kind::from_mode(0o100_644), Kind::File);
        assert_eq!(Kind::from_mode(0o040_755), Kind::Directory);
        assert_eq!(Kind::from_mode(0o120_777), Kind::Symlink);
        assert_eq!(Kind::from_mode(0o140_777), Kind::Socket);
        assert_eq!(Kind::from_mode(0), Kind::Unknown);
    }

    #[test]
    fn times_before_1970() {
        let mut out = Vec::new();
        let time = Time {
            seconds: -2,
            nanoseconds: 500_000_000,
        };
        time.push(&mut out);
        assert_eq!(out, b"-2.500000000");
    }
}
