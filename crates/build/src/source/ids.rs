//! **Purpose.** Changes the owners of all objects, by a single owner or by id maps.
//!
//! **Model.** Either all objects get one owner, or ranges of ids are mapped as in user namespaces.
//! A map applies to the owners of objects and to the users and groups in their ACLs. An id that is
//! in no range is an error, because its owner would be undefined.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::source::fault::{Fault, SourceError};
use crate::tree::{NodeId, Tree, XattrSet, Xattrs};

/// Maps `count` ids that begin at `from` to those that begin at `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first id in the source.
    pub from: u32,
    /// The first id in the image.
    pub to: u32,
    /// The number of ids.
    pub count: u32,
}

/// The id that no user and no group has: to chown(2) it means that the owner stays.
const NO_ID: u32 = u32::MAX;

/// Whether a user or a group can have the id.
pub(crate) fn is_id(id: u32) -> bool {
    id != NO_ID
}

/// A list of ranges; an empty list maps each id to itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    ranges: Vec<IdRange>,
}

/// How owners are changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owners {
    /// The same user and group for all objects; `None` keeps theirs.
    One {
        /// The user.
        uid: Option<u32>,
        /// The group.
        gid: Option<u32>,
    },
    /// Mapped ids.
    Moved {
        /// Map of user ids.
        users: IdMap,
        /// Map of group ids.
        groups: IdMap,
    },
}

/// An invalid owner or range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {expected}")]
pub struct IdError {
    text: String,
    expected: &'static str,
}

impl std::str::FromStr for IdRange {
    type Err = IdError;

    /// From `FROM:TO:COUNT`. No id may become 4294967295, which no user and no group has; one that
    /// is that in the source can be mapped.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let numbers: Option<Vec<u32>> = text.split(':').map(|part| part.parse().ok()).collect();
        let range = match numbers.as_deref() {
            Some(&[from, to, count]) => Some(Self { from, to, count }),
            _ => None,
        };
        let fits = |range: &Self| {
            let last = range.count.checked_sub(1);
            let end = |first: u32| last.and_then(|last| first.checked_add(last));
            end(range.from).is_some() && end(range.to).is_some()
        };
        let wrong = |expected| IdError {
            text: text.to_owned(),
            expected,
        };
        let range = range.filter(fits);
        let range = range.ok_or_else(|| wrong("a range of ids: FROM:TO:COUNT, three numbers"))?;
        match is_id(range.to + (range.count - 1)) {
            true => Ok(range),
            false => Err(wrong(
                "a range of ids: it ends with 4294967295, the id that no user and no group has",
            )),
        }
    }
}

impl IdMap {
    /// Creates a map; the first range that contains an id applies.
    #[must_use]
    pub fn new(ranges: Vec<IdRange>) -> Self {
        Self { ranges }
    }

    fn get(&self, id: u32) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(id);
        }
        self.ranges.iter().find_map(|range| {
            let offset = id.checked_sub(range.from)?;
            (offset < range.count).then(|| range.to + offset)
        })
    }
}

impl Owners {
    /// Keeps all owners.
    #[must_use]
    pub fn kept() -> Self {
        Self::Moved {
            users: IdMap::default(),
            groups: IdMap::default(),
        }
    }

    /// Changes the owners of all objects of the tree.
    ///
    /// # Errors
    /// [`Fault::Unmapped`] names the object whose id is in no range.
    pub fn apply(&self, tree: &mut Tree) -> Result<(), SourceError> {
        if *self == Self::kept() {
            return Ok(());
        }
        let mut mapped_sets = HashMap::new();
        for id in tree.ids() {
            let mapped = self.apply_to(tree, id, &mut mapped_sets);
            mapped.map_err(|fault| SourceError {
                place: "owners".to_owned(),
                entry: Some(tree.path_of(id)),
                fault,
            })?;
        }
        Ok(())
    }

    fn apply_to(
        &self,
        tree: &mut Tree,
        id: NodeId,
        mapped_sets: &mut HashMap<XattrSet, Option<Xattrs>>,
    ) -> Result<(), Fault> {
        let mut meta = tree.meta(id);
        match self {
            Self::One { uid, gid } => {
                meta.uid = uid.unwrap_or(meta.uid);
                meta.gid = gid.unwrap_or(meta.gid);
            }
            Self::Moved { users, groups } => {
                meta.uid = mapped(users, "user", meta.uid)?;
                meta.gid = mapped(groups, "group", meta.gid)?;
                let set = tree.xattr_set(id);
                let mapped = match mapped_sets.entry(set) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(mapped_acls(tree, id, users, groups)?),
                };
                if let Some(xattrs) = mapped {
                    tree.set_xattrs(id, xattrs)?;
                }
            }
        }
        tree.set_meta(id, &meta);
        Ok(())
    }
}

fn mapped(map: &IdMap, kind: &'static str, id: u32) -> Result<u32, Fault> {
    map.get(id).ok_or(Fault::Unmapped { kind, id })
}

/// The extended attributes with mapped ids in their ACLs; `None` if nothing changes.
fn mapped_acls(
    tree: &Tree,
    id: NodeId,
    users: &IdMap,
    groups: &IdMap,
) -> Result<Option<Xattrs>, Fault> {
    let mut xattrs = Xattrs::new();
    let mut is_changed = false;
    for (name, value) in tree.xattrs(id) {
        let mut value = value.to_vec();
        if name.starts_with(b"system.posix_acl_") {
            // After the version, each entry has tag, permissions and id.
            let entries = value.get_mut(4..).unwrap_or_default();
            for [tag, _, _, _, id @ ..] in entries.as_chunks_mut::<8>().0 {
                let old = u32::from_le_bytes(*id);
                let new = match *tag {
                    0x02 => mapped(users, "user", old)?,
                    0x08 => mapped(groups, "group", old)?,
                    _ => old,
                };
                *id = new.to_le_bytes();
                is_changed |= new != old;
            }
        }
        xattrs.set(name, &value);
    }
    Ok(is_changed.then_some(xattrs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Content, Kind, Meta};

    fn tree() -> Tree {
        let mut tree = Tree::new();
        let meta = Meta {
            uid: 100_000,
            gid: 100_005,
            ..Meta::default()
        };
        tree.set_meta(NodeId::ROOT, &meta);
        let mut xattrs = Xattrs::new();
        let mut acl = 2_u32.to_le_bytes().to_vec();
        for (tag, id) in [(1_u16, u32::MAX), (2, 100_001), (8, 100_002)] {
            acl.extend_from_slice(&tag.to_le_bytes());
            acl.extend_from_slice(&7_u16.to_le_bytes());
            acl.extend_from_slice(&id.to_le_bytes());
        }
        xattrs.set(b"system.posix_acl_access", &acl);
        for name in ["a", "b"] {
            let file = Kind::File(Content::Empty);
            tree.insert(name.as_bytes(), &meta, file, &xattrs)
                .expect("a name");
        }
        tree
    }

    fn range(text: &str) -> IdMap {
        IdMap::new(vec![text.parse().expect(text)])
    }

    #[test]
    fn ranges_map_owners_and_acls() {
        let mut tree = tree();
        let owners = Owners::Moved {
            users: range("100000:0:65536"),
            groups: range("100000:1000:65536"),
        };
        owners.apply(&mut tree).expect("all are in range");
        for path in [&b"a"[..], b"b"] {
            let id = tree.lookup(path).expect("a path").expect("it is there");
            assert_eq!((tree.meta(id).uid, tree.meta(id).gid), (0, 1005));
            let (_, acl) = tree.xattrs(id).next().expect("an ACL");
            assert_eq!(acl[8..12], u32::MAX.to_le_bytes());
            assert_eq!(acl[16..20], 1_u32.to_le_bytes());
            assert_eq!(acl[24..28], 1002_u32.to_le_bytes());
        }
    }

    #[test]
    fn an_id_out_of_range_is_named() {
        let owners = Owners::Moved {
            users: range("0:0:1000"),
            groups: IdMap::default(),
        };
        let error = owners.apply(&mut tree()).expect_err("out of range");
        assert!(matches!(
            error.fault,
            Fault::Unmapped {
                kind: "user",
                id: 100_000
            }
        ));
        assert!(
            error.to_string().contains("/: the user id 100000"),
            "{error}"
        );
    }

    #[test]
    fn one_owner_for_all() {
        let mut tree = tree();
        let owner = Owners::One {
            uid: Some(7),
            gid: Some(8),
        };
        owner.apply(&mut tree).expect("one owner");
        let ids = tree.ids().collect::<Vec<_>>();
        assert_eq!(ids.len(), 3);
        for id in ids {
            assert_eq!((tree.meta(id).uid, tree.meta(id).gid), (7, 8));
        }
        let group = Owners::One {
            uid: None,
            gid: Some(9),
        };
        group.apply(&mut tree).expect("one group");
        for id in tree.ids() {
            assert_eq!((tree.meta(id).uid, tree.meta(id).gid), (7, 9));
        }
    }

    #[test]
    fn invalid_texts_are_refused() {
        for text in [
            "",
            "1:2",
            "0:0:0",
            "4294967295:0:2",
            "0:4294967295:2",
            "1:2:3:4",
        ] {
            assert!(text.parse::<IdRange>().is_err(), "{text}");
        }
        for text in [
            "0:4294967295:1",
            "0:4294967200:96",
            "4294967295:4294967295:1",
        ] {
            let error = text.parse::<IdRange>().expect_err(text).to_string();
            assert!(error.contains("no user and no group has"), "{error}");
        }
        for text in ["0:4294967294:1", "0:0:4294967295", "4294967295:7:1"] {
            assert!(text.parse::<IdRange>().is_ok(), "{text}");
        }
    }
}
