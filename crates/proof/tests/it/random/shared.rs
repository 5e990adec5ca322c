//! Directories in which all threads work: every result must be one that some order of their calls
//! allows, and the final names must follow from the calls.

use fourscore::{FileType, Fs, InodeNr, OpenInode, Replace};
use fourscore_sync::Arc;
use fourscore_sync::atomic::{AtomicU64, Ordering};
use fourscore_testkit::explore::Rng;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

use super::images::OWNER;
use super::linear::{Effect, Event, Presence, is_explained};

/// The number of directories, and of names in each: few, so that threads collide.
const DIRS: usize = 3;
const NAMES: usize = 16;

/// The directories.
#[derive(Debug)]
pub(crate) struct Shared {
    fs: Arc<Fs>,
    dirs: Vec<InodeNr>,
    /// The clock that counts beginnings and ends of calls.
    clock: AtomicU64,
}

/// The calls of a thread and their results.
#[derive(Debug)]
pub(crate) struct Seen {
    /// A file of the thread, to which it creates links.
    target: InodeNr,
    /// By name.
    events: Vec<(usize, Event)>,
    /// The targets of the symbolic links that the thread created.
    tags: Vec<String>,
    thread: usize,
}

impl Shared {
    /// Creates the directories below `root`.
    pub(crate) fn new(fs: &Arc<Fs>, root: InodeNr) -> Self {
        let dir = |number: usize| {
            let name = format!("shared {number}").into_bytes();
            fs.mkdir(root, &name, &OWNER).unwrap()
        };
        Self {
            fs: Arc::clone(fs),
            dirs: (0..DIRS).map(dir).collect(),
            clock: AtomicU64::new(0),
        }
    }

    /// Returns the initial state of a thread.
    pub(crate) fn enter(&self, root: InodeNr, thread: usize) -> Seen {
        let name = format!("target {thread}").into_bytes();
        Seen {
            target: self.fs.create(root, &name, &OWNER).unwrap(),
            events: Vec::new(),
            tags: Vec::new(),
            thread,
        }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    /// Does a random call, and notes its result.
    pub(crate) fn step(&self, seen: &mut Seen, random: &mut Rng) {
        let [one, other] = [(); 2].map(|()| random.below(DIRS * NAMES));
        let texts = [one, other].map(|name| format!("name {}", name % NAMES).into_bytes());
        let at = |name: usize, text| (self.dirs[name / NAMES], text);
        let (from, to) = (at(one, &texts[0][..]), at(other, &texts[1][..]));
        let (choice, begin) = (random.below(12), self.now());
        let effects = match choice {
            0 => made(one, self.fs.create(from.0, from.1, &OWNER)),
            1 => {
                let handle = OpenInode::created(&*self.fs, from.0, from.1, &OWNER);
                made(one, handle.map(|handle| handle.inode()))
            }
            2 | 3 => {
                let tag = format!("{} {}", seen.thread, seen.tags.len());
                let result = self.fs.symlink(from.0, from.1, tag.as_bytes(), &OWNER);
                seen.tags.extend(result.is_ok().then_some(tag));
                made(one, result)
            }
            4 => made(one, self.fs.mkdir(from.0, from.1, &OWNER)),
            5 => made(one, self.fs.link(seen.target, from.0, from.1)),
            6 => removed(one, self.fs.unlink(from.0, from.1)),
            7 => removed(one, self.fs.rmdir(from.0, from.1)),
            8 | 9 if one != other => {
                let replace = *random.pick(&[Replace::Yes, Replace::No]);
                renamed(one, other, replace, self.fs.rename(from, to, replace))
            }
            10 if one != other => exchanged(one, other, self.fs.exchange(from, to)),
            _ => {
                let presence = match self.fs.lookup(from.0, from.1) {
                    Ok(_) => Presence::There,
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOENT.raw_os_error());
                        Presence::Missing
                    }
                };
                vec![(one, Effect::Sees(presence))]
            }
        };
        let end = self.now();
        for (name, effect) in effects {
            let event = Event { begin, end, effect };
            seen.events.push((name, event));
        }
    }

    /// Compares the final state with the calls of the threads and their results.
    pub(crate) fn check(self, all: &[Seen]) {
        let end = self.now();
        let mut by_name = vec![Vec::new(); DIRS * NAMES];
        for (name, event) in all.iter().flat_map(|seen| &seen.events) {
            by_name[*name].push(*event);
        }
        let entries: Vec<_> = self.dirs.iter().map(|dir| names(&self.fs, *dir)).collect();
        for (name, mut events) in by_name.into_iter().enumerate() {
            let text = format!("name {}", name % NAMES).into_bytes();
            let presence = match entries[name / NAMES].get(&text) {
                Some(_) => Presence::There,
                None => Presence::Missing,
            };
            assert!(events.len() > 10, "name {name} was hardly used");
            events.push(Event {
                begin: end,
                end: end + 1,
                effect: Effect::Sees(presence),
            });
            assert!(
                is_explained(&events),
                "name {name}, {presence:?}: {events:?}"
            );
        }
        self.check_inodes(&entries, all);
    }

    /// Link counts equal the number of names, and each symbolic link is one that was created.
    fn check_inodes(&self, entries: &[BTreeMap<Vec<u8>, InodeNr>], all: &[Seen]) {
        let mut links: BTreeMap<InodeNr, u16> = BTreeMap::new();
        for seen in all {
            links.insert(seen.target, 1);
        }
        let made: BTreeSet<&[u8]> = all
            .iter()
            .flat_map(|seen| seen.tags.iter().map(String::as_bytes))
            .collect();
        let mut found = BTreeSet::new();
        for (dir, entries) in self.dirs.iter().zip(entries) {
            let mut subdirectories = 0;
            for &inode in entries.values() {
                match self.fs.stat(inode).unwrap().file_type {
                    FileType::Directory => {
                        subdirectories += 1;
                        assert_eq!(self.fs.lookup(inode, b"..").unwrap(), *dir);
                        assert!(links.insert(inode, 2).is_none(), "{inode} is in two places");
                    }
                    FileType::Symlink => {
                        let tag = self.fs.read_link(inode).unwrap();
                        assert!(
                            made.contains(&tag[..]),
                            "no thread made {}",
                            tag.escape_ascii()
                        );
                        assert!(found.insert(tag), "{inode} is in two places");
                        links.insert(inode, 1);
                    }
                    _ => *links.entry(inode).or_default() += 1,
                }
            }
            assert_eq!(self.fs.stat(*dir).unwrap().links, 2 + subdirectories);
        }
        for (inode, links) in links {
            assert_eq!(self.fs.stat(inode).unwrap().links, links, "inode {inode}");
        }
    }
}

fn names(fs: &Fs, dir: InodeNr) -> BTreeMap<Vec<u8>, InodeNr> {
    let entries = fs.read_dir(dir).unwrap().into_iter();
    let names = entries.filter(|entry| !matches!(entry.name.as_slice(), b"." | b".."));
    let mut all = BTreeMap::new();
    for entry in names {
        assert_eq!(fs.lookup(dir, &entry.name).unwrap(), entry.inode);
        let twice = all.insert(entry.name, entry.inode);
        assert!(twice.is_none(), "a name is there twice");
    }
    all
}

type Effects = Vec<(usize, Effect)>;

const THERE: Effect = Effect::Sees(Presence::There);
const MISSING: Effect = Effect::Sees(Presence::Missing);

/// The number of an error; `None` for success.
fn errno<T>(result: fourscore::Result<T>) -> Option<Errno> {
    let error = result.err()?;
    Some(Errno::from_raw_os_error(error.errno()))
}

fn made<T>(name: usize, result: fourscore::Result<T>) -> Effects {
    match errno(result) {
        None => vec![(name, Effect::Adds)],
        Some(Errno::EXIST) => vec![(name, THERE)],
        Some(error) => panic!("something is made: {error}"),
    }
}

fn removed(name: usize, result: fourscore::Result<()>) -> Effects {
    match errno(result) {
        None => vec![(name, Effect::Removes)],
        Some(Errno::NOENT) => vec![(name, MISSING)],
        Some(Errno::ISDIR | Errno::NOTDIR) => vec![(name, THERE)],
        Some(error) => panic!("something is removed: {error}"),
    }
}

fn renamed(from: usize, to: usize, replace: Replace, result: fourscore::Result<()>) -> Effects {
    match (errno(result), replace) {
        (None, Replace::No) => vec![(from, Effect::Removes), (to, Effect::Adds)],
        // No call happens between two names of one inode.
        (None, Replace::Yes) => vec![(from, Effect::MayRemove), (to, Effect::Sets)],
        (Some(Errno::NOENT), _) => vec![(from, MISSING)],
        (Some(Errno::EXIST), Replace::No) => vec![(to, THERE)],
        (Some(Errno::ISDIR | Errno::NOTDIR), Replace::Yes) => vec![(from, THERE), (to, THERE)],
        (Some(error), _) => panic!("something is renamed: {error}"),
    }
}

fn exchanged(one: usize, other: usize, result: fourscore::Result<()>) -> Effects {
    match errno(result) {
        None => vec![(one, THERE), (other, THERE)],
        // One of them is missing.
        Some(Errno::NOENT) => Vec::new(),
        Some(error) => panic!("names change places: {error}"),
    }
}
