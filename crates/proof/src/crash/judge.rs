//! **Purpose.** Decides whether a recovered file system is one that the history may have left.
//!
//! **Model.** The history of a thread is a sequence of versions of its tree. At a crash some calls
//! have begun, and one version is known to be durable; any version from that one to the last begun
//! may be found. Metadata must be that of a single version. A sector of a file may be of another
//! version, since data is written to its home location independently of the log: earlier, and so of
//! a newer version, or later ([`Contents`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use fourscore::{Fs, InodeNr};

use super::base::{BALLAST, POISON, PROBE, tree_name};
use super::timeline::{DurableContents, Timeline};
use super::tree::{Entry, Growing, Tree, names};
use super::workload::Mode;
use crate::model::{Id, Model};

/// The unit that a device writes atomically, in bytes.
const SECTOR_BYTES: usize = 512;

/// How far a thread is when the crash comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The version that is durable.
    pub(super) durable: usize,
    /// The number of steps that have begun.
    pub(super) begun: usize,
}

/// The data that files may hold when a version of their tree is found.
pub(super) struct Contents<'c> {
    /// The versions whose data the sectors of a file may have, by thread, file and the version of
    /// the tree that was found.
    pub(super) versions: &'c dyn Fn(usize, Id, usize) -> RangeInclusive<usize>,
    /// The size of a block in bytes: zeroes may follow the end of an older version in its last
    /// block.
    pub(super) block_bytes: usize,
    /// The first version whose changes of attributes of directories may be missing.
    pub(super) unset_since: Option<usize>,
}

/// What is known of all threads when the crash comes.
#[derive(Clone, Copy)]
pub(super) struct AtCrash<'a> {
    /// How far each thread is.
    pub(super) progress: &'a [Progress],
    /// The data that is durable, by thread; empty if that is not known.
    pub(super) contents: &'a [DurableContents],
}

impl<'a> AtCrash<'a> {
    /// For threads of which it is not known which data is durable.
    pub(super) fn of(progress: &'a [Progress]) -> Self {
        Self {
            progress,
            contents: &[],
        }
    }
}

/// Compares a recovered file system with what the threads did, and returns the versions that were
/// found. The data of some files may be more durable than the tree.
///
/// # Errors
/// The first difference.
pub(super) fn judge(
    fs: &Fs,
    timelines: &[Timeline],
    crash: AtCrash<'_>,
    mode: Mode,
) -> Result<Vec<usize>> {
    let versions = |thread: usize, id, version: usize| {
        let durable = crash
            .contents
            .get(thread)
            .map_or(0, |contents| contents.of(id));
        let version = version.max(durable);
        match mode {
            Mode::Journal => version..=version,
            Mode::Ordered | Mode::Writeback | Mode::None => version..=crash.progress[thread].begun,
        }
    };
    let contents = Contents {
        versions: &versions,
        block_bytes: 0,
        unset_since: None,
    };
    judge_with(fs, timelines, crash.progress, &contents)
}

/// As [`judge`], with the data that files may hold.
///
/// # Errors
/// The first difference.
pub(super) fn judge_with(
    fs: &Fs,
    timelines: &[Timeline],
    progress: &[Progress],
    contents: &Contents<'_>,
) -> Result<Vec<usize>> {
    let mut versions = Vec::new();
    let found = found_trees(fs, timelines.len())?;
    for (thread, (timeline, progress)) in timelines.iter().zip(progress).enumerate() {
        let version = version(thread, timeline, *progress, &found[thread], contents);
        versions.push(version.with_context(|| steps_of(thread, timeline, *progress))?);
    }
    Ok(versions)
}

/// Reads the trees of all threads.
///
/// # Errors
/// If one is missing, there is another name in the root, or something cannot be read.
pub(super) fn found_trees(fs: &Fs, threads: usize) -> Result<Vec<Tree<InodeNr>>> {
    let mut roots = names(fs, InodeNr::ROOT, true)?;
    ensure!(roots.remove(&b"lost+found"[..]).is_some(), "no lost+found");
    roots.remove(BALLAST);
    roots.remove(PROBE);
    let mut trees = Vec::new();
    for thread in 0..threads {
        let Some(root) = roots.remove(&tree_name(thread)) else {
            bail!("the tree of thread {thread} is missing");
        };
        trees.push(Tree::found(fs, root)?);
    }
    ensure!(roots.is_empty(), "unexpected names in the root: {roots:?}");
    Ok(trees)
}

/// The calls of a thread up to the crash, as text.
pub(super) fn steps_of(thread: usize, timeline: &Timeline, progress: Progress) -> String {
    let calls = timeline.calls[..progress.begun].iter().enumerate();
    let lines = calls.map(|(at, call)| format!("\n    {}: {call}", at + 1));
    format!("thread {thread} did{}\n ", lines.collect::<String>())
}

/// The version that was found.
fn version(
    thread: usize,
    timeline: &Timeline,
    progress: Progress,
    found: &Tree<InodeNr>,
    contents: &Contents<'_>,
) -> Result<usize> {
    let differs = |version: usize, growing: Option<&Growing>| {
        let unset_since = contents.unset_since.unwrap_or(version).min(version);
        let older = &timeline.versions[unset_since..version];
        let names = timeline.versions[version].difference(found, growing, older);
        names.or_else(|| wrong_sector(thread, timeline, version, growing, found, contents))
    };
    let mut why = Vec::new();
    for version in (progress.durable..=progress.begun).rev() {
        let Some(difference) = differs(version, None) else {
            return Ok(version);
        };
        why.push(format!("    version {version}: {difference}"));
        // Only some pieces of the call of this version may have arrived, unless it is durable.
        if version > progress.durable
            && let Some(growing) = timeline.growing(version)
            && differs(version, Some(&growing)).is_none()
        {
            return Ok(version - 1);
        }
    }
    bail!(
        "no version from {} (durable) to {} (begun):\n{}",
        progress.durable,
        progress.begun,
        why.join("\n")
    );
}

/// Describes a sector whose data is of none of the versions that it may be of. If a file is
/// `growing`, only some pieces of the call of this version may have arrived.
fn wrong_sector(
    thread: usize,
    timeline: &Timeline,
    version: usize,
    growing: Option<&Growing>,
    found: &Tree<InodeNr>,
    contents: &Contents<'_>,
) -> Option<String> {
    let expected = &timeline.versions[version];
    let block_bytes = contents.block_bytes;
    expected.names.iter().find_map(|(path, &place)| {
        let entry = &expected.inodes[place];
        let theirs = found.inodes[found.names[path]].content.as_deref()?;
        let form = Form {
            entry,
            version,
            is_growing: growing.is_some(),
        };
        let versions = (contents.versions)(thread, entry.key, version);
        let odd = odd_sector(timeline, form, theirs, versions, block_bytes)?;
        Some(format!("{}: {odd}", path.escape_ascii()))
    })
}

/// A file as it is in a version of its tree.
#[derive(Clone, Copy)]
pub(super) struct Form<'t> {
    pub(super) entry: &'t Entry<Id>,
    pub(super) version: usize,
    /// Whether only some pieces of the call of this version may have arrived.
    pub(super) is_growing: bool,
}

/// Describes a sector of `theirs`, the data of a file, that is of none of `versions`. Zeroes may
/// follow the end of an older version in its last block of `block_bytes`.
pub(super) fn odd_sector(
    timeline: &Timeline,
    of: Form<'_>,
    theirs: &[u8],
    versions: RangeInclusive<usize>,
    block_bytes: usize,
) -> Option<String> {
    let (entry, version) = (of.entry, of.version);
    let expected = entry.content.as_deref()?;
    let form = |of: usize| timeline.versions[of].of(entry.key);
    if expected == theirs && versions.contains(&version) {
        return None;
    }
    let (first, last) = versions.into_inner();
    let older: Vec<&Entry<Id>> = (first..version).filter_map(form).collect();
    let newer: Vec<&Entry<Id>> = (first.max(version)..=last).filter_map(form).collect();
    let anywhere = timeline.moved.contains(&entry.key);
    // Within a range that a copy was writing: data from before or from after the copy.
    let is_in_the_middle = |to: usize| match of.is_growing {
        true if to == version => true,
        _ => first.max(version) < to,
    };
    let copies = timeline.piecewise.range(version..=last.max(version));
    let copies: Vec<[Option<&Entry<Id>>; 2]> = copies
        .filter(|&(&to, &id)| id == entry.key && is_in_the_middle(to))
        .map(|(&to, _)| [form(to - 1), form(to)])
        .collect();
    let sectors = expected
        .chunks(SECTOR_BYTES)
        .zip(theirs.chunks(SECTOR_BYTES));
    for (nr, (expected, theirs)) in sectors.enumerate() {
        if is_of(&newer, nr, theirs, anywhere)
            || is_of(&reaching(&older, nr, block_bytes), nr, theirs, anywhere)
            || copies.iter().any(|forms| is_mixture(forms, nr, theirs))
        {
            continue;
        }
        let what = match theirs.iter().all(|&byte| byte == POISON) {
            true => "stale, never written",
            false => "wrong",
        };
        let (first, wanted) = (theirs[0], expected[0]);
        return Some(format!(
            "sector {nr} is {what}: its first byte is {first:#x}, not {wanted:#x}"
        ));
    }
    None
}

/// The older forms of a file whose last block reaches a sector. Data beyond that block was written
/// before the version that was found became durable.
fn reaching<'t>(older: &[&'t Entry<Id>], nr: usize, block_bytes: usize) -> Vec<&'t Entry<Id>> {
    let reaches = |entry: &&&Entry<Id>| {
        let bytes = entry.content.as_ref().map_or(0, |content| content.len());
        nr * SECTOR_BYTES < bytes.next_multiple_of(block_bytes.max(1))
    };
    older.iter().filter(reaches).copied().collect()
}

/// Compares a file system without a journal, after a repair, with what the threads did.
///
/// # Errors
/// A file is missing or different although it was durable, and neither it nor a directory above it
/// was changed since; a directory has a name that it never had; a file holds data that was never
/// written to it, or data of several files.
pub(super) fn judge_unjournaled(
    fs: &Fs,
    timelines: &[Timeline],
    progress: &[Progress],
) -> Result<()> {
    for (thread, (timeline, progress)) in timelines.iter().zip(progress).enumerate() {
        let root = fs.lookup(InodeNr::ROOT, &tree_name(thread))?;
        let found = Tree::found(fs, root)?;
        let durable = &timeline.versions[progress.durable];
        let since = &timeline.versions[progress.durable..=progress.begun];
        for (path, &place) in &durable.names {
            let entry = &durable.inodes[place];
            let is_touched =
                |tree: &Tree<Id>| !tree.has(path, entry) || !tree.has_same_parents(durable, path);
            if entry.content.is_none() || since.iter().any(is_touched) {
                continue;
            }
            let shown = path.escape_ascii();
            let Some(&there) = found.names.get(path) else {
                bail!("{shown} was durable, and is missing");
            };
            let content = &found.inodes[there].content;
            ensure!(
                *content == entry.content,
                "{shown} was durable, and has other data"
            );
        }
        let possible = Possible::of(&timeline.versions[..=progress.begun]);
        for (path, &place) in &found.names {
            possible.ensure_allows(path, found.inodes[place].content.as_deref())?;
        }
    }
    Ok(())
}

/// What may be found without a journal, where names, inodes and data may be of different versions.
///
/// **Model.** A directory holds the names of one of its versions, and may itself be found under any
/// of its names. A path is possible if each directory on it had the next name at some time.
struct Possible<'t> {
    /// For each directory and each name in it, the inodes that the name referred to.
    children: BTreeMap<(Id, &'t [u8]), BTreeSet<Id>>,
    /// For each path, the inodes that it referred to.
    at_path: BTreeMap<&'t [u8], BTreeSet<Id>>,
    /// For each inode, its forms in all versions.
    forms: BTreeMap<Id, Vec<&'t Entry<Id>>>,
}

impl<'t> Possible<'t> {
    fn of(versions: &'t [Tree<Id>]) -> Self {
        let mut possible = Self {
            children: BTreeMap::new(),
            at_path: BTreeMap::new(),
            forms: BTreeMap::new(),
        };
        for tree in versions {
            for (path, &place) in &tree.names {
                let id = tree.inodes[place].key;
                possible.at_path.entry(path).or_default().insert(id);
                if let Some(slash) = path.iter().rposition(|&byte| byte == b'/') {
                    let dir = tree.inodes[tree.names[&path[..slash]]].key;
                    let name = (dir, &path[slash + 1..]);
                    possible.children.entry(name).or_default().insert(id);
                }
            }
            for entry in &tree.inodes {
                possible.forms.entry(entry.key).or_default().push(entry);
            }
        }
        possible
    }

    /// The inodes that a path may refer to.
    fn inodes_at(&self, path: &[u8]) -> BTreeSet<Id> {
        let names = path.split(|&byte| byte == b'/').skip(1);
        names.fold(BTreeSet::from([Model::ROOT]), |dirs, name| {
            let children = dirs
                .iter()
                .filter_map(|&dir| self.children.get(&(dir, name)));
            children.flatten().copied().collect()
        })
    }

    /// Groups of forms whose data the file at a path may hold. One group has all inodes that had
    /// this path, since one of them may have reused the blocks of another. The other groups have
    /// one inode each, which came to the path through the rename of a directory above it.
    fn owners(&self, path: &[u8]) -> Vec<Vec<&'t Entry<Id>>> {
        let forms = |ids: &BTreeSet<Id>| {
            let forms = ids.iter().filter_map(|id| self.forms.get(id));
            forms.flatten().copied().collect::<Vec<_>>()
        };
        let here = self.at_path.get(path).cloned().unwrap_or_default();
        let reached = self.inodes_at(path);
        let brought = reached.difference(&here).map(|&id| BTreeSet::from([id]));
        brought
            .chain([here.clone()])
            .map(|ids| forms(&ids))
            .collect()
    }

    /// Fails if a directory never had a name of the path, or the file there holds data that was
    /// never written to it.
    fn ensure_allows(&self, path: &[u8], content: Option<&[u8]>) -> Result<()> {
        let shown = path.escape_ascii();
        ensure!(!self.inodes_at(path).is_empty(), "{shown} never existed");
        let Some(content) = content else {
            return Ok(());
        };
        let owns = |owners: &Vec<&Entry<Id>>| {
            let mut sectors = content.chunks(SECTOR_BYTES);
            sectors.all(|sector| is_own(owners, sector))
        };
        ensure!(
            self.owners(path).iter().any(owns),
            "{shown} holds data that was never written to it"
        );
        Ok(())
    }
}

/// Whether a sector holds zeroes, or data that one of these forms has.
fn is_own(owners: &[&Entry<Id>], sector: &[u8]) -> bool {
    sector.iter().all(|&byte| byte == 0) || is_of(owners, 0, sector, true)
}

/// Whether a sector holds the data of one of these forms, at its place or, if `anywhere`, at
/// another.
fn is_of(forms: &[&Entry<Id>], nr: usize, found: &[u8], anywhere: bool) -> bool {
    let at = nr * SECTOR_BYTES;
    forms.iter().any(|entry| {
        let Some(content) = &entry.content else {
            return false;
        };
        let is_at = |at: usize| {
            let there = content.get(at..).unwrap_or_default();
            let there = &there[..there.len().min(found.len())];
            // Zeroes follow the end of the file.
            found.starts_with(there) && found[there.len()..].iter().all(|&byte| byte == 0)
        };
        is_at(at) || anywhere && (0..content.len()).step_by(SECTOR_BYTES).any(is_at)
    })
}

/// Whether each byte of a sector is the byte of one of these forms.
fn is_mixture(forms: &[Option<&Entry<Id>>; 2], nr: usize, found: &[u8]) -> bool {
    let contents = || {
        forms
            .iter()
            .flatten()
            .filter_map(|entry| entry.content.as_deref())
    };
    found.iter().enumerate().all(|(inside, &byte)| {
        let at = nr * SECTOR_BYTES + inside;
        // Zeroes follow the end of the file.
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
        let possible = Possible::of(&versions);
        let sector = |path: &[u8]| content(&versions[0], path)[..SECTOR_BYTES].to_vec();
        let (one, two) = (sector(b"/a/f"), sector(b"/a/g"));
        let allows = |content: &[u8]| possible.ensure_allows(b"/a/f", Some(content)).is_ok();
        assert!(allows(&one) && allows(&[0; SECTOR_BYTES]));
        assert!(!allows(&two) && !allows(&[one, two].concat()));
        assert!(!allows(&[POISON; SECTOR_BYTES]));
    }

    /// A directory that is renamed is found under its new name with what it held before.
    #[test]
    fn without_a_journal_old_entries_are_found_under_new_names_of_their_directory() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let versions = timeline(&["unlink", "rename-dir"].map(Step::named)).versions;
        let possible = Possible::of(&versions);
        assert!(
            !versions[2].names.contains_key(&b"/aa/f"[..]),
            "it was removed"
        );
        let (one, two) = (
            content(&versions[0], b"/a/f"),
            content(&versions[0], b"/a/g"),
        );
        let allows =
            |path: &[u8], content: &[u8]| possible.ensure_allows(path, Some(content)).is_ok();
        assert!(allows(b"/aa/f", &one) && allows(b"/aa/g", &two));
        // Neither the data of another name of the directory, nor another directory, nor a name that
        // never existed.
        assert!(!allows(b"/aa/f", &two) && !allows(b"/aa/g", &one));
        for path in ["/b/f", "/aa/never", "/never", "/aa/empty/f", "/aa/f/f"] {
            assert!(!allows(path.as_bytes(), &one), "{path}");
        }
        assert!(possible.ensure_allows(b"/aa/empty", None).is_ok());
        assert!(possible.ensure_allows(b"/aa/never", None).is_err());
    }

    /// A version as it is found after a recovery.
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

    /// A copy that makes a file longer does so in several pieces.
    #[test]
    fn a_copy_that_has_begun_may_have_written_its_first_pieces() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let path: &[u8] = b"/a/f";
        let mut timeline = timeline(&["append"].map(Step::named));
        let [before, after] = [0, 1].map(|at| content(&timeline.versions[at], path));
        let key = timeline.versions[0].inodes[timeline.versions[0].names[path]].key;
        let found = |timeline: &Timeline, durable: usize, bytes: &[u8]| {
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
            let progress = Progress { durable, begun: 1 };
            version(0, timeline, progress, &found, &contents).ok()
        };
        let part = &after[..before.len() + 1234];
        assert_eq!(found(&timeline, 0, part), None, "one write is one step");
        // As if the call were a copy.
        timeline.piecewise.insert(1, key);
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

    /// Attributes of a directory may be older where that is allowed; nothing else may be.
    #[test]
    fn attributes_of_a_directory_may_be_missing_only_where_that_is_allowed() {
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
        assert!(
            difference(2, 1, 0).is_some(),
            "the change of a file is missing"
        );
        assert!(difference(2, 0, 0).is_some(), "nor here");
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
        timeline.piecewise.insert(2, key);
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
            wrong_sector(0, &timeline, version, None, &found, &contents).is_none()
        };
        let (begun, done) = (mixed(1, 2), mixed(2, 1));
        assert!(is_good(&begun, 1, 2) && is_good(&done, 1, 2) && is_good(&done, 0, 3));
        // Not before the copy has begun, nor when its version is durable.
        assert!(is_good(&content(&timeline.versions[1], path), 0, 1) && !is_good(&begun, 0, 1));
        assert!(is_good(&content(&timeline.versions[2], path), 2, 3) && !is_good(&done, 2, 3));
        // Not with data of another call, nor with data that was never written.
        assert!(!is_good(&mixed(1, 0), 0, 3));
        let mut poisoned = done;
        poisoned[sector.start + 300] = POISON;
        assert!(!is_good(&poisoned, 0, 3));
    }
}
