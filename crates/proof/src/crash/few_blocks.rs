//! **Purpose.** Random calls on at most two small files at a time, for file systems that are
//! nearly full: what one file frees, the next one needs, often before the next full commit.
//!
//! **Model.** A call is derived from a number and the state of the model. Most files are made,
//! written, synced and removed again. There are enough names that a name is seldom used twice in
//! one transaction, which a fast commit would leave out. All files together never need more than
//! [`LEAST_FREE`] blocks, so each call finds space once freed blocks are available.

use fourscore_testkit::explore::Rng;

use crate::model::{Call, Content, Id, Model, NewKind, Owner, Place, Whole};

/// The names, each of one letter.
const NAMES: &[u8; 16] = b"ABCDEFGHIJKLMNOP";
/// The most files at a time.
const MOST_FILES: usize = 2;
/// The most blocks of a file: its extents fit into its inode, however they are scattered.
const MOST_BLOCKS: u64 = 4;
/// The number of free blocks that the calls need.
pub(super) const LEAST_FREE: u32 = 9;

const OWNER: Owner = Owner {
    permissions: 0o644,
    umask: 0,
    uid: 1,
    gid: 2,
};

/// Derives a call from a number.
pub(super) fn draw(model: &Model, number: u64) -> Option<Call> {
    let random = &mut Rng::new(number);
    let files = files(model);
    if files.is_empty() || files.len() < MOST_FILES && random.happens(1, 4) {
        let place = place(*random.pick(NAMES));
        return match model.lookup(&place) {
            None => Some(Call::Make(place, NewKind::File, OWNER)),
            Some(_) => None,
        };
    }
    let (place, node) = random.pick(&files).clone();
    let size = model.node(node).content().map_or(0, Content::size);
    match random.below(60) {
        0..=19 => append(model, random, node, size),
        _ if size == 0 => append(model, random, node, size),
        20..=39 => Some(Call::Fsync(node)),
        40..=44 => Some(Call::Fdatasync(node)),
        45 => Some(Call::Truncate(node, 0)),
        46 => Some(Call::Whole(Whole::Sync)),
        _ => Some(Call::Unlink(place)),
    }
}

fn place(name: u8) -> Place {
    Place {
        dir: Model::ROOT,
        name: vec![name],
    }
}

/// The files that there are, with their names.
fn files(model: &Model) -> Vec<(Place, Id)> {
    let file = |&name| Some((place(name), model.lookup(&place(name))?));
    NAMES.iter().filter_map(file).collect()
}

/// An append of more than half of what the file may still get.
fn append(model: &Model, random: &mut Rng, node: Id, size: u64) -> Option<Call> {
    let left = (MOST_BLOCKS * model.rules.block_bytes).saturating_sub(size);
    let half = left.div_ceil(2);
    (half > 0).then(|| Call::Append {
        node,
        len: half + random.bits() % half,
        tag: u8::try_from(random.bits() & 0xff).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::super::base::Base;
    use super::super::workload::Workload;
    use super::*;

    /// The files come and go, and never need more blocks than there are.
    #[test]
    fn files_come_and_go_and_fit() {
        require!(Need::Program("mke2fs"));
        let base = Base::of(Workload::of(0).shape).unwrap();
        let (mut made, mut removed, mut written_blocks) = (0, 0, 0);
        for history in 0..40 {
            let mut model = base.models[0].clone();
            let block_bytes = model.rules.block_bytes;
            let blocks = |model: &Model| {
                let nodes = files(model).into_iter().map(|(_, id)| model.node(id));
                let sizes = nodes.map(|node| node.content().map_or(0, Content::size));
                sizes.map(|size| size.div_ceil(block_bytes)).sum::<u64>()
            };
            let numbers = &mut Rng::new(history);
            for _ in 0..60 {
                let before = blocks(&model);
                let Some(call) = draw(&model, numbers.bits()) else {
                    continue;
                };
                assert!(model.apply(&call).is_done(), "{call:?}");
                assert!(blocks(&model) < u64::from(LEAST_FREE));
                written_blocks += blocks(&model).saturating_sub(before);
                made += u64::from(matches!(call, Call::Make(..)));
                removed += u64::from(matches!(call, Call::Unlink(_)));
            }
        }
        assert!(made > 200 && removed > 200, "{made}, {removed}");
        assert!(
            written_blocks / 40 > u64::from(LEAST_FREE),
            "{written_blocks}"
        );
    }
}
