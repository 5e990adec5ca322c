//! **Purpose.** Finds where the bytes of an open file are stored, to recognise two paths to the
//! same storage.
//!
//! **Model.** A loop device is a range of its backing file, a partition a range of its disk; both
//! are followed down to the lowest file or device. That is identified by device and inode number,
//! or by its own device number if it is a block device. Devices made of several others
//! (device-mapper, RAID) are not followed.
//!
//! **References.** sysfs(5), loop(4), `Documentation/ABI/stable/sysfs-block` of the kernel.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How many stacked loop devices and partitions are followed.
const DEPTH_MAX: u32 = 16;
/// Unit of the numbers in sysfs.
const SECTOR_BYTES: u64 = 512;

/// Where a range of bytes is stored: in the lowest file or device, whatever path led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    object: Object,
    range: Range<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    /// Device and inode number of the file.
    File(u64, u64),
    /// The device's own number.
    Device(u64),
}

impl Object {
    fn of(found: &fs::Metadata) -> Self {
        match found.file_type().is_block_device() {
            true => Self::Device(found.rdev()),
            false => Self::File(found.dev(), found.ino()),
        }
    }
}

impl Location {
    /// Finds where this range of a file or block device is stored. The range is in bytes, and may
    /// end behind the file. Nothing is read from the file itself.
    ///
    /// # Errors
    /// The host's error for the attributes of the file.
    pub fn of(file: &File, range: Range<u64>) -> io::Result<Self> {
        let mut location = Self {
            object: Object::of(&file.metadata()?),
            range,
        };
        for _ in 0..DEPTH_MAX {
            match location.backing() {
                Some(backing) => location = backing,
                None => break,
            }
        }
        Ok(location)
    }

    /// Whether both ranges share a byte.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.object == other.object
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }

    /// Whether both are in the same file or device.
    #[must_use]
    pub fn is_same_object(&self, other: &Self) -> bool {
        self.object == other.object
    }

    /// Whether both begin with the same byte of the same file or device. Two file systems that do
    /// are one.
    #[must_use]
    pub fn begins_as(&self, other: &Self) -> bool {
        self.object == other.object && self.range.start == other.range.start
    }

    /// The same bytes on the backing file or disk, if there is exactly one.
    fn backing(&self) -> Option<Self> {
        let Object::Device(number) = self.object else {
            return None;
        };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        if folder.join("partition").exists() {
            let disk = word(&folder.parent()?.join("dev"))?;
            let (major, minor) = disk.split_once(':')?;
            let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
            let start = number_in(&folder.join("start"))?.checked_mul(SECTOR_BYTES)?;
            let len_bytes = number_in(&folder.join("size"))?.checked_mul(SECTOR_BYTES)?;
            return Some(self.translated(Object::Device(number), start, len_bytes));
        }
        let backing_file = word(&folder.join("loop/backing_file"))?;
        let found = fs::metadata(PathBuf::from(backing_file)).ok()?;
        let start = number_in(&folder.join("loop/offset")).unwrap_or(0);
        let limit = number_in(&folder.join("loop/sizelimit")).unwrap_or(0);
        let len_bytes = if limit == 0 { u64::MAX } else { limit };
        Some(self.translated(Object::of(&found), start, len_bytes))
    }

    fn translated(&self, object: Object, start: u64, len_bytes: u64) -> Self {
        let end = self.range.end.min(len_bytes);
        Self {
            object,
            range: self.range.start.saturating_add(start)..end.saturating_add(start),
        }
    }
}

fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

fn number_in(path: &Path) -> Option<u64> {
    word(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use fourscore_testkit::tools::Need;
    use fourscore_testkit::{LoopDevice, require};

    use super::*;

    #[test]
    fn hard_links_overlap_and_disjoint_ranges_do_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        fs::write(&one, [0; 8192]).expect("disk space");
        fs::hard_link(&one, &two).expect("disk space");
        let location =
            |path: &Path, range| Location::of(&File::open(path).unwrap(), range).unwrap();
        assert!(location(&one, 0..10).overlaps(&location(&two, 5..20)));
        assert!(!location(&one, 0..10).overlaps(&location(&two, 10..20)));
        fs::write(folder.path().join("three"), [0; 8192]).expect("disk space");
        let three = location(&folder.path().join("three"), 0..10);
        assert!(!location(&one, 0..10).overlaps(&three));
    }

    #[test]
    fn a_loop_device_overlaps_its_backing_file() {
        require!(Need::KernelMount);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        fs::write(&path, vec![0; 1 << 20]).expect("disk space");
        let device = LoopDevice::new(&path).expect("a device");
        let of_device = Location::of(&File::open(device.path()).unwrap(), 0..4096).unwrap();
        let of_file = Location::of(&File::open(&path).unwrap(), 4000..u64::MAX).unwrap();
        assert!(of_device.overlaps(&of_file));
        let after = Location::of(&File::open(&path).unwrap(), 4096..u64::MAX).unwrap();
        assert!(!of_device.overlaps(&after));
    }
}
