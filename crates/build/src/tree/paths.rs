//! **Purpose.** Changes the tree by path, as sources with lists of entries do (tar, OCI layers,
//! manifests).
//!
//! **Model.** A path begins at the root, with or without a slash; `.` and empty components are
//! ignored, `..` is refused. Symbolic links in the middle of a path are followed inside the tree:
//! `..` in a link target stops at the root, as if the tree were the root of a container. The last
//! component is never followed.

use super::node::{Content, Kind, Meta, Node, Stored};
use super::xattrs::Xattrs;
use super::{MAX_NAME_BYTES, MAX_TARGET_BYTES, NodeId, Tree, TreeError, TreeResult};

/// The largest number of symbolic links that are followed in one path, as in Linux.
const MAX_SYMLINKS: u32 = 40;

/// Whether missing directories on a path are created.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Leave,
}

/// The attributes of an object to be inserted.
struct NewObject<'a> {
    meta: &'a Meta,
    kind: Kind,
    xattrs: &'a Xattrs,
}

impl Tree {
    /// Inserts an object, or changes the attributes of an existing directory. Missing parent
    /// directories are created.
    ///
    /// # Errors
    /// A path or object that ext4 or the tree cannot hold; see [`TreeError`].
    pub fn insert(
        &mut self,
        path: &[u8],
        meta: &Meta,
        kind: Kind,
        xattrs: &Xattrs,
    ) -> TreeResult<NodeId> {
        let Some((directory, name)) = self.parent(path, Missing::Make)? else {
            if kind != Kind::Directory {
                return Err(TreeError::Root);
            }
            self.set_meta(NodeId::ROOT, meta);
            self.set_xattrs(NodeId::ROOT, xattrs)?;
            return Ok(NodeId::ROOT);
        };
        let found = self.find(directory, name);
        self.put(
            directory,
            name,
            found,
            NewObject { meta, kind, xattrs },
            path,
        )
    }

    /// As [`Tree::insert`], into a given directory.
    ///
    /// # Errors
    /// As [`Tree::insert`]; the path in the error is the name alone.
    pub fn insert_in(
        &mut self,
        directory: NodeId,
        name: &[u8],
        meta: &Meta,
        kind: Kind,
        xattrs: &Xattrs,
    ) -> TreeResult<NodeId> {
        let found = self.find(directory, name);
        self.put(
            directory,
            name,
            found,
            NewObject { meta, kind, xattrs },
            name,
        )
    }

    /// As [`Tree::insert_in`], for a name that the directory does not have. Skips the lookup;
    /// inserting an existing name would add a duplicate.
    pub(crate) fn insert_new(
        &mut self,
        directory: NodeId,
        name: &[u8],
        meta: &Meta,
        kind: Kind,
        xattrs: &Xattrs,
    ) -> TreeResult<NodeId> {
        self.put(
            directory,
            name,
            None,
            NewObject { meta, kind, xattrs },
            name,
        )
    }

    /// Adds a name to an object, replacing an object of that name.
    ///
    /// # Errors
    /// [`TreeError::NoTarget`], [`TreeError::LinkToDirectory`], and errors of the paths.
    pub fn link(&mut self, path: &[u8], target: &[u8]) -> TreeResult<NodeId> {
        let no_target = || TreeError::NoTarget {
            path: path.to_vec(),
            target: target.to_vec(),
        };
        let node = self.lookup(target)?.ok_or_else(no_target)?;
        if matches!(self.node(node).stored, Stored::Directory(_)) {
            return Err(TreeError::LinkToDirectory {
                path: path.to_vec(),
                target: target.to_vec(),
            });
        }
        let Some((directory, name)) = self.parent(path, Missing::Make)? else {
            return Err(TreeError::Root);
        };
        let found = self.find(directory, name);
        self.put_link(directory, name, found, node, path)?;
        Ok(node)
    }

    /// Changes the type of an object to one other than a directory, under all its names.
    ///
    /// # Errors
    /// A kind that the tree cannot hold.
    pub(crate) fn set_kind(&mut self, id: NodeId, kind: Kind, path: &[u8]) -> TreeResult<()> {
        // The parent is used for directories only.
        let stored = self.stored(NodeId::ROOT, kind, path)?;
        self.node_mut(id).stored = stored;
        Ok(())
    }

    /// As [`Tree::link`], with a given directory, existing entry and object.
    ///
    /// # Errors
    /// Errors of the name.
    pub(crate) fn link_in(
        &mut self,
        directory: NodeId,
        name: &[u8],
        found: Option<NodeId>,
        node: NodeId,
    ) -> TreeResult<()> {
        self.put_link(directory, name, found, node, name)
    }

    /// Removes a name, and a directory with everything in it. Returns whether the name existed.
    ///
    /// # Errors
    /// Errors of the path.
    pub fn remove(&mut self, path: &[u8]) -> TreeResult<bool> {
        let Some((directory, name)) = self.parent(path, Missing::Leave)? else {
            return Ok(false);
        };
        let Stored::Directory(list) = self.node(directory).stored else {
            return Ok(false);
        };
        let Some(node) = self.entries.remove(list, name) else {
            return Ok(false);
        };
        self.unlink(NodeId(node));
        Ok(true)
    }

    /// Removes all entries of a directory. Returns whether there is a directory at this path.
    ///
    /// # Errors
    /// Errors of the path.
    pub fn clear(&mut self, path: &[u8]) -> TreeResult<bool> {
        match self.lookup(path)? {
            Some(node) if matches!(self.node(node).stored, Stored::Directory(_)) => {
                self.clear_directory(node);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Looks up a path.
    ///
    /// # Errors
    /// Errors of the path.
    pub fn lookup(&mut self, path: &[u8]) -> TreeResult<Option<NodeId>> {
        match self.parent(path, Missing::Leave) {
            Ok(None) => Ok(Some(NodeId::ROOT)),
            Ok(Some((directory, name))) => Ok(self.find(directory, name)),
            Err(TreeError::NotADirectory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks up a name in a directory.
    pub fn find(&mut self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match self.node(directory).stored {
            Stored::Directory(list) => self.entries.find(list, name).map(NodeId),
            _ => None,
        }
    }

    /// The parent directory of a path and its last name; `None` for the root.
    fn parent<'a>(
        &mut self,
        path: &'a [u8],
        missing: Missing,
    ) -> TreeResult<Option<(NodeId, &'a [u8])>> {
        let mut names = path
            .split(|&byte| byte == b'/')
            .filter(|name| !matches!(*name, b"" | b"."))
            .peekable();
        let mut followed = 0;
        let mut directory = NodeId::ROOT;
        while let Some(name) = names.next() {
            if name == b".." {
                return Err(TreeError::Climbs {
                    path: path.to_vec(),
                });
            }
            if names.peek().is_none() {
                return Ok(Some((directory, name)));
            }
            directory = self.step(directory, name, missing, path, &mut followed)?;
        }
        Ok(None)
    }

    /// Walks one component of a path, following symbolic links.
    fn step(
        &mut self,
        directory: NodeId,
        name: &[u8],
        missing: Missing,
        path: &[u8],
        followed: &mut u32,
    ) -> TreeResult<NodeId> {
        let not_a_directory = || TreeError::NotADirectory {
            path: path.to_vec(),
        };
        let Some(found) = self.find(directory, name) else {
            if missing == Missing::Leave {
                return Err(not_a_directory());
            }
            let meta = Meta {
                permissions: 0o755,
                ..Meta::default()
            };
            let new = NewObject {
                meta: &meta,
                kind: Kind::Directory,
                xattrs: &Xattrs::new(),
            };
            return self.put(directory, name, None, new, path);
        };
        let target = match &self.node(found).stored {
            Stored::Directory(_) => return Ok(found),
            Stored::Symlink(target) => self.entries.arena.get(*target).to_vec(),
            _ => return Err(not_a_directory()),
        };
        *followed += 1;
        if *followed > MAX_SYMLINKS {
            return Err(TreeError::SymlinkLoop {
                path: path.to_vec(),
            });
        }
        let mut above = if target.first() == Some(&b'/') {
            vec![NodeId::ROOT]
        } else {
            self.path_from_root(directory)
        };
        for name in target.split(|&byte| byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => {
                    above.pop();
                }
                _ => {
                    let from = above.last().copied().unwrap_or(NodeId::ROOT);
                    let next = self.step(from, name, missing, path, followed)?;
                    above.push(next);
                }
            }
        }
        Ok(above.last().copied().unwrap_or(NodeId::ROOT))
    }

    /// The directories from the root down to `directory`.
    fn path_from_root(&self, directory: NodeId) -> Vec<NodeId> {
        let mut chain = vec![directory];
        while let Some(&below) = chain.last()
            && below != NodeId::ROOT
        {
            let list = self.list_of(below).map(|list| list as usize);
            let parent = list.and_then(|list| self.parents.get(list));
            chain.push(parent.copied().unwrap_or(NodeId::ROOT));
        }
        chain.reverse();
        chain
    }

    fn put(
        &mut self,
        directory: NodeId,
        name: &[u8],
        found: Option<NodeId>,
        object: NewObject<'_>,
        path: &[u8],
    ) -> TreeResult<NodeId> {
        let NewObject { meta, kind, xattrs } = object;
        if let Some(found) = found
            && kind == Kind::Directory
            && matches!(self.node(found).stored, Stored::Directory(_))
        {
            self.set_meta(found, meta);
            self.set_xattrs(found, xattrs)?;
            return Ok(found);
        }
        let stored = self.stored(directory, kind, path)?;
        let set = self.xattrs.intern(xattrs).ok_or(TreeError::Full)?;
        let number = u32::try_from(self.nodes.len()).map_err(|_| TreeError::Full)?;
        self.nodes.push(Node::new(meta, stored, set));
        let placed = self.put_link(directory, name, found, NodeId(number), path);
        placed.map(|()| NodeId(number))
    }

    fn put_link(
        &mut self,
        directory: NodeId,
        name: &[u8],
        found: Option<NodeId>,
        node: NodeId,
        path: &[u8],
    ) -> TreeResult<()> {
        if name.len() > MAX_NAME_BYTES {
            return Err(TreeError::NameTooLong {
                path: path.to_vec(),
                length: name.len(),
            });
        }
        if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(TreeError::BadName {
                path: path.to_vec(),
            });
        }
        let Stored::Directory(list) = self.node(directory).stored else {
            return Err(TreeError::NotADirectory {
                path: path.to_vec(),
            });
        };
        self.node_mut(node).links += 1;
        match found {
            Some(found) => {
                self.entries.replace(list, name, node.0);
                self.unlink(found);
                Ok(())
            }
            None => self.entries.push(list, name, node.0).ok_or(TreeError::Full),
        }
    }

    /// Drops one name of an object.
    fn unlink(&mut self, node: NodeId) {
        let object = self.node_mut(node);
        object.links = object.links.saturating_sub(1);
        self.clear_directory(node);
    }

    fn clear_directory(&mut self, node: NodeId) {
        let mut left = vec![node];
        while let Some(node) = left.pop() {
            let Stored::Directory(list) = self.node(node).stored else {
                continue;
            };
            for child in self.entries.clear(list).into_iter().map(NodeId) {
                let object = self.node_mut(child);
                object.links = object.links.saturating_sub(1);
                left.push(child);
            }
        }
    }

    /// Converts an object in `directory` to its stored form.
    fn stored(&mut self, directory: NodeId, kind: Kind, path: &[u8]) -> TreeResult<Stored> {
        Ok(match kind {
            Kind::Directory => {
                let list = self.entries.add_directory().ok_or(TreeError::Full)?;
                self.parents.push(directory);
                Stored::Directory(list)
            }
            Kind::File(content) => {
                check_pieces(&content, path)?;
                Stored::File(content)
            }
            Kind::Symlink(target) => {
                let is_valid =
                    (1..=MAX_TARGET_BYTES).contains(&target.len()) && !target.contains(&0);
                if !is_valid {
                    return Err(TreeError::BadTarget {
                        path: path.to_vec(),
                        length: target.len(),
                    });
                }
                Stored::Symlink(self.entries.arena.push(&target).ok_or(TreeError::Full)?)
            }
            Kind::CharDevice(number) => Stored::CharDevice(number),
            Kind::BlockDevice(number) => Stored::BlockDevice(number),
            Kind::Fifo => Stored::Fifo,
            Kind::Socket => Stored::Socket,
        })
    }
}

fn check_pieces(content: &Content, path: &[u8]) -> TreeResult<()> {
    let Content::Sparse(sparse) = content else {
        return Ok(());
    };
    let mut end = 0;
    for piece in &sparse.pieces {
        let piece_end = piece.at.checked_add(piece.len_bytes);
        match piece_end.filter(|&to| piece.at >= end && to <= sparse.len_bytes) {
            Some(piece_end) => end = piece_end,
            None => {
                return Err(TreeError::BadPieces {
                    path: path.to_vec(),
                });
            }
        }
    }
    Ok(())
}
