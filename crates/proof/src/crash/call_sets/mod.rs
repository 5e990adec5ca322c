//! **Purpose.** Decides whether a recovered tree is the result of a set of calls that fast commits
//! may have made durable.
//!
//! # Model
//! A fast commit describes some inodes and names, not all blocks that have changed. So a crash may
//! leave the state after the last full commit and, of the calls since, any set that is *closed*:
//! with a call it holds what the call rests on. A call rests on
//!
//! - the earlier calls on each inode that it changes, creates or removes, where an inode is a
//!   number: a number that is used again belongs to the same object;
//! - the earlier calls on each name (directory and name) that it changes;
//! - the earlier calls on the directory of such a name, which made, moved or changed it;
//! - where it removes a directory, the earlier calls on the names in it.
//!
//! A prefix of the history is closed, and so is a prefix with a closed set of later calls: full
//! commits need no rule of their own. `sync` vouches for all calls, fsync for those on the inode
//! and, if it is a directory, on its names; fdatasync of a file for those up to the last one that
//! changed the size or the map. The set must contain what was vouched for, and no call that had
//! not begun.
//!
//! # The objects decide
//! Each inode and each name is an object with a linear history: its state after `k` of its calls.
//! A closed set holds the first calls of each object, so the set is known from one number `k` for
//! each object, and its result is known from the states of the objects. The recovered tree says for
//! each object alone which `k` *fit*:
//!
//! - an inode that was found must have its attributes and data, with its own number; an inode that
//!   was not found must have no name then;
//! - a name must refer to the number that was found, or be free, if its directory was found;
//! - times of a directory may be those of any earlier moment, since a fast commit does not contain
//!   the inode of a directory in which a name changed; or newer, since where it does, names may
//!   have changed that it does not contain; link counts must agree with the names found.
//!
//! All names and inodes that were found must be objects, and every object is looked at, except
//! names in directories that were not found: the removal of a directory rests on those. So the
//! tree is the result of the set if and only if the `k` of every object fits.
//!
//! # The least set
//! If two closed sets are solutions, so is their intersection: for each object it has the smaller
//! of the two `k`. So there is a least solution if there is any. It is found without a search:
//! begin with what was vouched for, closed; while some object has a `k` that does not fit, raise
//! it to the next `k` that does, which each solution must have reached, and close again. If there
//! is no such `k`, there is no solution. Each step adds a call, so the work is bounded by calls
//! times objects, and nothing is ever accepted or refused for lack of time.
//!
//! # Data
//! Data of files goes to its home location apart from the log. A sector may be that of the state
//! found or of a later call on the same file, as in [`super::judge`]; with `data=journal`, of that
//! state only. A copy that has begun may have arrived with its first pieces: its file then fits
//! the state before the copy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use fourscore::{Fs, InodeNr};

use super::effects::{Effects, Vouched};
use super::judge::{AtCrash, Form, found_trees, odd_sector, steps_of};
use super::timeline::Timeline;
use super::tree::{Entry, Tree};
use super::workload::Mode;
use crate::model::{Id, Numbers};

#[cfg(test)]
mod tests;

/// The history of an object: the calls on it, and its state after each number of them.
#[derive(Clone, Debug)]
struct Object<S> {
    calls: Vec<usize>,
    /// One more than there are calls.
    states: Vec<S>,
}

impl<S> Object<S> {
    fn of(state: S) -> Self {
        Self {
            calls: Vec::new(),
            states: vec![state],
        }
    }

    fn add(&mut self, call: usize, state: S) {
        self.calls.push(call);
        self.states.push(state);
    }

    /// How many of its calls are among those up to `call`.
    fn until(&self, call: usize) -> usize {
        self.calls.partition_point(|&own| own <= call)
    }

    /// The version of the tree in which it has its state after `k` calls first.
    fn version(&self, k: usize) -> usize {
        k.checked_sub(1).map_or(0, |last| self.calls[last])
    }
}

/// A name in a directory.
type Name = (InodeNr, Vec<u8>);

/// What the calls of a thread rest on. Calls are numbered from 1, as the versions that they lead
/// to.
#[derive(Debug, Default)]
pub(super) struct CallSets {
    /// By call, the latest earlier calls that it rests on.
    rests_on: Vec<Vec<usize>>,
    /// The inodes, by number; the state is the model's inode that had the number last.
    inodes: BTreeMap<InodeNr, Object<Option<Id>>>,
    /// The names; the state is the inode that the name refers to.
    names: BTreeMap<Name, Object<Option<InodeNr>>>,
    /// By step, what is vouched for when it has returned.
    vouched_after: Vec<Certain>,
}

/// Calls that are vouched for, without those that they rest on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Certain {
    /// All calls up to this one.
    pub(super) until: usize,
    /// These calls.
    pub(super) calls: BTreeSet<usize>,
}

impl Certain {
    /// Adds what else is vouched for.
    pub(super) fn add(&mut self, other: &Self) {
        self.until = self.until.max(other.until);
        self.calls.extend(&other.calls);
    }
}

/// A closed set of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallSet {
    /// By call; the first is none.
    has: Vec<bool>,
    /// Whether the recovered tree is that of a prefix of the history.
    pub(super) is_prefix: bool,
}

impl CallSet {
    /// Whether it has all of these calls; as it is closed, it then has what they rest on.
    pub(super) fn holds(&self, certain: &Certain) -> bool {
        let mut calls = (1..=certain.until).chain(certain.calls.iter().copied());
        calls.all(|call| self.has[call])
    }

    /// Whether it has all calls up to the last of them that has begun.
    pub(super) fn is_all(&self, begun: usize) -> bool {
        self.has[1..=begun].iter().all(|has| *has)
    }
}

/// A recovered tree by inode number.
struct Found<'f> {
    inodes: BTreeMap<InodeNr, &'f Entry<InodeNr>>,
    names: BTreeMap<Name, InodeNr>,
    /// A path of each inode, for messages.
    paths: BTreeMap<InodeNr, &'f [u8]>,
}

impl<'f> Found<'f> {
    /// # Errors
    /// If a link count of a directory disagrees with the names.
    fn of(tree: &'f Tree<InodeNr>) -> Result<Self> {
        let number = |path: &[u8]| tree.inodes[tree.names[path]].key;
        let mut found = Self {
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            paths: BTreeMap::new(),
        };
        let mut links: BTreeMap<InodeNr, u32> = BTreeMap::new();
        for &place in tree.names.values() {
            let entry = &tree.inodes[place];
            found.inodes.insert(entry.key, entry);
        }
        for path in tree.names.keys() {
            let target = number(path);
            found.paths.entry(target).or_insert(path);
            let Some((dir, name)) = split(path) else {
                continue;
            };
            let dir = number(dir);
            if found.inodes[&target].is_directory() {
                *links.entry(dir).or_default() += 1;
            }
            found.names.insert((dir, name.to_vec()), target);
        }
        for (nr, entry) in found
            .inodes
            .iter()
            .filter(|(_, entry)| entry.is_directory())
        {
            let (has, counted) = (entry.links(), 2 + links.get(nr).copied().unwrap_or(0));
            let path = found.paths[nr].escape_ascii();
            ensure!(
                has == counted,
                "{path}: {has} links, and {counted} from names"
            );
        }
        Ok(found)
    }
}

/// The directory and the name of a path that is not the root.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    Some((&path[..slash], &path[slash + 1..]))
}

impl CallSets {
    /// What the calls of a timeline rest on, in which inodes have these numbers.
    ///
    /// # Errors
    /// If an inode has no number.
    pub(super) fn of(timeline: &Timeline, numbers: &Numbers) -> Result<Self> {
        let mut sets = Self::default();
        let tree = &timeline.versions[0];
        for entry in &tree.inodes {
            let nr = number(numbers, entry.key)?;
            sets.inodes.insert(nr, Object::of(Some(entry.key)));
        }
        let target = |path: &[u8]| number(numbers, tree.inodes[tree.names[path]].key);
        for path in tree.names.keys() {
            if let Some((dir, name)) = split(path) {
                let name = (target(dir)?, name.to_vec());
                sets.names.insert(name, Object::of(Some(target(path)?)));
            }
        }
        let mut mapped = BTreeMap::new();
        sets.rests_on.push(Vec::new());
        for (at, effects) in timeline.effects.iter().enumerate() {
            sets.add(timeline, at + 1, effects, numbers)?;
            mapped.extend(effects.maps.map(|id| (id, at + 1)));
            let certain = sets.vouched(at + 1, effects.vouches, numbers, &mapped)?;
            sets.vouched_after.push(certain);
        }
        Ok(sets)
    }

    /// Adds a call to the objects that it changes.
    fn add(
        &mut self,
        timeline: &Timeline,
        call: usize,
        effects: &Effects,
        numbers: &Numbers,
    ) -> Result<()> {
        let mut inodes: BTreeMap<InodeNr, Id> = BTreeMap::new();
        for &id in &effects.inodes {
            // A call may free a number and use it again.
            let exists = timeline.versions[call].of(id).is_some();
            let nr = number(numbers, id)?;
            if exists || !inodes.contains_key(&nr) {
                inodes.insert(nr, id);
            }
        }
        let mut names = BTreeMap::new();
        for (place, target) in &effects.names {
            let target = target.map(|id| number(numbers, id)).transpose()?;
            let name = (number(numbers, place.dir)?, place.name.clone());
            names.insert(name, target);
        }
        let dirs = names.keys().map(|(dir, _)| dir);
        let mut earlier: BTreeSet<usize> = BTreeSet::new();
        for nr in inodes.keys().chain(dirs) {
            let object = self.inodes.get(nr);
            earlier.extend(object.and_then(|object| object.calls.last()));
        }
        for name in names.keys() {
            let object = self.names.get(name);
            earlier.extend(object.and_then(|object| object.calls.last()));
        }
        for &dir in &effects.removed {
            earlier.extend(self.last_in(number(numbers, dir)?));
        }
        for (nr, id) in inodes {
            let object = self.inodes.entry(nr).or_insert_with(|| Object::of(None));
            object.add(call, Some(id));
        }
        for (name, target) in names {
            let object = self.names.entry(name).or_insert_with(|| Object::of(None));
            object.add(call, target);
        }
        self.rests_on.push(earlier.into_iter().collect());
        Ok(())
    }

    /// The last call on each name in a directory.
    fn last_in(&self, dir: InodeNr) -> impl Iterator<Item = usize> {
        let names = self.names.range((dir, Vec::new())..);
        let names = names.take_while(move |((of, _), _)| *of == dir);
        names.filter_map(|(_, object)| object.calls.last().copied())
    }

    /// What a call that was made last vouches for; `mapped` has for each file the last call that
    /// changed its size or map.
    fn vouched(
        &self,
        call: usize,
        vouches: Vouched,
        numbers: &Numbers,
        mapped: &BTreeMap<Id, usize>,
    ) -> Result<Certain> {
        let mut certain = Certain::default();
        match vouches {
            Vouched::Nothing => {}
            Vouched::Everything => certain.until = call,
            Vouched::Data(id) => certain.calls.extend(mapped.get(&id)),
            Vouched::Inode(id) => {
                let nr = number(numbers, id)?;
                let object = self.inodes.get(&nr);
                let last = object.and_then(|object| object.calls.last());
                certain.calls.extend(last);
                certain.calls.extend(self.last_in(nr));
            }
        }
        Ok(certain)
    }

    /// What is vouched for when a step has returned.
    pub(super) fn vouched_after(&self, step: usize) -> &Certain {
        &self.vouched_after[step]
    }

    /// Adds calls and what they rest on to a set.
    fn close(&self, set: &mut [bool], calls: impl IntoIterator<Item = usize>) {
        let mut pending: Vec<usize> = calls.into_iter().collect();
        while let Some(call) = pending.pop() {
            if !set[call] {
                set[call] = true;
                pending.extend(&self.rests_on[call]);
            }
        }
    }
}

fn number(numbers: &Numbers, id: Id) -> Result<InodeNr> {
    let number = numbers.get(&id).copied();
    number.with_context(|| format!("the number of {id:?} is not known"))
}

/// What is known of a thread when the crash comes.
pub(super) struct ThreadAtCrash<'a> {
    pub(super) timeline: &'a Timeline,
    pub(super) sets: &'a CallSets,
    /// The number of calls that have begun.
    pub(super) begun: usize,
    pub(super) certain: &'a Certain,
    /// The versions whose data the sectors of a file may have, by file and the version of the file
    /// that was found.
    pub(super) data: &'a dyn Fn(Id, usize) -> RangeInclusive<usize>,
}

impl ThreadAtCrash<'_> {
    /// The least set whose result is the recovered tree.
    ///
    /// # Errors
    /// If there is no such set.
    pub(super) fn set_of(&self, tree: &Tree<InodeNr>) -> Result<CallSet> {
        let found = Found::of(tree)?;
        for (nr, path) in &found.paths {
            let path = path.escape_ascii();
            let is_known = self.sets.inodes.contains_key(nr);
            ensure!(is_known, "{path} has a number that no call used: {nr}");
        }
        for name in found.names.keys() {
            let (dir, name) = (found.paths[&name.0].escape_ascii(), name);
            let is_known = self.sets.names.contains_key(name);
            ensure!(
                is_known,
                "{dir}/{} exists, and no call made it",
                name.1.escape_ascii()
            );
        }
        let mut has = vec![false; self.sets.rests_on.len()];
        let certain = (1..=self.certain.until).chain(self.certain.calls.iter().copied());
        self.sets.close(&mut has, certain);
        loop {
            let before = has.clone();
            for (nr, object) in &self.sets.inodes {
                self.raise(&mut has, object, |k| {
                    self.inode_differs(*nr, object, k, &found)
                })?;
            }
            for (name, object) in &self.sets.names {
                self.raise(&mut has, object, |k| name_differs(name, object, k, &found))?;
            }
            if has == before {
                break;
            }
        }
        let is_prefix = self.is_prefix(&has, &found);
        Ok(CallSet { has, is_prefix })
    }

    /// Adds calls on an object to a set until its state fits.
    fn raise<S>(
        &self,
        has: &mut [bool],
        object: &Object<S>,
        differs: impl Fn(usize) -> Option<String>,
    ) -> Result<()> {
        let first = object.calls.partition_point(|&call| has[call]);
        let last = object.until(self.begun);
        let mut why = Vec::new();
        for k in first..=last {
            match differs(k) {
                None if k == first => return Ok(()),
                None => {
                    self.sets.close(has, [object.calls[k - 1]]);
                    return Ok(());
                }
                Some(difference) => {
                    why.push(format!(
                        "    after call {}: {difference}",
                        object.version(k)
                    ));
                }
            }
        }
        let forced = (1..has.len()).filter(|&call| has[call]);
        let forced: Vec<_> = forced.map(|call| call.to_string()).collect();
        bail!(
            "no closed set of the calls gives this tree; it must have these: {}, and then:\n{}",
            forced.join(" "),
            why.join("\n")
        );
    }

    /// Whether the tree is also that of a prefix of the history that holds a set.
    fn is_prefix(&self, has: &[bool], found: &Found<'_>) -> bool {
        let first = has.iter().rposition(|has| *has).unwrap_or(0);
        let fits = |end: usize| {
            let mut inodes = self.sets.inodes.iter();
            let mut names = self.sets.names.iter();
            inodes.all(|(nr, object)| {
                let k = object.until(end);
                self.inode_differs(*nr, object, k, found).is_none()
            }) && names.all(|(name, object)| {
                let k = object.until(end);
                name_differs(name, object, k, found).is_none()
            })
        };
        (first..=self.begun.max(first)).any(fits)
    }

    /// How an inode that was found, or not, differs from its state after `k` calls.
    fn inode_differs(
        &self,
        nr: InodeNr,
        object: &Object<Option<Id>>,
        k: usize,
        found: &Found<'_>,
    ) -> Option<String> {
        let form = |k: usize| {
            let entry = self.timeline.versions[object.version(k)].of(object.states[k]?)?;
            entry.has_name().then_some(entry)
        };
        let (entry, theirs) = match (form(k), found.inodes.get(&nr)) {
            (None, None) => return None,
            (Some(_), None) => return Some(format!("inode {nr} is missing")),
            (None, Some(_)) => {
                let path = found.paths[&nr].escape_ascii();
                return Some(format!("{path} has inode {nr}, which has no name"));
            }
            (Some(entry), Some(theirs)) => (entry, theirs),
        };
        let path = found.paths[&nr].escape_ascii();
        let shown = |what: String| format!("{path}, inode {nr}: {what}");
        let facts_differ = match entry.is_directory() {
            false => !entry.facts.allows(&theirs.facts),
            true => {
                let versions = &self.timeline.versions[..=self.begun];
                let forms = || versions.iter().filter_map(|tree| tree.of(entry.key));
                let allows = |others: &[&_]| entry.facts.allows_directory(&theirs.facts, others);
                !allows(&[]) && !allows(&forms().map(|form| &form.facts).collect::<Vec<_>>())
            }
        };
        let mut difference =
            facts_differ.then(|| shown(format!("{:?}, not {:?}", theirs.facts, entry.facts)));
        if difference.is_none() {
            let odd = self.odd_sector(entry, object.version(k), false, theirs);
            difference = odd.map(shown);
        }
        let is_on_its_way = || {
            let call = object.calls.get(k).filter(|&&call| call <= self.begun)?;
            let growing = self.timeline.growing(*call)?;
            let entry = form(k + 1).filter(|entry| entry.key == growing.id)?;
            let grows = entry.facts.allows_from(growing.from, &theirs.facts);
            (grows && self.odd_sector(entry, *call, true, theirs).is_none()).then_some(())
        };
        difference.filter(|_| is_on_its_way().is_none())
    }

    fn odd_sector(
        &self,
        entry: &Entry<Id>,
        version: usize,
        is_growing: bool,
        theirs: &Entry<InodeNr>,
    ) -> Option<String> {
        let form = Form {
            entry,
            version,
            is_growing,
        };
        let versions = (self.data)(entry.key, version);
        odd_sector(self.timeline, form, theirs.content.as_deref()?, versions, 0)
    }
}

/// How a name that was found, or not, differs from its state after `k` calls. Nothing is known of
/// names in a directory that was not found.
fn name_differs(
    name: &Name,
    object: &Object<Option<InodeNr>>,
    k: usize,
    found: &Found<'_>,
) -> Option<String> {
    let dir = found.inodes.get(&name.0)?;
    let (wanted, there) = (object.states[k], found.names.get(name).copied());
    if !dir.is_directory() || wanted == there {
        return None;
    }
    let shown = |nr: Option<InodeNr>| nr.map_or("nothing".to_owned(), |nr| format!("inode {nr}"));
    Some(format!(
        "{}/{} refers to {}, not to {}",
        found.paths[&name.0].escape_ascii(),
        name.1.escape_ascii(),
        shown(there),
        shown(wanted)
    ))
}

/// Compares a recovered file system with what the threads did, and returns the set of calls of each
/// that it is the result of. `certain` is what was vouched for, by thread.
///
/// # Errors
/// If the tree of a thread is the result of no set.
pub(super) fn judge_sets(
    fs: &Fs,
    threads: &[(&Timeline, &CallSets)],
    crash: AtCrash<'_>,
    certain: &[Certain],
    mode: Mode,
) -> Result<Vec<CallSet>> {
    let trees = found_trees(fs, threads.len())?;
    let threads = threads.iter().enumerate();
    let sets = threads.map(|(thread, (timeline, sets))| {
        let progress = crash.progress[thread];
        let data = |id: Id, version: usize| {
            let durable = crash.contents.get(thread);
            let version = version.max(durable.map_or(0, |contents| contents.of(id)));
            match mode {
                Mode::Journal => version..=version,
                Mode::Ordered | Mode::Writeback | Mode::None => version..=progress.begun,
            }
        };
        let at_crash = ThreadAtCrash {
            timeline,
            sets,
            begun: progress.begun,
            certain: &certain[thread],
            data: &data,
        };
        let set = at_crash.set_of(&trees[thread]);
        set.with_context(|| steps_of(thread, timeline, progress))
    });
    sets.collect()
}
