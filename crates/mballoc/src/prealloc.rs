//! **Purpose.** Preallocations: clusters claimed ahead of need, for one inode, so that it grows
//! contiguously, and for all small files of a core (its locality group), so that they lie side by
//! side.
//!
//! **Not here.** How much is claimed ahead ([`crate::request`]), and giving it back to the groups
//! ([`crate::Allocator`]).
//!
//! **Model.** A piece is a claimed run, and for an inode the part of the file it is meant for. A
//! piece holds unused clusters only: clusters leave it when they are used, so a piece that is used
//! from its middle becomes two. The pieces of an inode are sorted and never overlap.
//!
//! A preallocation holds no tokens, because it can always be discarded: when space runs short, all
//! pieces of all inodes and cores are.
//!
//! **Invariants.** Every piece is claimed in its group and belongs to one list. An inode with
//! pieces is in the registry, which keeps them alive: if an inode is dropped without discarding its
//! pieces, the registry finds them when it next removes dropped inodes.
//!
//! **Locking.** One lock for each inode's list, with a word beside it that says whether the list is
//! empty, and the same for each core's. Both come before group locks, but no search runs under
//! them: a list is tried before the search, and filled after it.

use std::ops::Range;

use fourscore_ondisk::GroupOffset;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, CoreNr, Mutex, PerCore};

use crate::geometry::{ClusterCount, Run};
use crate::num::len32;

/// A run that is meant for a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    logical: u32,
    run: Run,
}

impl Piece {
    fn end(&self) -> u32 {
        self.logical.saturating_add(self.run.len.0)
    }

    /// The part from `skip` on, `len` clusters long.
    fn part(&self, skip: u32, len: u32) -> Self {
        let start = GroupOffset(self.run.start.0 + skip);
        Self {
            logical: self.logical + skip,
            run: Run {
                group: self.run.group,
                start,
                len: ClusterCount(len),
            },
        }
    }
}

/// The preallocations of one inode. The file system makes it with the inode in memory, passes it
/// with each request, and discards it with [`crate::Allocator::discard`] when the last writer
/// closes the file, on truncation, and before the inode is evicted.
#[derive(Debug, Default)]
pub struct FilePrealloc {
    pieces: Mutex<Vec<Piece>>,
    /// Whether there are pieces, so that a file without any costs no lock.
    filled: AtomicBool,
    registered: AtomicBool,
}

/// How the preallocations of an inode cover a request that they do not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// A piece holds the requested cluster, but does not fit the request.
    Covered,
    /// No piece holds it; these clusters of the file around it are in no piece either.
    Gap(Range<u32>),
}

impl FilePrealloc {
    /// Whether there are pieces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.lock().is_empty()
    }

    /// Clusters in all pieces.
    #[must_use]
    pub fn clusters(&self) -> u64 {
        self.pieces
            .lock()
            .iter()
            .map(|piece| u64::from(piece.run.len.0))
            .sum()
    }

    /// Uses up to `len` clusters of the piece that holds `logical`, if it has `min_len` from there
    /// on and lies in groups before `limit`.
    pub(crate) fn take(
        &self,
        logical: u32,
        len: u32,
        min_len: u32,
        limit: u32,
    ) -> Result<Run, Coverage> {
        if !self.filled.load(Ordering::Acquire) {
            return Err(Coverage::Gap(0..u32::MAX));
        }
        let mut pieces = self.pieces.lock();
        let behind = pieces.partition_point(|piece| piece.logical <= logical);
        let before = behind.checked_sub(1).map(|i| (i, pieces[i]));
        let Some((i, piece)) = before.filter(|(_, piece)| logical < piece.end()) else {
            let start = before.map_or(0, |(_, piece)| piece.end());
            let end = pieces.get(behind).map_or(u32::MAX, |piece| piece.logical);
            return Err(Coverage::Gap(start..end));
        };
        let skip = logical - piece.logical;
        let got = (piece.run.len.0 - skip).min(len);
        if got < min_len || piece.run.group.0 >= limit {
            return Err(Coverage::Covered);
        }
        let rest = piece.run.len.0 - skip - got;
        match (skip > 0, rest > 0) {
            (true, true) => {
                pieces[i] = piece.part(0, skip);
                pieces.insert(i + 1, piece.part(skip + got, rest));
            }
            (true, false) => pieces[i] = piece.part(0, skip),
            (false, true) => pieces[i] = piece.part(got, rest),
            (false, false) => {
                pieces.remove(i);
                self.filled.store(!pieces.is_empty(), Ordering::Release);
            }
        }
        Ok(piece.part(skip, got).run)
    }

    /// Adds a run that is meant for the file's clusters from `start` on, except for the `len`
    /// clusters from `logical` on, which are used at once and returned. `None` if another piece
    /// covers some of it by now, because two writers of one file searched at the same time.
    pub(crate) fn add(&self, start: u32, run: Run, logical: u32, len: u32) -> Option<Run> {
        let whole = Piece {
            logical: start,
            run,
        };
        let mut pieces = self.pieces.lock();
        let behind = pieces.partition_point(|other| other.logical < start);
        let clear_before = behind == 0 || pieces[behind - 1].end() <= start;
        let clear_behind = pieces
            .get(behind)
            .is_none_or(|other| whole.end() <= other.logical);
        if !clear_before || !clear_behind {
            return None;
        }
        let skip = logical - start;
        let rest = run.len.0 - skip - len;
        if rest > 0 {
            pieces.insert(behind, whole.part(skip + len, rest));
        }
        if skip > 0 {
            pieces.insert(behind, whole.part(0, skip));
        }
        self.filled.store(!pieces.is_empty(), Ordering::Release);
        Some(whole.part(skip, len).run)
    }

    /// Removes and returns all pieces.
    pub(crate) fn drain(&self) -> Vec<Run> {
        if !self.filled.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut pieces = self.pieces.lock();
        self.filled.store(false, Ordering::Release);
        pieces.drain(..).map(|piece| piece.run).collect()
    }
}

/// The inodes that have pieces, so that the pieces can be discarded when space runs short.
#[derive(Debug)]
pub(crate) struct Registry {
    cores: PerCore<Mutex<Vec<Arc<FilePrealloc>>>>,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            cores: PerCore::new(|_| Mutex::new(Vec::new())),
        }
    }

    /// Registers an inode that has got its first piece since it was made. Returns the pieces of
    /// registered inodes that have been dropped.
    pub(crate) fn register(&self, core: CoreNr, file: &Arc<FilePrealloc>) -> Vec<Run> {
        if file.registered.load(Ordering::Relaxed) || file.registered.swap(true, Ordering::Relaxed)
        {
            return Vec::new();
        }
        let mut files = self.cores.of(core).lock();
        let mut left = Vec::new();
        // Before the list grows, remove dropped inodes.
        if files.len() == files.capacity() {
            left = remove_dropped(&mut files);
        }
        files.push(Arc::clone(file));
        left
    }

    /// Removes and returns all pieces of all inodes.
    pub(crate) fn drain(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for core in self.cores.iter() {
            let mut files = core.lock();
            runs.extend(remove_dropped(&mut files));
            runs.extend(files.iter().flat_map(|file| file.drain()));
        }
        runs
    }
}

/// Removes inodes that only the registry still refers to, and returns their pieces.
fn remove_dropped(files: &mut Vec<Arc<FilePrealloc>>) -> Vec<Run> {
    let mut runs = Vec::new();
    files.retain(|file| {
        let dropped = Arc::strong_count(file) == 1;
        if dropped {
            runs.extend(file.drain());
        }
        !dropped
    });
    runs
}

/// The most pieces that a core keeps for small files.
const LOCALITY_PIECES: usize = 8;

/// The locality groups: for each core, runs from which its small files are served.
#[derive(Debug)]
pub(crate) struct LocalityGroups {
    cores: PerCore<Locality>,
}

#[derive(Debug)]
struct Locality {
    runs: Mutex<Vec<Run>>,
    /// Whether there are runs, so that a core without any costs no lock.
    filled: AtomicBool,
}

impl LocalityGroups {
    pub(crate) fn new() -> Self {
        Self {
            cores: PerCore::new(|_| Locality {
                runs: Mutex::new(Vec::with_capacity(LOCALITY_PIECES + 1)),
                filled: AtomicBool::new(false),
            }),
        }
    }

    /// Uses `len` clusters from the front of the core's smallest run that is at least that long and
    /// lies in groups before `limit`.
    pub(crate) fn take(&self, core: CoreNr, len: u32, limit: u32) -> Option<Run> {
        let mine = self.cores.of(core);
        if !mine.filled.load(Ordering::Acquire) {
            return None;
        }
        let mut runs = mine.runs.lock();
        let fits = |run: &Run| run.len.0 >= len && run.group.0 < limit;
        let (i, _) = runs
            .iter()
            .enumerate()
            .filter(|(_, run)| fits(run))
            .min_by_key(|(_, run)| run.len)?;
        let (front, rest) = runs[i].split_at(ClusterCount(len));
        if rest.len.0 == 0 {
            runs.swap_remove(i);
            mine.filled.store(!runs.is_empty(), Ordering::Release);
        } else {
            runs[i] = rest;
        }
        Some(front)
    }

    /// Adds a run. If that makes one too many, removes and returns the smallest, to be unclaimed.
    pub(crate) fn insert(&self, core: CoreNr, run: Run) -> Option<Run> {
        let mine = self.cores.of(core);
        let mut runs = mine.runs.lock();
        runs.push(run);
        mine.filled.store(true, Ordering::Release);
        if runs.len() <= LOCALITY_PIECES {
            return None;
        }
        let smallest = (0..len32(runs.len())).min_by_key(|&i| runs[i as usize].len)?;
        Some(runs.remove(smallest as usize))
    }

    /// Removes and returns all runs of all cores.
    pub(crate) fn drain(&self) -> Vec<Run> {
        self.cores
            .iter()
            .flat_map(|core| {
                let mut runs = core.runs.lock();
                core.filled.store(false, Ordering::Release);
                std::mem::take(&mut *runs)
            })
            .collect()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use fourscore_ondisk::GroupNr;
    use proptest::prelude::*;

    fn run(start: u32, len: u32) -> Run {
        Run {
            group: GroupNr(3),
            start: GroupOffset(start),
            len: ClusterCount(len),
        }
    }

    #[test]
    fn a_piece_is_used_from_anywhere_and_splits() {
        let file = FilePrealloc::default();
        assert_eq!(file.add(95, run(995, 57), 95, 5), Some(run(995, 5)));
        assert_eq!(file.take(150, 9, 1, u32::MAX), Ok(run(1050, 2)));
        assert_eq!(file.take(110, 5, 1, u32::MAX), Ok(run(1010, 5)));
        assert_eq!(file.take(100, 50, 1, u32::MAX), Ok(run(1000, 10)));
        assert_eq!(file.take(100, 1, 1, u32::MAX), Err(Coverage::Gap(0..115)));
        assert_eq!(file.take(140, 20, 1, u32::MAX), Ok(run(1040, 10)));
        assert_eq!(file.take(120, 20, 21, u32::MAX), Err(Coverage::Covered));
        assert_eq!(file.take(120, 20, 1, 3), Err(Coverage::Covered));
        assert_eq!(file.add(130, run(5000, 50), 130, 1), None);
        assert_eq!(file.add(90, run(6000, 26), 90, 1), None);
        assert_eq!(file.clusters(), 25);
        assert_eq!(file.drain(), [run(1015, 25)]);
        assert!(file.is_empty());
    }

    #[test]
    fn pieces_of_dropped_inodes_are_found() {
        let registry = Registry::new();
        let core = CoreNr::current();
        let kept = Arc::new(FilePrealloc::default());
        kept.add(0, run(6, 2), 0, 1);
        assert!(registry.register(core, &kept).is_empty());
        for i in 0..100 {
            let file = Arc::new(FilePrealloc::default());
            file.add(0, run(99 + i, 2), 0, 1);
            let left = registry.register(core, &file);
            left.iter().for_each(|run| assert_ne!(run.start.0, 7));
        }
        let held: usize = registry.cores.iter().map(|files| files.lock().len()).sum();
        assert!(held <= 100, "the registry keeps dropped inodes: {held}");
        assert!(registry.drain().contains(&run(7, 1)));
    }

    #[test]
    fn a_locality_group_serves_from_its_smallest_fit_and_stays_small() {
        let locality = LocalityGroups::new();
        let core = CoreNr::current();
        for i in 0..8 {
            assert_eq!(locality.insert(core, run(i * 100, 10 + i)), None);
        }
        assert_eq!(locality.take(core, 11, u32::MAX), Some(run(100, 11)));
        assert_eq!(locality.take(core, 100, u32::MAX), None);
        assert_eq!(locality.take(core, 1, 3), None);
        assert_eq!(locality.insert(core, run(900, 50)), None);
        assert_eq!(locality.insert(core, run(1000, 9)), Some(run(1000, 9)));
        assert_eq!(locality.drain().len(), 8);
    }

    proptest! {
        #[test]
        fn each_preallocated_cluster_is_used_once(
            steps in prop::collection::vec((0..200_u32, 1..30_u32, any::<bool>()), 1..100),
        ) {
            let file = FilePrealloc::default();
            // Physical = logical + 1000, so that each run can be checked.
            let mut held = [false; 256];
            for (logical, len, add) in steps {
                let part = logical as usize..(logical + len) as usize;
                if add {
                    let clear = held[part.clone()].iter().all(|&bit| !bit);
                    // The middle is used at once.
                    let (first, used) = (logical + len / 3, len - len / 3 - len / 4);
                    let got = file.add(logical, run(1000 + logical, len), first, used);
                    prop_assert_eq!(got, clear.then(|| run(1000 + first, used)));
                    if clear {
                        held[part].fill(true);
                        held[first as usize..(first + used) as usize].fill(false);
                    }
                } else {
                    match file.take(logical, len, 1, u32::MAX) {
                        Ok(got) => {
                            prop_assert_eq!(got.start.0, 1000 + logical);
                            for i in logical..logical + got.len.0 {
                                prop_assert!(std::mem::replace(&mut held[i as usize], false));
                            }
                        }
                        Err(coverage) => {
                            prop_assert!(!held[logical as usize]);
                            let Coverage::Gap(gap) = coverage else { panic!("not covered") };
                            prop_assert!(gap.contains(&logical));
                            let gap = gap.start as usize..gap.end.min(256) as usize;
                            prop_assert!(held[gap].iter().all(|&bit| !bit));
                        }
                    }
                }
            }
        }
    }
}
