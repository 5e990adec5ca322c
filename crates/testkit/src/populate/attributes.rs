//! **Purpose.** Owners, modes, times, xattrs, ACLs, inode flags.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{
    AtFlags, CWD, IFlags, Timespec, Timestamps, XattrFlags, ioctl_getflags, ioctl_setflags,
    lsetxattr, utimensat,
};
use rustix::io::Errno;

use super::Writer;
use crate::tools;

/// Times at which the encoding changes, and the first and last that can be encoded.
const TIMES: &[(&str, i64)] = &[
    ("1901", -(1 << 31)),
    ("1901-and-a-second", -(1 << 31) + 1),
    ("1969", -1),
    ("epoch", 0),
    ("2038-before", (1 << 31) - 1),
    ("2038", 1 << 31),
    ("2106-before", (1 << 32) - 1),
    ("2106", 1 << 32),
    ("2242", 2 << 32),
    ("2378", 3 << 32),
    ("2446-max", (3 << 32) + (1 << 31) - 1),
];

/// Nanoseconds for these times, in turn.
const NANOSECONDS: &[i64] = &[0, 1, 123_456_789, 999_999_999];

/// The names of the inode flags that users set, with their bits.
const FLAGS: &[(&str, IFlags)] = &[
    ("immutable", IFlags::IMMUTABLE),
    ("append", IFlags::APPEND),
    ("nodump-noatime", IFlags::NODUMP.union(IFlags::NOATIME)),
    ("sync", IFlags::from_bits_retain(0x8)),
];

impl Writer<'_> {
    /// Writes all attributes.
    pub(super) fn attributes(&self) -> Result<()> {
        self.owners_and_modes()?;
        self.times()?;
        self.xattrs()?;
        self.acls()?;
        self.flags()
    }

    fn owners_and_modes(&self) -> Result<()> {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        self.directory("modes")?;
        for mode in [0o000, 0o777, 0o4755, 0o2755, 0o1666, 0o7777] {
            let name = format!("modes/{mode:04o}");
            self.file(&name, 1)?;
            fs::set_permissions(self.at(&name), fs::Permissions::from_mode(mode))?;
        }
        let sticky = self.directory("modes/sticky")?;
        fs::set_permissions(sticky, fs::Permissions::from_mode(0o3777))?;
        for (user, group) in [
            (1, 2),
            (65_535, 65_534),
            (65_536, 131_072),
            (u32::MAX - 1, 1 << 31),
        ] {
            let name = format!("modes/owner-{user}-{group}");
            self.file(&name, 1)?;
            chown(self.at(&name), Some(user), Some(group))?;
        }
        Ok(())
    }

    /// Sets times of files, and last those of a directory and a symbolic link, because later
    /// changes would update them.
    fn times(&self) -> Result<()> {
        self.directory("times")?;
        for (index, &(name, seconds)) in TIMES.iter().enumerate() {
            let name = format!("times/{name}");
            self.file(&name, 1)?;
            let nanoseconds = |turn: usize| NANOSECONDS[(index + turn) % NANOSECONDS.len()];
            let time = |turn| Timespec {
                tv_sec: seconds,
                tv_nsec: nanoseconds(turn),
            };
            set_times(&self.at(&name), time(0), time(1))?;
        }
        let long_ago = Timespec {
            tv_sec: -1_000_000_000,
            tv_nsec: 5,
        };
        let far_off = Timespec {
            tv_sec: 10_000_000_000,
            tv_nsec: 7,
        };
        std::os::unix::fs::symlink("target", self.at("times/symlink"))?;
        set_times(&self.at("times/symlink"), long_ago, far_off)?;
        self.directory("times/directory")?;
        set_times(&self.at("times/directory"), far_off, long_ago)
    }

    /// Sets attributes of every namespace and size, fills one file's inode and then its block, and
    /// makes files that share a block.
    fn xattrs(&self) -> Result<()> {
        self.directory("xattrs")?;
        self.file("xattrs/namespaces", 1)?;
        for name in ["user.small", "trusted.small", "security.fourscore"] {
            set(&self.at("xattrs/namespaces"), name, name.as_bytes())?;
        }
        set(&self.at("xattrs/namespaces"), "user.empty", b"")?;
        set(
            &self.at("xattrs/namespaces"),
            &format!("user.{}", "n".repeat(250)),
            b"long name",
        )?;
        for len_bytes in [1, 3, 4, 60, 95, 200, 700] {
            let name = format!("xattrs/value-of-{len_bytes}");
            self.file(&name, 1)?;
            set(&self.at(&name), "user.value", &vec![b'v'; len_bytes])?;
        }
        self.xattrs_until_full()?;
        for nr in 0..8 {
            let name = format!("xattrs/sharer-{nr}");
            self.file(&name, 1)?;
            set(&self.at(&name), "user.shared", &[b's'; 500])?;
        }
        self.directory("xattrs/directory")?;
        set(
            &self.at("xattrs/directory"),
            "user.of-a-directory",
            b"value",
        )?;
        std::os::unix::fs::symlink("target", self.at("xattrs/symlink"))?;
        set(&self.at("xattrs/symlink"), "trusted.of-a-symlink", b"value")?;
        if self.limits.large_xattrs.yes() {
            for len_bytes in [3_000, 5_000, 40_000, 65_536] {
                for sharer in 0..2 {
                    let name = format!("xattrs/ea-inode-{len_bytes}-{sharer}");
                    self.file(&name, 1)?;
                    set(&self.at(&name), "user.large", &vec![b'l'; len_bytes])?;
                    set(&self.at(&name), "user.beside", b"small")?;
                }
            }
        }
        Ok(())
    }

    /// Adds attributes of growing size until the kernel says that the block is full.
    fn xattrs_until_full(&self) -> Result<()> {
        self.file("xattrs/full", 1)?;
        for nr in 0..10_000 {
            let value = vec![b'f'; nr % 90];
            let name = format!("user.attribute-{nr}");
            match lsetxattr(self.at("xattrs/full"), &*name, &value, XattrFlags::CREATE) {
                Ok(()) => {}
                Err(Errno::NOSPC) if nr > 0 => return Ok(()),
                Err(error) => bail!("{name}: {error}"),
            }
            // EA inodes and large blocks do not fill up: this number is enough.
            if nr == 150 {
                return Ok(());
            }
        }
        Ok(())
    }

    fn acls(&self) -> Result<()> {
        self.directory("acls")?;
        self.file("acls/access", 1)?;
        self.directory("acls/default")?;
        let setfacl = |arguments: &[&str], name: &str| {
            let path = self.at(name);
            tools::stdout_of(tools::command("setfacl")?.args(arguments).arg(path))
        };
        setfacl(
            &["-m", "u:1234:rwx,u:70000:r,g:4321:-,m::rx"],
            "acls/access",
        )?;
        setfacl(&["-m", "u:1234:rwx"], "acls/default")?;
        setfacl(
            &["-d", "-m", "u:4294967294:rw,g:70000:r,o::-"],
            "acls/default",
        )?;
        self.file("acls/default/inherited", 1)?;
        self.directory("acls/default/inherited-too")?;
        Ok(())
    }

    fn flags(&self) -> Result<()> {
        self.directory("flags")?;
        // Too large for inline data, so that debugfs may set the flags without INLINE_DATA_FL.
        for &(name, flags) in FLAGS {
            let file = self.file(&format!("flags/{name}"), 5000)?;
            add_flags(&file, flags).with_context(|| format!("flags of {name}"))?;
        }
        let directory = File::open(self.directory("flags/top-directory")?)?;
        add_flags(&directory, IFlags::TOPDIR | IFlags::DIRSYNC).context("flags of a directory")?;
        Ok(())
    }
}

fn set_times(path: &Path, last_access: Timespec, last_modification: Timespec) -> Result<()> {
    let times = Timestamps {
        last_access,
        last_modification,
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .with_context(|| format!("times of {}", path.display()))
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<()> {
    lsetxattr(path, name, value, XattrFlags::CREATE)
        .with_context(|| format!("{name} of {} bytes on {}", value.len(), path.display()))
}

fn add_flags(file: &File, flags: IFlags) -> Result<()> {
    let now = ioctl_getflags(file)?;
    Ok(ioctl_setflags(file, now | flags)?)
}
