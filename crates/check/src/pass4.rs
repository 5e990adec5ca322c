//! **Purpose.** Pass 4: every inode in use has a name, and its link count is right.

use std::num::NonZeroUsize;

use fourscore_ondisk::InodeNr;
use fourscore_ondisk::features::{Compat, RoCompat};
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::xattr::EaInode;

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::parallel::{Pieces, on_threads};
use crate::report::Findings;
use crate::state::State;
use crate::volume::Volume;

/// The number of inodes that a thread takes at once: whole words of the bitmaps.
const AT_ONCE: u64 = 1 << 16;
/// The largest link count. A directory with more links has the count 1, which needs `dir_nlink`.
pub(crate) const LINK_MAX: u32 = 65_000;

/// Compares link counts with names.
pub(crate) fn run(volume: &Volume, state: &State, threads: NonZeroUsize, findings: &mut Findings) {
    let pieces = Pieces::new(u64::from(volume.geometry().inodes()) + 1, AT_ONCE);
    let limit = findings.limit();
    let found = on_threads(threads, || {
        let mut findings = Findings::new(limit);
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.take() {
            for first in piece.step_by(64) {
                let mut left = state.used.bits_at(first) & !plain_at(state, first);
                while left != 0 {
                    let nr = first + u64::from(left.trailing_zeros());
                    left &= left - 1;
                    let inode = InodeNr(u32::try_from(nr).unwrap_or(u32::MAX));
                    if volume.sb.may_be_named(inode) {
                        check(volume, state, inode, &mut bytes, &mut findings);
                    }
                }
            }
        }
        findings
    });
    for more in found {
        findings.merge(more);
    }
}

/// Which of the 64 inodes from number `first` on have one name and one link, and hold no attribute
/// value: nothing is wrong with those.
fn plain_at(state: &State, first: u64) -> u64 {
    state.links.ones_at(first) & state.names.ones_at(first) & !state.value_inodes.bits_at(first)
}

fn check(
    volume: &Volume,
    state: &State,
    inode: InodeNr,
    bytes: &mut Vec<u8>,
    findings: &mut Findings,
) {
    let nr = u64::from(inode.0);
    let (links, mut names) = (state.links.get(inode), state.names.get(inode));
    if state.value_inodes.contains(nr) {
        let users = state.value_users.get(inode);
        if users > 0 {
            check_value(volume, inode, users, bytes, findings);
            return;
        }
        if names > 0 {
            findings.push(Finding::ValueFlag { inode });
        }
    }
    if names == 0 {
        let is_marked = volume.compat(Compat::IMAGIC_INODES)
            && has_flag(volume, inode, InodeFlags::IMAGIC_FL, bytes);
        if !state.orphans.contains(&inode) && !is_marked {
            findings.push(Finding::Unattached { inode, links });
        }
        return;
    }
    let is_directory = state.directories.contains(nr);
    if is_directory && names > LINK_MAX {
        if !volume.ro_compat(RoCompat::DIR_NLINK) {
            let found = names;
            findings.push(Finding::DirNlink { inode, found });
        }
        names = 1;
    }
    if links == names {
        return;
    }
    // A directory that once had too many links to count keeps the count 1.
    let may_have_had_more = is_directory && links == 1;
    if !may_have_had_more || !has_flag(volume, inode, InodeFlags::INDEX_FL, bytes) {
        findings.push(Finding::LinksCount {
            inode,
            found: links,
            expected: names,
        });
    }
}

/// Checks the count of users of an inode that holds an attribute value.
fn check_value(
    volume: &Volume,
    inode: InodeNr,
    users: u32,
    bytes: &mut Vec<u8>,
    findings: &mut Findings,
) {
    let expected = u64::from(users);
    let read = volume.read_inode(inode, bytes);
    let Some(view) = read.and_then(|()| InodeView::new(bytes, inode)) else {
        return;
    };
    let fields = EaInode::of(view.base);
    // An inode written by Lustre has one user, and names it instead of a count.
    let is_lustre = fields.lustre_parent.0 != 0 && fields.refs == 0;
    if fields.refs != expected && !is_lustre {
        findings.push(Finding::ValueRefs {
            inode,
            found: fields.refs,
            expected,
        });
    }
}

fn has_flag(volume: &Volume, inode: InodeNr, flag: InodeFlags, bytes: &mut Vec<u8>) -> bool {
    let read = volume.read_inode(inode, bytes);
    let view = read.and_then(|()| InodeView::new(bytes, inode));
    view.is_some_and(|view| view.has(flag))
}
