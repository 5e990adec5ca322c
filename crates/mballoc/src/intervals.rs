//! **Purpose.** A set of clusters of one group, kept as sorted intervals that never touch.
//!
//! **Model.** A map from the start of each interval to its end. Two intervals that meet become
//! one, so a file freed extent by extent waits as few entries.

use std::collections::BTreeMap;

/// The set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intervals {
    /// Start to end, both in clusters from the start of the group.
    map: BTreeMap<u32, u32>,
}

impl Intervals {
    /// Empties it.
    pub(crate) fn clear(&mut self) {
        self.map.clear();
    }

    /// The intervals as `(start, end)`, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.map.iter().map(|(&start, &end)| (start, end))
    }

    /// Clusters in all intervals.
    pub(crate) fn total(&self) -> u64 {
        self.iter().map(|(start, end)| u64::from(end - start)).sum()
    }

    /// Whether any cluster from `start` to `end - 1` is in it.
    pub(crate) fn overlaps(&self, start: u32, end: u32) -> bool {
        self.map
            .range(..end)
            .next_back()
            .is_some_and(|(_, &last)| last > start)
    }

    /// Adds the clusters `start` to `end - 1`, none of which may be in it.
    pub(crate) fn insert(&mut self, mut start: u32, mut end: u32) {
        debug_assert!(start < end && !self.overlaps(start, end));
        if let Some((&before, last)) = self.map.range_mut(..start).next_back()
            && *last == start
        {
            // The common case of clusters that come in order changes one entry in place.
            if !self.map.contains_key(&end) {
                if let Some(last) = self.map.get_mut(&before) {
                    *last = end;
                }
                return;
            }
            start = before;
        }
        if let Some(further) = self.map.remove(&end) {
            end = further;
        }
        self.map.insert(start, end);
    }

    /// Takes the clusters from `start` to `end - 1` out, as far as they are in it, and calls
    /// `taken` with each part that was.
    pub(crate) fn take(&mut self, start: u32, end: u32, mut taken: impl FnMut(u32, u32)) {
        let mut at = start;
        while at < end {
            let Some((&first, &last)) = self.next_from(at).filter(|&(&first, _)| first < end)
            else {
                return;
            };
            let (from, to) = (first.max(at), last.min(end));
            self.map.remove(&first);
            if first < from {
                self.map.insert(first, from);
            }
            if to < last {
                self.map.insert(to, last);
            }
            taken(from, to);
            at = to;
        }
    }

    /// The first interval that ends behind `at`.
    fn next_from(&self, at: u32) -> Option<(&u32, &u32)> {
        let holds = self
            .map
            .range(..=at)
            .next_back()
            .filter(|&(_, &last)| last > at);
        holds.or_else(|| self.map.range(at..).next())
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
