//! **Purpose.** Pass 2: every name, and the inode that it refers to.
//!
//! **Model.** Directories are taken in the order of their places on the device, each by one thread.
//! Its blocks are read in runs, and its index, if it has one, is checked when all blocks are read.
//! The results are counts of names and the [`Tree`] of directories. A directory that an earlier
//! check remembers is not read, if all inodes that it names are what they were
//! ([`crate::memory`]).
//!
//! | module | responsibility |
//! |---|---|
//! | `block` | one block of entries |
//! | `changed` | names that fast commits changed |
//! | `names` | duplicate names |
//! | `index` | the hash index of one directory |
//! | `recall` | directories that an earlier check remembers |
//! | `tree` | the parents of directories |

mod block;
mod changed;
mod index;
mod names;
mod recall;
mod tree;

use std::collections::HashSet;
use std::num::NonZeroUsize;

use fourscore_ondisk::casefold::{Encoding, FoldedName};
use fourscore_ondisk::dirent::{DirFormat, NameForm};
use fourscore_ondisk::dirhash::NameHasher;
use fourscore_ondisk::inline::InlineData;
use fourscore_ondisk::xattr::Xattrs;
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock};

use crate::finding::Finding;
use crate::inode::InodeView;
use crate::memory::{Memory, Names};
use crate::parallel::{Pieces, on_threads};
use crate::policies::{PolicyId, PolicyRuns};
use crate::report::{Findings, Tally};
use crate::state::{Directories, Directory, Scanned, State};
use crate::volume::Volume;
use index::Index;
use names::NameSet;
pub(crate) use tree::Tree;

/// The number of directories that a thread takes at once.
const AT_ONCE: u64 = 16;
/// Bytes of a directory that are read at once.
const READ_BYTES: usize = 256 << 10;

/// The state of one thread.
struct Reader<'a> {
    volume: &'a Volume,
    state: &'a State,
    tree: &'a Tree,
    policies: &'a PolicyRuns,
    memory: Option<&'a Memory>,
    findings: Findings,
    names: NameSet,
    other_inode: Vec<u8>,
    entries: u64,
    /// Directories with a second name, and the directory that holds it; once for each such name.
    named_again: Vec<(InodeNr, InodeNr)>,
    /// The inodes of the names of the directory at hand, without `.` and `..`.
    named: Vec<InodeNr>,
    /// What is new to the memory.
    learned: Vec<Names>,
}

/// A directory that is being read.
struct Dir {
    nr: InodeNr,
    /// Its place in the order of all directories.
    turn: u32,
    format: DirFormat,
    /// How names are encoded, if the directory ignores case.
    casefold: Option<Encoding>,
    /// Its encryption policy, if it has a valid one.
    policy: Option<PolicyId>,
    end: LogicalBlock,
    /// The hash of its names, if it has a valid index.
    hasher: Option<NameHasher>,
    index: Option<Index>,
    /// Names of its blocks that fast commits changed, by the form in which names are compared.
    overruled: HashSet<Box<[u8]>>,
}

/// Reads all directories, but for those that `memory` knows and has not forgotten.
pub(crate) fn run(
    volume: &Volume,
    state: &State,
    scanned: &Scanned,
    threads: NonZeroUsize,
    mut memory: Option<&mut Memory>,
    findings: &mut Findings,
    tally: &mut Tally,
) -> Tree {
    let lists = &scanned.directories;
    let mut order = Vec::new();
    for (list, directories) in lists.iter().enumerate() {
        for (nth, directory) in directories.all.iter().enumerate() {
            let start = directories.runs_of(directory).first();
            let start = start.map_or(0, |run| run.start.0);
            order.push((start, directory.inode, list, nth));
        }
    }
    order.sort_unstable();
    let inodes = lists.iter().flat_map(|list| &list.all).map(|dir| dir.inode);
    let tree = Tree::new(inodes.collect());
    let pieces = Pieces::new(order.len() as u64, AT_ONCE);
    let limit = findings.limit();
    let known = memory.as_deref().filter(|memory| memory.is_on());
    let found = on_threads(threads, || {
        let mut reader = Reader {
            volume,
            state,
            tree: &tree,
            policies: &scanned.policies,
            memory: known,
            findings: Findings::new(limit),
            names: NameSet::for_blocks(volume.block_bytes()),
            other_inode: Vec::new(),
            entries: 0,
            named_again: Vec::new(),
            named: Vec::new(),
            learned: Vec::new(),
        };
        let mut buffer = Vec::new();
        while let Some(piece) = pieces.take() {
            let range = usize::try_from(piece.start)
                .ok()
                .zip(usize::try_from(piece.end).ok());
            let next = range.and_then(|(start, end)| order.get(start..end));
            // There are no more directories than inodes.
            let turns = u32::try_from(piece.start).unwrap_or(u32::MAX)..;
            for (turn, &(_, _, list, nth)) in turns.zip(next.unwrap_or(&[])) {
                if let Some(list) = lists.get(list)
                    && let Some(directory) = list.all.get(nth)
                {
                    reader.look_at(list, directory, turn, &mut buffer);
                }
            }
        }
        (
            reader.findings,
            reader.entries,
            reader.named_again,
            reader.learned,
        )
    });
    for (found, entries, named_again, learned) in found {
        if let Some(memory) = &mut memory {
            memory.learn_names(learned);
        }
        findings.merge(found);
        tally.entries += entries;
        for (inode, other) in named_again {
            let dir = tree.parent(inode);
            findings.push(Finding::DirTwoNames { inode, dir, other });
        }
    }
    tree
}

impl Reader<'_> {
    fn directory(
        &mut self,
        list: &Directories,
        directory: &Directory,
        turn: u32,
        buffer: &mut Vec<u8>,
    ) {
        let volume = self.volume;
        let form = directory.form;
        let nr = directory.inode;
        let names = match (form.encrypted, form.casefold) {
            (true, true) => NameForm::EncryptedHashed,
            (true, false) => NameForm::Encrypted,
            (false, _) => NameForm::Plain,
        };
        let mut dir = Dir {
            nr,
            turn,
            format: volume.dir_format(names, directory.seed),
            casefold: volume
                .sb
                .encoding()
                .filter(|_| form.casefold)
                .map(|encoding| match encoding.strict {
                    true => Encoding::Strict,
                    false => Encoding::Lenient,
                }),
            policy: self.policies.of(nr),
            end: LogicalBlock(directory.end),
            hasher: None,
            index: form.indexed.then(Index::default),
            overruled: HashSet::new(),
        };
        if form.inline {
            self.inline(&mut dir);
            self.added_names(&dir);
            return;
        }
        let runs = list.runs_of(directory);
        if let Some(parent) = volume.changes.made_in(nr) {
            self.made_dots(&dir, parent);
        } else if runs.first().is_none_or(|run| run.logical != 0) {
            let why = "is missing: block 0 is a hole";
            self.findings.push(Finding::Dot { dir: nr, why });
        }
        let block_bytes = volume.block_bytes();
        let step = u32::try_from((READ_BYTES / block_bytes).max(1)).unwrap_or(1);
        for run in runs {
            let mut done = 0;
            while done < run.blocks {
                let count = step.min(run.blocks - done);
                buffer.resize(count as usize * block_bytes, 0);
                let start = PhysBlock(run.start.0 + u64::from(done));
                let first = run.logical.saturating_add(done);
                self.run_of_blocks(&mut dir, LogicalBlock(first), start, buffer);
                done += count;
            }
        }
        self.added_names(&dir);
        if let Some(index) = dir.index {
            index.check(nr, &mut self.findings);
        }
    }

    /// Checks adjacent blocks, which `buffer` is as large as. Blocks that cannot be read are
    /// skipped.
    fn run_of_blocks(
        &mut self,
        dir: &mut Dir,
        first: LogicalBlock,
        start: PhysBlock,
        buffer: &mut [u8],
    ) {
        let mut unread = Vec::new();
        self.volume.read_run(start, buffer, |block, error| {
            unread.push(block);
            let why = error.to_string();
            self.findings.push(Finding::Unreadable { block, why });
        });
        let blocks = buffer.chunks_exact(self.volume.block_bytes());
        for (offset, block) in (0_u32..).zip(blocks) {
            if !unread.contains(&PhysBlock(start.0.saturating_add(u64::from(offset)))) {
                // A damaged map may go on behind the last logical block.
                let logical = first.0.saturating_add(offset);
                self.block(dir, LogicalBlock(logical), block);
            }
        }
    }

    /// Checks an inline directory.
    fn inline(&mut self, dir: &mut Dir) {
        let mut bytes = Vec::new();
        let read = self.volume.read_inode(dir.nr, &mut bytes);
        let Some(inode) = read.and_then(|()| InodeView::new(&bytes, dir.nr)) else {
            return;
        };
        let xattrs = Xattrs::in_inode(inode.xattr_area().unwrap_or(&[]));
        // Pass 1 reports inline data that cannot be found.
        let Ok(data) = InlineData::find(&inode.base.i_block, &xattrs) else {
            return;
        };
        self.state.names.add(dir.nr, 1);
        let content = match data.directory(&dir.format) {
            Ok(content) => content,
            Err(why) => {
                let dir = dir.nr;
                self.findings.push(Finding::DirInline { dir, why });
                return;
            }
        };
        self.dotdot(dir, content.parent);
        if let Err(why) = content.check() {
            let dir = dir.nr;
            self.findings.push(Finding::DirInline { dir, why });
        }
        self.names.start();
        for entry in content.entries().map_while(Result::ok) {
            let found = entry.kind.to_byte();
            self.stored_entry(dir, LogicalBlock(0), &entry, found);
            if !self.names.insert(entry.name) {
                self.duplicate(dir, LogicalBlock(0), entry.name);
            }
        }
    }

    /// Notes the inode that `..` refers to.
    fn dotdot(&mut self, dir: &Dir, parent: InodeNr) {
        self.tree.set_dotdot(dir.nr, parent);
        self.state.names.add(parent, 1);
        self.entries += 1;
    }

    fn duplicate(&mut self, dir: &Dir, block: LogicalBlock, name: &[u8]) {
        let (dir, name) = (dir.nr, name.into());
        self.findings.push(Finding::EntryTwice { dir, block, name });
    }
}

impl Dir {
    /// Whether the encoding of the directory allows this name.
    fn may_have_name(&self, name: &[u8]) -> bool {
        self.casefold != Some(Encoding::Strict) || std::str::from_utf8(name).is_ok()
    }

    /// Calls `then` with the form in which a name is compared and hashed: folded in a directory
    /// that ignores case.
    fn with_folded<R>(&self, name: &[u8], then: impl FnOnce(&[u8]) -> R) -> R {
        if self.casefold.is_some()
            && self.format.names == NameForm::Plain
            && let Ok(folded) = FoldedName::new(name, Encoding::Lenient)
        {
            return then(folded.hash_input());
        }
        then(name)
    }
}
