//! **Purpose.** Quota files: what each says that users, groups and projects use, against what pass
//! 1 counted.
//!
//! **Model.** A file of blocks of 1 KiB: a header, and a tree of four levels of 256 slots, chosen
//! by the bytes of the identifier, highest first; at its leaves blocks of entries. All entries that
//! the tree leads to are read, each block of entries once.
//!
//! **Invariants.** A block is visited once, so a tree that bites its tail ends.
//!
//! **References.** Documentation/filesystems/quota.rst of the kernel; version 1 of format 2.

use std::collections::BTreeMap;

use fourscore_ondisk::{InodeNr, PhysBlock, Superblock};
use std::collections::HashSet;

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::pass1::orphans::{Places, places_of};
use crate::report::Findings;
use crate::volume::Volume;

const QUOTA_BLOCK_BYTES: usize = 1024;
const ENTRIES_HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 72;
/// Where the header counts the blocks of the file.
const BLOCKS_AT: usize = 20;
const TREE_ROOT: u32 = 1;
const TREE_DEPTH: u32 = 4;
const MAGICS: [u32; 3] = [0xd9c0_1f11, 0xd9c0_1927, 0xd9c0_3f14];

/// Whom an inode counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// User, group, project.
    ids: [u32; 3],
}

impl Owner {
    pub(crate) fn of(inode: &InodeView<'_>, sb: &Superblock) -> Self {
        let base = inode.base;
        let wide = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        Self {
            ids: [
                wide(base.i_uid.get(), base.i_uid_high.get()),
                wide(base.i_gid.get(), base.i_gid_high.get()),
                inode.project(sb),
            ],
        }
    }
}

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    bytes: u64,
    inodes: u64,
}

/// What everybody uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    kinds: [BTreeMap<u32, Counts>; 3],
}

impl Usage {
    /// Counts an inode.
    pub(crate) fn add(&mut self, owner: Owner, bytes: u64, inodes: u64) {
        for (id, usage) in owner.ids.into_iter().zip(&mut self.kinds) {
            let counts = usage.entry(id).or_default();
            counts.bytes = counts.bytes.saturating_add(bytes);
            counts.inodes = counts.inodes.saturating_add(inodes);
        }
    }

    /// Adds what another thread counted.
    pub(crate) fn merge(&mut self, other: Self) {
        for (own, other) in self.kinds.iter_mut().zip(other.kinds) {
            for (id, more) in other {
                let counts = own.entry(id).or_default();
                counts.bytes = counts.bytes.saturating_add(more.bytes);
                counts.inodes = counts.inodes.saturating_add(more.inodes);
            }
        }
    }
}

/// Holds all quota files against what was counted.
pub(crate) fn check(volume: &Volume, usage: &Usage, findings: &mut Findings) {
    let quota = volume.sb.quota_inodes();
    let files = [quota.user, quota.group, quota.project];
    for ((file, magic), counted) in files.into_iter().zip(MAGICS).zip(&usage.kinds) {
        let Some(inode) = file else {
            continue;
        };
        match read(volume, inode, magic) {
            Err(why) => findings.push(Finding::QuotaFile { inode, why }),
            Ok(stored) => compare(inode, counted, &stored, findings),
        }
    }
}

fn compare(
    inode: InodeNr,
    counted: &BTreeMap<u32, Counts>,
    stored: &BTreeMap<u32, Counts>,
    findings: &mut Findings,
) {
    let ids: std::collections::BTreeSet<u32> =
        counted.keys().chain(stored.keys()).copied().collect();
    for id in ids {
        let of = |map: &BTreeMap<u32, Counts>| map.get(&id).copied().unwrap_or_default();
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

/// A quota file that is read block by block.
struct File<'a> {
    volume: &'a Volume,
    places: Places,
    blocks: u32,
    visited: HashSet<u32>,
    entries: BTreeMap<u32, Counts>,
}

fn read(
    volume: &Volume,
    inode: InodeNr,
    magic: u32,
) -> Result<BTreeMap<u32, Counts>, &'static str> {
    let mut bytes = Vec::new();
    let places = places_of(volume, inode, &mut bytes).ok_or("its inode cannot be read")?;
    let size = InodeView::new(&bytes, inode).map_or(0, |inode| inode.size_bytes());
    let mut file = File {
        volume,
        places,
        blocks: u32::try_from(size / QUOTA_BLOCK_BYTES as u64).unwrap_or(u32::MAX),
        visited: HashSet::new(),
        entries: BTreeMap::new(),
    };
    let header = file.block(0).ok_or("it has no header")?;
    if word(&header, 0) != magic {
        return Err("its magic number is wrong");
    }
    if word(&header, 4) > 1 {
        return Err("its version is not known");
    }
    if word(&header, BLOCKS_AT) > file.blocks {
        return Err("its header counts more blocks than it has");
    }
    file.tree(TREE_ROOT, TREE_DEPTH)?;
    Ok(file.entries)
}

impl File<'_> {
    /// A block of 1 KiB; `None` outside the file and in holes.
    fn block(&self, nr: u32) -> Option<[u8; QUOTA_BLOCK_BYTES]> {
        if nr >= self.blocks {
            return None;
        }
        let size = self.volume.geometry().block_size();
        let at = u64::from(nr) * QUOTA_BLOCK_BYTES as u64;
        let logical = at >> size.bits();
        let within = at & (size.bytes() as u64 - 1);
        let (first, run) =
            self.places.runs.iter().find(|(first, run)| {
                (*first..first + (run.end.0 - run.start.0)).contains(&logical)
            })?;
        let block = PhysBlock(run.start.0 + (logical - first));
        let mut bytes = [0; QUOTA_BLOCK_BYTES];
        let offset = size.offset(block) + within;
        self.volume.device.read_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    fn tree(&mut self, nr: u32, depth: u32) -> Result<(), &'static str> {
        if !self.visited.insert(nr) {
            // Blocks of entries are led to by many slots; a node by one.
            return if depth == 0 {
                Ok(())
            } else {
                Err("its tree joins itself")
            };
        }
        let bytes = self.block(nr).ok_or("its tree leads outside the file")?;
        if depth == 0 {
            self.entries_of(&bytes);
            return Ok(());
        }
        for slot in (0..QUOTA_BLOCK_BYTES).step_by(4) {
            match word(&bytes, slot) {
                0 => {}
                child => self.tree(child, depth - 1)?,
            }
        }
        Ok(())
    }

    fn entries_of(&mut self, bytes: &[u8]) {
        let entries = bytes.get(ENTRIES_HEAD_BYTES..).unwrap_or(&[]);
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            if entry.iter().all(|&byte| byte == 0) {
                continue;
            }
            let counts = Counts {
                inodes: long(entry, 24),
                bytes: long(entry, 48),
            };
            self.entries.insert(word(entry, 0), counts);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let long = bytes.get(at..at + 8).and_then(|long| long.try_into().ok());
    long.map_or(0, u64::from_le_bytes)
}
