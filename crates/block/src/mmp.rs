//! **Purpose.** Multi-mount protection (feature `mmp` of ext4): claims a file system for this host
//! before it is written, so that no two hosts write to one device. All programs that write take the
//! same decisions here.
//!
//! | module | responsibility |
//! |---|---|
//! | here | the number of this host: takes a file system, keeps it, releases it |
//! | [`claimed`] | a file system that is not mounted: the value "a check runs", and the device |
//!
//! **Not here.** The bytes of the block (`fourscore_ondisk::mmp`); the thread of a mount that
//! writes another number every few seconds (`fourscore`).
//!
//! **Model.** One block of the file system holds a sequence number.
//!
//! ```text
//! clean ------------------------------------> ours: written, read again
//! a number -> waited -> changed meanwhile ---> refused: another host lives
//!                    -> the same ------------> ours: written, waited, read again
//! a check runs ------------------------------> refused
//! ```
//!
//! A host that has a number must write another one within the interval that the block names. A
//! program that works on a file system that is not mounted replaces its number by "a check runs",
//! which every host refuses at once, however old it is. So that value needs no thread that renews
//! it, and it also holds while the program is stopped.
//!
//! **After the clean value nothing is waited for**, as in Linux; e2fsprogs waits 11 seconds. A host
//! writes its number right after it has read "clean". Only two hosts that do so at the same moment
//! can both miss the number of the other, as two mounts by Linux can. A wait that is shorter than
//! the interval would not exclude that: the host whose number was overwritten writes again only
//! when its interval is over. Instead, [`Claimed::confirm`] compares the block again before what
//! was computed is written.
//!
//! **Crash safety.** The block is in no transaction: it is written in place, with FUA, before any
//! other write of the program, and again after the last one was flushed. A crash leaves
//!
//! - a number of a mount, or of a program that has just begun: the next host waits and takes it;
//! - "a check runs", as after a crash of e2fsck: every host refuses it until a user, who knows
//!   that no check runs, has cleared it ([`clear`], `tune -f -E clear_mmp`). What the program was
//!   writing may be incomplete, and then has to be repaired first.
//!
//! **References.** mke2fs(8), `mmp`; tune2fs(8), `clear_mmp`; the kernel's documentation of ext4,
//! mmp.rst; `ext4_multi_mount_protect` and `kmmpd` of Linux.

pub mod claimed;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, IoSlice};
#[cfg(any(test, feature = "testing"))]
use std::num::NonZeroU32;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fourscore_ondisk::mmp::{MmpBlock, MmpHost, MmpSequence};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{Corrupt, PhysBlock};
use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_sync::{Arc, thread};
use thiserror::Error;
use zerocopy::IntoBytes;

use crate::device::BlockDevice;
use crate::host::node_name;
pub use claimed::{Claimed, release_all};

/// The length of the used part of the block, in bytes.
const BLOCK_BYTES: usize = 1024;
/// The bounds of the time within which the number changes, in seconds.
const CHECK_SECONDS: (u64, u64) = (5, 300);
/// The name of the device that is stored for people to read.
const DEVICE_NAME: &[u8] = b"fourscore";

/// By how much waits are shorter than the protocol demands; 1 but for tests.
static SPEED: AtomicU32 = AtomicU32::new(1);

/// Makes all waits of this module so many times shorter, for tests whose other hosts are as fast.
#[cfg(any(test, feature = "testing"))]
pub fn hurry(times: NonZeroU32) {
    SPEED.store(times.get(), Ordering::Relaxed);
}

/// Why a file system is not claimed.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// Another host has it, or a check of it runs, which is named.
    #[error("in use: {0}")]
    InUse(String),
    /// The block is damaged, so it does not say which host has the file system.
    #[error("{0}")]
    Corrupt(#[from] Corrupt),
    /// This host cannot take part.
    #[error("{0}")]
    Unsupported(String),
    /// The device failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<ClaimError> for io::Error {
    fn from(error: ClaimError) -> Self {
        let kind = match error {
            ClaimError::Io(error) => return error,
            ClaimError::InUse(_) => ErrorKind::ResourceBusy,
            ClaimError::Corrupt(_) => ErrorKind::InvalidData,
            ClaimError::Unsupported(_) => ErrorKind::Unsupported,
        };
        Self::new(kind, error)
    }
}

/// The result of this module's calls.
pub type Result<T> = std::result::Result<T, ClaimError>;

/// A file system that has the number of this host in its block. If this is just dropped, the next
/// host waits as after a crash.
#[derive(Debug)]
pub struct Claim {
    device: Arc<dyn BlockDevice>,
    superblock: Superblock,
    place: PhysBlock,
    node_name: Vec<u8>,
    /// The block as it was found.
    found: MmpBlock,
    /// The block as it was written last; `written` is when.
    block: MmpBlock,
    written: Instant,
    /// The time within which the number changes, in seconds.
    check_seconds: u64,
}

impl Claim {
    /// Takes the file system for this host; `None` without the feature. The number is durable when
    /// this returns. Waits for some twenty seconds if a host had it and did not release it.
    ///
    /// # Errors
    /// `InUse` if another host has it or a check is running; `Corrupt`, `Io`; `Unsupported` on
    /// systems other than Linux.
    pub fn take(device: &Arc<dyn BlockDevice>, superblock: &Superblock) -> Result<Option<Self>> {
        let Some(place) = superblock.mmp_block() else {
            return Ok(None);
        };
        let node_name = node_name().map_err(|why| match why.kind() {
            ErrorKind::Unsupported => ClaimError::Unsupported(why.to_string()),
            _ => why.into(),
        })?;
        let found = read(&**device, superblock, place)?;
        let wait = match found.sequence() {
            MmpSequence::Clean => Duration::ZERO,
            MmpSequence::Fsck => return Err(checked(&found)),
            MmpSequence::InUse(_) => patience(&found),
        };
        let (least, most) = CHECK_SECONDS;
        let interval = u64::from(superblock.mmp_update_interval_seconds());
        let mut claim = Self {
            device: Arc::clone(device),
            superblock: superblock.clone(),
            place,
            node_name,
            found,
            block: found,
            written: Instant::now(),
            check_seconds: (2 * interval).clamp(least, most),
        };
        if wait > Duration::ZERO {
            sleep(wait);
            claim.confirm()?;
        }
        claim.write(MmpSequence::InUse(random()))?;
        // A host that came at the same time has written, too. Only one number remains.
        sleep(wait);
        claim.confirm()?;
        Ok(Some(claim))
    }

    /// Reads the block again, and refuses if it is not as this host has written it.
    ///
    /// # Errors
    /// `InUse` names the host that has written it; `Corrupt`, `Io`.
    pub fn confirm(&self) -> Result<()> {
        let found = read(&*self.device, &self.superblock, self.place)?;
        self.expect(&found)
    }

    fn expect(&self, found: &MmpBlock) -> Result<()> {
        match found.is_same(&self.block) {
            true => Ok(()),
            false => Err(taken(found)),
        }
    }

    /// Writes another number, to be called every `s_mmp_update_interval` seconds. If it is so late
    /// that another host may have taken this one for dead, the block is read first.
    ///
    /// # Errors
    /// `InUse` if another host has taken the file system: this host must not write any more. `Io`
    /// if the number could not be written, which may be tried again.
    pub fn renew(&mut self) -> Result<()> {
        let since = self.written.elapsed();
        if since > Duration::from_secs(self.check_seconds)
            && let Err(error @ ClaimError::InUse(_)) = self.confirm()
        {
            return Err(error);
        }
        let (least, most) = CHECK_SECONDS;
        self.check_seconds = (2 * since.as_secs()).clamp(least, most);
        let next = match self.block.sequence() {
            MmpSequence::InUse(number) if number < MmpSequence::MAX => number + 1,
            _ => 1,
        };
        self.write(MmpSequence::InUse(next))
    }

    /// Writes that no host has the file system; to be called after the last write to it was
    /// flushed.
    ///
    /// # Errors
    /// `Io`; the next host waits then.
    pub fn release(&mut self) -> Result<()> {
        self.write(MmpSequence::Clean)
    }

    /// Writes the block, durably.
    fn write(&mut self, sequence: MmpSequence) -> Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = since.map_or(0, |since| since.as_secs());
        let host = MmpHost {
            node_name: &self.node_name,
            device_name: DEVICE_NAME,
        };
        let check = u16::try_from(self.check_seconds).unwrap_or(u16::MAX);
        let block = self
            .block
            .written_by(&host, sequence, seconds, check, &self.superblock);
        write(&*self.device, &self.superblock, self.place, &block)?;
        (self.block, self.written) = (block, Instant::now());
        Ok(())
    }
}

/// Makes the block say that no host has the file system, whatever it says now; does nothing without
/// the feature. The user must know that no host has it, and that no check runs: otherwise two hosts
/// write.
///
/// # Errors
/// `Io`.
pub fn clear(device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
    match superblock.mmp_block() {
        Some(place) => write(device, superblock, place, &MmpBlock::clean(superblock)),
        None => Ok(()),
    }
}

/// Reads the block past the cache of this host.
fn read(device: &dyn BlockDevice, superblock: &Superblock, place: PhysBlock) -> Result<MmpBlock> {
    let offset = superblock.geometry().block_size().offset(place);
    device.forget_cached(offset..offset + BLOCK_BYTES as u64);
    let mut bytes = [0; BLOCK_BYTES];
    device.read_at(&mut bytes, offset)?;
    let block = MmpBlock::parse(&bytes, superblock);
    Ok(block.map_err(|error| Corrupt::from(error).in_block(place))?)
}

fn write(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    place: PhysBlock,
    block: &MmpBlock,
) -> Result<()> {
    let offset = superblock.geometry().block_size().offset(place);
    Ok(device.write_fua(&[IoSlice::new(block.raw().as_bytes())], offset)?)
}

/// The error of a file system that another host has.
fn taken(found: &MmpBlock) -> ClaimError {
    match found.sequence() {
        MmpSequence::Fsck => checked(found),
        MmpSequence::InUse(_) => ClaimError::InUse(format!("mounted{}", on_host(found))),
        MmpSequence::Clean => {
            ClaimError::InUse(format!("its mmp block was cleared{}", on_host(found)))
        }
    }
}

/// The error of a file system that is being checked.
fn checked(found: &MmpBlock) -> ClaimError {
    ClaimError::InUse(format!(
        "a check of it runs{}, or was cut short (then clear it: tune -f -E clear_mmp)",
        on_host(found)
    ))
}

fn on_host(block: &MmpBlock) -> String {
    let text = String::from_utf8_lossy;
    match (block.node_name(), block.device_name()) {
        (b"", _) => " on another host".into(),
        (node, b"") => format!(" on host {}", text(node)),
        (node, device) => format!(" on host {}, from {}", text(node), text(device)),
    }
}

/// Returns how long the number of a live host stays the same at most.
fn patience(block: &MmpBlock) -> Duration {
    let (least, most) = CHECK_SECONDS;
    // No host writes a larger interval, and it would mean waiting for hours.
    let check = u64::from(block.check_interval_seconds()).clamp(least, most);
    Duration::from_secs((2 * check + 1).min(check + 60))
}

fn sleep(wait: Duration) {
    thread::sleep(wait / SPEED.load(Ordering::Relaxed));
}

/// Returns a number that another host is unlikely to choose at the same time.
fn random() -> u32 {
    let number = RandomState::new().build_hasher().finish() % u64::from(MmpSequence::MAX);
    u32::try_from(number).unwrap_or(0) + 1
}
