//! **Purpose.** A set of clusters of one group, kept as sorted intervals that never touch.
//!
//! **Model.** A sorted vector of `(start, end)`. Adjacent intervals are merged, so a file freed
//! extent by extent takes few entries and the vector is short. The vector keeps its memory, so a
//! set that is filled and emptied again and again allocates nothing.

/// The set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Intervals {
    /// Start and end of each, in clusters from the start of the group.
    row: Vec<(u32, u32)>,
    /// The index of the interval that was last inserted or lengthened; a hint.
    last: usize,
}

impl Intervals {
    /// Empties it.
    pub(crate) fn clear(&mut self) {
        self.row.clear();
    }

    /// The intervals as `(start, end)`, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.row.iter().copied()
    }

    /// Clusters in all intervals.
    pub(crate) fn total(&self) -> u64 {
        self.iter().map(|(start, end)| u64::from(end - start)).sum()
    }

    /// The index of the first interval that ends after `at`.
    fn first_after(&self, at: u32) -> usize {
        self.row.partition_point(|&(_, end)| end <= at)
    }

    /// Whether any cluster from `start` to `end - 1` is in it.
    pub(crate) fn overlaps(&self, start: u32, end: u32) -> bool {
        self.row
            .get(self.first_after(start))
            .is_some_and(|&(first, _)| first < end)
    }

    /// Adds the clusters `start` to `end - 1`, none of which may be in it.
    pub(crate) fn insert(&mut self, start: u32, end: u32) {
        debug_assert!(start < end && !self.overlaps(start, end));
        // A run mostly continues the one inserted before it.
        let continues = self.row.get(self.last).is_some_and(|&(_, to)| to == start);
        let at = if continues {
            self.last + 1
        } else {
            self.first_after(start)
        };
        let joins_before = at > 0 && self.row[at - 1].1 == start;
        let joins_behind = self.row.get(at).is_some_and(|&(first, _)| first == end);
        self.last = at - usize::from(joins_before);
        match (joins_before, joins_behind) {
            (true, true) => {
                self.row[at - 1].1 = self.row[at].1;
                self.row.remove(at);
            }
            (true, false) => self.row[at - 1].1 = end,
            (false, true) => self.row[at].0 = start,
            (false, false) => self.row.insert(at, (start, end)),
        }
    }

    /// Removes those of the clusters from `start` to `end - 1` that are in it, and calls `taken`
    /// with each part removed, in order.
    pub(crate) fn take(&mut self, start: u32, end: u32, mut taken: impl FnMut(u32, u32)) {
        // Mostly the interval inserted last is taken as a whole.
        if self.row.get(self.last) == Some(&(start, end)) {
            self.row.remove(self.last);
            return taken(start, end);
        }
        let mut at = self.first_after(start);
        while let Some(&(first, last)) = self.row.get(at).filter(|&&(first, _)| first < end) {
            let (from, to) = (first.max(start), last.min(end));
            match (first < from, to < last) {
                (true, true) => {
                    self.row[at] = (first, from);
                    self.row.insert(at + 1, (to, last));
                    at += 1;
                }
                (true, false) => {
                    self.row[at] = (first, from);
                    at += 1;
                }
                (false, true) => self.row[at] = (to, last),
                (false, false) => {
                    self.row.remove(at);
                }
            }
            taken(from, to);
            if to == end {
                return;
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_row_of_booleans(
            steps in prop::collection::vec((0..100_u32, 1..20_u32, any::<bool>()), 1..80),
        ) {
            let mut set = Intervals::default();
            let mut row = [false; 128];
            for (start, len, add) in steps {
                let end = start + len;
                let part = start as usize..end as usize;
                let any = row[part.clone()].iter().any(|&bit| bit);
                prop_assert_eq!(set.overlaps(start, end), any);
                if add {
                    if !any {
                        set.insert(start, end);
                        row[part].fill(true);
                    }
                } else {
                    let mut taken = 0;
                    set.take(start, end, |from, to| {
                        assert!(row[from as usize..to as usize].iter().all(|&bit| bit));
                        taken += to - from;
                    });
                    let had = row[part.clone()].iter().filter(|&&bit| bit).count();
                    prop_assert_eq!(taken as usize, had);
                    row[part].fill(false);
                }
                let mut seen = [false; 128];
                let mut last = None;
                for (start, end) in set.iter() {
                    prop_assert!(start < end && last.is_none_or(|last| last < start));
                    seen[start as usize..end as usize].fill(true);
                    last = Some(end);
                }
                prop_assert_eq!(seen, row);
            }
        }
    }
}
