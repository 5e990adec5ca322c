//! Tests of the judge: against all closed sets of short histories, and with states that must be
//! refused.

use std::collections::BTreeSet;

use fourscore_testkit::explore::Rng;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::super::base::Base;
use super::super::few_files;
use super::super::tree::Contents;
use super::super::workload::Workload;
use super::*;
use crate::model::{Call, How, Model, NewKind, Owner, Place};

const OWNER: Owner = Owner {
    permissions: 0o644,
    umask: 0,
    uid: 1,
    gid: 2,
};

/// Calls that were done, with the model before each.
struct History {
    calls: Vec<(Call, Model)>,
    timeline: Timeline,
    numbers: Numbers,
    sets: CallSets,
}

impl History {
    fn of(calls: &[Call]) -> Self {
        let mut model = model();
        let mut contents = Contents::new();
        let mut timeline = Timeline::default();
        let version = |model: &Model, contents: &mut Contents| Tree::expected(model, contents);
        timeline.versions.push(version(&model, &mut contents));
        let mut done = Vec::new();
        for call in calls {
            let before = model.clone();
            assert!(model.apply(call).is_done(), "{call:?}");
            let effects = Effects::of(call, &before, &model, false);
            timeline.effects.push(effects);
            timeline.versions.push(version(&model, &mut contents));
            done.push((call.clone(), before));
        }
        let inodes = timeline.versions.iter().flat_map(|tree| &tree.inodes);
        let inodes: BTreeSet<Id> = inodes.map(|entry| entry.key).collect();
        let numbers: Numbers = inodes.into_iter().zip((100..).map(InodeNr)).collect();
        Self {
            calls: done,
            sets: CallSets::of(&timeline, &numbers).unwrap(),
            timeline,
            numbers,
        }
    }

    /// A tree as it is found after a recovery.
    fn as_found(&self, tree: &Tree<Id>) -> Tree<InodeNr> {
        let named: BTreeSet<usize> = tree.names.values().copied().collect();
        let entries = tree.inodes.iter().take(named.len());
        let inodes = entries.map(|entry| Entry {
            key: self.numbers[&entry.key],
            facts: entry.facts.clone(),
            content: entry.content.clone(),
        });
        Tree {
            names: tree.names.clone(),
            inodes: inodes.collect(),
        }
    }

    fn version(&self, version: usize) -> Tree<InodeNr> {
        self.as_found(&self.timeline.versions[version])
    }

    /// The result of some of the calls.
    fn result(&self, chosen: &[usize]) -> Tree<InodeNr> {
        let mut model = model();
        for &call in chosen {
            let (call, before) = &self.calls[call - 1];
            model.continue_numbers_of(before);
            assert!(model.apply(call).is_done(), "{call:?} alone");
        }
        self.as_found(&Tree::expected(&model, &mut Contents::new()))
    }

    /// The set whose result is a tree, where these calls are durable.
    fn judge(&self, found: &Tree<InodeNr>, durable: &[usize]) -> Result<CallSet> {
        let certain = Certain {
            until: 0,
            calls: durable.iter().copied().collect(),
        };
        self.judge_with(found, &certain, self.calls.len())
    }

    fn judge_with(
        &self,
        found: &Tree<InodeNr>,
        certain: &Certain,
        begun: usize,
    ) -> Result<CallSet> {
        let at_crash = ThreadAtCrash {
            timeline: &self.timeline,
            sets: &self.sets,
            begun,
            certain,
            data: &|_, version| version..=version,
        };
        at_crash.set_of(found)
    }

    fn accepts(&self, found: &Tree<InodeNr>, durable: &[usize]) -> bool {
        self.judge(found, durable).is_ok()
    }

    /// Whether a set is closed, straight from the definition.
    fn is_closed(&self, chosen: &[usize]) -> bool {
        let effects = |call: usize| &self.timeline.effects[call - 1];
        let has_name = |of: &Effects, place: &Place| of.names.iter().any(|(own, _)| own == place);
        let rests_on = |call: &Effects, earlier: &Effects| {
            call.inodes.iter().any(|id| earlier.inodes.contains(id))
                || call.names.iter().any(|(place, _)| {
                    has_name(earlier, place) || earlier.inodes.contains(&place.dir)
                })
                || earlier
                    .names
                    .iter()
                    .any(|(place, _)| call.removed.contains(&place.dir))
        };
        chosen.iter().all(|&call| {
            let missing = (1..call).filter(|earlier| !chosen.contains(earlier));
            let mut missing = missing.map(effects);
            !missing.any(|earlier| rests_on(effects(call), earlier))
        })
    }

    /// All closed sets of calls.
    fn closed_sets(&self) -> Vec<Vec<usize>> {
        let calls = self.calls.len();
        let subsets = 0_usize..1 << calls;
        let sets = subsets.map(|bits| {
            let chosen = (1..=calls).filter(|call| bits >> (call - 1) & 1 == 1);
            chosen.collect::<Vec<_>>()
        });
        sets.filter(|chosen| self.is_closed(chosen)).collect()
    }
}

fn model() -> Model {
    let base = Base::of(Workload::of(0).shape).unwrap();
    base.models[0].clone()
}

fn id(path: &str) -> Id {
    let names = path.split('/');
    let model = model();
    names.fold(Model::ROOT, |dir, name| {
        let name = name.as_bytes().to_vec();
        model.lookup(&Place { dir, name }).unwrap()
    })
}

fn place(dir: &str, name: &str) -> Place {
    Place {
        dir: id(dir),
        name: name.into(),
    }
}

fn create(dir: &str, name: &str) -> Call {
    Call::Make(place(dir, name), NewKind::File, OWNER)
}

fn append(path: &str) -> Call {
    let node = id(path);
    Call::Append {
        node,
        len: 3_000,
        tag: 9,
    }
}

/// A tree as text.
fn shown(tree: &Tree<InodeNr>) -> String {
    let names = tree.names.iter().map(|(path, &place)| {
        let Entry {
            key,
            facts,
            content,
        } = &tree.inodes[place];
        format!("{} {key} {facts:?} {content:?}\n", path.escape_ascii())
    });
    names.collect()
}

/// A random history of calls on a few files, without those that set times.
fn random_history(rng: &mut Rng, calls: usize) -> History {
    let (mut model, mut chosen) = (model(), Vec::new());
    while chosen.len() < calls {
        let Some(call) = few_files::draw(&model, rng.bits()) else {
            continue;
        };
        // The model looks at the directory of an inode without a name, which rests on nothing.
        if let Call::MakeUnnamed(dir, _) = call
            && !self::model().has(dir)
        {
            continue;
        }
        let before = model.clone();
        if !model.apply(&call).is_done() {
            continue;
        }
        match Effects::of(&call, &before, &model, false) {
            effects if effects.inodes.is_empty() || matches!(call, Call::Touch { .. }) => {
                model = before;
            }
            _ => chosen.push(call),
        }
    }
    History::of(&chosen)
}

fn has_directory(tree: &Tree<InodeNr>, path: &[u8]) -> bool {
    let dir = split(path).and_then(|(dir, _)| tree.names.get(dir));
    dir.is_some_and(|&place| tree.inodes[place].is_directory())
}

/// Changes something of a tree: what it is afterwards may be right or wrong.
fn disturb(tree: &mut Tree<InodeNr>, other: &Tree<InodeNr>, rng: &mut Rng) {
    let paths: Vec<_> = other.names.keys().cloned().collect();
    let path = rng.pick(&paths).clone();
    let theirs = &other.inodes[other.names[&path]];
    match (tree.names.get(&path).copied(), rng.below(3)) {
        // An inode as it is in the other tree.
        (Some(place), 0) if tree.inodes[place].key == theirs.key => {
            tree.inodes[place] = theirs.clone();
        }
        // A name as it is in the other tree.
        (_, 1) if !theirs.is_directory() && has_directory(tree, &path) => {
            let mut own = tree.inodes.iter();
            if let Some(place) = own.position(|entry| entry.key == theirs.key) {
                tree.names.insert(path, place);
            }
        }
        (Some(place), 2) if !tree.inodes[place].is_directory() => {
            let names = tree.names.values().filter(|&&other| other == place);
            if names.count() > 1 {
                tree.names.remove(&path);
            }
        }
        _ => {}
    }
}

/// A tree is accepted if and only if it is the result of one of the closed sets that have what is
/// durable.
#[test]
fn the_results_of_closed_sets_are_accepted_and_nothing_else_is() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let rng = &mut Rng::new(5);
    let (mut accepted, mut refused, mut no_prefix) = (0, 0, 0);
    for _ in 0..20 {
        let calls = 4 + rng.below(4);
        let history = random_history(rng, calls);
        let sets = history.closed_sets();
        let results: Vec<_> = sets.iter().map(|set| history.result(set)).collect();
        let texts: Vec<_> = results.iter().map(shown).collect();
        for round in 0..200 {
            let mut found = rng.pick(&results).clone();
            for _ in 0..round % 3 {
                disturb(&mut found, rng.pick(&results), rng);
            }
            let durable = match rng.below(3) {
                0 => vec![1 + rng.below(calls)],
                _ => Vec::new(),
            };
            let text = shown(&found);
            let expected = sets.iter().zip(&texts).any(|(set, result)| {
                *result == text && durable.iter().all(|call| set.contains(call))
            });
            let set = history.judge(&found, &durable);
            let did: Vec<_> = history.calls.iter().map(|(call, _)| call.shown()).collect();
            assert_eq!(set.is_ok(), expected, "{set:?}\n{did:#?}\n{text}");
            match set {
                Ok(set) => {
                    accepted += 1;
                    no_prefix += u64::from(!set.is_prefix);
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(accepted > 500, "{accepted}");
    assert!(refused > 500, "{refused}");
    assert!(no_prefix > 500, "{no_prefix}");
}

#[test]
fn calls_on_different_files_are_found_alone_and_calls_on_one_file_in_order() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let chmod = |path| Call::Chmod(id(path), 0o600);
    let history = History::of(&[chmod("a/f"), append("a/g"), append("a/f")]);
    for set in [&[][..], &[1], &[2], &[1, 2], &[1, 3], &[1, 2, 3]] {
        let judged = history.judge(&history.result(set), &[]).unwrap();
        let is_prefix = set.iter().copied().eq(1..=set.len());
        assert_eq!(judged.is_prefix, is_prefix, "{set:?}");
        assert_eq!(judged.is_all(3), set.len() == 3);
    }
    assert!(
        !history.accepts(&history.result(&[3]), &[]),
        "the first is missing"
    );
    // What has not begun is not found.
    let judge = |begun| {
        let found = history.result(&[1, 2, 3]);
        history
            .judge_with(&found, &Certain::default(), begun)
            .is_ok()
    };
    assert!(judge(3) && !judge(2));
}

#[test]
fn a_name_needs_its_inode_and_its_directory() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let list = Call::Chmod(id("a"), 0o700);
    let history = History::of(&[list, create("a", "new"), create("b", "other")]);
    assert!(history.accepts(&history.result(&[3]), &[]));
    assert!(history.accepts(&history.result(&[1, 2]), &[]));
    // The directory is older than the call that made the name.
    assert!(!history.accepts(&history.result(&[2]), &[]));
    // The name refers to another inode, of another number.
    let mut wrong = history.version(3);
    let (new, other) = (b"/a/new".to_vec(), wrong.names[&b"/b/other"[..]]);
    wrong.names.insert(new.clone(), other);
    assert!(!history.accepts(&wrong, &[]));
    let mut wrong = history.version(3);
    let place = wrong.names[&new];
    wrong.inodes[place].key = InodeNr(99);
    assert!(!history.accepts(&wrong, &[]));
    // A name that no call made.
    let mut wrong = history.version(3);
    wrong.names.insert(b"/a/odd".to_vec(), place);
    assert!(!history.accepts(&wrong, &[]));
}

#[test]
fn a_rename_leaves_one_of_both_names() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let rename = Call::Rename(place("a", "f"), place("b", "moved"), How::Replace);
    let history = History::of(&[append("a/g"), rename]);
    let (old, new) = (b"/a/f".to_vec(), b"/b/moved".to_vec());
    let (before, after) = (history.version(1), history.version(2));
    assert!(history.accepts(&before, &[]) && history.accepts(&after, &[]));
    assert!(!history.accepts(&before, &[2]), "it is durable");
    let (mut both, mut none) = (after.clone(), after);
    both.names.insert(old, both.names[&new]);
    none.names.remove(&new);
    assert!(!history.accepts(&both, &[]) && !history.accepts(&none, &[]));
}

#[test]
fn what_is_durable_is_there_with_what_it_rests_on() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let directory = Call::Make(place("a", "d"), NewKind::Directory, OWNER);
    let d = History::of(std::slice::from_ref(&directory));
    let tree = &d.timeline.versions[1];
    let d = tree.inodes[tree.names[&b"/a/d"[..]]].key;
    let dir = Place {
        dir: d,
        name: b"new".to_vec(),
    };
    let make = Call::Make(dir, NewKind::File, OWNER);
    let history = History::of(&[directory, append("b/k"), make]);
    let all = history.version(3);
    assert!(history.judge(&all, &[3]).unwrap().is_prefix);
    // The directory is needed, the append is not.
    assert!(history.accepts(&history.result(&[1, 3]), &[3]));
    assert!(!history.accepts(&history.result(&[1, 2]), &[3]));
    assert!(history.accepts(&history.result(&[1, 2]), &[2]));
    let until = Certain {
        until: 2,
        ..Certain::default()
    };
    let found = history.result(&[1]);
    assert!(
        history.judge_with(&found, &until, 3).is_err(),
        "sync vouched for it"
    );
    assert!(
        history
            .judge(&found, &[1])
            .unwrap()
            .holds(&Certain::default())
    );
    assert!(!history.judge(&found, &[1]).unwrap().holds(&until));
}

/// What calls vouch for: fsync for the inode and its names, fdatasync for the data.
#[test]
fn fsync_vouches_for_calls_on_the_inode_and_fdatasync_for_data() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let vouched = |calls: &[Call]| {
        let history = History::of(calls);
        history.sets.vouched_after(calls.len() - 1).clone()
    };
    let calls = |calls: &[usize]| Certain {
        until: 0,
        calls: calls.iter().copied().collect(),
    };
    let [f, g] = ["a/f", "a/g"].map(id);
    let chmod = |id| Call::Chmod(id, 0o600);
    assert_eq!(vouched(&[chmod(f), chmod(g), Call::Fsync(f)]), calls(&[1]));
    assert_eq!(vouched(&[chmod(f), Call::Fdatasync(f)]), calls(&[]));
    let data = [append("a/f"), chmod(f), Call::Fdatasync(f)];
    assert_eq!(vouched(&data), calls(&[1]));
    let unlink = Call::Unlink(place("a", "g"));
    let names = [unlink, create("a", "new"), chmod(f), Call::Fsync(id("a"))];
    assert_eq!(vouched(&names), calls(&[1, 2]));
    let all = [chmod(f), Call::Whole(crate::model::Whole::Sync)];
    assert_eq!(vouched(&all).until, 2);
}

/// A fast commit has the names of a directory and not its inode.
#[test]
fn only_times_of_directories_may_be_of_another_moment() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let touch = |node, mtime| Call::Touch {
        node,
        atime: 3,
        mtime,
    };
    let [dir, file] = ["a", "a/f"].map(id);
    let history = History::of(&[
        touch(dir, 5),
        touch(file, 5),
        touch(dir, 6),
        create("a", "new"),
        touch(dir, 7),
    ]);
    let with = |of: &Tree<InodeNr>, path: &[u8], other: &Tree<InodeNr>| {
        let mut tree = of.clone();
        let (own, theirs) = (of.names[path], other.names[path]);
        tree.inodes[own] = other.inodes[theirs].clone();
        tree
    };
    let (two, last) = (history.version(2), history.version(5));
    assert!(history.accepts(&with(&last, b"/a", &two), &[5]));
    assert!(history.accepts(&with(&two, b"/a", &last), &[]));
    assert!(!history.accepts(&with(&last, b"/a/f", &history.version(1)), &[2]));
    // Only times that the directory had, as far as they are known.
    let facts = [1, 3, 5].map(|version| {
        let tree = &history.timeline.versions[version];
        &tree.of(dir).unwrap().facts
    });
    assert!(facts[1].allows_directory(facts[0], &[facts[0]]));
    assert!(!facts[1].allows_directory(facts[0], &[]));
    assert!(!facts[1].allows_directory(facts[2], &[facts[0]]));
}

/// A directory is removed after the names in it.
#[test]
fn a_directory_is_not_removed_before_the_names_in_it() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let move_out = Call::Rename(place("b/c", "x"), place("a", "x"), How::Replace);
    let history = History::of(&[move_out, Call::Rmdir(place("b", "c"))]);
    assert!(history.accepts(&history.version(2), &[2]));
    assert!(!history.is_closed(&[2]));
    let mut wrong = history.version(2);
    wrong.names.remove(&b"/a/x"[..]);
    assert!(!history.accepts(&wrong, &[]));
}

/// Inodes that use a number one after the other are one object.
#[test]
fn a_number_that_is_used_again_belongs_to_one_object() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let mut history = History::of(&[
        Call::Unlink(place("a", "f")),
        append("a/g"),
        create("b", "new"),
    ]);
    let tree = &history.timeline.versions[3];
    let new = tree.inodes[tree.names[&b"/b/new"[..]]].key;
    let number = history.numbers[&id("a/f")];
    history.numbers.insert(new, number);
    history.sets = CallSets::of(&history.timeline, &history.numbers).unwrap();
    assert!(history.accepts(&history.version(1), &[]));
    let judged = history.judge(&history.result(&[1, 3]), &[3]).unwrap();
    assert!(!judged.is_prefix && !judged.is_all(3));
    assert!(!history.accepts(&history.result(&[1]), &[3]));
    assert!(!history.accepts(&history.version(0), &[3]));
}
