//! **Purpose.** Values that are in inodes of their own (feature `ea_inode`), their users and their
//! contents.
//!
//! **Model.** An entry in an inode counts as one user of its value, and so does an entry in a block
//! of attributes, however many inodes share the block. A value is read once, through the library,
//! which checks its length and its hash.
//!
//! **Invariants.** Only inodes with `EA_INODE_FL` count as values. Their own attributes are never
//! followed, so values that refer to each other make no loop.

use std::collections::HashMap;

use fourscore::{Error, InodeGeneration, InodeNr};
use fourscore_ondisk::CorruptKind;
use fourscore_ondisk::inode::{Inode, InodeFlags};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::{EaInode, Entry, HashedValue, Value};

use super::contents::{ContentNr, Contents, NewContent, WideHash};
use super::faults::{Faults, Kind, Place};
use super::hashes::is_hash_of;
use super::volume::Volume;
use crate::failure::Result;

/// An inode that holds a value.
#[derive(Debug)]
struct ValueInode {
    users: u64,
    fields: EaInode,
    generation: InodeGeneration,
    content: Content,
}

/// What is known of the content of a value. It is read once, however many entries refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Unread,
    /// It could not be read, or its hash is wrong.
    Invalid,
    Is(ContentNr),
}

impl Content {
    fn nr(self) -> Option<ContentNr> {
        match self {
            Self::Is(nr) => Some(nr),
            Self::Unread | Self::Invalid => None,
        }
    }
}

/// The inode to which an entry belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) inode: InodeNr,
    pub(super) generation: InodeGeneration,
}

impl User {
    pub(super) fn of(inode: &Inode) -> Self {
        Self {
            inode: inode.number(),
            generation: inode.generation(),
        }
    }
}

/// An attribute through which a value can be read.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) inode: InodeNr,
    pub(super) name: Box<[u8]>,
    /// The size of the value.
    pub(super) bytes: u32,
}

/// All values that are in inodes of their own.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// `None` for an inode that holds no value.
    known: HashMap<InodeNr, Option<ValueInode>>,
    pub(super) contents: Contents<Reader>,
}

impl Values {
    /// Notes an inode with `EA_INODE_FL` from its table.
    pub(super) fn add_inode(&mut self, volume: Volume<'_>, inode: &Inode, faults: &mut Faults) {
        let has_attributes = inode.file_acl().is_some();
        if has_attributes {
            let place = Place::Value(inode.number());
            let why = "has a block of attributes, which a value cannot have";
            faults.report(volume.image, Kind::ValueInode, place, why);
        }
        let known = self.known.entry(inode.number());
        known.or_insert_with(|| Some(unread(inode)));
    }

    /// Counts an entry of `user` as a user of its value. Returns the content of the value, or
    /// `None` if the value cannot be shared: it is in no valid inode, or its hashes are wrong.
    pub(super) fn add_user(
        &mut self,
        volume: Volume<'_>,
        user: User,
        entry: &Entry<'_>,
        faults: &mut Faults,
    ) -> Result<Option<ContentNr>> {
        let Value::Inode { inode: nr, bytes } = entry.value else {
            return Ok(None);
        };
        let mut report = |kind, why: &dyn std::fmt::Display| {
            let why = format_args!("the value in inode {}: {why}", nr.0);
            faults.report(volume.image, kind, Place::Inode(user.inode), why);
        };
        let known = self.known.entry(nr).or_insert_with(|| {
            let inode = volume.read_inode(nr).ok()?;
            // An inode of a value that was freed keeps its flags.
            let is_value =
                inode.flags().contains(InodeFlags::EA_INODE_FL) && inode.links_count() > 0;
            is_value.then(|| unread(&inode))
        });
        let Some(known) = known else {
            report(Kind::ValueInode, &RelationError::NotAnEaInode);
            return Ok(None);
        };
        known.users += 1;
        let hashed = HashedValue::Inode(known.fields.value_hash);
        if !known.is_of_lustre(user) && !is_hash_of(entry, hashed) {
            report(Kind::EntryHash, &"the hash of the entry is wrong");
            return Ok(None);
        }
        if known.content == Content::Unread {
            known.content = Content::Invalid;
            match read(volume, user.inode, entry, bytes) {
                Ok(found) => {
                    known.content = Content::Is(self.contents.add_value(volume, found)?);
                }
                Err(why) if is_wrong_hash(&why) => report(Kind::ValueHash, &why),
                Err(why) => report(Kind::ValueInode, &why),
            }
        }
        if let Content::Is(content) = known.content {
            self.contents.add_user(content);
        }
        Ok(known.content.nr())
    }

    /// The content of a value that has been met.
    pub(super) fn content_of(&self, nr: InodeNr) -> Option<ContentNr> {
        self.known.get(&nr)?.as_ref()?.content.nr()
    }

    /// Compares the reference counts of values with their users.
    pub(super) fn check(&self, volume: Volume<'_>, faults: &mut Faults) {
        let known = self.known.iter();
        let known = known.filter_map(|(&nr, known)| Some((nr, known.as_ref()?)));
        let mut wrong: Vec<(InodeNr, u64, u64)> = known
            .filter(|(_, known)| known.fields.refs != known.users)
            .map(|(nr, known)| (nr, known.fields.refs, known.users))
            .collect();
        wrong.sort_unstable();
        for (nr, refs, users) in wrong {
            let why =
                format_args!("its reference count is {refs}, and {users} entries refer to it");
            faults.report(volume.image, Kind::ValueUsers, Place::Value(nr), why);
        }
    }

    /// Inodes that hold a value, and how many of them have several users.
    pub(super) fn count(&self) -> Count {
        let values = self.known.values().flatten();
        values.fold(Count::default(), |count, value| Count {
            all: count.all + 1,
            shared: count.shared + u64::from(value.users > 1),
        })
    }
}

impl ValueInode {
    /// Whether Lustre wrote the value for this user only. It has no hash then.
    fn is_of_lustre(&self, user: User) -> bool {
        self.fields.lustre_parent == user.inode && self.generation == user.generation
    }
}

/// A number of blocks or values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) all: u64,
    /// Those with several users.
    pub(super) shared: u64,
}

fn unread(inode: &Inode) -> ValueInode {
    ValueInode {
        users: 0,
        fields: EaInode::of(inode.raw()),
        generation: inode.generation(),
        content: Content::Unread,
    }
}

/// A value that was read.
struct Found {
    reader: Reader,
    value: Vec<u8>,
    /// The space of its inode's blocks.
    bytes: u64,
}

/// Whether a value is not the one whose hash its inode stores.
fn is_wrong_hash(why: &Error) -> bool {
    let Error::Corrupt(corrupt) = why else {
        return false;
    };
    let kind = corrupt.kind();
    matches!(
        kind,
        CorruptKind::Relation(RelationError::EaInodeHash { .. })
    )
}

fn read(
    volume: Volume<'_>,
    user: InodeNr,
    entry: &Entry<'_>,
    bytes: u32,
) -> std::result::Result<Found, Error> {
    let prefix = entry.index.prefix().unwrap_or_default();
    let name: Box<[u8]> = [prefix.as_bytes(), entry.name].concat().into();
    let value = volume.image.fs.xattr(user, &name)?;
    let cluster = volume.geometry().cluster_size_bytes() as u64;
    Ok(Found {
        reader: Reader {
            inode: user,
            name,
            bytes,
        },
        value,
        bytes: u64::from(bytes).next_multiple_of(cluster),
    })
}

impl Contents<Reader> {
    fn add_value(&mut self, volume: Volume<'_>, found: Found) -> Result<ContentNr> {
        let new = NewContent {
            hash: WideHash::of(&found.value),
            place: found.reader,
            bytes: found.bytes,
            values: Box::default(),
        };
        self.add(new, |first| {
            let again = volume.image.fs.xattr(first.inode, &first.name);
            let again = again.map_err(|why| volume.image.problem(why))?;
            Ok(again == found.value)
        })
    }
}
