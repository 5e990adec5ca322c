//! **Purpose.** Tracks where a file certainly has no blocks: a write there changes the inode, even
//! if the size stays the same.
//!
//! **Model.** The model knows the bytes of files, not their blocks. A block may stay allocated when
//! its bytes become zeroes, so a hole is a range to which nothing was ever written. Once fallocate
//! has allocated, moved or zeroed blocks of a file, nothing is known of the whole file any more: a
//! write to unwritten blocks may convert their neighbours as well. Where nothing is known, the
//! write is taken not to change the inode, so that less is expected to be durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fourscore::Fallocate;

use crate::model::{Call, Content, Id, Model};

/// The files that were changed.
#[derive(Debug, Default)]
pub(super) struct Holes {
    files: BTreeMap<Id, Blocks>,
}

/// The blocks of a file.
#[derive(Debug)]
enum Blocks {
    /// The file has at most these blocks.
    Among(BTreeSet<u64>),
    Unknown,
}

/// The effect of a call on the blocks of a file.
enum Change {
    /// A range was written, in bytes.
    Written(Range<u64>),
    /// Blocks were freed, or none.
    Fewer,
    /// Any other change.
    Unknown,
}

impl Holes {
    /// Records a call on the model `before` it; returns whether it wrote to a hole.
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

    /// Records that a call failed for lack of space: it may have allocated blocks before.
    pub(super) fn found_no_space(&mut self, call: &Call, before: &Model) {
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
    /// The file that a call changes, and how.
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
    use super::super::timeline::{Executor, Timeline};
    use super::super::workload::{Step, Workload};

    /// An fsync makes the last call durable that changed the inode: one that filled a hole, but not
    /// one that replaced data.
    #[test]
    fn a_call_that_fills_a_hole_changes_the_inode() {
        require!(Need::Program("mke2fs"));
        let base = Base::of(Workload::of(0).shape).unwrap();
        let durable = |names: &[&str], refused: &[usize]| {
            let mut steps: Vec<Step> = names.iter().map(|name| Step::named(name)).collect();
            steps.push(Step::Fsync);
            let model = base.models[0].clone();
            let timeline = Timeline::of_executor(Executor::Host, model, &steps, refused);
            timeline.durable_after[names.len()]
        };
        assert_eq!(durable(&["overwrite-other"], &[]), 0);
        assert_eq!(durable(&["write-hole"], &[]), 1);
        assert_eq!(durable(&["chmod", "write-hole"], &[]), 2);
        assert_eq!(
            durable(&["write-hole", "write-hole", "overwrite-other"], &[]),
            1
        );
        // Nothing is known after fallocate, and after a lack of space.
        assert_eq!(durable(&["zero-odd", "write-hole"], &[]), 1);
        assert_eq!(durable(&["write-hole", "write-hole"], &[0]), 0);
    }
}
