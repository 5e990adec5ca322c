//! **Purpose.** Whether a recovered file system is one that the history may have left.
//!
//! **Model.** What a thread did is a row of versions of its tree. At a crash some calls have begun,
//! and some version is vouched for; between the two lies every version that may be found. Metadata
//! is that of one version; a sector of a file may be of another, where data goes to its place by
//! itself: at once, and so of a newer one, or late ([`Contents`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use fourscore::{Fs, InodeNr};

use super::base::{BALLAST, POISON, PROBE, tree_name};
use super::timeline::{DurableContents, Timeline};
use super::tree::{Entry, Growing, Tree, names};
use super::workload::Mode;
use crate::model::{Id, Model};

/// What a device writes as a whole, in bytes.
const SECTOR_BYTES: usize = 512;

/// What is known of a thread when the crash comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The version that is durable.
    pub(super) vouched: usize,
    /// How many steps have begun.
    pub(super) begun: usize,
}

/// What files may hold when a version of their tree is found.
pub(super) struct Contents<'c> {
    /// The versions whose content the sectors of a file may have, by thread, file and the version
    /// of the tree that was found.
    pub(super) versions: &'c dyn Fn(usize, Id, usize) -> RangeInclusive<usize>,
    /// In the block that an older version ends in, its end may be followed by zeroes, in bytes.
    pub(super) block_bytes: usize,
    /// The version from which on what is set of a directory may be missing.
    pub(super) unset_since: Option<usize>,
}

/// Holds a recovered file system against what the threads did, where the content of some files may
/// be more durable than the tree. Gives the versions that were found.
///
/// # Errors
/// The first difference.
pub(super) fn judge(
    fs: &Fs,
    timelines: &[Timeline],
    (known, durable): (&[Known], &[DurableContents]),
    mode: Mode,
) -> Result<Vec<usize>> {
    let versions = |thread: usize, id, version: usize| {
        let durable = durable.get(thread).map_or(0, |durable| durable.of(id));
        let version = version.max(durable);
        match mode {
            Mode::Journal => version..=version,
            Mode::Ordered | Mode::Writeback | Mode::None => version..=known[thread].begun,
        }
    };
    let contents = Contents {
        versions: &versions,
        block_bytes: 0,
        unset_since: None,
    };
    judge_with(fs, timelines, known, &contents)
}

/// As [`judge`], with what files may hold.
///
/// # Errors
/// The first difference.
pub(super) fn judge_with(
    fs: &Fs,
    timelines: &[Timeline],
    known: &[Known],
    contents: &Contents<'_>,
) -> Result<Vec<usize>> {
    let mut roots = names(fs, InodeNr::ROOT, true)?;
    ensure!(roots.remove(&b"lost+found"[..]).is_some(), "no lost+found");
    roots.remove(BALLAST);
    roots.remove(PROBE);
    let mut versions = Vec::new();
    for (thread, (timeline, known)) in timelines.iter().zip(known).enumerate() {
        let Some(root) = roots.remove(&tree_name(thread)) else {
            bail!("the tree of thread {thread} is missing");
        };
        let found = Tree::found(fs, root)?;
        let version = version((thread, timeline), *known, &found, contents);
        versions.push(version.with_context(|| steps_of(thread, timeline, *known))?);
    }
    ensure!(roots.is_empty(), "in the root: {roots:?}");
    Ok(versions)
}

/// What a thread did up to the crash, for people.
fn steps_of(thread: usize, timeline: &Timeline, known: Known) -> String {
    let calls = timeline.calls[..known.begun].iter().enumerate();
    let lines = calls.map(|(at, call)| format!("\n    {}: {call}", at + 1));
    format!("thread {thread} did{}\n ", lines.collect::<String>())
}

/// The version that was found.
fn version(
    (thread, timeline): (usize, &Timeline),
    known: Known,
    found: &Tree<InodeNr>,
    contents: &Contents<'_>,
) -> Result<usize> {
    let differs = |version: usize, growing: Option<&Growing>| {
        let unset_since = contents.unset_since.unwrap_or(version).min(version);
        let older = &timeline.versions[unset_since..version];
        let names = timeline.versions[version].difference(found, growing, older);
        names.or_else(|| foreign((thread, timeline), (version, growing), found, contents))
    };
    let mut why = Vec::new();
    for version in (known.vouched..=known.begun).rev() {
        let Some(difference) = differs(version, None) else {
            return Ok(version);
        };
        why.push(format!("    version {version}: {difference}"));
        // Some pieces of the call that leads to it, unless all of them are durable.
        if version > known.vouched
            && let Some(growing) = timeline.growing(version)
            && differs(version, Some(&growing)).is_none()
        {
            return Ok(version - 1);
        }
    }
    bail!(
        "no version from {} (durable) to {} (begun):\n{}",
        known.vouched,
        known.begun,
        why.join("\n")
    );
}

/// A sector that holds what the file has in none of the versions that it may be of, where one may
/// be on its way to this one.
fn foreign(
    (thread, timeline): (usize, &Timeline),
    (version, growing): (usize, Option<&Growing>),
    found: &Tree<InodeNr>,
    contents: &Contents<'_>,
) -> Option<String> {
    let expected = &timeline.versions[version];
    for (path, &place) in &expected.names {
        let entry = &expected.inodes[place];
        let theirs = &found.inodes[found.names[path]];
        let (Some(expected), Some(theirs)) = (&entry.content, &theirs.content) else {
            continue;
        };
        let form = |of: usize| timeline.versions[of].of(entry.key);
        let versions = (contents.versions)(thread, entry.key, version);
        if expected == theirs && versions.contains(&version) {
            continue;
        }
        let (first, last) = versions.into_inner();
        let older: Vec<&Entry<Id>> = (first..version).filter_map(form).collect();
        let newer: Vec<&Entry<Id>> = (first.max(version)..=last).filter_map(form).collect();
        let anywhere = timeline.moved.contains(&entry.key);
        // What was in the middle of a copy: as before it, or as after it.
        let is_in_the_middle = |to: usize| match growing {
            Some(_) if to == version => true,
            _ => first.max(version) < to,
        };
        let copies = timeline.pieced.range(version..=last.max(version));
        let copies: Vec<[Option<&Entry<Id>>; 2]> = copies
            .filter(|&(&to, &id)| id == entry.key && is_in_the_middle(to))
            .map(|(&to, _)| [form(to - 1), form(to)])
            .collect();
        let sectors = expected
            .chunks(SECTOR_BYTES)
            .zip(theirs.chunks(SECTOR_BYTES));
        for (nr, (expected, theirs)) in sectors.enumerate() {
            if is_of(&newer, nr, theirs, anywhere)
                || is_of(&reaching(&older, nr, contents), nr, theirs, anywhere)
                || copies.iter().any(|forms| is_mixture(forms, nr, theirs))
            {
                continue;
            }
            let what = match theirs.iter().all(|&byte| byte == POISON) {
                true => "what was there before, never written",
                false => "something else",
            };
            let (first, wanted) = (theirs[0], expected[0]);
            return Some(format!(
                "{}: sector {nr} is {what}: it begins with {first:#x}, not {wanted:#x}",
                path.escape_ascii()
            ));
        }
    }
    None
}

/// Those of older forms of a file whose last block reaches to a sector: behind it what is in the
/// file now was written before the version was found that has it.
fn reaching<'t>(older: &[&'t Entry<Id>], nr: usize, contents: &Contents<'_>) -> Vec<&'t Entry<Id>> {
    let reaches = |entry: &&&Entry<Id>| {
        let bytes = entry.content.as_ref().map_or(0, |content| content.len());
        nr * SECTOR_BYTES < bytes.next_multiple_of(contents.block_bytes.max(1))
    };
    older.iter().filter(reaches).copied().collect()
}

/// Holds a file system without a journal, which was repaired, against what the threads did.
///
/// # Errors
/// A file that was durable and not touched since, nor a directory above it, and is not there; a
/// name that its directory never had; a file that holds what is not its own, or of several.
pub(super) fn judge_unjournaled(fs: &Fs, timelines: &[Timeline], known: &[Known]) -> Result<()> {
    for (thread, (timeline, known)) in timelines.iter().zip(known).enumerate() {
        let root = fs.lookup(InodeNr::ROOT, &tree_name(thread))?;
        let found = Tree::found(fs, root)?;
        let durable = &timeline.versions[known.vouched];
        let since = &timeline.versions[known.vouched..=known.begun];
        for (path, &place) in &durable.names {
            let entry = &durable.inodes[place];
            let is_touched = |tree: &Tree<Id>| !tree.has(path, entry) || !tree.leads(durable, path);
            if entry.content.is_none() || since.iter().any(is_touched) {
                continue;
            }
            let shown = path.escape_ascii();
            let Some(&there) = found.names.get(path) else {
                bail!("{shown} was durable, and is gone");
            };
            let content = &found.inodes[there].content;
            ensure!(
                *content == entry.content,
                "{shown} was durable, and has another content"
            );
        }
        let own = Own::of(&timeline.versions[..=known.begun]);
        for (path, &place) in &found.names {
            own.ensure_allows(path, found.inodes[place].content.as_deref())?;
        }
    }
    Ok(())
}

/// What may be found without a journal, where names, inodes and contents of several versions come
/// together.
///
/// **Model.** A directory holds what it held in one version or another, under whatever name it is
/// found: a path is right if it can be walked from name to name, each of which the directory before
/// it had at some time.
struct Own<'t> {
    /// Of each directory and each name in it, what it has led to.
    children: BTreeMap<(Id, &'t [u8]), BTreeSet<Id>>,
    /// What each path has led to.
    at_path: BTreeMap<&'t [u8], BTreeSet<Id>>,
    forms: BTreeMap<Id, Vec<&'t Entry<Id>>>,
}

impl<'t> Own<'t> {
    fn of(versions: &'t [Tree<Id>]) -> Self {
        let mut own = Self {
            children: BTreeMap::new(),
            at_path: BTreeMap::new(),
            forms: BTreeMap::new(),
        };
        for tree in versions {
            for (path, &place) in &tree.names {
                let id = tree.inodes[place].key;
                own.at_path.entry(path).or_default().insert(id);
                if let Some(slash) = path.iter().rposition(|&byte| byte == b'/') {
                    let dir = tree.inodes[tree.names[&path[..slash]]].key;
                    let name = (dir, &path[slash + 1..]);
                    own.children.entry(name).or_default().insert(id);
                }
            }
            for entry in &tree.inodes {
                own.forms.entry(entry.key).or_default().push(entry);
            }
        }
        own
    }

    /// What a path may lead to.
    fn led_to(&self, path: &[u8]) -> BTreeSet<Id> {
        let names = path.split(|&byte| byte == b'/').skip(1);
        names.fold(BTreeSet::from([Model::ROOT]), |dirs, name| {
            let children = dirs
                .iter()
                .filter_map(|&dir| self.children.get(&(dir, name)));
            children.flatten().copied().collect()
        })
    }

    /// Whose content may be found at a path, in all its forms: that of the inodes which had the
    /// path itself, one of which may have got the blocks of another, or as a whole that of one
    /// which a directory above brought with it.
    fn owners(&self, path: &[u8]) -> Vec<Vec<&'t Entry<Id>>> {
        let forms = |ids: &BTreeSet<Id>| {
            let forms = ids.iter().filter_map(|id| self.forms.get(id));
            forms.flatten().copied().collect::<Vec<_>>()
        };
        let here = self.at_path.get(path).cloned().unwrap_or_default();
        let reached = self.led_to(path);
        let brought = reached.difference(&here).map(|&id| BTreeSet::from([id]));
        brought
            .chain([here.clone()])
            .map(|ids| forms(&ids))
            .collect()
    }

    /// Fails if no directory had a name of the path, or the file there holds what is not its own.
    fn ensure_allows(&self, path: &[u8], content: Option<&[u8]>) -> Result<()> {
        let shown = path.escape_ascii();
        ensure!(!self.led_to(path).is_empty(), "{shown} never was a name");
        let Some(content) = content else {
            return Ok(());
        };
        let owns = |owners: &Vec<&Entry<Id>>| {
            let mut sectors = content.chunks(SECTOR_BYTES);
            sectors.all(|sector| is_own(owners, sector))
        };
        ensure!(
            self.owners(path).iter().any(owns),
            "{shown} holds what was never written to it"
        );
        Ok(())
    }
}

/// Whether a sector holds nothing, or what was written to one of these.
fn is_own(owners: &[&Entry<Id>], sector: &[u8]) -> bool {
    sector.iter().all(|&byte| byte == 0) || is_of(owners, 0, sector, true)
}

/// Whether a sector is one of these forms of the same file.
fn is_of(forms: &[&Entry<Id>], nr: usize, found: &[u8], anywhere: bool) -> bool {
    let at = nr * SECTOR_BYTES;
    forms.iter().any(|entry| {
        let Some(content) = &entry.content else {
            return false;
        };
        let is_at = |at: usize| {
            let there = content.get(at..).unwrap_or_default();
            let there = &there[..there.len().min(found.len())];
            // Behind the end there are zeroes.
            found.starts_with(there) && found[there.len()..].iter().all(|&byte| byte == 0)
        };
        is_at(at) || anywhere && (0..content.len()).step_by(SECTOR_BYTES).any(is_at)
    })
}

/// Whether each byte of a sector is what one of these versions has there.
fn is_mixture(forms: &[Option<&Entry<Id>>; 2], nr: usize, found: &[u8]) -> bool {
    let contents = || {
        forms
            .iter()
            .flatten()
            .filter_map(|entry| entry.content.as_deref())
    };
    found.iter().enumerate().all(|(inside, &byte)| {
        let at = nr * SECTOR_BYTES + inside;
        // Behind the end there are zeroes.
        let is_byte = |content: &[u8]| content.get(at).copied().unwrap_or(0) == byte;
        contents().any(is_byte)
    })
}

#[cfg(test)]
mod tests {
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::super::base::Base;
    use super::super::workload::{Step, Workload};
    use super::*;
    use crate::model::{Call, Place};

    fn timeline(steps: &[Step]) -> Timeline {
        let base = Base::of(Workload::of(0).shape).unwrap();
        Timeline::of(base.models[0].clone(), steps, &[])
    }

    fn content(tree: &Tree<Id>, path: &[u8]) -> Vec<u8> {
        let content = tree.inodes[tree.names[path]].content.as_deref();
        content.unwrap().to_vec()
    }

    #[test]
    fn without_a_journal_a_file_holds_its_own_and_no_mixture() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let versions = timeline(&[]).versions;
        let own = Own::of(&versions);
        let sector = |path: &[u8]| content(&versions[0], path)[..SECTOR_BYTES].to_vec();
        let (one, two) = (sector(b"/a/f"), sector(b"/a/g"));
        let allows = |content: &[u8]| own.ensure_allows(b"/a/f", Some(content)).is_ok();
        assert!(allows(&one) && allows(&[0; SECTOR_BYTES]));
        assert!(!allows(&two) && !allows(&[one, two].concat()));
        assert!(!allows(&[POISON; SECTOR_BYTES]));
    }

    /// A directory that is renamed is found under its new name with what it held before.
    #[test]
    fn without_a_journal_old_entries_are_found_under_new_names_of_their_directory() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let versions = timeline(&["unlink", "rename-dir"].map(Step::named)).versions;
        let own = Own::of(&versions);
        assert!(!versions[2].names.contains_key(&b"/aa/f"[..]), "it is gone");
        let (one, two) = (
            content(&versions[0], b"/a/f"),
            content(&versions[0], b"/a/g"),
        );
        let allows = |path: &[u8], content: &[u8]| own.ensure_allows(path, Some(content)).is_ok();
        assert!(allows(b"/aa/f", &one) && allows(b"/aa/g", &two));
        // Not what another name of the directory led to, nor in another directory, nor at a name
        // that nobody had.
        assert!(!allows(b"/aa/f", &two) && !allows(b"/aa/g", &one));
        for path in ["/b/f", "/aa/never", "/never", "/aa/empty/f", "/aa/f/f"] {
            assert!(!allows(path.as_bytes(), &one), "{path}");
        }
        assert!(own.ensure_allows(b"/aa/empty", None).is_ok());
        assert!(own.ensure_allows(b"/aa/never", None).is_err());
    }

    /// What a recovered tree of a version looks like.
    fn as_found(tree: &Tree<Id>) -> Tree<InodeNr> {
        let inodes = (100..).zip(&tree.inodes).map(|(nr, entry)| Entry {
            key: InodeNr(nr),
            facts: entry.facts.clone(),
            content: entry.content.clone(),
        });
        Tree {
            names: tree.names.clone(),
            inodes: inodes.collect(),
        }
    }

    /// A copy that makes a file longer does so piece by piece.
    #[test]
    fn a_copy_that_has_begun_may_have_written_some_at_the_front() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let path: &[u8] = b"/a/f";
        let mut timeline = timeline(&["append"].map(Step::named));
        let [before, after] = [0, 1].map(|at| content(&timeline.versions[at], path));
        let key = timeline.versions[0].inodes[timeline.versions[0].names[path]].key;
        let found = |timeline: &Timeline, vouched: usize, bytes: &[u8]| {
            let mut found = as_found(&timeline.versions[1]);
            let entry = &mut found.inodes[timeline.versions[1].names[path]];
            entry.facts.size = Some(bytes.len() as u64);
            entry.content = Some(bytes.into());
            // As with `data=journal`.
            let contents = Contents {
                versions: &|_, _, version| version..=version,
                block_bytes: 0,
                unset_since: None,
            };
            let known = Known { vouched, begun: 1 };
            version((0, timeline), known, &found, &contents).ok()
        };
        let part = &after[..before.len() + 1234];
        assert_eq!(found(&timeline, 0, part), None, "one write is one step");
        // As if the call were a copy.
        timeline.pieced.insert(1, key);
        assert_eq!(found(&timeline, 0, part), Some(0));
        assert_eq!(found(&timeline, 1, part), None, "all of it is durable");
        assert_eq!(found(&timeline, 0, &before), Some(0));
        assert_eq!(found(&timeline, 0, &after), Some(1));
        assert_eq!(found(&timeline, 0, &before[1..]), None);
        assert_eq!(found(&timeline, 0, &[&after[..], &[0]].concat()), None);
        let mut poisoned = part.to_vec();
        poisoned[before.len() + 1000] = POISON;
        assert_eq!(found(&timeline, 0, &poisoned), None);
    }

    /// What is set of a directory may be older where that is allowed, and nothing else may be.
    #[test]
    fn what_is_set_of_a_directory_may_be_missing_only_where_that_is_said() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let base = Base::of(Workload::of(0).shape).unwrap();
        let model = base.models[0].clone();
        let place = |dir, name: &[u8]| Place {
            dir,
            name: name.to_vec(),
        };
        let dir = model.lookup(&place(Model::ROOT, b"b")).unwrap();
        let file = model.lookup(&place(dir, b"k")).unwrap();
        let tree = |calls: &[Call]| {
            let mut model = model.clone();
            for call in calls {
                model.apply(call);
            }
            Tree::expected(&model, &mut Default::default())
        };
        let calls = [dir, file].map(|id| Call::Chmod(id, 0o711));
        let versions = [0, 1, 2].map(|done| tree(&calls[..done]));
        let difference = |version: usize, found: usize, since: usize| {
            let older = &versions[since..version];
            versions[version].difference(&as_found(&versions[found]), None, older)
        };
        assert_eq!(difference(1, 1, 1), None);
        assert!(difference(1, 0, 1).is_some(), "it is not allowed");
        assert_eq!(difference(1, 0, 0), None);
        assert!(difference(2, 1, 0).is_some(), "that of a file is missing");
        assert!(difference(2, 0, 0).is_some(), "so it is here");
        assert!(difference(0, 1, 0).is_some(), "it is newer");
    }

    /// A copy may have written a sector in two pieces, of which one has arrived.
    #[test]
    fn a_sector_is_a_mixture_only_of_before_and_after_a_copy_that_has_begun() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let mut timeline = timeline(&["overwrite", "overwrite-odd", "chmod"].map(Step::named));
        let path: &[u8] = b"/a/f";
        let place = timeline.versions[0].names[path];
        let key = timeline.versions[0].inodes[place].key;
        // As if the second write were a copy.
        timeline.pieced.insert(2, key);
        // Of bytes 1024 to 1536, which each of the two writes replaces.
        let sector = 2 * SECTOR_BYTES..3 * SECTOR_BYTES;
        let mixed = |first: usize, second: usize| {
            let mut bytes = content(&timeline.versions[first], path);
            let behind = sector.start + 200..sector.end;
            bytes[behind.clone()]
                .copy_from_slice(&content(&timeline.versions[second], path)[behind]);
            bytes
        };
        let is_good = |bytes: &[u8], version: usize, last: usize| {
            let mut found = as_found(&timeline.versions[version]);
            let place = found.names[path];
            found.inodes[place].content = Some(bytes.into());
            let contents = Contents {
                versions: &|_, _, version| version..=last,
                block_bytes: 0,
                unset_since: None,
            };
            foreign((0, &timeline), (version, None), &found, &contents).is_none()
        };
        let (begun, done) = (mixed(1, 2), mixed(2, 1));
        assert!(is_good(&begun, 1, 2) && is_good(&done, 1, 2) && is_good(&done, 0, 3));
        // Not before the copy has begun, nor when what it leads to is durable.
        assert!(is_good(&content(&timeline.versions[1], path), 0, 1) && !is_good(&begun, 0, 1));
        assert!(is_good(&content(&timeline.versions[2], path), 2, 3) && !is_good(&done, 2, 3));
        // Not of another call's, nor with what nobody wrote.
        assert!(!is_good(&mixed(1, 0), 0, 3));
        let mut poisoned = done;
        poisoned[sector.start + 300] = POISON;
        assert!(!is_good(&poisoned, 0, 3));
    }
}
