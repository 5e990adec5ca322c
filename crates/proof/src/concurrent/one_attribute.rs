//! **Purpose.** The one attribute that files get and lose in rounds of that theme, and what such
//! files have left on the device.
//!
//! **Model.** A block of attributes that is freed soon never reaches its place on the device. If it
//! is read there after it was freed, a poison is found, and nothing comes of the mistake. So before
//! a round many files have the attribute, each in a block of its own, and are removed. The round
//! uses these blocks again: the place of each holds what its users take it for.

use anyhow::Result;
use fourscore::{Fs, InodeNr, MountOptions, NewAttributes, SetXattr, XattrSharing};
use fourscore_block::RamDevice;
use fourscore_sync::Arc;

/// Its name.
pub(super) const NAME: &str = "user.0";
/// The number in its name.
pub(super) const NAME_NR: u32 = 0;
/// The number in its value.
pub(super) const VERSION: u32 = 0;
/// The bytes of its value: more than fit into an inode.
pub(super) const VALUE_BYTES: usize = 600;

/// More than are in use and being freed at once.
const BLOCKS: usize = 512;

/// A value with a number, of `len` bytes.
pub(super) fn value(version: u32, len: usize) -> Vec<u8> {
    let mut value = vec![0x2e; len];
    value[..4].copy_from_slice(&version.to_le_bytes());
    value
}

/// Leaves blocks with the attribute on a new file system, which are free.
pub(super) fn leave_blocks(ram: &Arc<RamDevice>) -> Result<()> {
    let options = MountOptions::new().xattr_sharing(XattrSharing::Off);
    let names = || (0..BLOCKS).map(|nr| nr.to_string().into_bytes());
    let mount = || Fs::mount(Arc::clone(ram) as Arc<_>, &options);
    let fs = mount()?;
    let owner = NewAttributes::owned_by(0, 0);
    for name in names() {
        let file = fs.create(InodeNr::ROOT, &name, &owner)?;
        let value = value(VERSION, VALUE_BYTES);
        fs.set_xattr(file, NAME.as_bytes(), &value, SetXattr::Any)?;
    }
    fs.unmount()?;
    let fs = mount()?;
    for name in names() {
        fs.unlink(InodeNr::ROOT, &name)?;
    }
    Ok(fs.unmount()?)
}
