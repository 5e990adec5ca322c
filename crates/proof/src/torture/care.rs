//! **Purpose.** Operations on the file system as a whole while other threads use it: freeze, trim,
//! sync, changes of tunables, filling it up; and the removal of what earlier lives left.

use std::time::Duration;

use anyhow::{Context, Result};
use fourscore::{Error, Fallocate, FileType, Fs, InodeNr, Trim};
use fourscore_mballoc::Tunable;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;

use super::wild::accept;
use crate::BY_ROOT;

/// Prefixes of the names of trees and files that a later life removes.
pub(super) const LEFT_BEHIND: [&[u8]; 2] = [b"own ", b"fill "];
/// The longest time that the file system is frozen, in milliseconds.
const FROZEN_MILLIS: usize = 20;
/// The sizes that are allocated at once to fill the file system; the last size is written.
const FILL_BYTES: [u64; 3] = [16 << 20, 1 << 20, LEAST_BYTES];
const LEAST_BYTES: u64 = 50_000;
/// The most that is written at once where nothing can be preallocated.
const MOST_WRITTEN_BYTES: usize = 1 << 20;
/// How often the file system is filled in a round. Without preallocation all its space has to be
/// written, often through the log, which takes longer than the rest of the round.
const FILLINGS: u32 = 3;

/// The values that tunables are set to.
const TUNED: [u32; 8] = [0, 1, 2, 5, 16, 100, 1024, 1 << 20];

/// Whether the file system is filled up during a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fills {
    Yes,
    No,
}

/// The thread that does these operations.
pub(super) struct Caretaker<'a> {
    fs: &'a Arc<Fs>,
    /// How often it will still fill the file system.
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

    /// Does one random operation.
    ///
    /// # Errors
    /// If the file system reports that it is corrupted, or that the device failed.
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

    /// Sets a tunable; values out of bounds are refused.
    fn tune(&mut self) -> Result<()> {
        let tunable = *self.random.pick(Tunable::ALL);
        let value = *self.random.pick(&TUNED);
        let _was_refused = self.fs.tunables()?.set(tunable, value).is_err();
        Ok(())
    }

    /// Allocates all free space, and frees it a moment later.
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
                match take(fs, inode, at, length, &bytes) {
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

/// Allocates `length` bytes of a file from `at` on, and returns the number of bytes. Writes `bytes`
/// instead where `length` is small, or where nothing can be preallocated for lack of extents.
fn take(fs: &Fs, inode: InodeNr, at: u64, length: u64, bytes: &[u8]) -> fourscore::Result<u64> {
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

/// Removes all that earlier lives left behind, and frees its space.
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

/// Removes a name and all below it, including immutable files.
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
