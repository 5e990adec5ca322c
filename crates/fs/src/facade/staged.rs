//! **Purpose.** [`Staged`]: changes of a file system that become durable together or not at all.

use std::fmt;

use fourscore_block::{BlockDevice, RamDevice};
use fourscore_sync::Arc;

use crate::mount::one_transaction::{self, Plan};
use crate::{Fs, MountOptions, Result};

/// A file system whose changes stay in memory until [`Staged::commit`], which writes them such that
/// a crash at any moment leaves all of them or none.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use fourscore::block::{DeviceOptions, open_path};
/// use fourscore::{MountOptions, Staged};
///
/// let device = open_path("disk.ext4".as_ref(), DeviceOptions::read_write())?;
/// let staged = Staged::begin(Arc::new(device), &MountOptions::new())?;
/// staged.fs().paths().write("/etc/hostname", "eighty\n")?;
/// staged.fs().paths().remove_file("/etc/nologin")?;
/// staged.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Until the commit each changed block takes memory, blocks of file data included. Dropping it
/// discards the changes; the device is then as it was.
pub struct Staged {
    device: Arc<dyn BlockDevice>,
    memory: Arc<RamDevice>,
    plan: Plan,
    fs: Arc<Fs>,
}

impl Staged {
    /// Opens the file system on `device` for changes in memory. A dirty journal is replayed onto
    /// the device first. Nothing else may write to the device until the commit.
    ///
    /// # Errors
    /// As [`Fs::mount`]; `Unsupported` for a file system without a journal, with a journal on
    /// another device, or with the feature `mmp`, and for a device longer than 1 PiB.
    pub fn begin(device: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Self> {
        let plan = Plan::new(&device, options)?;
        if plan.needs_recovery() {
            Fs::mount(Arc::clone(&device), options)?.unmount()?;
        }
        let memory = Arc::new(RamDevice::over(Arc::clone(&device)));
        let fs = Fs::mount(Arc::clone(&memory) as Arc<dyn BlockDevice>, options)?;
        Ok(Self {
            device,
            memory,
            plan,
            fs,
        })
    }

    /// Returns the file system. Its `sync` and `fsync` make nothing durable.
    #[must_use]
    pub fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    /// Makes all changes durable. When this returns they are in their home locations, and the
    /// journal is empty. If there is an error, or a crash, the file system has all changes or none:
    /// all if the transaction was durable already, which the next mount replays.
    ///
    /// # Errors
    /// `NotOneTransaction` if the changes are more than the journal holds at once, before anything
    /// was written; `InvalidArgument` while there is another reference to the file system; `Io`.
    pub fn commit(self) -> Result<()> {
        self.fs.unmount()?;
        one_transaction::write(&self.device, &self.memory, &self.plan)
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("fs", &self.fs)
            .field("resident_bytes", &self.memory.resident_bytes())
            .finish_non_exhaustive()
    }
}
