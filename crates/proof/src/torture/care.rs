//! **Purpose.** What is done to the file system as a whole while others work in it: freezing,
//! trimming, syncing, turning tunables, filling it up, and removing what earlier lives left.

use std::time::Duration;

use anyhow::{Context, Result};
use fourscore::mballoc::Tunable;
use fourscore::ondisk::inode::InodeFlags;
use fourscore::{Arc, Error, Fallocate, FileType, Fs, InodeNr, Trim};
use fourscore_sync::thread;
use fourscore_testkit::explore::Rng;

use super::wild::accept;
use crate::BY_ROOT;

/// How the names of trees and files begin that a later life removes.
pub(super) const LEFT_BEHIND: [&[u8]; 2] = [b"own ", b"fill "];
/// How long it is frozen, in milliseconds, at most.
const FROZEN_MILLIS: usize = 20;
/// What is allocated at once when it is filled, and at its end written.
const FILL_BYTES: [u64; 3] = [16 << 20, 1 << 20, LEAST_BYTES];
const LEAST_BYTES: u64 = 50_000;
/// What is written at once where nothing can be preallocated, at most.
const MOST_WRITTEN_BYTES: usize = 1 << 20;
/// How often it is filled in a round: where all its room has to be written, as a rule through the
/// log, once takes longer than all else in the round.
const FILLINGS: u32 = 3;

/// What tunables are turned to.
const TUNED: [u32; 8] = [0, 1, 2, 5, 16, 100, 1024, 1 << 20];

/// Whether the file system is filled up meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fills {
    Yes,
    No,
}

/// The thread that does it.
pub(super) struct Caretaker<'a> {
    fs: &'a Arc<Fs>,
    /// How often it still fills the file system.
    fillings: u32,
    random: Rng,
}

impl<'a> Caretaker<'a> {
    pub(super) fn new(fs: &'a Arc<Fs>, fills: Fills, random: Rng) -> Self {
        let fillings = match fills {
            Fills::Yes => FILLINGS,
            Fills::No => 0,
        };
        Self {
            fs,
            fillings,
            random,
        }
    }

    /// Does one thing.
    ///
    /// # Errors
    /// If the file system says that it is broken.
    pub(super) fn step(&mut self) -> Result<()> {
        let fs = self.fs;
        match self.random.below(8) {
            0 | 1 => accept(fs.sync()),
            2 => self.freeze(),
            3 => accept(fs.trim(&Trim::default()).map(drop)),
            4 => self.tune(),
            5 => accept(fs.statfs().map(drop)),
            _ if self.fillings > 0 => {
                self.fillings -= 1;
                self.fill()
            }
            _ => {
                let pause = self.random.below(10) as u64;
                thread::sleep(Duration::from_millis(pause));
                Ok(())
            }
        }
    }

    fn freeze(&mut self) -> Result<()> {
        match self.fs.freeze() {
            // Another thread has frozen it, and will thaw it.
            Err(Error::Busy) => Ok(()),
            Err(error) => accept(Err(error)),
            Ok(()) => {
                let pause = self.random.below(FROZEN_MILLIS) as u64;
                thread::sleep(Duration::from_millis(pause));
                Ok(self.fs.thaw()?)
            }
        }
    }

    /// Turns a tunable; what is out of its bounds is refused.
    fn tune(&mut self) -> Result<()> {
        let tunable = *self.random.pick(Tunable::ALL);
        let value = *self.random.pick(&TUNED);
        let _was_refused = self.fs.tunables()?.set(tunable, value).is_err();
        Ok(())
    }

    /// Takes all the room there is, and gives it back a moment later.
    fn fill(&mut self) -> Result<()> {
        let fs = self.fs;
        let name = format!("fill {}", self.random.below(1_000_000)).into_bytes();
        let inode = match fs.create(InodeNr::ROOT, &name, &BY_ROOT) {
            Ok(inode) => inode,
            other => return accept(other.map(drop)),
        };
        let bytes = vec![0xf1; MOST_WRITTEN_BYTES];
        let mut at = 0;
        for length in FILL_BYTES {
            loop {
                match take(fs, inode, at, (length, &bytes)) {
                    Ok(taken) => at += taken,
                    Err(Error::NoSpace) => break,
                    Err(error) => return accept(Err(error)),
                }
            }
        }
        let pause = self.random.below(FROZEN_MILLIS) as u64;
        thread::sleep(Duration::from_millis(pause));
        accept(fs.unlink(InodeNr::ROOT, &name))
    }
}

/// Takes room for a file from `at` on, and says for how many bytes: allocates it, or writes `bytes`
/// where it is little, or where nothing can be preallocated, since there are no extents.
fn take(fs: &Fs, inode: InodeNr, at: u64, (length, bytes): (u64, &[u8])) -> fourscore::Result<u64> {
    if length > LEAST_BYTES {
        match fs.fallocate(inode, Fallocate::Allocate, at, length) {
            Err(Error::Unsupported(_)) => {}
            done => return done.map(|()| length),
        }
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let bytes = bytes.get(..length).unwrap_or(bytes);
    fs.write_at(inode, bytes, at).map(|written| written as u64)
}

/// Removes all that earlier lives left behind, and makes its room usable.
///
/// # Errors
/// If something cannot be removed.
pub(super) fn clear(fs: &Fs) -> Result<()> {
    for entry in fs.read_dir(InodeNr::ROOT)? {
        if LEFT_BEHIND
            .iter()
            .any(|begin| entry.name.starts_with(begin))
        {
            remove(fs, InodeNr::ROOT, &entry.name, entry.inode)
                .with_context(|| format!("removing {}", entry.name.escape_ascii()))?;
        }
    }
    Ok(fs.sync()?)
}

/// Removes a name and all below it, what is immutable included.
fn remove(fs: &Fs, dir: InodeNr, name: &[u8], inode: InodeNr) -> Result<()> {
    let stat = fs.stat(inode)?;
    let fixed = InodeFlags::IMMUTABLE_FL | InodeFlags::APPEND_FL;
    if stat.flags.intersects(fixed) {
        fs.set_flags(inode, (stat.flags & InodeFlags::USER_VISIBLE) - fixed)?;
    }
    if stat.file_type != FileType::Directory {
        return Ok(fs.unlink(dir, name)?);
    }
    for entry in fs.read_dir(inode)? {
        if !matches!(&entry.name[..], b"." | b"..") {
            remove(fs, inode, &entry.name, entry.inode)?;
        }
    }
    Ok(fs.rmdir(dir, name)?)
}
