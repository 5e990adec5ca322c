//! **Purpose.** Checks one block of a directory: its checksum, its records, and the inodes that its
//! names refer to.

use fourscore_ondisk::dirent::{DirFormat, DirentError, Entry, EntryType, NameForm, TypeByte};
use fourscore_ondisk::dirhash::NameHasher;
use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::htree::{self, IndexLevels};
use fourscore_ondisk::inode::FileType;
use fourscore_ondisk::{InodeNr, LogicalBlock};

use super::index::Hashes;
use super::{Dir, Reader};
use crate::finding::Finding;
use crate::inode::InodeView;

/// The minimum length of an encrypted name: a cipher block.
const CIPHER_BLOCK_BYTES: usize = 16;
/// A longer record of `.` has space for another record.
const DOT_REC_LEN_SPLIT: usize = 24;
/// The offset of the name in a record.
const NAME_AT: usize = 8;
/// The offset of the file type in a record.
const TYPE_AT: usize = 7;

impl Reader<'_> {
    /// Checks a block of a directory: a node of its index or a leaf.
    pub(super) fn block(&mut self, dir: &mut Dir, logical: LogicalBlock, block: &[u8]) {
        if dir.index.is_some() && logical.0 == 0 {
            self.root(dir, block);
            return;
        }
        if dir.index.is_some() && is_index_node(dir, block) {
            match htree::check_node(block, &dir.format, dir.end) {
                Ok(()) => {
                    if let Some(index) = &mut dir.index {
                        index.add_node(logical, htree::Index::node(block).ok());
                    }
                }
                Err(why) => {
                    dir.index = None;
                    let (dir, block) = (dir.nr, logical);
                    self.findings.push(Finding::IndexNode { dir, block, why });
                }
            }
            return;
        }
        if let Err(why) = dir.format.verify(block) {
            let (dir, block) = (dir.nr, logical);
            self.findings.push(Finding::DirChecksum { dir, block, why });
        }
        let format = dir.format;
        self.records(dir, logical, block, &format);
    }

    /// Checks the first block of a directory with an index.
    fn root(&mut self, dir: &mut Dir, block: &[u8]) {
        let levels = if self.volume.incompat(Incompat::LARGEDIR) {
            IndexLevels::Three
        } else {
            IndexLevels::Two
        };
        let checked = htree::check_root(block, &dir.format, levels, dir.end);
        match checked.and_then(|()| htree::root_info(block)) {
            Ok(info) => {
                let sb = &self.volume.sb;
                dir.hasher = NameHasher::seeded(info.algorithm, sb.hash_sign(), sb.hash_seed());
                if let Some(index) = &mut dir.index {
                    index.add_root(info, htree::Index::root(block).ok());
                }
            }
            Err(why) => {
                dir.index = None;
                let dir = dir.nr;
                self.findings.push(Finding::IndexRoot { dir, why });
            }
        }
        // The index follows `..` instead of records, and the checksum has another place.
        let format = DirFormat {
            seed: None,
            ..dir.format
        };
        self.records(dir, LogicalBlock(0), block, &format);
    }

    /// Checks the records of a block in order.
    fn records(&mut self, dir: &mut Dir, logical: LogicalBlock, block: &[u8], format: &DirFormat) {
        self.names.start();
        let mut hashes = Hashes::NONE;
        let mut end = 0;
        for (nth, record) in format.records(block).enumerate() {
            let entry = match record {
                Ok(entry) => entry,
                Err(why) => {
                    self.broken(dir, logical, why);
                    return;
                }
            };
            end = entry.at + entry.rec_len;
            let found = block.get(entry.at + TYPE_AT).copied().unwrap_or(0);
            match (logical.0, nth) {
                (0, 0) => self.dot(dir, block, &entry, found),
                (0, 1) => self.second(dir, block, &entry, found),
                _ if entry.inode.0 == 0 => {}
                _ => {
                    self.stored_entry(dir, logical, &entry, found);
                    if let Some(hash) = self.name(dir, logical, &entry) {
                        hashes.add(hash);
                    }
                }
            }
        }
        if let Some(index) = &mut dir.index {
            index.add_leaf(logical, hashes);
        }
        let records_end = format.room_bytes(block.len());
        if end != records_end && end != block.len() {
            self.broken(dir, logical, DirentError::NoTail);
        }
    }

    fn broken(&mut self, dir: &Dir, block: LogicalBlock, why: DirentError) {
        let dir = dir.nr;
        self.findings.push(Finding::DirRecord { dir, block, why });
    }

    /// Compares a name with the others of its block. Returns its hash if the directory has an
    /// index.
    fn name(&mut self, dir: &Dir, logical: LogicalBlock, entry: &Entry<'_>) -> Option<u32> {
        let names = &mut self.names;
        let is_new = dir.with_folded(entry.name, |name| names.insert(name));
        if !is_new {
            self.duplicate(dir, logical, entry.name);
        }
        if let Some(stored) = entry.hash {
            return Some(stored.hash & !1);
        }
        let hasher = dir.hasher.as_ref()?;
        Some(dir.with_folded(entry.name, |name| hasher.hash(name).hash))
    }

    /// Checks the first record, which must be `.`.
    fn dot(&mut self, dir: &Dir, block: &[u8], entry: &Entry<'_>, found: u8) {
        let why = if entry.inode.0 == 0 {
            Some("is not in use")
        } else if entry.name != b"." {
            Some("is not '.'")
        } else if block.get(entry.at + NAME_AT + 1) != Some(&0) {
            Some("'.' does not end with a NUL")
        } else if entry.inode != dir.nr {
            Some("'.' refers to another inode")
        } else if entry.rec_len > DOT_REC_LEN_SPLIT {
            Some("'.' has a longer record than it needs")
        } else {
            None
        };
        if let Some(why) = why {
            let dir = dir.nr;
            self.findings.push(Finding::Dot { dir, why });
        }
        self.dots_entry(dir, entry, found);
    }

    /// Checks the second record, which must be `..`.
    fn second(&mut self, dir: &Dir, block: &[u8], entry: &Entry<'_>, found: u8) {
        let why = if entry.inode.0 == 0 {
            Some("is not in use")
        } else if entry.name != b".." {
            Some("is not '..'")
        } else if block.get(entry.at + NAME_AT + 2) != Some(&0) {
            Some("'..' does not end with a NUL")
        } else {
            self.tree.set_dotdot(dir.nr, entry.inode);
            None
        };
        if let Some(why) = why {
            let dir = dir.nr;
            self.findings.push(Finding::DotDot { dir, why });
        }
        self.dots_entry(dir, entry, found);
    }

    /// Checks of `.` and `..` what is checked of every entry.
    fn dots_entry(&mut self, dir: &Dir, entry: &Entry<'_>, found: u8) {
        if entry.inode.0 == 0 {
            return;
        }
        self.entries += 1;
        let block = LogicalBlock(0);
        if self.refers_to_inode(dir, block, entry) {
            self.kind(dir, block, entry, found);
            self.state.names.add(entry.inode, 1);
        }
    }

    /// Checks an entry that is neither `.` nor `..`.
    pub(super) fn entry(&mut self, dir: &Dir, block: LogicalBlock, entry: &Entry<'_>, found: u8) {
        self.entries += 1;
        let inode = entry.inode;
        if entry.is_dots() {
            let (dir, name) = (dir.nr, entry.name.into());
            self.findings.push(Finding::DotsAgain { dir, block, name });
            return;
        }
        if inode == InodeNr::ROOT {
            let (dir, name) = (dir.nr, entry.name.into());
            self.findings.push(Finding::EntryRoot { dir, block, name });
            return;
        }
        if entry.name.is_empty() {
            let dir = dir.nr;
            self.findings
                .push(Finding::EntryNoName { dir, block, inode });
            return;
        }
        if !self.refers_to_inode(dir, block, entry) {
            return;
        }
        // Pass 4 reports a file with `EA_INODE_FL` that no attribute uses.
        let holds_value = self.state.value_inodes.contains(inode.0.into());
        if holds_value && self.state.value_users.get(inode) > 0 {
            let (dir, name) = (dir.nr, entry.name.into());
            self.findings.push(Finding::EntryValue {
                dir,
                block,
                name,
                inode,
            });
            return;
        }
        self.spelling(dir, block, entry);
        self.kind(dir, block, entry, found);
        if self.state.directories.contains(inode.0.into()) {
            self.directory_name(inode, dir.nr, dir.turn);
        }
        self.state.names.add(inode, 1);
        if self.memory.is_some() {
            self.named.push(inode);
        }
    }

    /// Adds a name of a directory to the tree.
    pub(super) fn directory_name(&mut self, inode: InodeNr, parent: InodeNr, turn: u32) {
        if let Some(other) = self.tree.add_name(inode, parent, turn) {
            self.named_again.push((inode, other));
        }
    }

    /// Whether an entry refers to an inode that is in use and may have a name; reports it if not.
    fn refers_to_inode(&mut self, dir: &Dir, block: LogicalBlock, entry: &Entry<'_>) -> bool {
        let inode = entry.inode;
        let may = self.volume.sb.may_be_named(inode);
        if may && self.state.used.contains(inode.0.into()) {
            return true;
        }
        let (dir, name) = (dir.nr, entry.name.into());
        self.findings.push(if !may {
            Finding::EntryInode {
                dir,
                block,
                name,
                inode,
            }
        } else if self.is_read(inode) {
            Finding::EntryUnused {
                dir,
                block,
                name,
                inode,
            }
        } else {
            Finding::EntryInUnused {
                dir,
                block,
                name,
                inode,
            }
        });
        false
    }

    /// Whether an inode lies in the used part of its table, which pass 1 reads.
    fn is_read(&self, inode: InodeNr) -> bool {
        let Some((group, index)) = self.volume.geometry().inode_group(inode) else {
            return false;
        };
        let group = self.volume.group(group);
        group.is_some_and(|group| index.0 < self.volume.inodes_to_read(group))
    }

    /// Checks the bytes of a name.
    fn spelling(&mut self, dir: &Dir, block: LogicalBlock, entry: &Entry<'_>) {
        let name = entry.name;
        if dir.format.names == NameForm::Plain {
            if name.iter().any(|byte| matches!(byte, b'/' | 0)) {
                let (dir, name) = (dir.nr, name.into());
                self.findings.push(Finding::EntryName { dir, block, name });
            } else if !dir.may_have_name(name) {
                let (dir, name) = (dir.nr, name.into());
                self.findings
                    .push(Finding::EntryEncoding { dir, block, name });
            }
            return;
        }
        if name.len() < CIPHER_BLOCK_BYTES {
            let (dir, name) = (dir.nr, name.into());
            self.findings
                .push(Finding::EntryEncrypted { dir, block, name });
        }
        let nr = u64::from(entry.inode.0);
        let state = self.state;
        let can_be = [&state.regular, &state.directories, &state.symlinks];
        let must_be = can_be.iter().any(|set| set.contains(nr));
        if must_be && !state.encrypted.contains(nr) {
            let (dir, name, inode) = (dir.nr, name.into(), entry.inode);
            self.findings.push(Finding::EntryNotEncrypted {
                dir,
                block,
                name,
                inode,
            });
        }
        let policies = dir.policy.zip(self.policies.of(entry.inode));
        if policies.is_some_and(|(own, other)| own != other) {
            let (dir, name, inode) = (dir.nr, name.into(), entry.inode);
            self.findings.push(Finding::EntryPolicy {
                dir,
                block,
                name,
                inode,
            });
        }
    }

    /// Compares the file type of an entry with that of its inode.
    fn kind(&mut self, dir: &Dir, block: LogicalBlock, entry: &Entry<'_>, found: u8) {
        let expected = match dir.format.type_byte {
            TypeByte::Absent => 0,
            TypeByte::Present => self.type_of(entry.inode),
        };
        if found == expected {
            return;
        }
        let (dir, name, expected) = (dir.nr, entry.name.into(), expected.into());
        self.findings.push(if found == 0 {
            Finding::EntryTypeOpen {
                dir,
                block,
                name,
                expected,
            }
        } else {
            Finding::EntryType {
                dir,
                block,
                name,
                found: found.into(),
                expected,
            }
        });
    }

    pub(super) fn type_of(&mut self, inode: InodeNr) -> u8 {
        let nr = u64::from(inode.0);
        let state = self.state;
        let known = [
            (&state.directories, EntryType::Directory),
            (&state.regular, EntryType::Regular),
            (&state.bad, EntryType::Unknown),
            (&state.symlinks, EntryType::Symlink),
        ];
        if let Some((_, kind)) = known.into_iter().find(|(set, _)| set.contains(nr)) {
            return kind.to_byte();
        }
        let read = self.volume.read_inode(inode, &mut self.other_inode);
        let view = read.and_then(|()| InodeView::new(&self.other_inode, inode));
        let file_type: Option<FileType> = view.and_then(|view| view.file_type());
        file_type.map_or(0, |file_type| EntryType::from(file_type).to_byte())
    }
}

/// Whether a block of a directory with an index is a node of it. Without checksums an empty leaf
/// differs only in the limit of a node.
fn is_index_node(dir: &Dir, block: &[u8]) -> bool {
    if !htree::looks_like_node(block) {
        return false;
    }
    let limit = htree::node_limit(&dir.format, block.len());
    let says = htree::Index::node(block).map(|index| index.limit());
    dir.format.seed.is_some() || says.is_ok_and(|found| found == limit)
}
