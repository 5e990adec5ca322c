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
/// What is written or allocated at once when it is filled.
const FILL_BYTES: [u64; 3] = [50_000, 1 << 20, 16 << 20];

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
    pub(super) fs: &'a Arc<Fs>,
    pub(super) fills: Fills,
    pub(super) random: Rng,
}

impl Caretaker<'_> {
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
            _ if self.fills == Fills::Yes => self.fill(),
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
        let bytes = vec![0xf1; 50_000];
        let mut at = 0;
        for length in FILL_BYTES.into_iter().rev() {
            loop {
                let taken = if length > bytes.len() as u64 {
                    fs.fallocate(inode, Fallocate::Allocate, at, length)
                } else {
                    fs.write_at(inode, &bytes, at).map(drop)
                };
                match taken {
                    Ok(()) => at += length,
                    // Without extents nothing is preallocated.
                    Err(Error::NoSpace | Error::Unsupported(_)) => break,
                    Err(error) => return accept(Err(error)),
                }
            }
        }
        let pause = self.random.below(FROZEN_MILLIS) as u64;
        thread::sleep(Duration::from_millis(pause));
        accept(fs.unlink(InodeNr::ROOT, &name))
    }
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
