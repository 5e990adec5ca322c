//! **Purpose.** The inodes and names that a call changes, and what it vouches for.
//!
//! **Model.** A call that creates, moves or removes a name changes the inode that the name refers
//! to and the name itself. It does not change the directory in this sense: link counts follow from
//! the names, and times of directories may be old after a fast commit ([`super::call_sets`]).

use fourscore::Fallocate;

use super::timeline::touched;
use crate::model::{Call, Content, How, Id, Model, Place, Whole};

/// What a call changes and vouches for.
#[derive(Clone, Debug, Default)]
pub(super) struct Effects {
    /// The inodes that it changes, creates or removes.
    pub(super) inodes: Vec<Id>,
    /// The names that it changes, with the inode that each refers to afterwards.
    pub(super) names: Vec<(Place, Option<Id>)>,
    /// The directories that it removes.
    pub(super) removed: Vec<Id>,
    /// The file whose size or map of blocks it certainly changes.
    pub(super) maps: Option<Id>,
    /// What is durable when it has returned.
    pub(super) vouches: Vouched,
}

/// What is durable when a call has returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Vouched {
    #[default]
    Nothing,
    /// All calls on an inode; of a directory, those on its names as well.
    Inode(Id),
    /// The calls on a file that changed its size or map.
    Data(Id),
    /// All calls.
    Everything,
}

impl Effects {
    /// The effects of a call that was done on the model `before`, with `after` as the result.
    pub(super) fn of(call: &Call, before: &Model, after: &Model, fills_hole: bool) -> Self {
        let mut effects = Self {
            vouches: Vouched::by(call, before),
            maps: mapped(call, before, after, fills_hole),
            ..Self::default()
        };
        match call {
            Call::Rename(from, to, _) if before.lookup(from) == before.lookup(to) => {}
            Call::Make(place, ..) | Call::Unlink(place) | Call::Rmdir(place) => {
                effects.change(&[place], before, after);
            }
            Call::Link(_, place) => effects.change(&[place], before, after),
            Call::Rename(from, to, how) => {
                effects.change(&[from, to], before, after);
                let victim = before.lookup(to).filter(|_| *how != How::Exchange);
                effects.note_removed(victim, before);
            }
            other => effects.inodes = touched(other, before, after),
        }
        if let Call::Rmdir(place) = call {
            effects.note_removed(before.lookup(place), before);
        }
        effects
    }

    fn change(&mut self, places: &[&Place], before: &Model, after: &Model) {
        for &place in places {
            let target = after.lookup(place);
            let inodes = [before.lookup(place), target];
            for id in inodes.into_iter().flatten() {
                if !self.inodes.contains(&id) {
                    self.inodes.push(id);
                }
            }
            self.names.push((place.clone(), target));
        }
    }

    fn note_removed(&mut self, victim: Option<Id>, before: &Model) {
        let directory = victim.filter(|&id| before.node(id).is_dir());
        self.removed.extend(directory);
    }
}

impl Vouched {
    fn by(call: &Call, before: &Model) -> Self {
        match call {
            Call::Whole(Whole::Sync) => Self::Everything,
            Call::Fsync(id) => Self::Inode(*id),
            Call::Fdatasync(id) if before.node(*id).is_file() => Self::Data(*id),
            Call::Fdatasync(id) => Self::Inode(*id),
            _ => Self::Nothing,
        }
    }
}

/// The file whose size or map of blocks a call changes, as far as the model knows.
fn mapped(call: &Call, before: &Model, after: &Model, fills_hole: bool) -> Option<Id> {
    let (id, moves) = match call {
        Call::Write { node, .. } | Call::Append { node, .. } | Call::Copy(_, _, node, _) => {
            (*node, false)
        }
        // Blocks that are only allocated are not in the model.
        Call::Fallocate(_, Fallocate::AllocateKeepSize, _) => return None,
        Call::Truncate(node, _) | Call::Fallocate(node, ..) => (*node, true),
        _ => return None,
    };
    let (old, new) = (before.node(id).content(), after.node(id).content());
    let is_resized = old.map(Content::size) != new.map(Content::size);
    (fills_hole || is_resized || moves && old != new).then_some(id)
}
