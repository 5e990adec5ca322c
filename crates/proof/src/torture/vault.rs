//! **Purpose.** Files whose durable state is known: data that follows from a number, and notes
//! about it that outlive the process.
//!
//! **Model.** A keeper writes version after version of its files. In a file of the host it notes
//! when it begins a version and when its sync has returned. A file is replaced (a new file is
//! written, renamed and synced) or changed in place (overwritten, truncated, synced). The
//! supervisor keeps a ledger of the notes of all lives. After a kill a file must be the last
//! version that was noted as done, or a possible state of the one that was begun: one of the two
//! versions if it was replaced; bytes of either version if it was changed in place, or zeroes where
//! it was being truncated.
//!
//! **Invariants.** A note is one write of less than a page to a file opened for appending, so it is
//! there completely or not at all. Version numbers only grow, over all lives.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fourscore::{Error, Follow, Fs, InodeNr, Replace};
use fourscore_sync::Arc;
use fourscore_testkit::explore::Rng;

use crate::BY_ROOT;

/// The directory of the vault.
const FOLDER: &[u8] = b"vault";
/// The number of files of a keeper.
const FILES: usize = 6;
/// The size of the largest file in bytes.
const MOST_BYTES: usize = 60_000;

/// A file of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    keeper: usize,
    file: usize,
}

impl Slot {
    fn name(self) -> Vec<u8> {
        format!("{}-{}", self.keeper, self.file).into_bytes()
    }

    fn new_name(self) -> Vec<u8> {
        format!("{}-{}.new", self.keeper, self.file).into_bytes()
    }

    /// The data of a version of the file.
    fn content(self, version: u64) -> Vec<u8> {
        let seed = version ^ (self.keeper as u64) << 56 ^ (self.file as u64) << 48;
        let random = &mut Rng::new(seed);
        let longest = *random.pick(&[50, 5_000, MOST_BYTES]);
        let length = 1 + random.below(longest);
        let words = (0..length.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes());
        words.take(length).collect()
    }
}

/// How a version is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Replaced,
    InPlace,
}

/// An event that is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Begun(Way),
    Done,
    /// There was no space. Nothing is known of the file until the next version is done.
    Failed,
}

/// A line of the notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    event: Event,
    slot: Slot,
    version: u64,
}

const EVENTS: [(&str, Event); 4] = [
    ("replaces", Event::Begun(Way::Replaced)),
    ("changes", Event::Begun(Way::InPlace)),
    ("done", Event::Done),
    ("failed", Event::Failed),
];

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = EVENTS.iter().find(|(_, event)| *event == self.event);
        let word = words.map_or("", |(word, _)| word);
        let Slot { keeper, file } = self.slot;
        writeln!(f, "{word} {keeper} {file} {}", self.version)
    }
}

impl Note {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let (_, event) = *EVENTS.iter().find(|(own, _)| *own == word)?;
        let [keeper, file] = [words.next()?, words.next()?].map(|word| word.parse().ok());
        let slot = Slot {
            keeper: keeper?,
            file: file?,
        };
        Some(Self {
            event,
            slot,
            version: words.next()?.parse().ok()?,
        })
    }
}

/// The file of the notes.
#[derive(Debug)]
pub(super) struct Notes(File);

impl Notes {
    /// Opens the file of the notes, to append to it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self(file.with_context(|| path.display().to_string())?))
    }

    fn write(&self, note: Note) -> Result<()> {
        Ok((&self.0).write_all(note.to_string().as_bytes())?)
    }

    /// Notes the number of calls that were done.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn calls(&self, count: u64) -> Result<()> {
        Ok((&self.0).write_all(format!("calls {count}\n").as_bytes())?)
    }
}

/// A thread that keeps files.
pub(super) struct Keeper<'a> {
    fs: &'a Arc<Fs>,
    dir: InodeNr,
    notes: &'a Notes,
    keeper: usize,
    version: u64,
    /// Files whose data is not known: they are replaced next.
    unknown: [bool; FILES],
    random: Rng,
}

impl<'a> Keeper<'a> {
    /// A keeper whose versions begin after `version`.
    ///
    /// # Errors
    /// If the vault cannot be made.
    pub(super) fn new(
        fs: &'a Arc<Fs>,
        notes: &'a Notes,
        keeper: usize,
        version: u64,
        random: Rng,
    ) -> Result<Self> {
        Ok(Self {
            fs,
            dir: folder(fs)?,
            notes,
            keeper,
            version,
            unknown: [true; FILES],
            random,
        })
    }

    /// Writes a version of one of its files, and syncs it; `false` if there was no space.
    ///
    /// # Errors
    /// Any other error of the file system.
    pub(super) fn step(&mut self) -> Result<bool> {
        let file = self.random.below(FILES);
        let slot = Slot {
            keeper: self.keeper,
            file,
        };
        self.version += 1;
        let version = self.version;
        let way = if self.unknown[file] || self.random.happens(1, 2) {
            Way::Replaced
        } else {
            Way::InPlace
        };
        let note = |event| {
            self.notes.write(Note {
                event,
                slot,
                version,
            })
        };
        note(Event::Begun(way))?;
        let made = match way {
            Way::Replaced => self.replace(slot, version),
            Way::InPlace => self.change(slot, version),
        };
        let done = match made {
            Ok(()) => true,
            Err(Error::NoSpace) => false,
            Err(error) => {
                return Err(error).with_context(|| format!("{slot:?}, version {version}, {way:?}"));
            }
        };
        note(if done { Event::Done } else { Event::Failed })?;
        self.unknown[file] = !done;
        Ok(done)
    }

    fn replace(&self, slot: Slot, version: u64) -> fourscore::Result<()> {
        let (fs, name, new_name) = (self.fs, slot.name(), slot.new_name());
        // An earlier life may have been killed before the rename.
        match fs.unlink(self.dir, &new_name) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => return Err(error),
        }
        let inode = fs.create(self.dir, &new_name, &BY_ROOT)?;
        write_all(fs, inode, &slot.content(version))?;
        fs.rename((self.dir, &new_name), (self.dir, &name), Replace::Yes)?;
        fs.fsync(inode)
    }

    fn change(&self, slot: Slot, version: u64) -> fourscore::Result<()> {
        let inode = self.fs.lookup(self.dir, &slot.name())?;
        let content = slot.content(version);
        write_all(self.fs, inode, &content)?;
        self.fs.truncate(inode, content.len() as u64)?;
        self.fs.fsync(inode)
    }
}

fn write_all(fs: &Fs, inode: InodeNr, content: &[u8]) -> fourscore::Result<()> {
    let mut at = 0;
    while at < content.len() {
        let left = content.get(at..).unwrap_or(&[]);
        at += fs.write_at(inode, left, at as u64)?;
    }
    Ok(())
}

/// Creates the vault, while there is space for it.
///
/// # Errors
/// If it cannot be made.
pub(super) fn prepare(fs: &Fs) -> Result<()> {
    folder(fs).map(drop)
}

/// The directory of the vault, created if it does not exist.
fn folder(fs: &Fs) -> Result<InodeNr> {
    match fs.mkdir(InodeNr::ROOT, FOLDER, &BY_ROOT) {
        Ok(dir) => Ok(dir),
        Err(Error::Exists) => Ok(fs.lookup(InodeNr::ROOT, FOLDER)?),
        Err(error) => Err(error).context("the vault"),
    }
}

/// The state of a file according to the notes.
#[derive(Clone, Copy, Debug, Default)]
struct FileState {
    /// The version that is durable.
    settled: Option<u64>,
    /// The version that was begun after it, and how.
    begun: Option<(u64, Way)>,
}

/// The notes of all lives.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    states: BTreeMap<Slot, FileState>,
    /// Versions that were made durable.
    pub(super) synced: u64,
    /// Calls that were noted.
    pub(super) calls: u64,
    /// Files that were judged after a kill.
    pub(super) judged: u64,
}

impl Ledger {
    /// Reads the notes of a life.
    ///
    /// # Errors
    /// If a note is malformed.
    pub(super) fn read(&mut self, notes: &str) -> Result<()> {
        for line in notes.lines() {
            if let Some(count) = line.strip_prefix("calls ") {
                self.calls += count.parse::<u64>().context("a count")?;
                continue;
            }
            let note = Note::parse(line).with_context(|| format!("note {line:?}"))?;
            let state = self.states.entry(note.slot).or_default();
            match note.event {
                Event::Begun(way) => state.begun = Some((note.version, way)),
                Event::Done => {
                    state.settled = Some(note.version);
                    state.begun = None;
                    self.synced += 1;
                }
                Event::Failed => *state = FileState::default(),
            }
        }
        Ok(())
    }

    /// Compares the vault with the notes.
    ///
    /// # Errors
    /// The first file in an impossible state.
    pub(super) fn judge(&mut self, fs: &Fs) -> Result<()> {
        for (slot, state) in &mut self.states {
            let path = [FOLDER, b"/", &slot.name()].concat();
            let found = content(fs, &path).with_context(|| format!("{slot:?}: {state:?}"))?;
            let is = |version: u64| found.as_deref() == Some(&slot.content(version)[..]);
            let settled = match (state.settled, state.begun) {
                (None, begun) => begun.map(|(version, _)| version).filter(|begun| is(*begun)),
                (Some(settled), _) if is(settled) => Some(settled),
                (Some(_), Some((begun, _))) if is(begun) => Some(begun),
                (Some(settled), Some((begun, Way::InPlace))) => {
                    let found = found.with_context(|| format!("{slot:?} is missing: {state:?}"))?;
                    let versions = [settled, begun].map(|version| slot.content(version));
                    ensure_mixed(&found, &versions)
                        .with_context(|| format!("{slot:?}: {state:?}"))?;
                    None
                }
                (Some(_), _) => match found {
                    Some(found) => {
                        bail!("{slot:?} has wrong data ({} bytes): {state:?}", found.len())
                    }
                    None => bail!("{slot:?} is missing: {state:?}"),
                },
            };
            *state = FileState {
                settled,
                begun: None,
            };
            self.judged += 1;
        }
        Ok(())
    }
}

/// Checks that each byte is that of one of the two versions, or zero where the file was being
/// truncated: the rest of the last block is zeroed at once, but the size changes with the commit.
fn ensure_mixed(found: &[u8], [old, new]: &[Vec<u8>; 2]) -> Result<()> {
    let (least, most) = (old.len().min(new.len()), old.len().max(new.len()));
    ensure!(
        (least..=most).contains(&found.len()),
        "{} bytes, expected {least} to {most}",
        found.len()
    );
    for (at, byte) in found.iter().enumerate() {
        let fits = [old, new]
            .iter()
            .any(|version| version.get(at) == Some(byte));
        let is_cut = *byte == 0 && at >= new.len();
        ensure!(fits || is_cut, "byte {at} is of neither version");
    }
    Ok(())
}

/// The data of a file; `None` if it does not exist.
fn content(fs: &Fs, path: &[u8]) -> Result<Option<Vec<u8>>> {
    let inode = match fs.resolve(path, Follow::No) {
        Ok(inode) => inode,
        Err(Error::NotFound) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let size = usize::try_from(fs.stat(inode)?.size_bytes)?;
    ensure!(size <= MOST_BYTES, "{size} bytes");
    let mut bytes = vec![0; size];
    let read = fs.read_at(inode, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Slot = Slot { keeper: 1, file: 2 };

    #[test]
    fn notes_are_read_as_they_were_written() {
        for (_, event) in EVENTS {
            let note = Note {
                event,
                slot: SLOT,
                version: 77,
            };
            assert_eq!(Note::parse(note.to_string().trim_end()), Some(note));
        }
        assert_eq!(Note::parse("done 1 2"), None);
        assert!(Ledger::default().read("nothing known 1 2 3\n").is_err());
    }

    #[test]
    fn only_bytes_of_both_versions_are_a_mixture() {
        let versions = [vec![1; 10], vec![2; 20]];
        let mixed = [&[2; 5][..], &[1; 5], &[2; 3]].concat();
        assert!(ensure_mixed(&mixed, &versions).is_ok());
        let [short, long] = versions.clone();
        let cut = [&short[..], &[0; 5]].concat();
        assert!(ensure_mixed(&cut, &[long, short]).is_ok());
        assert!(ensure_mixed(&cut, &versions).is_err());
        for wrong in [vec![3; 10], vec![1; 9], vec![1; 11], vec![2; 21]] {
            assert!(ensure_mixed(&wrong, &versions).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn versions_differ() {
        assert_ne!(SLOT.content(1), SLOT.content(2));
        assert_eq!(SLOT.content(1), SLOT.content(1));
        let lengths: Vec<usize> = (0..100)
            .map(|version| SLOT.content(version).len())
            .collect();
        assert!(
            lengths
                .iter()
                .all(|length| (1..=MOST_BYTES).contains(length))
        );
    }
}
