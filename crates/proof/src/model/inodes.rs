//! **Purpose.** Operations of the model on inodes: data, attributes, open and close.

use std::ops::Range;

use fourscore::{Fallocate, SetXattr};
use rustix::io::Errno;

use super::{Call, Content, Id, Kind, Model, Refusals, Which};

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

impl Model {
    /// Does a call that neither creates an inode nor changes a name.
    pub(super) fn change(&mut self, call: &Call, why: &mut Refusals) {
        match call {
            Call::Open(id) => self.node_mut(*id).opens += 1,
            Call::Close(id) => {
                self.node_mut(*id).opens -= 1;
                self.drop_if_unused(*id);
            }
            Call::Write {
                node,
                offset,
                len,
                tag,
            } => self.content_mut(*node).write(*tag, *offset, *len),
            Call::Append { node, len, tag } => {
                let content = self.content_mut(*node);
                content.write(*tag, content.size(), *len);
            }
            Call::Truncate(node, size) => self.content_mut(*node).truncate(*size),
            Call::Copy(from, range, to, offset) => self.copy(*from, range, *to, *offset, why),
            Call::Fallocate(node, what, range) => self.fallocate(*node, *what, range, why),
            Call::Chmod(node, permissions) => {
                let node = self.node_mut(*node);
                node.permissions = *permissions;
                node.access = node.access.map(|list| list.after_chmod(*permissions));
            }
            Call::Chown { node, uid, gid } => self.chown(*node, *uid, *gid),
            Call::Touch { node, atime, mtime } => {
                let node = self.node_mut(*node);
                (node.atime, node.mtime) = (Some(*atime), Some(*mtime));
            }
            Call::SetFlags(node, flags) => self.node_mut(*node).flags = *flags,
            Call::SetProject(node, project) => self.node_mut(*node).project = *project,
            Call::SetXattr {
                node,
                name,
                value,
                how,
            } => self.set_xattr(*node, name, value, *how, why),
            Call::RemoveXattr(node, name) => {
                let removed = self.node_mut(*node).xattrs.remove(name);
                why.when(removed.is_none(), Errno::NODATA);
            }
            Call::SetAcl(node, which, list) => self.set_acl(*node, *which, *list, why),
            Call::Disturb(_) | Call::Fsync(_) | Call::Fdatasync(_) | Call::Whole(_) => {}
            Call::Make(..)
            | Call::MakeUnnamed(..)
            | Call::Link(..)
            | Call::Unlink(..)
            | Call::Rmdir(..)
            | Call::Rename(..) => unreachable!("a call that changes names"),
        }
    }

    /// The data of a file, which is about to change.
    fn content_mut(&mut self, id: Id) -> &mut Content {
        let node = self.node_mut(id);
        node.mtime = None;
        match &mut node.kind {
            Kind::File(content) => content,
            other => unreachable!("{other:?}"),
        }
    }

    fn copy(&mut self, from: Id, range: &Range<u64>, to: Id, offset: u64, why: &mut Refusals) {
        let source = self.node(from).content().cloned().unwrap_or_default();
        let range = range.start..range.end.min(source.size());
        if range.is_empty() {
            return;
        }
        let end = offset + (range.end - range.start);
        let overlap = from == to && offset < range.end && range.start < end;
        why.when(overlap, Errno::INVAL);
        if why.is_empty() {
            self.content_mut(to).copy(&source, range, offset);
        }
    }

    fn fallocate(&mut self, id: Id, what: Fallocate, range: &Range<u64>, why: &mut Refusals) {
        let rules = self.rules;
        let size = self.node(id).content().map_or(0, Content::size);
        let (offset, end) = (range.start, range.end);
        let moves = matches!(what, Fallocate::CollapseRange | Fallocate::InsertRange);
        let is_whole = (offset | end) % rules.unit_bytes == 0;
        let is_inside = match what {
            Fallocate::CollapseRange => end < size,
            _ => offset < size,
        };
        why.when(moves && !(is_whole && is_inside), Errno::INVAL);
        why.when(
            what != Fallocate::PunchHole && !rules.has_extents,
            Errno::OPNOTSUPP,
        );
        if !why.is_empty() {
            return;
        }
        let content = self.content_mut(id);
        match what {
            Fallocate::Allocate => content.grow(end),
            Fallocate::AllocateKeepSize => {}
            Fallocate::PunchHole | Fallocate::ZeroRangeKeepSize => content.zero(range.clone()),
            Fallocate::ZeroRange => {
                content.zero(range.clone());
                content.grow(end);
            }
            Fallocate::CollapseRange => content.collapse(range.clone()),
            Fallocate::InsertRange => content.insert(range.clone()),
        }
    }

    fn chown(&mut self, id: Id, uid: u32, gid: u32) {
        let node = self.node_mut(id);
        (node.uid, node.gid) = (uid, gid);
        if node.is_dir() {
            return;
        }
        node.permissions &= !SET_UID;
        if node.permissions & GROUP_EXECUTE != 0 {
            node.permissions &= !SET_GID;
        }
    }

    fn set_xattr(&mut self, id: Id, name: &[u8], value: &[u8], how: SetXattr, why: &mut Refusals) {
        let node = self.node_mut(id);
        let is_there = node.xattrs.contains_key(name);
        why.when(is_there && how == SetXattr::Create, Errno::EXIST);
        why.when(!is_there && how == SetXattr::Replace, Errno::NODATA);
        if why.is_empty() {
            node.xattrs.insert(name.to_vec(), value.to_vec());
        }
    }

    fn set_acl(&mut self, id: Id, which: Which, list: Option<super::Acl>, why: &mut Refusals) {
        let node = self.node_mut(id);
        if which == Which::Default {
            // Removing a default list that a file cannot have is no error.
            why.when(!node.is_dir() && list.is_some(), Errno::ACCESS);
            if why.is_empty() {
                node.default = list;
            }
            return;
        }
        node.access = list;
        if let Some(list) = list {
            node.permissions = (node.permissions & !0o777) | list.bits();
        }
    }

    /// Whether an inode may have no space for its attributes: with those that the call adds, they
    /// take more than half of a block.
    pub(super) fn may_lack_space(&self, call: &Call) -> bool {
        let (id, more) = match call {
            Call::SetXattr {
                node, name, value, ..
            } => (*node, 24 + name.len() + value.len()),
            Call::SetAcl(node, _, Some(list)) => (*node, 64 + list.bytes().len()),
            _ => return false,
        };
        (self.node(id).xattr_bytes() + more) as u64 > self.rules.block_bytes / 2
    }
}
