//! **Purpose.** What the checks of one repair remember of the names in directories, so that a round
//! of a repair reads only the directories whose blocks its patches wrote, and those with names of
//! inodes that changed.
//!
//! **Model.** What pass 2 finds in a directory is a function of four things: where the directory
//! lies and how it is stored ([`Directory`] and its runs), the bytes of its blocks, the superblock,
//! and for each name whether its inode is in use, its type, and whether it holds a value. The first
//! three are compared or tracked; the inodes are looked up in the state of each check:
//! ```text
//! directory -> its place, the inode of `..`, inodes of its names: sorted, as runs of one type
//! ```
//! So a remembered directory adds to the counts of names and to the tree what reading it again
//! would add.
//!
//! **Invariants.**
//! - Only directories about which pass 2 found nothing are remembered, which lie in blocks, are not
//!   encrypted, and in which each name refers to a file, a directory or a symbolic link: those have
//!   their type in the state of the check.
//! - A directory is forgotten when a byte of any of its blocks is written
//!   ([`AllNames::forget`]). It is read again if its place, its form or its seed is another one, or
//!   if one of its names refers to an inode that is no longer in use as what it was
//!   ([`Names::hold`]).
//! - All are forgotten with the slots of inodes: see [`super`].
//! - At most [`MOST_RUNS`] runs are kept, 12 bytes each; a directory counts as
//!   [`RUNS_OF_A_DIRECTORY`] more.

use std::collections::HashMap;
use std::ops::Range;

use fourscore_ondisk::InodeNr;

use super::Kind;
use crate::bits::Bits;
use crate::state::{Directory, Run, State};

/// The most runs that are kept.
const MOST_RUNS: usize = 4 << 20;
/// What a directory takes beside its runs, in runs.
const RUNS_OF_A_DIRECTORY: usize = 10;

/// Adjacent inodes of one type, each with one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    first: InodeNr,
    count: u32,
    pub(crate) kind: Kind,
}

impl Named {
    pub(crate) fn inodes(&self) -> Range<u64> {
        let first = u64::from(self.first.0);
        first..first + u64::from(self.count)
    }

    /// Whether all of these inodes are still what they were.
    fn holds(&self, state: &State) -> bool {
        let count = u64::from(self.count);
        let all = |set: &Bits| set.count_in(self.inodes()) == count;
        let none = |set: &Bits| set.count_in(self.inodes()) == 0;
        // The type of an inode is that of the first set that has it, as in pass 2.
        let is_of_kind = match self.kind {
            Kind::Directory => all(&state.directories),
            Kind::Regular => all(&state.regular) && none(&state.directories),
            Kind::Symlink => {
                let others = [&state.directories, &state.regular, &state.bad];
                all(&state.symlinks) && others.into_iter().all(none)
            }
            Kind::Again | Kind::Nothing | Kind::ReservedBlocks => false,
        };
        is_of_kind && all(&state.used) && none(&state.value_inodes)
    }
}

/// The kind of an inode that a name refers to, if names of it can be remembered.
fn kind_of(inode: InodeNr, state: &State) -> Option<Kind> {
    let nr = u64::from(inode.0);
    if !state.used.contains(nr) || state.value_inodes.contains(nr) {
        return None;
    }
    let sets = [
        (&state.directories, Some(Kind::Directory)),
        (&state.regular, Some(Kind::Regular)),
        (&state.bad, None),
        (&state.symlinks, Some(Kind::Symlink)),
    ];
    let first = sets.into_iter().find(|(set, _)| set.contains(nr));
    first.and_then(|(_, kind)| kind)
}

/// What is remembered of one directory.
#[derive(Debug)]
pub(crate) struct Names {
    directory: Directory,
    runs: Box<[Run]>,
    /// The inode of `..`.
    pub(crate) dotdot: InodeNr,
    named: Box<[Named]>,
}

impl Names {
    /// The names of a directory about which nothing was found: those of `inodes`, which are sorted
    /// here, and `.` and `..`. `None` if they cannot be remembered.
    pub(crate) fn of(
        directory: &Directory,
        runs: &[Run],
        dotdot: InodeNr,
        inodes: &mut [InodeNr],
        state: &State,
    ) -> Option<Self> {
        let form = directory.form;
        let are_directories = [directory.inode, dotdot]
            .into_iter()
            .all(|inode| kind_of(inode, state) == Some(Kind::Directory));
        if form.inline || form.encrypted || !are_directories {
            return None;
        }
        inodes.sort_unstable();
        let mut named: Vec<Named> = Vec::new();
        for &inode in &*inodes {
            let kind = kind_of(inode, state)?;
            match named.last_mut() {
                Some(last) if last.kind == kind && last.inodes().end == u64::from(inode.0) => {
                    last.count += 1;
                }
                _ => named.push(Named {
                    first: inode,
                    count: 1,
                    kind,
                }),
            }
        }
        Some(Self {
            directory: *directory,
            runs: runs.into(),
            dotdot,
            named: named.into(),
        })
    }

    /// Whether the directory still lies where it did, in the same form.
    fn is_of(&self, directory: &Directory, runs: &[Run]) -> bool {
        let known = Directory {
            first_run: directory.first_run,
            ..self.directory
        };
        known == *directory && *self.runs == *runs
    }

    /// Whether all inodes that its entries refer to are still what they were.
    pub(crate) fn hold(&self, state: &State) -> bool {
        let directories = [self.directory.inode, self.dotdot];
        directories
            .into_iter()
            .all(|inode| kind_of(inode, state) == Some(Kind::Directory))
            && self.named.iter().all(|named| named.holds(state))
    }

    /// The inodes of its names, without `.` and `..`.
    pub(crate) fn named(&self) -> &[Named] {
        &self.named
    }

    /// The number of its names, without `.` and `..`.
    pub(crate) fn inodes(&self) -> u64 {
        self.named.iter().map(|named| u64::from(named.count)).sum()
    }

    fn weight(&self) -> usize {
        self.named.len() + self.runs.len() + RUNS_OF_A_DIRECTORY
    }
}

/// All directories that are remembered.
#[derive(Debug, Default)]
pub(super) struct AllNames {
    directories: HashMap<InodeNr, Names>,
    weight: usize,
}

impl AllNames {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn get(&self, directory: &Directory, runs: &[Run]) -> Option<&Names> {
        let names = self.directories.get(&directory.inode)?;
        names.is_of(directory, runs).then_some(names)
    }

    pub(super) fn learn(&mut self, names: Names) {
        let (inode, weight) = (names.directory.inode, names.weight());
        if self.weight + weight > MOST_RUNS {
            return;
        }
        self.weight += weight;
        if let Some(old) = self.directories.insert(inode, names) {
            self.weight -= old.weight();
        }
    }

    /// Forgets the directories with a block in one of these ranges of blocks, which are sorted by
    /// their starts and do not overlap.
    pub(super) fn forget(&mut self, written: &[Range<u64>]) {
        if written.is_empty() {
            return;
        }
        let is_written = |run: &Run| {
            let (start, end) = (run.start.0, run.start.0 + u64::from(run.blocks));
            let next = written.partition_point(|written| written.end <= start);
            written.get(next).is_some_and(|written| written.start < end)
        };
        let weight = &mut self.weight;
        self.directories.retain(|_, names| {
            let is_kept = !names.runs.iter().any(is_written);
            if !is_kept {
                *weight -= names.weight();
            }
            is_kept
        });
    }

    #[cfg(test)]
    pub(super) fn first_run_of(&self, inode: InodeNr) -> Option<Run> {
        self.directories.get(&inode)?.runs.first().copied()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.directories.len()
    }
}
