//! **Purpose.** Where the bytes of an open file really lie, so that two names of one place are
//! recognised.
//!
//! **Model.** A loop device is a range of the file that it lies on, a partition a range of its
//! disk; both are followed down to what is neither. What lies there is known by device and inode
//! number, or as a block device by its own number. Devices that are put together from several
//! others (device-mapper, RAID) count as themselves.
//!
//! **References.** sysfs(5), loop(4), `Documentation/ABI/stable/sysfs-block` of the kernel.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Loop devices on partitions of loop devices and so on; more are not followed.
const DEPTH_MAX: u32 = 16;
/// Of the numbers that sysfs gives.
const SECTOR_BYTES: u64 = 512;

/// A range of a file or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    object: Object,
    range: Range<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    /// Device and inode number.
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

impl Site {
    /// Where these bytes of a file or block device lie.
    pub(crate) fn of(file: &File, range: Range<u64>) -> io::Result<Self> {
        let mut site = Self {
            object: Object::of(&file.metadata()?),
            range,
        };
        for _ in 0..DEPTH_MAX {
            match site.below() {
                Some(below) => site = below,
                None => break,
            }
        }
        Ok(site)
    }

    /// Whether the two have a byte in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.object == other.object
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }

    /// Whether both are in one file or device.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.object == other.object
    }

    /// The same bytes on what the device lies on, if it lies on one thing.
    fn below(&self) -> Option<Self> {
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
            return Some(self.moved(Object::Device(number), start, len_bytes));
        }
        let backing = word(&folder.join("loop/backing_file"))?;
        let found = fs::metadata(PathBuf::from(backing)).ok()?;
        let start = number_in(&folder.join("loop/offset")).unwrap_or(0);
        let limit = number_in(&folder.join("loop/sizelimit")).unwrap_or(0);
        let len_bytes = if limit == 0 { u64::MAX } else { limit };
        Some(self.moved(Object::of(&found), start, len_bytes))
    }

    fn moved(&self, object: Object, start: u64, len_bytes: u64) -> Self {
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
    fn names_of_one_file_are_one_place_and_ranges_are_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        fs::write(&one, [0; 8192]).expect("room");
        fs::hard_link(&one, &two).expect("room");
        let site = |path: &Path, range| Site::of(&File::open(path).unwrap(), range).unwrap();
        assert!(site(&one, 0..10).overlaps(&site(&two, 5..20)));
        assert!(!site(&one, 0..10).overlaps(&site(&two, 10..20)));
        fs::write(folder.path().join("three"), [0; 8192]).expect("room");
        let three = site(&folder.path().join("three"), 0..10);
        assert!(!site(&one, 0..10).overlaps(&three));
    }

    #[test]
    fn a_loop_device_is_the_file_below_it() {
        require!(Need::KernelMount);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        fs::write(&path, vec![0; 1 << 20]).expect("room");
        let device = LoopDevice::new(&path).expect("a device");
        let of_device = Site::of(&File::open(device.path()).unwrap(), 0..4096).unwrap();
        let of_file = Site::of(&File::open(&path).unwrap(), 4000..u64::MAX).unwrap();
        assert!(of_device.overlaps(&of_file));
        let behind = Site::of(&File::open(&path).unwrap(), 4096..u64::MAX).unwrap();
        assert!(!of_device.overlaps(&behind));
    }
}
