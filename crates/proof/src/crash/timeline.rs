//! **Purpose.** The expected state of a thread's tree after each of its calls, and what is durable
//! when each call returns.
//!
//! **Model.** Version 0 is the tree before the first step, version n the tree after step n.
//! Versions are computed from the model alone, without a file system, so that a saved history needs
//! only its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use fourscore::Fallocate;

use super::effects::Effects;
use super::holes::Holes;
use super::known_bugs::SinceCommit;
use super::tree::{Contents, Growing, Tree};
use super::workload::Step;
use crate::model::{Call, Content, Expected, How, Id, Model, Pair, Place, Whole};

/// The versions of a thread's tree.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// The tree after each number of steps.
    pub(super) versions: Vec<Tree<Id>>,
    /// For each step, the version that is durable when it has returned.
    pub(super) durable_after: Vec<usize>,
    /// For each step the call that it made, as text.
    pub(super) calls: Vec<String>,
    /// For each step, what it changed and vouches for.
    pub(super) effects: Vec<Effects>,
    /// For each step, the files whose data is durable when it has returned.
    pub(super) flushes: Vec<Flushed>,
    /// The versions in which an inode without a name is open.
    pub(super) nameless: BTreeSet<usize>,
    /// Files of which a range was moved (collapse, insert).
    pub(super) moved: BTreeSet<Id>,
    /// The versions whose call writes in several pieces, with the file that it writes: a copy
    /// writes one run of its source after the other. A crash may leave only the first pieces, and
    /// two pieces may share a sector.
    pub(super) piecewise: BTreeMap<usize, Id>,
    /// The versions whose call frees blocks of a file.
    cut: BTreeSet<usize>,
}

/// The files whose data a step has made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flushed {
    /// No file.
    #[default]
    Nothing,
    /// One inode.
    One(Id),
    /// All files.
    Everything,
}

impl Flushed {
    fn by(call: &Call) -> Self {
        match call {
            Call::Whole(Whole::Sync) => Self::Everything,
            Call::Fsync(id) | Call::Fdatasync(id) => Self::One(*id),
            _ => Self::Nothing,
        }
    }
}

/// The versions whose data is durable, of all files and of single files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DurableContents {
    all: usize,
    files: BTreeMap<Id, usize>,
}

impl DurableContents {
    /// Records what was made durable when `version` was the latest.
    pub(super) fn note(&mut self, flushed: Flushed, version: usize) {
        match flushed {
            Flushed::Nothing => {}
            Flushed::One(id) => drop(self.files.insert(id, version)),
            Flushed::Everything => self.all = version,
        }
    }

    /// The oldest version whose data a file may have.
    pub(super) fn of(&self, id: Id) -> usize {
        self.files.get(&id).copied().unwrap_or(0).max(self.all)
    }
}

/// What executes the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Executor {
    /// Our library.
    #[default]
    Library,
    /// A kernel, by system calls.
    Host,
}

/// State of a thread between its steps.
#[derive(Debug, Default)]
pub(super) struct ThreadState {
    /// What executes the calls.
    executor: Executor,
    /// The inode that the last call changed, which the next fsync makes durable.
    last: Option<Id>,
    /// For each inode, the latest version that changed it.
    changed: BTreeMap<Id, usize>,
    /// The ranges of files without blocks.
    holes: Holes,
}

impl ThreadState {
    /// The state before the first step.
    pub(super) fn of(executor: Executor) -> Self {
        Self {
            executor,
            ..Self::default()
        }
    }

    /// The call of the next step.
    pub(super) fn call(&self, step: Step, model: &Model) -> Option<Call> {
        let call = step.call(model, self.last)?;
        match self.executor {
            Executor::Library => Some(call),
            Executor::Host => call.by_host(model),
        }
    }

    /// Records a call that changed the model from `before` to `after`, which is version `version`.
    /// Returns whether it wrote to a hole.
    pub(super) fn done(
        &mut self,
        call: &Call,
        before: &Model,
        after: &Model,
        version: usize,
    ) -> bool {
        let touched = touched(call, before, after);
        let fills_hole = self.holes.are_filled(call, before);
        if self.executor == Executor::Library || fills_hole || changes_inode(call, before, after) {
            for &id in &touched {
                self.changed.insert(id, version);
            }
        }
        if let Some(&id) = touched.iter().find(|&&id| after.has(id)) {
            self.last = Some(id);
        }
        fills_hole
    }

    /// The version that is durable when a call returns.
    fn made_durable(&self, call: &Call, version: usize) -> usize {
        match call {
            Call::Whole(Whole::Sync) => version,
            Call::Fsync(id) => self.changed.get(id).copied().unwrap_or(0),
            _ => 0,
        }
    }
}

impl Timeline {
    /// The timeline of `steps`, of which those in `refused` failed for lack of space.
    pub(super) fn of(model: Model, steps: &[Step], refused: &[usize]) -> Self {
        Self::of_executor(Executor::Library, model, steps, refused)
    }

    /// The timeline of `steps` that `executor` has done.
    pub(super) fn of_executor(
        executor: Executor,
        model: Model,
        steps: &[Step],
        refused: &[usize],
    ) -> Self {
        let refused = refused.iter().map(|&at| (at, None)).collect();
        Self::of_parts(executor, model, steps, &refused)
    }

    /// The same, where a part of each of the calls in `refused` may have been done.
    pub(super) fn of_parts(
        executor: Executor,
        mut model: Model,
        steps: &[Step],
        refused: &BTreeMap<usize, Option<Call>>,
    ) -> Self {
        let mut contents = Contents::new();
        let mut timeline = Self::default();
        timeline.add(&model, &mut contents);
        let mut state = ThreadState::of(executor);
        for (at, &step) in steps.iter().enumerate() {
            let mut call = state.call(step, &model);
            if let Some(part) = refused.get(&at)
                && let Some(whole) = call.take()
            {
                state.holes.found_no_space(&whole, &model);
                call.clone_from(part);
            }
            let (mut durable, mut flushed) = (0, Flushed::Nothing);
            let mut effects = Effects::default();
            let shown = call.as_ref().map_or("no call".to_owned(), Call::shown);
            timeline.calls.push(shown);
            if let Some(call) = call {
                let before = model.clone();
                if let Expected::Done(_) = model.apply(&call) {
                    let fills_hole = state.done(&call, &before, &model, at + 1);
                    effects = Effects::of(&call, &before, &model, fills_hole);
                    durable = state.made_durable(&call, at + 1);
                    flushed = Flushed::by(&call);
                    timeline.note_kind(&call, at + 1);
                }
            }
            timeline.durable_after.push(durable);
            timeline.flushes.push(flushed);
            timeline.effects.push(effects);
            timeline.add(&model, &mut contents);
        }
        timeline
    }

    fn add(&mut self, model: &Model, contents: &mut Contents) {
        if model.nodes().any(|(_, node)| node.links == 0) {
            self.nameless.insert(self.versions.len());
        }
        self.versions.push(Tree::expected(model, contents));
    }

    /// The file that the call of a version writes in several pieces, and its size before, in bytes.
    pub(super) fn growing(&self, version: usize) -> Option<Growing> {
        let &id = self.piecewise.get(&version)?;
        let before = &self.versions[version.checked_sub(1)?];
        Some(Growing {
            id,
            from: before.of(id)?.content.as_ref()?.len() as u64,
        })
    }

    /// Records what is special about the call of a version.
    fn note_kind(&mut self, call: &Call, version: usize) {
        match call {
            Call::Fallocate(id, Fallocate::CollapseRange | Fallocate::InsertRange, _) => {
                self.moved.insert(*id);
            }
            Call::Copy(_, _, id, _) => {
                self.piecewise.insert(version, *id);
            }
            _ => {}
        }
        if let Call::Truncate(..) | Call::Fallocate(_, Fallocate::PunchHole, _) = call {
            self.cut.insert(version);
        }
    }

    /// What was done between two versions, on a file system with fast commits.
    pub(super) fn since_commit(&self, between: RangeInclusive<usize>) -> SinceCommit {
        let (first, versions) = (*between.start(), &self.versions[between.clone()]);
        let names = |tree: &Tree<Id>| {
            let names = tree.names.iter();
            let named = names.map(|(path, &place)| (path.clone(), tree.inodes[place].key));
            named.collect::<BTreeSet<_>>()
        };
        let (mut came, mut went) = (BTreeSet::new(), BTreeSet::new());
        let mut before = names(&versions[0]);
        for tree in &versions[1..] {
            let after = names(tree);
            came.extend(after.difference(&before).cloned());
            went.extend(before.difference(&after).cloned());
            before = after;
        }
        let last: BTreeSet<Id> = before.iter().map(|(_, id)| *id).collect();
        let removed: BTreeSet<Id> = went.iter().map(|(_, id)| *id).collect();
        let is_directory = |tree: &Tree<Id>, id: Id| {
            let mut inodes = tree.inodes.iter();
            inodes.any(|entry| entry.key == id && entry.is_directory())
        };
        let made = |(_, id): &(Vec<u8>, Id)| versions.iter().any(|tree| is_directory(tree, *id));
        SinceCommit {
            has_fast_commits: true,
            nameless: self.nameless.range(between.clone()).next().is_some(),
            removed: removed.difference(&last).count(),
            came_and_went: came.intersection(&went).next().is_some(),
            cut: self
                .cut
                .iter()
                .any(|cut| first < *cut && between.contains(cut)),
            made_directory: came.iter().any(made),
        }
    }
}

/// Whether Linux changes the inode in a call that filled no hole. It does not if only data was
/// replaced within the same tick of the clock, nor for flags and access control lists that are set
/// already. An fsync of the inode then has nothing to commit, and earlier changes of other inodes
/// are not made durable by it.
fn changes_inode(call: &Call, before: &Model, after: &Model) -> bool {
    let has_size = |model: &Model, id: &Id| model.node(*id).content().map(Content::size);
    match call {
        Call::Write { node, .. } | Call::Copy(_, _, node, _) => {
            has_size(before, node) != has_size(after, node)
        }
        Call::SetFlags(node, flags) => before.node(*node).flags != *flags,
        Call::SetAcl(node, _, Some(_)) => {
            let shown = |model: &Model| {
                let node = model.node(*node);
                (node.permissions, node.access, node.default)
            };
            shown(before) != shown(after)
        }
        _ => true,
    }
}

/// The inodes that a call changes, its main subject first.
pub(super) fn touched(call: &Call, before: &Model, after: &Model) -> Vec<Id> {
    let inode_before = |place: &Place| before.lookup(place);
    let inode_after = |place: &Place| after.lookup(place);
    let ids: Vec<Option<Id>> = match call {
        Call::Make(place, ..) => vec![inode_after(place), Some(place.dir)],
        Call::MakeUnnamed(..) => vec![after.nodes().last().map(|(id, _)| id)],
        Call::Link(node, place) => vec![Some(*node), Some(place.dir)],
        Call::Unlink(place) | Call::Rmdir(place) => vec![inode_before(place), Some(place.dir)],
        // A rename between two names of one inode does nothing.
        Call::Rename(from, to, _) if inode_before(from) == inode_before(to) => Vec::new(),
        Call::Rename(from, to, how) => {
            let mut ids = vec![
                inode_before(from),
                inode_before(to),
                Some(from.dir),
                Some(to.dir),
            ];
            if matches!(how, How::Whiteout(_)) {
                ids.push(inode_after(from));
            }
            ids
        }
        Call::Open(_)
        | Call::Close(_)
        | Call::Disturb(_)
        | Call::Fsync(_)
        | Call::Fdatasync(_)
        | Call::Whole(_) => Vec::new(),
        // A range beyond the end of the source is not copied.
        Call::Copy(_, _, node, _) => {
            let is_same = before.node(*node).content() == after.node(*node).content();
            vec![Some(*node).filter(|_| !is_same)]
        }
        // Nothing is punched beyond the end of the file.
        Call::Fallocate(node, Fallocate::PunchHole, range) => {
            let bytes = before.node(*node).content().map_or(0, Content::size);
            vec![Some(*node).filter(|_| range.start < bytes)]
        }
        Call::Write { node, .. }
        | Call::Append { node, .. }
        | Call::Truncate(node, _)
        | Call::Fallocate(node, ..)
        | Call::Chmod(node, _)
        | Call::Chown { node, .. }
        | Call::Touch { node, .. }
        | Call::SetFlags(node, _)
        | Call::SetProject(node, _)
        | Call::SetAcl(node, _, Some(_)) => vec![Some(*node)],
        // Setting an equal value changes nothing, nor does removing an attribute that is missing.
        Call::SetXattr { node, .. } | Call::RemoveXattr(node, _) | Call::SetAcl(node, _, None) => {
            let all = |model: &Model| model.node(*node).all_xattrs();
            vec![Some(*node).filter(|_| all(before) != all(after))]
        }
    };
    ids.into_iter().flatten().collect()
}

/// Does steps to a file system, and returns those that failed for lack of space. Calls `begins` and
/// `ends` with the number of each step.
pub(super) fn run_steps(
    pair: &mut Pair,
    steps: &[Step],
    begins: impl Fn(usize),
    ends: impl Fn(usize),
) -> Vec<usize> {
    let mut state = ThreadState::default();
    let mut refused = Vec::new();
    for (at, &step) in steps.iter().enumerate() {
        begins(at);
        if let Some(call) = state.call(step, &pair.model) {
            let before = pair.model.clone();
            match pair.call(&call) {
                Some(Expected::Done(_)) => {
                    state.done(&call, &before, &pair.model, at + 1);
                }
                Some(Expected::Refused(_)) => {}
                None => refused.push(at),
            }
        }
        ends(at);
    }
    refused
}

#[cfg(test)]
mod tests {
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::super::base::Base;
    use super::super::workload::Workload;
    use super::*;

    fn model() -> Model {
        let base = Base::of(Workload::of(0).shape).unwrap();
        base.models[0].clone()
    }

    fn place(dir: Id, name: &str) -> Place {
        Place {
            dir,
            name: name.into(),
        }
    }

    #[test]
    fn renaming_between_two_names_of_one_inode_touches_nothing() {
        require!(Need::Program("mke2fs"));
        let mut model = model();
        let [a, b] = ["a", "b"].map(|name| place(Model::ROOT, name));
        let touched_by = |model: &Model, from: &Place, to: &Place, how| {
            let mut after = model.clone();
            let call = Call::Rename(from.clone(), to.clone(), how);
            assert!(matches!(after.apply(&call), Expected::Done(_)), "{call:?}");
            touched(&call, model, &after)
        };
        assert!(touched_by(&model, &a, &a, How::Exchange).is_empty());
        assert!(!touched_by(&model, &a, &b, How::Exchange).is_empty());
        let file = place(model.lookup(&a).unwrap(), "f");
        let other = place(model.lookup(&b).unwrap(), "other");
        let link = Call::Link(model.lookup(&file).unwrap(), other.clone());
        assert!(matches!(model.apply(&link), Expected::Done(_)));
        for how in [How::Replace, How::Exchange] {
            assert!(touched_by(&model, &file, &other, how).is_empty());
        }
    }

    #[test]
    fn a_removed_inode_is_not_synced() {
        require!(Need::Program("mke2fs"));
        let mut model = model();
        let file = place(model.lookup(&place(Model::ROOT, "a")).unwrap(), "f");
        let id = model.lookup(&file);
        assert!(matches!(Step::Fsync.call(&model, id), Some(Call::Fsync(_))));
        assert!(matches!(
            model.apply(&Call::Unlink(file)),
            Expected::Done(_)
        ));
        assert!(Step::Fsync.call(&model, id).is_none());
        assert!(Step::Fsync.call(&model, None).is_none());
    }

    #[test]
    fn changes_since_a_commit_are_those_of_the_versions_since() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let base = Base::of(Workload::of(0).shape).unwrap();
        let steps = [
            "create",
            "unlink-new",
            "mkdir",
            "rename-over",
            "unlink-one-of-two",
            "truncate-to-0",
            "rename",
            "chmod",
        ];
        let timeline = Timeline::of(base.models[0].clone(), &steps.map(Step::named), &[]);
        let fast = SinceCommit {
            has_fast_commits: true,
            ..SinceCommit::default()
        };
        let of = |between: RangeInclusive<usize>| timeline.since_commit(between);
        assert_eq!(of(0..=0), fast);
        assert_eq!(of(0..=1), fast, "created only");
        let removed = SinceCommit { removed: 1, ..fast };
        assert_eq!(of(1..=2), removed, "removed only");
        let came_and_went = SinceCommit {
            came_and_went: true,
            ..removed
        };
        assert_eq!(of(0..=2), came_and_went);
        let made_directory = SinceCommit {
            made_directory: true,
            ..fast
        };
        assert_eq!(of(2..=3), made_directory);
        assert_eq!(of(3..=4), removed, "replaced");
        assert_eq!(of(4..=5), fast, "another name is left");
        assert_eq!(of(5..=6), SinceCommit { cut: true, ..fast });
        assert_eq!(of(6..=7), fast, "renamed");
        assert_eq!(of(7..=8), fast, "no name was touched");
    }
}
