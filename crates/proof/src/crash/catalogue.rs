//! **Purpose.** The named operations on a small set of files; each alone and each pair of them is a
//! workload.
//!
//! **Model.** An operation is a function from the model to a call, so that it finds its files by
//! their paths in any state. An operation whose files are missing is left out; one that must be
//! refused is called, and must change nothing.
//!
//! **References.** Mohan et al.: "Finding Crash-Consistency Bugs with Bounded Black-Box Crash
//! Testing" (OSDI 2018) for the idea of all short workloads on few files.

use fourscore::{Fallocate, FileType, SetXattr};
use fourscore_ondisk::inode::InodeFlags;

use crate::model::{Acl, Call, How, Id, Model, NewKind, Owner, Place, Which};

/// An operation.
pub(super) struct Op {
    pub(super) name: &'static str,
    /// The call, if its files exist.
    pub(super) call: fn(&Model) -> Option<Call>,
}

const OWNER: Owner = Owner {
    permissions: 0o644,
    umask: 0,
    uid: 1,
    gid: 2,
};
const DIR: Owner = Owner {
    permissions: 0o755,
    ..OWNER
};

/// The inode that a path refers to.
fn id(model: &Model, path: &str) -> Option<Id> {
    let names = path.split('/').filter(|name| !name.is_empty());
    let mut names = names.map(str::as_bytes);
    names.try_fold(Model::ROOT, |dir, name| {
        let name = name.to_vec();
        model.lookup(&Place { dir, name })
    })
}

/// The name at the end of a path, whether it exists or not.
fn at(model: &Model, path: &str) -> Option<Place> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = directory(model, dir)?;
    let name = name.as_bytes().to_vec();
    Some(Place { dir, name })
}

/// The directory at a path; an exchange may have moved another inode there.
fn directory(model: &Model, path: &str) -> Option<Id> {
    id(model, path).filter(|&id| model.node(id).is_dir())
}

/// The regular file at a path.
fn file(model: &Model, path: &str) -> Option<Id> {
    id(model, path).filter(|&id| model.node(id).is_file())
}

/// A regular file that is open.
fn opened(model: &Model) -> Option<Id> {
    let mut opened = model.opened().into_iter();
    opened.find(|&id| model.node(id).is_file())
}

fn make(model: &Model, path: &str, kind: NewKind) -> Option<Call> {
    let owner = match kind {
        NewKind::Directory => DIR,
        NewKind::Symlink(_) => Owner {
            permissions: 0o777,
            ..OWNER
        },
        _ => OWNER,
    };
    Some(Call::Make(at(model, path)?, kind, owner))
}

fn rename(model: &Model, from: &str, to: &str, how: How) -> Option<Call> {
    let from = at(model, from)?;
    model.lookup(&from)?;
    Some(Call::Rename(from, at(model, to)?, how))
}

fn write(model: &Model, path: &str, offset: u64, len: u64, tag: u8) -> Option<Call> {
    let node = file(model, path)?;
    Some(Call::Write {
        node,
        offset,
        len,
        tag,
    })
}

/// A call of fallocate for a range in allocation units.
fn fallocate(model: &Model, what: Fallocate, blocks: std::ops::Range<u64>) -> Option<Call> {
    let unit = model.rules.unit_bytes;
    let range = blocks.start * unit..blocks.end * unit;
    Some(Call::Fallocate(file(model, "a/f")?, what, range))
}

fn set_xattr(model: &Model, path: &str, name: &str, len: usize) -> Option<Call> {
    let holds = |id: &Id| model.node(*id).is_file() || model.node(*id).is_dir();
    Some(Call::SetXattr {
        node: id(model, path).filter(holds)?,
        name: name.as_bytes().to_vec(),
        value: vec![b'v'; len],
        how: SetXattr::Any,
    })
}

macro_rules! ops {
    ($($name:literal => |$model:ident| $call:expr;)*) => {
        &[$(Op { name: $name, call: |$model| $call }),*]
    };
}

/// Creates the initial tree of each thread.
pub(super) const POPULATE: &[Op] = ops! {
    "mkdir a" => |m| make(m, "a", NewKind::Directory);
    "mkdir b" => |m| make(m, "b", NewKind::Directory);
    "mkdir b/c" => |m| make(m, "b/c", NewKind::Directory);
    "mkdir a/empty" => |m| make(m, "a/empty", NewKind::Directory);
    "create a/f" => |m| make(m, "a/f", NewKind::File);
    "write a/f" => |m| write(m, "a/f", 0, 9_000, 1);
    "create a/g" => |m| make(m, "a/g", NewKind::File);
    "write a/g" => |m| write(m, "a/g", 0, 700, 2);
    "create b/k" => |m| make(m, "b/k", NewKind::File);
    "write b/k" => |m| write(m, "b/k", 5_000, 6_000, 3);
    "write b/k far" => |m| write(m, "b/k", 40_000, 2_000, 4);
    "create a/h" => |m| make(m, "a/h", NewKind::File);
    "write a/h" => |m| write(m, "a/h", 0, 100, 5);
    "link b/h" => |m| Some(Call::Link(file(m, "a/h")?, at(m, "b/h")?));
    "symlink b/s" => |m| make(m, "b/s", NewKind::Symlink(vec![b't'; 20]));
    "symlink b/long" => |m| make(m, "b/long", NewKind::Symlink(vec![b't'; 200]));
    "xattr of a/g" => |m| set_xattr(m, "a/g", "user.large", 500);
    "xattr of b/k" => |m| set_xattr(m, "b/k", "user.large", 500);
    "create b/c/x" => |m| make(m, "b/c/x", NewKind::File);
};

/// The operations that are run alone and in pairs.
pub(super) const OPS: &[Op] = ops! {
    "create" => |m| make(m, "a/new", NewKind::File);
    "create-long-name" => |m| make(m, &format!("b/{:0>250}", 7), NewKind::File);
    "mkdir" => |m| make(m, "a/newdir", NewKind::Directory);
    "symlink" => |m| make(m, "b/sym", NewKind::Symlink(vec![b't'; 30]));
    "symlink-long" => |m| make(m, "b/symlong", NewKind::Symlink(vec![b't'; 300]));
    "mkfifo" => |m| make(m, "a/fifo", NewKind::Endpoint(FileType::Fifo));
    "mknod" => |m| make(m, "a/dev", NewKind::Device(FileType::CharDevice, 4, 7));
    "link" => |m| Some(Call::Link(file(m, "a/f")?, at(m, "b/link")?));
    "unlink" => |m| Some(Call::Unlink(at(m, "a/f")?));
    "unlink-one-of-two" => |m| Some(Call::Unlink(at(m, "a/h")?));
    "unlink-with-xattr" => |m| Some(Call::Unlink(at(m, "a/g")?));
    "unlink-sparse" => |m| Some(Call::Unlink(at(m, "b/k")?));
    "unlink-symlink" => |m| Some(Call::Unlink(at(m, "b/long")?));
    "rmdir" => |m| Some(Call::Rmdir(at(m, "a/empty")?));
    "rmdir-refused" => |m| Some(Call::Rmdir(at(m, "b")?));
    "rename" => |m| rename(m, "a/f", "a/renamed", How::Replace);
    "rename-across" => |m| rename(m, "a/f", "b/renamed", How::Replace);
    "rename-over" => |m| rename(m, "a/g", "a/f", How::Replace);
    "rename-over-across" => |m| rename(m, "a/f", "b/k", How::Replace);
    "rename-over-link" => |m| rename(m, "b/s", "b/h", How::Replace);
    "rename-back" => |m| rename(m, "b/renamed", "a/f", How::Replace);
    "rename-no-replace" => |m| rename(m, "a/g", "b/g", How::NoReplace);
    "rename-dir" => |m| rename(m, "a", "aa", How::Replace);
    "rename-dir-across" => |m| rename(m, "b/c", "a/c", How::Replace);
    "rename-dir-over" => |m| rename(m, "b/c", "a/empty", How::Replace);
    "whiteout" => |m| rename(m, "a/g", "b/w", How::Whiteout(OWNER));
    "exchange" => |m| rename(m, "a/f", "b/k", How::Exchange);
    "exchange-dir-and-file" => |m| rename(m, "a/f", "b/c", How::Exchange);
    "overwrite" => |m| write(m, "a/f", 1024, 2048, 11);
    "overwrite-odd" => |m| write(m, "a/f", 700, 1_900, 12);
    "overwrite-other" => |m| write(m, "b/k", 5_000, 3_000, 13);
    "append" => |m| Some(Call::Append { node: file(m, "a/f")?, len: 5_000, tag: 14 });
    "append-little" => |m| Some(Call::Append { node: file(m, "a/h")?, len: 77, tag: 15 });
    "write-hole" => |m| write(m, "b/k", 20_000, 3_000, 16);
    "write-behind" => |m| write(m, "a/f", 30_000, 1_500, 17);
    "write-new" => |m| write(m, "a/new", 0, 3_000, 18);
    "truncate-to-0" => |m| Some(Call::Truncate(file(m, "a/f")?, 0));
    "truncate-odd" => |m| Some(Call::Truncate(file(m, "a/f")?, 3_333));
    "truncate-longer" => |m| Some(Call::Truncate(file(m, "a/f")?, 20_000));
    "truncate-sparse" => |m| Some(Call::Truncate(file(m, "b/k")?, 7_000));
    "allocate" => |m| fallocate(m, Fallocate::Allocate, 4..20);
    "allocate-keep-size" => |m| fallocate(m, Fallocate::AllocateKeepSize, 8..20);
    "punch" => |m| fallocate(m, Fallocate::PunchHole, 1..2);
    "punch-odd" => |m| Some(Call::Fallocate(file(m, "a/f")?, Fallocate::PunchHole, 500..7_000));
    "zero" => |m| fallocate(m, Fallocate::ZeroRange, 1..3);
    "zero-odd" => |m| Some(Call::Fallocate(file(m, "b/k")?, Fallocate::ZeroRange, 5_500..9_000));
    "collapse" => |m| fallocate(m, Fallocate::CollapseRange, 0..1);
    "insert" => |m| fallocate(m, Fallocate::InsertRange, 1..3);
    "chmod" => |m| Some(Call::Chmod(file(m, "a/f")?, 0o4711));
    "chown" => |m| Some(Call::Chown { node: file(m, "a/f")?, uid: 70_000, gid: 3 });
    "touch" => |m| Some(Call::Touch { node: id(m, "b/k")?, atime: 5, mtime: 6 });
    "flags" => |m| Some(Call::SetFlags(file(m, "a/f")?, InodeFlags::NODUMP_FL));
    "xattr" => |m| set_xattr(m, "a/f", "user.small", 10);
    "xattr-large" => |m| set_xattr(m, "a/f", "user.large", 400);
    "xattr-of-dir" => |m| set_xattr(m, "b", "user.large", 300);
    "xattr-replace" => |m| set_xattr(m, "a/g", "user.large", 450);
    "xattr-remove" => |m| Some(Call::RemoveXattr(file(m, "a/g")?, b"user.large".to_vec()));
    "xattr-remove-new" => |m| Some(Call::RemoveXattr(file(m, "a/f")?, b"user.large".to_vec()));
    "rmdir-new" => |m| Some(Call::Rmdir(at(m, "a/newdir")?));
    "unlink-new" => |m| Some(Call::Unlink(at(m, "a/new")?));
    "acl" => |m| {
        let list = Acl { owner: 7, named: 5, group: 4, mask: 5, others: 1 };
        Some(Call::SetAcl(file(m, "a/f")?, Which::Access, Some(list)))
    };
    "acl-default" => |m| {
        let list = Acl { owner: 7, named: 6, group: 4, mask: 6, others: 0 };
        Some(Call::SetAcl(directory(m, "a")?, Which::Default, Some(list)))
    };
    "unnamed" => |m| Some(Call::MakeUnnamed(directory(m, "a")?, OWNER));
    "write-over-end" => |m| write(m, "a/h", 60, 80, 20);
    "write-open" => |m| {
        let node = opened(m)?;
        Some(Call::Write { node, offset: 0, len: 4_000, tag: 19 })
    };
    "link-open" => |m| Some(Call::Link(opened(m)?, at(m, "b/was-open")?));
    "open" => |m| Some(Call::Open(file(m, "a/f")?));
    "close" => |m| Some(Call::Close(*m.opened().first()?));
    // Equal to the attributes of `a/g` and `b/k`, which share a block.
    "xattr-equal" => |m| set_xattr(m, "a/f", "user.large", 500);
    "xattr-equal-again" => |m| set_xattr(m, "a/h", "user.large", 500);
    "xattr-replace-other" => |m| set_xattr(m, "b/k", "user.large", 450);
};

/// Operations that take a few blocks for metadata and data, and free them again: on a file system
/// that is nearly full, blocks change from one use to the other.
pub(super) const CHURN: [&str; 8] = [
    "mkdir",
    "rmdir-new",
    "xattr-large",
    "xattr-remove-new",
    "create",
    "write-new",
    "write-new",
    "unlink-new",
];

/// The index of an operation in the catalogue.
pub(super) fn place_of(name: &str) -> Option<usize> {
    OPS.iter().position(|op| op.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn operations_have_different_names() {
        let names: BTreeSet<_> = OPS.iter().map(|op| op.name).collect();
        assert_eq!(names.len(), OPS.len());
    }

    #[test]
    fn operations_that_churn_are_in_the_catalogue() {
        assert!(CHURN.iter().all(|name| place_of(name).is_some()));
    }
}
