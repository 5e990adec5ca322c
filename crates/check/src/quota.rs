//! **Purpose.** Quota files: compares the counts of each user, group and project with those of pass
//! 1.
//!
//! **Not here.** The format of quota files (crate `ondisk`).

use std::collections::{BTreeMap, BTreeSet};

use fourscore_ondisk::quota::{
    self, QUOTA_BLOCK_BYTES, QuotaCounts, QuotaIds, QuotaKind, QuotaUsage,
};
use fourscore_ondisk::{InodeNr, PhysBlock, Superblock};

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::pass1::orphans::{Places, places_of};
use crate::report::Findings;
use crate::volume::Volume;

/// The identifiers that an inode counts for.
pub(crate) fn owners_of(inode: &InodeView<'_>, sb: &Superblock) -> QuotaIds {
    let base = inode.base;
    let wide = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    QuotaIds {
        user: wide(base.i_uid.get(), base.i_uid_high.get()),
        group: wide(base.i_gid.get(), base.i_gid_high.get()),
        project: inode.project(sb),
    }
}

/// Compares all quota files with what was counted.
pub(crate) fn check(volume: &Volume, usage: &QuotaUsage, findings: &mut Findings) {
    let inodes = volume.sb.quota_inodes();
    for kind in QuotaKind::ALL {
        let file = match kind {
            QuotaKind::User => inodes.user,
            QuotaKind::Group => inodes.group,
            QuotaKind::Project => inodes.project,
        };
        let Some(inode) = file else {
            continue;
        };
        match read(volume, inode, kind) {
            Err(why) => findings.push(Finding::QuotaFile { inode, why }),
            Ok(stored) => compare(inode, usage.of(kind), &stored, findings),
        }
    }
}

fn compare(
    inode: InodeNr,
    counted: &BTreeMap<u32, QuotaCounts>,
    stored: &BTreeMap<u32, QuotaCounts>,
    findings: &mut Findings,
) {
    let ids: BTreeSet<u32> = counted.keys().chain(stored.keys()).copied().collect();
    for id in ids {
        let of = |map: &BTreeMap<u32, QuotaCounts>| map.get(&id).copied().unwrap_or_default();
        let (found, expected) = (of(stored), of(counted));
        if found != expected {
            findings.push(Finding::QuotaUsage {
                inode,
                id,
                bytes: found.bytes,
                expected_bytes: expected.bytes,
                inodes: found.inodes,
                expected_inodes: expected.inodes,
            });
        }
    }
}

/// What a quota file says that each identifier uses.
fn read(
    volume: &Volume,
    inode: InodeNr,
    kind: QuotaKind,
) -> Result<BTreeMap<u32, QuotaCounts>, &'static str> {
    let mut bytes = Vec::new();
    let places = places_of(volume, inode, &mut bytes).ok_or("its inode cannot be read")?;
    let size = InodeView::new(&bytes, inode).map_or(0, |inode| inode.size_bytes());
    let blocks = u32::try_from(size / QUOTA_BLOCK_BYTES as u64).unwrap_or(u32::MAX);
    quota::read(kind, blocks, &mut |number| {
        read_block(volume, &places, number)
    })
    .map_err(quota::QuotaFileError::as_str)
}

/// Reads a block of 1 KiB of a file; `None` in holes and where the device cannot be read.
fn read_block(volume: &Volume, places: &Places, number: u32) -> Option<[u8; QUOTA_BLOCK_BYTES]> {
    let size = volume.geometry().block_size();
    let at = u64::from(number) * QUOTA_BLOCK_BYTES as u64;
    let logical = at >> size.bits();
    let within = at & (size.bytes() as u64 - 1);
    let (first, run) = places
        .runs
        .iter()
        .find(|(first, run)| (*first..first + (run.end.0 - run.start.0)).contains(&logical))?;
    let block = PhysBlock(run.start.0 + (logical - first));
    let mut bytes = [0; QUOTA_BLOCK_BYTES];
    let offset = size.offset(block) + within;
    volume.device.read_at(&mut bytes, offset).ok()?;
    Some(bytes)
}
