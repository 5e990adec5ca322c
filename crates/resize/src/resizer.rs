//! **Purpose.** [`Resizer`]: the public calls.
//!
//! **Model.** The file system is claimed before it is changed (feature `mmp`), and read again then:
//! another host may have changed it since it was opened. A caller that does more than one call
//! claims it for all of them.

use std::cmp::Ordering;

use fourscore_block::BlockDevice;
use fourscore_block::mmp::Claimed;
use fourscore_ondisk::features::{Incompat, RoCompat};
use fourscore_ondisk::superblock::{State, Superblock};
use fourscore_ondisk::{BlockCount, Geometry};
use fourscore_sync::Arc;

use crate::error::{ResizeError, Result};
use crate::target::LEAST_USEFUL_BLOCKS;
use crate::volume::{Discards, Volume};
use crate::wide::{self, Width};
use crate::{grow, shrink, target};

/// A file system that is not mounted, and whose size can be changed.
#[derive(Debug)]
pub struct Resizer {
    volume: Volume<'static>,
    /// The device without the claim.
    base: Arc<dyn BlockDevice>,
    claimed: Option<Claimed>,
}

impl Resizer {
    /// Opens the file system on `device`, which nothing else of this host may use. Other hosts are
    /// kept away from [`claim`](Self::claim) on.
    ///
    /// # Errors
    /// `NoFileSystem`; `NotAtRest` for one that is in use, was left by a crash, or has errors;
    /// `Unsupported` for features that are not known; `Io`.
    pub fn open(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let volume = Volume::open(Arc::clone(&device))?;
        check_at_rest(&volume)?;
        Ok(Self {
            volume,
            base: device,
            claimed: None,
        })
    }

    /// Keeps other hosts away until [`release`](Self::release), or until this is dropped (feature
    /// `mmp`), and reads the file system again. Waits for some twenty seconds if a host did not
    /// release it.
    ///
    /// Calls that change the file system do it by themselves, and release it. So this is for a
    /// caller that does more.
    ///
    /// # Errors
    /// `NotAtRest` names the host that has it, or where a check of it runs; otherwise as
    /// [`open`](Self::open).
    pub fn claim(&mut self) -> Result<()> {
        if self.claimed.is_some() {
            return Ok(());
        }
        let claimed = Claimed::take(Arc::clone(&self.base), self.volume.sb())?;
        self.volume.reopen(Arc::clone(claimed.device()))?;
        check_at_rest(&self.volume)?;
        self.claimed = Some(claimed);
        Ok(())
    }

    /// Lets other hosts use the file system. All changes are durable when this returns.
    ///
    /// # Errors
    /// `NotAtRest` if another host has written all the same: the file system must be checked.
    /// `Corrupt`, `Io`.
    pub fn release(&mut self) -> Result<()> {
        let Some(claimed) = self.claimed.take() else {
            return Ok(());
        };
        claimed.release()?;
        self.volume.reopen(Arc::clone(&self.base))
    }

    /// Does `work` on a claimed file system.
    fn on_claimed<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(claimed) = &self.claimed {
            claimed.confirm()?;
            return work(self);
        }
        self.claim()?;
        let done = work(self);
        let released = self.release();
        let done = done?;
        released?;
        Ok(done)
    }

    /// Makes a shrink discard the blocks behind the new end as soon as they are free: when no crash
    /// can make the file system refer to them any more. For an image file that the caller cuts
    /// afterwards: what moves takes no more space on the host then, and memory of the host is used
    /// again while it is in the caches. If the shrink fails, what has been moved by then has been
    /// discarded at its old place.
    pub fn discard_behind(&mut self) {
        if self.volume.device().hints().discard {
            self.volume.set_discards(Discards::BehindTheEnd);
        }
    }

    /// Injects a fault into a shrink, with which its crash test is tested.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, fault: Option<crate::Sabotage>) {
        self.volume
            .set_faults(crate::faults::Faults::injected(fault));
    }

    /// The layout of the file system.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    /// The size that a file system of at most so many blocks would have: less than that if the last
    /// group would be too short for its own metadata, or the last cluster were not whole.
    ///
    /// # Errors
    /// `TooSmall`, if there is no such size at all; `TooLarge`.
    pub fn possible(&self, blocks: BlockCount) -> Result<BlockCount> {
        let new = target::of(self.volume.sb(), blocks.0)?;
        Ok(new.geometry().blocks())
    }

    /// Gives the file system the largest [possible](Self::possible) size of at most so many blocks.
    /// The device must be that long. Returns the size; when this returns it is durable.
    ///
    /// A crash leaves a file system of the old or of the new size, or of one on the way to a
    /// smaller one, with all of its content. Without a journal of its own it has to be checked
    /// then, and what was just getting another inode number may be in `lost+found`. With one it
    /// may have the mark of errors after a crash of a shrink: some blocks that nothing uses are not
    /// free, which a check mends.
    ///
    /// # Errors
    /// `TooSmall`, `TooLarge`, `DeviceTooShort`, before anything is changed; `Corrupt`; `Io`; `Fs`.
    pub fn resize(&mut self, blocks: BlockCount) -> Result<BlockCount> {
        let new = target::of(self.volume.sb(), blocks.0)?;
        self.check_device(&new)?;
        match new.geometry().blocks() == self.geometry().blocks() {
            true => Ok(self.geometry().blocks()),
            false => self.on_claimed(|resizer| resizer.resize_claimed(blocks)),
        }
    }

    fn resize_claimed(&mut self, blocks: BlockCount) -> Result<BlockCount> {
        let new = target::of(self.volume.sb(), blocks.0)?;
        let after = new.geometry().blocks();
        self.check_device(&new)?;
        let done = match after.cmp(&self.geometry().blocks()) {
            Ordering::Equal => Ok(()),
            Ordering::Greater => grow::grow(&mut self.volume, &new),
            Ordering::Less => {
                self.check_content(after)?;
                shrink::shrink(&mut self.volume, &new)
            }
        };
        if let Err(why) = done {
            self.volume.reload()?;
            return Err(why);
        }
        Ok(after)
    }

    /// The least size that the content allows, with some blocks to spare.
    ///
    /// # Errors
    /// `Corrupt`; `Io`.
    pub fn least(&self) -> Result<BlockCount> {
        shrink::least::blocks(&self.volume)
    }

    /// Shrinks to the [least](Self::least) size, or to the next one above it for which there is
    /// enough free space for what moves. Returns the size.
    ///
    /// # Errors
    /// As [`Self::resize`].
    pub fn shrink(&mut self) -> Result<BlockCount> {
        self.on_claimed(|resizer| {
            let mut wish = resizer.least()?;
            loop {
                match resizer.resize_claimed(wish.min(resizer.geometry().blocks())) {
                    Err(ResizeError::NoRoom) => wish.0 += wish.0 / 64 + LEAST_USEFUL_BLOCKS,
                    done => return done,
                }
            }
        })
    }

    /// Gives the descriptors of groups a width: the feature `64bit`. Nothing moves: blocks for
    /// longer ones must be reserved or free. The file system must have no errors, which is not
    /// checked here. When this returns, the change is durable.
    ///
    /// A crash leaves a file system that is marked as having errors. A repair gives it the old or
    /// the new width, with all of its content.
    ///
    /// # Errors
    /// `Unsupported`, `DeviceTooShort`, `Corrupt` with nothing changed; `Io`.
    pub fn set_width(&mut self, width: Width) -> Result<()> {
        self.check_device(self.volume.sb())?;
        self.on_claimed(|resizer| {
            let done = wide::set(&mut resizer.volume, width);
            if done.is_err() {
                resizer.volume.reload()?;
            }
            done
        })
    }

    fn check_content(&self, wish: BlockCount) -> Result<()> {
        let least = self.least()?;
        if wish >= least {
            return Ok(());
        }
        Err(ResizeError::TooSmall {
            blocks: wish.0,
            least: least.0,
            block_bytes: self.geometry().block_size().bytes(),
        })
    }

    fn check_device(&self, new: &Superblock) -> Result<()> {
        let has = self.volume.device().len_bytes();
        if new.geometry().size_bytes() > has {
            return Err(ResizeError::device_too_short(new.geometry(), has));
        }
        Ok(())
    }
}

/// Refuses a file system that is in use, that a crash has left, or that has errors.
fn check_at_rest(volume: &Volume<'_>) -> Result<()> {
    let sb = volume.sb();
    let features = sb.features();
    if let Some(unknown) = features.iter().find(|feature| feature.row().is_none()) {
        let why = format!("it has the feature {unknown}, which is not known");
        return Err(ResizeError::Unsupported(why));
    }
    let refused = |why: &str| Err(ResizeError::NotAtRest(why.into()));
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        return Err(ResizeError::Unsupported(
            "it is the journal of another file system".into(),
        ));
    }
    if features.incompat.contains(Incompat::RECOVER) {
        return refused("its journal needs recovery: mount it once, or run e2fsck -p");
    }
    if features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) || sb.last_orphan().is_some() {
        return refused(
            "it has files whose deletion a crash interrupted: mount it once, or run e2fsck -p",
        );
    }
    if !sb.state().contains(State::VALID_FS) || sb.state().contains(State::ERROR_FS) {
        return refused("it was not unmounted, or has errors: check it first (e2fsck -f)");
    }
    Ok(())
}
