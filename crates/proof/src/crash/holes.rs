//! **Purpose.** Where a file certainly has no blocks yet: what is written there changes the inode,
//! also if the size stays.
//!
//! **Model.** Files are known by their bytes, not by their blocks. A block to which something was
//! written may stay when its bytes are made zeroes, so a hole is where nothing was ever written.
//! Where fallocate has reserved blocks, moved some, or made some zeroes, nothing is known of the
//! whole file any more: when something is written to such blocks, others beside them may become
//! written ones as well. Who does not know promises less.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fourscore::Fallocate;

use crate::model::{Call, Content, Id, Model};

/// What is known of the files that were changed.
#[derive(Debug, Default)]
pub(super) struct Holes {
    files: BTreeMap<Id, Blocks>,
}

/// The blocks of a file.
#[derive(Debug)]
enum Blocks {
    /// There are no others than these.
    Among(BTreeSet<u64>),
    Unknown,
}

/// What a call does to them.
enum Change {
    /// Writes to a range, in bytes.
    Written(Range<u64>),
    /// At most takes some away.
    Fewer,
    /// Other things.
    Unknown,
}

impl Holes {
    /// Notes what a call does to `before`; says whether something was written to a hole.
    pub(super) fn are_filled(&mut self, call: &Call, before: &Model) -> bool {
        let Some((id, change)) = Change::by(call, before) else {
            return false;
        };
        let block_bytes = before.rules.block_bytes;
        let blocks = self.files.entry(id).or_insert_with(|| {
            let content = before.node(id).content();
            let runs = content.into_iter().flat_map(Content::runs);
            Blocks::Among(runs.flat_map(|run| blocks_of(&run, block_bytes)).collect())
        });
        match (change, blocks) {
            (Change::Written(range), Blocks::Among(written)) => {
                let was = written.len();
                written.extend(blocks_of(&range, block_bytes));
                written.len() > was
            }
            (Change::Unknown, blocks) => {
                *blocks = Blocks::Unknown;
                false
            }
            (Change::Fewer, _) | (Change::Written(_), Blocks::Unknown) => false,
        }
    }

    /// Notes that a call found no room: it may have been given blocks before.
    pub(super) fn found_no_room(&mut self, call: &Call, before: &Model) {
        if let Some((id, _)) = Change::by(call, before) {
            self.files.insert(id, Blocks::Unknown);
        }
    }
}

/// The blocks that a range of bytes touches.
fn blocks_of(range: &Range<u64>, block_bytes: u64) -> Range<u64> {
    range.start / block_bytes..range.end.div_ceil(block_bytes)
}

impl Change {
    /// What a call does, and to which file.
    fn by(call: &Call, before: &Model) -> Option<(Id, Self)> {
        let size = |id: Id| before.node(id).content().map_or(0, Content::size);
        Some(match call {
            Call::Write {
                node, offset, len, ..
            } => (*node, Self::Written(*offset..offset + len)),
            Call::Append { node, len, .. } => {
                (*node, Self::Written(size(*node)..size(*node) + len))
            }
            Call::Copy(from, range, to, offset) => {
                let bytes = range.end.min(size(*from)).saturating_sub(range.start);
                (*to, Self::Written(*offset..offset + bytes))
            }
            Call::Truncate(node, _) | Call::Fallocate(node, Fallocate::PunchHole, _) => {
                (*node, Self::Fewer)
            }
            Call::Fallocate(node, ..) => (*node, Self::Unknown),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::super::base::Base;
    use super::super::timeline::{By, Timeline};
    use super::super::workload::{Step, Workload};

    /// A sync vouches for the last call that changed the inode: one that filled a hole of it, not
    /// one that replaced what was there.
    #[test]
    fn who_fills_a_hole_changes_the_inode() {
        require!(Need::Program("mke2fs"));
        let base = Base::of(Workload::of(0).shape).unwrap();
        let vouched = |names: &[&str], refused: &[usize]| {
            let mut steps: Vec<Step> = names.iter().map(|name| Step::named(name)).collect();
            steps.push(Step::Fsync);
            let model = base.models[0].clone();
            let timeline = Timeline::by(By::Host, model, &steps, refused);
            timeline.vouches[names.len()]
        };
        assert_eq!(vouched(&["overwrite-other"], &[]), 0);
        assert_eq!(vouched(&["write-hole"], &[]), 1);
        assert_eq!(vouched(&["chmod", "write-hole"], &[]), 2);
        assert_eq!(
            vouched(&["write-hole", "write-hole", "overwrite-other"], &[]),
            1
        );
        // Nothing is known where fallocate was, and where there was no room.
        assert_eq!(vouched(&["zero-odd", "write-hole"], &[]), 1);
        assert_eq!(vouched(&["write-hole", "write-hole"], &[0]), 0);
    }
}
