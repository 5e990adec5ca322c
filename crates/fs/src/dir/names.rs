//! **Purpose.** How names in a directory are compared, hashed and presented: as bytes, without
//! regard to case, or encrypted and without the key.
//!
//! **Model.** A name that a user looks up becomes a [`Wanted`] once, which is then compared with
//! the stored names. In an encrypted directory users see and use the form that Linux presents
//! without the key. It contains the hash of the stored name, so that the name can be found again.
//!
//! **References.** Kernel documentation, `filesystems/fscrypt`, "No-key names"; `ext4_dx_readdir`
//! for where the hash comes from.

use fourscore_ondisk::Corrupt;
use fourscore_ondisk::casefold::{Encoding, FoldedName};
use fourscore_ondisk::crypt::{self, NoKeyName};
use fourscore_ondisk::dirent::{Entry, StoredHash};
use fourscore_ondisk::dirhash::{HashAlgorithm, NameHasher};
use fourscore_ondisk::features::Compat;
use fourscore_ondisk::inode::InodeFlags;

use crate::Result;
use crate::core::Core;
use crate::dir::structure;
use crate::dir::wanted::Wanted;
use crate::inode::cached::{CachedInode, Layout};

/// How the names of one directory are presented to users.
#[derive(Debug)]
pub(crate) enum NamePresentation {
    /// As they are stored.
    Stored,
    /// Without the key, with the hash of the stored name where the kernel uses one.
    NoKey(Option<NameHasher>),
}

impl NamePresentation {
    /// Returns the name of `entry` as users see it; `buf` holds it if it is not the stored one.
    pub(crate) fn name<'a>(
        &self,
        entry: &Entry<'a>,
        buf: &'a mut Vec<u8>,
    ) -> std::result::Result<&'a [u8], crypt::CryptError> {
        let Self::NoKey(hasher) = self else {
            return Ok(entry.name);
        };
        if entry.is_dots() {
            return Ok(entry.name);
        }
        let computed = || {
            let hash = hasher.as_ref().map(|hasher| hasher.hash(entry.name));
            hash.map_or(
                StoredHash {
                    hash: 0,
                    minor_hash: 0,
                },
                |hash| StoredHash {
                    hash: hash.hash,
                    minor_hash: hash.minor_hash,
                },
            )
        };
        *buf = crypt::no_key_name(entry.name, entry.hash.unwrap_or_else(computed))?.into_bytes();
        Ok(buf)
    }
}

/// Returns the rule by which `name` is looked up in `dir`.
pub(crate) fn wanted<'n>(core: &Core, dir: &CachedInode, name: &'n [u8]) -> Wanted<'n> {
    if name == b".." {
        return Wanted::Exact(name);
    }
    if dir.is_encrypted() {
        return NoKeyName::parse(name).map_or(Wanted::Impossible, Wanted::NoKey);
    }
    match core
        .superblock()
        .encoding()
        .filter(|_| dir.has(InodeFlags::CASEFOLD_FL))
    {
        None => Wanted::Exact(name),
        Some(encoding) => {
            let strict = if encoding.strict {
                Encoding::Strict
            } else {
                Encoding::Lenient
            };
            FoldedName::new(name, strict).map_or(Wanted::Impossible, Wanted::Folded)
        }
    }
}

/// Returns the rule by which the names of `dir` are presented.
pub(crate) fn shown(
    core: &Core,
    dir: &CachedInode,
    root: Option<HashAlgorithm>,
) -> NamePresentation {
    if !dir.is_encrypted() {
        return NamePresentation::Stored;
    }
    // The kernel lists indexed directories and those of one block by hash, others in order.
    let block_bytes = core.geometry().block_size().bytes() as u64;
    let by_hash = dir.layout() == Layout::Inline
        || dir.has(InodeFlags::INDEX_FL)
        || dir.size_bytes() == block_bytes;
    let indexed = core
        .superblock()
        .features()
        .compat
        .contains(Compat::DIR_INDEX);
    let default = HashAlgorithm::from_disk(core.superblock().def_hash_version());
    let algorithm = root.or(default).filter(|_| by_hash && indexed);
    NamePresentation::NoKey(algorithm.and_then(|algorithm| structure::hasher(core, algorithm)))
}

/// Returns the target of an encrypted symbolic link as it is presented without the key.
pub(crate) fn shown_link_target(link: &CachedInode, content: &[u8]) -> Result<Vec<u8>> {
    let no_hash = StoredHash {
        hash: 0,
        minor_hash: 0,
    };
    let target = crypt::symlink_target(content)
        .and_then(|target| crypt::no_key_name(target, no_hash))
        .map_err(|error| Corrupt::from(error).in_inode(link.nr()))?;
    Ok(target.into_bytes())
}
