//! **Purpose.** Operations of the model on names.

use std::collections::BTreeMap;

use fourscore::FileType;
use fourscore_ondisk::inode::InodeFlags;
use rustix::io::Errno;

use super::{Content, How, Id, Kind, Model, NewKind, Node, Owner, Place, Refusals};

const SET_GID: u16 = 0o2000;
const ALL_PERMISSIONS: u16 = 0o777;
/// The flags that a new inode inherits from its directory.
const INHERITED: InodeFlags = InodeFlags::NODUMP_FL
    .union(InodeFlags::NOATIME_FL)
    .union(InodeFlags::PROJINHERIT_FL);

impl Model {
    /// A new inode in `dir`, without its name.
    fn new_node(&self, dir: Id, kind: Kind, owner: &Owner) -> Node {
        let parent = self.node(dir);
        let mut node = Node::new(kind, owner.permissions, owner.uid, owner.gid);
        node.flags = (parent.flags & INHERITED).of_type(node.file_type());
        if parent.flags.contains(InodeFlags::PROJINHERIT_FL) {
            node.project = parent.project;
        }
        match parent.default {
            _ if node.file_type() == FileType::Symlink => {}
            None => node.permissions &= !owner.umask,
            Some(default) => {
                let access = default.inherited(owner.permissions);
                node.permissions = (owner.permissions & !ALL_PERMISSIONS) | access.bits();
                node.access = Some(access);
                node.default = node.is_dir().then_some(default);
            }
        }
        if parent.permissions & SET_GID != 0 {
            node.gid = parent.gid;
            if node.is_dir() {
                node.permissions |= SET_GID;
            }
        }
        node
    }

    /// Adds a name to a directory.
    fn put(&mut self, place: &Place, id: Id) {
        let is_dir = self.node(id).is_dir();
        if let Kind::Directory { parent, .. } = &mut self.node_mut(id).kind {
            *parent = place.dir;
        }
        let dir = self.node_mut(place.dir);
        dir.links += u32::from(is_dir);
        dir.mtime = None;
        if let Kind::Directory { entries, .. } = &mut dir.kind {
            entries.insert(place.name.clone(), id);
        }
    }

    /// Removes a name from its directory.
    fn take(&mut self, place: &Place) -> Id {
        let id = self.lookup(place).unwrap();
        let is_dir = self.node(id).is_dir();
        let dir = self.node_mut(place.dir);
        dir.links -= u32::from(is_dir);
        dir.mtime = None;
        if let Kind::Directory { entries, .. } = &mut dir.kind {
            entries.remove(&place.name);
        }
        id
    }

    /// Decreases the link count of an inode that has lost a name.
    fn drop_name(&mut self, id: Id) {
        let node = self.node_mut(id);
        node.links = if node.is_dir() { 0 } else { node.links - 1 };
        self.drop_if_unused(id);
    }

    fn is_removed(&self, dir: Id) -> bool {
        self.node(dir).links == 0
    }

    /// Whether `dir` is `above` or lies below it.
    fn is_below(&self, mut dir: Id, above: Id) -> bool {
        loop {
            match self.node(dir).kind {
                _ if dir == above => return true,
                Kind::Directory { parent, .. } if dir != Self::ROOT => {
                    let Some(_) = self.nodes.get(&parent) else {
                        return false;
                    };
                    dir = parent;
                }
                _ => return false,
            }
        }
    }

    fn has_entries(&self, id: Id) -> bool {
        self.node(id)
            .entries()
            .is_some_and(|entries| !entries.is_empty())
    }

    /// Whether the directory rejects an inode because of its project.
    fn rejects_project(&self, dir: Id, id: Id) -> bool {
        let dir = self.node(dir);
        dir.flags.contains(InodeFlags::PROJINHERIT_FL) && dir.project != self.node(id).project
    }

    pub(super) fn make(
        &mut self,
        place: &Place,
        kind: &NewKind,
        owner: &Owner,
        why: &mut Refusals,
    ) -> Option<Id> {
        let longest = self.rules.block_bytes.min(4096);
        let too_long = matches!(kind, NewKind::Symlink(target) if target.len() as u64 >= longest);
        why.when(too_long, Errno::NAMETOOLONG);
        why.when(self.is_removed(place.dir), Errno::NOENT);
        why.when(self.lookup(place).is_some(), Errno::EXIST);
        if !why.is_empty() {
            return None;
        }
        let kind = match kind {
            NewKind::File => Kind::File(Content::default()),
            NewKind::Directory => Kind::Directory {
                parent: place.dir,
                entries: BTreeMap::new(),
            },
            NewKind::Symlink(target) => Kind::Symlink(target.clone()),
            NewKind::Device(file_type, major, minor) => Kind::Device(*file_type, *major, *minor),
            NewKind::Endpoint(file_type) => Kind::Endpoint(*file_type),
        };
        let mut node = self.new_node(place.dir, kind, owner);
        node.links += u32::from(node.is_dir());
        let id = self.add(node);
        self.put(place, id);
        Some(id)
    }

    pub(super) fn make_unnamed(
        &mut self,
        dir: Id,
        owner: &Owner,
        why: &mut Refusals,
    ) -> Option<Id> {
        why.when(self.is_removed(dir), Errno::PERM);
        if !why.is_empty() {
            return None;
        }
        let mut node = self.new_node(dir, Kind::File(Content::default()), owner);
        (node.links, node.opens, node.is_linkable) = (0, 1, true);
        Some(self.add(node))
    }

    pub(super) fn link(&mut self, id: Id, place: &Place, why: &mut Refusals) -> Option<Id> {
        let node = self.node(id);
        why.when(node.links == 0 && !node.is_linkable, Errno::NOENT);
        why.when(self.is_removed(place.dir), Errno::NOENT);
        why.when(self.lookup(place).is_some(), Errno::EXIST);
        why.when(self.rejects_project(place.dir, id), Errno::XDEV);
        if why.is_empty() {
            let node = self.node_mut(id);
            node.links += 1;
            node.is_linkable = false;
            self.put(place, id);
        }
        None
    }

    pub(super) fn unlink(&mut self, place: &Place, why: &mut Refusals) -> Option<Id> {
        let Some(id) = self.lookup(place) else {
            why.when(true, Errno::NOENT);
            return None;
        };
        why.when(self.node(id).is_dir(), Errno::ISDIR);
        if why.is_empty() {
            self.take(place);
            self.drop_name(id);
        }
        None
    }

    pub(super) fn rmdir(&mut self, place: &Place, why: &mut Refusals) -> Option<Id> {
        let Some(id) = self.lookup(place) else {
            why.when(true, Errno::NOENT);
            return None;
        };
        why.when(!self.node(id).is_dir(), Errno::NOTDIR);
        why.when(self.has_entries(id), Errno::NOTEMPTY);
        if why.is_empty() {
            self.take(place);
            self.drop_name(id);
        }
        None
    }

    pub(super) fn rename(
        &mut self,
        from: &Place,
        to: &Place,
        how: How,
        why: &mut Refusals,
    ) -> Option<Id> {
        let (moved, victim) = (self.lookup(from), self.lookup(to));
        let missing = moved.is_none() || (how == How::Exchange && victim.is_none());
        why.when(missing || self.is_removed(to.dir), Errno::NOENT);
        why.when(how == How::NoReplace && victim.is_some(), Errno::EXIST);
        let moved = moved?;
        if victim == Some(moved) {
            // A rename between two names of one inode does nothing.
            return None;
        }
        why.when(self.rejects_project(to.dir, moved), Errno::XDEV);
        why.when(self.is_below(to.dir, moved), Errno::INVAL);
        if how == How::Exchange {
            return self.exchange(from, to, why);
        }
        let is_dir = self.node(moved).is_dir();
        if let Some(victim) = victim {
            let victim_is_dir = self.node(victim).is_dir();
            // A target that contains the source is not empty, which is reported instead.
            let holds = self.is_below(from.dir, victim);
            why.when(victim_is_dir && !is_dir && !holds, Errno::ISDIR);
            why.when(!victim_is_dir && is_dir, Errno::NOTDIR);
            why.when(self.has_entries(victim), Errno::NOTEMPTY);
        }
        if !why.is_empty() {
            return None;
        }
        self.take(from);
        if let Some(victim) = victim {
            self.take(to);
            self.drop_name(victim);
        }
        self.put(to, moved);
        match how {
            How::Whiteout(owner) => {
                let owner = Owner {
                    permissions: 0,
                    ..owner
                };
                let kind = Kind::Device(FileType::CharDevice, 0, 0);
                let whiteout = self.new_node(from.dir, kind, &owner);
                let whiteout = self.add(whiteout);
                self.put(from, whiteout);
                Some(whiteout)
            }
            _ => None,
        }
    }

    fn exchange(&mut self, one: &Place, other: &Place, why: &mut Refusals) -> Option<Id> {
        let second = self.lookup(other)?;
        why.when(self.rejects_project(one.dir, second), Errno::XDEV);
        why.when(self.is_below(one.dir, second), Errno::INVAL);
        if why.is_empty() {
            let (first, second) = (self.take(one), self.take(other));
            self.put(one, second);
            self.put(other, first);
        }
        None
    }
}
