//! **Purpose.** Patches of directories: each block that has a fault is written again with the
//! entries that are kept.
//!
//! **Model.** All findings of one directory are mended together. Where its index is wrong, or a
//! name changes, the flag `INDEX_FL` is cleared and all blocks are written as plain ones, until
//! nothing is left to repair: then it gets a new index (`reindex`). Entries for which a block has
//! no space left (because it gets a checksum, or `.` and `..`) go into other blocks, or into a new
//! one at the end.

use std::collections::{BTreeSet, HashSet};

use fourscore_ondisk::dirent::write::LeafWriter;
use fourscore_ondisk::dirent::{DirFormat, Dots, EntryType, NameForm};
use fourscore_ondisk::inline::InlineMut;
use fourscore_ondisk::inode::{InodeFlags, InodeMut};
use fourscore_ondisk::{InodeNr, PhysBlock};

use super::editor::{Editor, Left, Patch};
use super::salvage::{self, Saved};
use crate::finding::Finding;

/// A block of a directory.
pub(super) struct DirBlock {
    pub(super) logical: u64,
    pub(super) place: PhysBlock,
    pub(super) bytes: Vec<u8>,
}

/// A change of the entries of one block.
struct Edit<'f> {
    /// Its block; `None` for all.
    block: Option<u64>,
    what: What<'f>,
}

impl Edit<'_> {
    /// Whether it gives an entry a name that no other entry may have.
    fn makes_a_name(&self) -> bool {
        matches!(self.what, What::Respell(_) | What::Rename(_))
    }
}

enum What<'f> {
    /// Removes the entry with this name and, if known, this inode.
    Remove(&'f [u8], Option<InodeNr>),
    /// Removes the second name of a directory.
    RemoveName(InodeNr),
    SetType(&'f [u8], u8),
    /// Replaces bytes that no name may hold.
    Respell(&'f [u8]),
    /// Renames the second of two entries.
    Rename(&'f [u8]),
}

impl Editor<'_> {
    /// The format of the blocks of a directory.
    pub(super) fn format_of(&self, dir: InodeNr) -> Patch<DirFormat> {
        self.with_inode(dir, |inode| {
            let names = match (
                inode.has(InodeFlags::ENCRYPT_FL),
                inode.has(InodeFlags::CASEFOLD_FL),
            ) {
                (true, true) => NameForm::EncryptedHashed,
                (true, false) => NameForm::Encrypted,
                (false, _) => NameForm::Plain,
            };
            self.volume.dir_format(names, inode.seed(&self.volume.sb))
        })
    }

    /// The blocks of a directory that can be read.
    pub(super) fn blocks_of(&self, dir: InodeNr) -> Patch<Vec<DirBlock>> {
        let mut blocks = Vec::new();
        for extent in self.extents_of(dir)? {
            for nth in 0..extent.blocks {
                let place = PhysBlock(extent.physical.0 + u64::from(nth));
                blocks.push(DirBlock {
                    logical: u64::from(extent.logical.0) + u64::from(nth),
                    place,
                    bytes: self.read_block(place)?,
                });
            }
        }
        Ok(blocks)
    }

    /// Mends all faults of a directory.
    pub(super) fn mend_directory(&self, dir: InodeNr, findings: &[&Finding]) -> Patch {
        let edits = edits_of(findings);
        let (is_inline, is_indexed) = self.with_inode(dir, |inode| {
            (
                inode.has(InodeFlags::INLINE_DATA_FL),
                inode.has(InodeFlags::INDEX_FL),
            )
        })?;
        if is_inline {
            return self.mend_inline(dir, &edits);
        }
        let drops_index = is_indexed && findings.iter().any(|finding| needs_no_index(finding));
        let touched: BTreeSet<u64> = findings.iter().filter_map(|f| block_of(f)).collect();
        let is_everywhere = drops_index || edits.iter().any(|edit| edit.block.is_none());
        if drops_index {
            self.clear_flags(dir, InodeFlags::INDEX_FL)?;
            self.note_unindexed(dir);
        }
        let format = self.format_of(dir)?;
        let mut blocks = self.blocks_of(dir)?;
        let mut names = match edits.iter().any(Edit::makes_a_name) {
            true => self.names_in(&format, &blocks),
            false => HashSet::new(),
        };
        let mut spilled = Vec::new();
        let mut parent = None;
        for block in &mut blocks {
            let is_root_of_index = is_indexed && !drops_index && block.logical == 0;
            let is_touched = is_everywhere || touched.contains(&block.logical);
            if !is_touched || is_root_of_index {
                continue;
            }
            let mut entries = salvage::entries(&format, &block.bytes);
            if block.logical == 0 {
                parent = self.drop_front(dir, findings, &mut entries);
            }
            self.apply(&edits, block.logical, &mut entries, &mut names);
            self.keep_plausible(&mut entries);
            let mut fresh = vec![0; block.bytes.len()];
            let writer = match block.logical {
                0 => LeafWriter::with_dots(&format, &mut fresh, &self.dots(dir, parent)),
                _ => LeafWriter::new(&format, &mut fresh),
            };
            spilled.extend(salvage::write(writer, &entries));
            self.write_dir_block(&format, block.place, &mut fresh)?;
        }
        spilled
            .iter()
            .try_for_each(|saved| self.add_saved(dir, saved))
    }

    /// Removes what stands in the place of `.` and `..`, which are written again, and returns the
    /// inode of `..`. An entry under another name in that place is kept, unless it is one of the
    /// two with a wrong name.
    fn drop_front(
        &self,
        dir: InodeNr,
        findings: &[&Finding],
        entries: &mut Vec<Saved>,
    ) -> Option<InodeNr> {
        let lacks_dot = findings
            .iter()
            .any(|finding| matches!(finding, Finding::Dot { .. }));
        let lacks_dotdot = findings
            .iter()
            .any(|finding| matches!(finding, Finding::DotDot { .. }));
        if lacks_dot && entries.first().is_some_and(|first| first.inode == dir) {
            entries.remove(0);
        }
        let mut parent = entries.iter().take(2).find(|saved| saved.name == b"..");
        let second = usize::from(entries.first().is_some_and(|first| first.name == b"."));
        let nameless = entries.get(second).filter(|saved| {
            let is_directory = self.state.directories.contains(saved.inode.0.into());
            lacks_dotdot && parent.is_none() && is_directory && !saved.is_dots()
        });
        parent = parent.or(nameless);
        let parent = parent.map(|saved| saved.inode);
        if nameless.is_some() {
            entries.remove(second);
        }
        entries.retain(|saved| !saved.is_dots());
        parent
    }

    /// The names that a directory has, so that a new one differs from all.
    fn names_in(&self, format: &DirFormat, blocks: &[DirBlock]) -> HashSet<Vec<u8>> {
        let all = blocks
            .iter()
            .flat_map(|block| salvage::entries(format, &block.bytes));
        all.map(|saved| saved.name).collect()
    }

    /// `.` and `..` of a directory; `parent` is the inode that its old `..` names.
    fn dots(&self, dir: InodeNr, parent: Option<InodeNr>) -> Dots {
        let is_directory = |nr: &InodeNr| self.state.directories.contains(nr.0.into());
        let by_name = Some(self.found.tree.parent(dir)).filter(|nr| nr.0 != 0);
        let parent = match dir {
            InodeNr::ROOT => InodeNr::ROOT,
            _ => parent
                .filter(is_directory)
                .or(by_name)
                .unwrap_or(InodeNr::ROOT),
        };
        Dots { own: dir, parent }
    }

    /// Drops entries that were found behind a broken record and do not fit their inode, which may
    /// have been deleted before.
    fn keep_plausible(&self, entries: &mut Vec<Saved>) {
        entries.retain(|saved| {
            let nr = u64::from(saved.inode.0);
            let is_known = self.state.used.contains(nr) && self.volume.sb.may_be_named(saved.inode);
            !saved.is_guess
                || (is_known
                    && saved.inode != InodeNr::ROOT
                    && (saved.kind == EntryType::Unknown
                        || saved.kind == self.type_of(saved.inode)))
        });
    }

    /// The type of an inode, for an entry.
    pub(super) fn type_of(&self, nr: InodeNr) -> EntryType {
        let file_type = self
            .with_inode(nr, |inode| inode.file_type())
            .ok()
            .flatten();
        file_type.map_or(EntryType::Unknown, EntryType::from)
    }

    fn apply(
        &self,
        edits: &[Edit<'_>],
        block: u64,
        entries: &mut Vec<Saved>,
        names: &mut HashSet<Vec<u8>>,
    ) {
        let is_here = |edit: &&Edit<'_>| edit.block.is_none_or(|at| at == block);
        for edit in edits.iter().filter(is_here) {
            match edit.what {
                What::Remove(name, inode) => {
                    let is_it = |saved: &Saved| {
                        saved.name == name && inode.is_none_or(|nr| nr == saved.inode)
                    };
                    entries.retain(|saved| !is_it(saved));
                }
                What::RemoveName(inode) => {
                    if let Some(at) = entries.iter().rposition(|saved| saved.inode == inode) {
                        entries.remove(at);
                    }
                }
                What::SetType(name, kind) => {
                    for saved in entries.iter_mut().filter(|saved| saved.name == name) {
                        saved.kind = EntryType::from_byte(kind);
                    }
                }
                What::Respell(name) => {
                    if let Some(saved) = entries.iter_mut().find(|saved| saved.name == name) {
                        saved.name = unused_name(&respelled(name), names);
                    }
                }
                What::Rename(name) => {
                    let second = entries.iter_mut().filter(|saved| saved.name == name).nth(1);
                    if let Some(saved) = second {
                        saved.name = unused_name(name, names);
                    }
                }
            }
        }
    }

    /// Writes a block of entries, with its checksum.
    pub(super) fn write_dir_block(
        &self,
        format: &DirFormat,
        place: PhysBlock,
        bytes: &mut [u8],
    ) -> Patch {
        if let Some(seed) = format.seed {
            DirFormat::seal(bytes, seed).map_err(|error| Left(error.to_string()))?;
        }
        self.write_block(place, bytes)
    }

    /// Writes both parts of a directory inside its inode again. What has no space any more loses
    /// its name, and gets another one in lost+found.
    fn mend_inline(&self, dir: InodeNr, edits: &[Edit<'_>]) -> Patch {
        let format = DirFormat {
            seed: None,
            ..self.format_of(dir)?
        };
        let mut bytes = self.inode_bytes(dir)?;
        let mut inode =
            InodeMut::of(&mut bytes, &self.volume.sb).map_err(|error| Left(error.to_string()))?;
        let (head, area) = inode.parts_mut();
        let area = area.ok_or_else(|| Left::because("no space for attributes"))?;
        let mut content = InlineMut::of(head, area).map_err(|error| Left(error.to_string()))?;
        let (head, second) = content
            .parts_mut()
            .map_err(|error| Left(error.to_string()))?;
        let (parent, first) = head.split_at_mut(4);
        let found = InodeNr(u32::from_le_bytes(parent.try_into().unwrap_or_default()));
        let dots = self.dots(dir, Some(found));
        parent.copy_from_slice(&dots.parent.0.to_le_bytes());
        let mut entries = salvage::entries(&format, first);
        entries.extend(salvage::entries(&format, second));
        let mut names = entries.iter().map(|saved| saved.name.clone()).collect();
        self.apply(edits, 0, &mut entries, &mut names);
        self.keep_plausible(&mut entries);
        let spilled = salvage::write(LeafWriter::new(&format, first), &entries);
        if !second.is_empty() {
            salvage::write(LeafWriter::new(&format, second), &spilled);
        }
        self.write_inode(dir, &mut bytes)
    }
}

/// What has to change among the entries.
fn edits_of<'f>(findings: &[&'f Finding]) -> Vec<Edit<'f>> {
    let mut edits = Vec::new();
    for finding in findings {
        let what = match finding {
            Finding::EntryInode { name, inode, .. }
            | Finding::EntryUnused { name, inode, .. }
            | Finding::EntryValue { name, inode, .. }
            | Finding::EntryNotEncrypted { name, inode, .. }
            | Finding::EntryPolicy { name, inode, .. } => What::Remove(&name.0, Some(*inode)),
            Finding::EntryRoot { name, .. } => What::Remove(&name.0, Some(InodeNr::ROOT)),
            Finding::EntryNoName { inode, .. } => What::Remove(&[], Some(*inode)),
            Finding::EntryEncrypted { name, .. } | Finding::DotsAgain { name, .. } => {
                What::Remove(&name.0, None)
            }
            Finding::DirTwoNames { inode, .. } => What::RemoveName(*inode),
            Finding::EntryType { name, expected, .. }
            | Finding::EntryTypeOpen { name, expected, .. } => {
                What::SetType(&name.0, u8::try_from(*expected).unwrap_or(0))
            }
            Finding::EntryName { name, .. } | Finding::EntryEncoding { name, .. } => {
                What::Respell(&name.0)
            }
            Finding::EntryTwice { name, .. } => What::Rename(&name.0),
            _ => continue,
        };
        edits.push(Edit {
            block: block_of(finding),
            what,
        });
    }
    edits
}

/// The block that a finding of a directory is about.
fn block_of(finding: &Finding) -> Option<u64> {
    match finding {
        Finding::DirChecksum { block, .. }
        | Finding::DirRecord { block, .. }
        | Finding::DotsAgain { block, .. }
        | Finding::EntryInode { block, .. }
        | Finding::EntryUnused { block, .. }
        | Finding::EntryValue { block, .. }
        | Finding::EntryRoot { block, .. }
        | Finding::EntryNoName { block, .. }
        | Finding::EntryName { block, .. }
        | Finding::EntryEncoding { block, .. }
        | Finding::EntryEncrypted { block, .. }
        | Finding::EntryType { block, .. }
        | Finding::EntryTypeOpen { block, .. }
        | Finding::EntryTwice { block, .. }
        | Finding::EntryNotEncrypted { block, .. }
        | Finding::EntryPolicy { block, .. } => Some(block.0.into()),
        Finding::Dot { .. } | Finding::DotDot { .. } => Some(0),
        _ => None,
    }
}

/// Whether the index of a directory cannot be kept: it is wrong, or the patch changes a name or
/// the block of its root.
fn needs_no_index(finding: &Finding) -> bool {
    match finding {
        Finding::IndexRoot { .. }
        | Finding::IndexNode { .. }
        | Finding::IndexUnreferenced { .. }
        | Finding::IndexTwice { .. }
        | Finding::IndexDepth { .. }
        | Finding::IndexHash { .. }
        | Finding::Dot { .. }
        | Finding::DotDot { .. }
        | Finding::DirRecord { .. }
        | Finding::EntryName { .. }
        | Finding::EntryEncoding { .. }
        | Finding::EntryTwice { .. } => true,
        _ => block_of(finding) == Some(0),
    }
}

/// A name with dots for what no name may hold.
fn respelled(name: &[u8]) -> Vec<u8> {
    let is_utf8 = std::str::from_utf8(name).is_ok();
    let dot = |&byte: &u8| match byte {
        b'/' | 0 => b'.',
        0x80.. if !is_utf8 => b'.',
        other => other,
    };
    name.iter().map(dot).collect()
}

/// A name of the same length that no entry has, as like `name` as it can be. It joins `names`.
fn unused_name(name: &[u8], names: &mut HashSet<Vec<u8>>) -> Vec<u8> {
    let is_free = |candidate: &[u8], names: &HashSet<Vec<u8>>| {
        candidate != b"." && candidate != b".." && !names.contains(candidate)
    };
    let mut candidate = name.to_vec();
    let mut number = 0_u64;
    while !is_free(&candidate, names) && number < 1 << 32 {
        let digits = format!("~{number}");
        let digits = match name.len() {
            0 => break,
            1 => format!("{}", number % 10).into_bytes(),
            _ => digits.into_bytes(),
        };
        let kept = name.len().saturating_sub(digits.len());
        candidate = [name.get(..kept).unwrap_or(&[]), &digits].concat();
        number += 1;
        if name.len() == 1 && number > 10 {
            candidate = format!("{number}~").into_bytes();
        }
    }
    names.insert(candidate.clone());
    candidate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_valid_and_different() {
        assert_eq!(respelled(b"a/b\0"), b"a.b.");
        assert_eq!(respelled("\u{fc}".as_bytes()), "\u{fc}".as_bytes());
        assert_eq!(respelled(b"a\xff"), b"a.");
        let mut names: HashSet<Vec<u8>> = [b"name".to_vec(), b"n".to_vec()].into();
        assert_eq!(unused_name(b"name", &mut names), b"na~0");
        assert_eq!(unused_name(b"name", &mut names), b"na~1");
        assert_eq!(unused_name(b".", &mut names), b"0");
        for _ in 0..20 {
            let count = names.len();
            unused_name(b"n", &mut names);
            assert_eq!(names.len(), count + 1);
        }
    }
}
