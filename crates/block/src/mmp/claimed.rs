//! **Purpose.** [`Claimed`]: a file system that is not mounted, claimed for a program that changes
//! it: a repair, a resize, a change of features.
//!
//! **Model.** The claim goes on where [`Claim::take`] ends.
//!
//! ```text
//! ours (a number) -> "a check runs" -> the program works -> flushed -> read again -> as before
//!                                                                   -> another's: an error
//! ```
//!
//! The program writes through [`Claimed::device`], which refuses writes after the release. So a
//! thread that handles signals can end the claim while another one still works
//! ([`release_all`]).
//!
//! Without the feature the device is that of the caller, and all calls do nothing.
//!
//! **Invariants.** No write of the program reaches the device before "a check runs" is durable, or
//! after the release. The release never overwrites what another host has written. A file system
//! that was clean gets its old block back, so a program that changes nothing leaves every byte as
//! it was.
//!
//! The work may change the block's checksum (another seed), free it (the feature is switched off)
//! or write it again (a repair). So the release goes by the superblock that is on the device then.
//!
//! **Locking.** Each write holds a read lock of the claim; the release takes the write lock. The
//! list of all claims has a lock of its own, which is held while "a check runs" is written: so no
//! claim begins after [`release_all`]. No other lock is taken under it.
//!
//! **Crash safety.** See [the parent](super).

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::mmp::MmpSequence;
use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, Superblock};
use fourscore_sync::{Arc, Mutex, RwLock, RwLockReadGuard, Weak};
use zerocopy::IntoBytes;

use super::{BLOCK_BYTES, Claim, ClaimError, Result, read};
use crate::device::{BlockDevice, Hints, HostRange};

/// The claims of this process; `None` after [`release_all`].
static ALL: Mutex<Option<Vec<Weak<Gate>>>> = Mutex::new(Some(Vec::new()));

/// A file system that is claimed until this is released or dropped. A drop releases it as well, and
/// leaves "a check runs" if that fails.
#[derive(Debug)]
pub struct Claimed {
    device: Arc<dyn BlockDevice>,
    /// `None` without the feature.
    gate: Option<Arc<Gate>>,
}

impl Claimed {
    /// Claims the file system on `device`, which nothing else of this host may have open for
    /// writing. The claim is durable when this returns. Waits for some twenty seconds if a host had
    /// the file system and did not release it.
    ///
    /// # Errors
    /// As [`Claim::take`].
    pub fn take(device: Arc<dyn BlockDevice>, superblock: &Superblock) -> Result<Self> {
        let exits = || io::Error::other("this process is about to exit");
        // Then the block would get a number that is not given back.
        if ALL.lock().is_none() {
            return Err(exits().into());
        }
        let Some(mut claim) = Claim::take(&device, superblock)? else {
            return Ok(Self::without(device));
        };
        let mut all = ALL.lock();
        let Some(all) = all.as_mut() else {
            claim.release()?;
            return Err(exits().into());
        };
        claim.write(MmpSequence::Fsck)?;
        let gate = Arc::new(Gate {
            base: device,
            claim: RwLock::new(Some(claim)),
        });
        all.retain(|gate| gate.strong_count() > 0);
        all.push(Arc::downgrade(&gate));
        Ok(Self {
            device: Arc::<Gate>::clone(&gate),
            gate: Some(gate),
        })
    }

    /// A device with a file system that cannot be claimed, because it has no block for that, or a
    /// damaged one.
    #[must_use]
    pub fn without(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, gate: None }
    }

    /// The device to work on.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// The bytes of the block, unless the file system could not be claimed.
    #[must_use]
    pub fn place(&self) -> Option<Range<u64>> {
        let claim = self.gate.as_ref()?.claim.read();
        let claim = claim.as_ref()?;
        let size = claim.superblock.geometry().block_size();
        let start = size.offset(claim.place);
        Some(start..start + BLOCK_BYTES as u64)
    }

    /// Refuses if another host has written the block: to be called before the result of a long
    /// computation is written.
    ///
    /// # Errors
    /// As [`Claim::confirm`].
    pub fn confirm(&self) -> Result<()> {
        let claim = self.gate.as_ref().map(|gate| gate.claim.read());
        match claim.as_deref() {
            Some(Some(claim)) => claim.confirm(),
            _ => Ok(()),
        }
    }

    /// Makes all earlier writes durable, and releases the file system.
    ///
    /// # Errors
    /// `InUse` if another host has written the block, so that both may have written the file
    /// system: it must be checked. `Corrupt`, `Io`; every host refuses the file system then.
    pub fn release(self) -> Result<()> {
        self.gate.as_ref().map_or(Ok(()), |gate| gate.release())
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            // A caller that wants to know calls `release`.
            let _ = gate.release();
        }
    }
}

/// Releases every file system that this process has claimed, after the writes that are in progress.
/// Later writes through [`Claimed::device`] fail, and so do later claims. For a process that is
/// about to exit on a signal.
pub fn release_all() {
    let all = ALL.lock().take();
    for gate in all.iter().flatten().filter_map(Weak::upgrade) {
        // The process is about to exit, and the next host finds what the block says.
        let _ = gate.release();
    }
}

/// The device of a claimed file system.
#[derive(Debug)]
struct Gate {
    base: Arc<dyn BlockDevice>,
    /// `None` after the release.
    claim: RwLock<Option<Claim>>,
}

impl Gate {
    /// Keeps the release out while a write is in progress.
    fn pass(&self) -> io::Result<RwLockReadGuard<'_, Option<Claim>>> {
        let claim = self.claim.read();
        match claim.is_some() {
            true => Ok(claim),
            false => Err(io::Error::other("the file system was released (mmp)")),
        }
    }

    fn release(&self) -> Result<()> {
        let mut claim = self.claim.write();
        let Some(claim) = claim.take() else {
            return Ok(());
        };
        self.base.flush()?;
        claim.give_back()
    }
}

impl Claim {
    /// Releases a file system that has the value "a check runs", and whose superblock may have
    /// changed.
    fn give_back(mut self) -> Result<()> {
        if let Some(superblock) = superblock(&*self.device) {
            self.superblock = superblock;
        }
        if self.superblock.mmp_block() != Some(self.place) {
            // The work has switched the feature off, or made another block, which is clean.
            return Ok(());
        }
        let found = match read(&*self.device, &self.superblock, self.place) {
            // On a damaged file system the block may belong to something else as well, which the
            // work has written.
            Err(ClaimError::Corrupt(_)) => return Ok(()),
            found => found?,
        };
        if found.sequence() == MmpSequence::Clean {
            // A repair has written the block again.
            return Ok(());
        }
        self.expect(&found)?;
        if self.found.sequence() != MmpSequence::Clean {
            return self.release();
        }
        let mut before = *self.found.raw();
        before.seal(&self.superblock);
        let offset = self.superblock.geometry().block_size().offset(self.place);
        Ok(self
            .device
            .write_fua(&[IoSlice::new(before.as_bytes())], offset)?)
    }
}

/// The superblock that is on the device now.
fn superblock(device: &dyn BlockDevice) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES).ok()?;
    let raw = RawSuperblock::from_bytes(&bytes).ok()?;
    Superblock::try_from(raw).ok()
}

/// Batches are carried out one request after the other, so that no request is in flight when the
/// claim is released.
impl BlockDevice for Gate {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }
    fn lengthen(&self, len_bytes: u64) -> io::Result<u64> {
        let _claim = self.pass()?;
        self.base.lengthen(len_bytes)
    }
    fn hints(&self) -> Hints {
        self.base.hints()
    }
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.base.read_vectored_at(bufs, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let _claim = self.pass()?;
        self.base.write_vectored_at(bufs, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.base.flush()
    }
    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let _claim = self.pass()?;
        self.base.write_fua(bufs, offset)
    }
    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let _claim = self.pass()?;
        self.base.discard(range)
    }
    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        let _claim = self.pass()?;
        self.base.write_zeroes(range)
    }
    fn forget_cached(&self, range: Range<u64>) {
        self.base.forget_cached(range);
    }
    fn unlock(&self) {
        self.base.unlock();
    }
    fn is_being_written(&self) -> bool {
        self.base.is_being_written()
    }
    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        self.base.host_range(range)
    }
}
