//! **Purpose.** Derives the UUID and the hash seed of an image from its tree, so that equal trees
//! give equal images and different trees different UUIDs.
//!
//! **Model.** A 128-bit SipHash over all names, attributes, lengths and link targets, in the order
//! of inode numbers. File data is not included: the hash seed determines the order of hash tree
//! directories, so it is needed before the first block is placed. Two trees that differ only in the
//! data of files of equal length and mtime therefore have the same UUID.

use std::hash::Hasher;

use fourscore_ondisk::Timestamp;
use siphasher::sip128::{Hasher128, SipHasher13};
use uuid::Uuid;

use crate::layout::Numbers;
use crate::options::Options;
use crate::tree::{Content, Kind, NodeId, Tree};

/// UUID and hash seed of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uuid: Uuid,
    pub(crate) hash_seed: Uuid,
}

/// Computes the identity of a sorted and numbered tree.
pub(crate) fn identify(tree: &Tree, numbers: &Numbers, options: &Options) -> Identity {
    let mut hasher = SipHasher13::new();
    hash_object(&mut hasher, tree, NodeId::ROOT, options);
    for &node in numbers.order() {
        hash_object(&mut hasher, tree, node, options);
    }
    for node in numbers.directories(tree) {
        for (name, child) in tree.children(node) {
            hash_bytes(&mut hasher, name);
            hasher.write_u32(numbers.inode(child).0);
        }
        hash_bytes(&mut hasher, b"");
    }
    hash_bytes(&mut hasher, &options.format.label);
    let derive = |purpose: &[u8]| {
        let mut hasher = hasher;
        hash_bytes(&mut hasher, purpose);
        let bytes = hasher.finish128().as_bytes();
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    };
    Identity {
        uuid: derive(b"uuid"),
        hash_seed: derive(b"hash seed"),
    }
}

fn hash_object(hasher: &mut SipHasher13, tree: &Tree, node: NodeId, options: &Options) {
    let meta = options.clamped(tree.meta(node));
    for number in [meta.permissions.into(), meta.uid, meta.gid, meta.project] {
        hasher.write_u32(number);
    }
    for time in [meta.atime, meta.mtime, meta.ctime] {
        hash_time(hasher, time);
    }
    for (name, value) in tree.xattrs(node) {
        hash_bytes(hasher, name);
        hash_bytes(hasher, value);
    }
    let kind = tree.kind(node);
    match &kind {
        Kind::Directory => hasher.write_u8(1),
        Kind::File(content) => {
            hasher.write_u8(2);
            hasher.write_u64(content.len_bytes());
            // A file without holes gives the same hash however many pieces describe it.
            if let Content::Sparse(sparse) = content
                && let units = sparse.units()
                && units != [(0, sparse.len_bytes)]
            {
                for (start, end) in units {
                    hasher.write_u64(start);
                    hasher.write_u64(end);
                }
            }
        }
        Kind::Symlink(target) => {
            hasher.write_u8(3);
            hash_bytes(hasher, target);
        }
        Kind::CharDevice(number) | Kind::BlockDevice(number) => {
            hasher.write_u8(if matches!(kind, Kind::CharDevice(_)) {
                4
            } else {
                5
            });
            hasher.write_u32(number.major);
            hasher.write_u32(number.minor);
        }
        Kind::Fifo => hasher.write_u8(6),
        Kind::Socket => hasher.write_u8(7),
    }
}

fn hash_time(hasher: &mut SipHasher13, time: Timestamp) {
    hasher.write_i64(time.seconds());
    hasher.write_u32(time.nanoseconds());
}

fn hash_bytes(hasher: &mut SipHasher13, text: &[u8]) {
    hasher.write_u64(text.len() as u64);
    hasher.write(text);
}
