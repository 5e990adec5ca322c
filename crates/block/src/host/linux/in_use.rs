//! **Purpose.** Finds the other users of an image file or a block device of the host, for error
//! messages: loop devices on it, mounts of the kernel, the process that holds its lock.
//!
//! **Not here.** Exclusion of other users (`open`): that is done by the lock and by `O_EXCL`, since
//! the state found here may change at any moment. Loop devices are the exception: they take no
//! lock, so there is only this check.
//!
//! **Model.** `/sys/block/loop*/loop/backing_file` names the file of a loop device,
//! `/proc/self/mountinfo` lists the mounts, and `/proc/locks` the locks with their holders. If one
//! of these files is missing or has an unexpected format, no user is found.
//!
//! **References.** proc(5), loop(4).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fourscore_sync::thread;

/// How often to look for a loop device that is being detached, and the pause between two looks.
const LOOKS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(25);

/// The file that a loop device is attached to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// Describes the loop device that uses the image `file`; `None` if there is none.
///
/// If the loop device is detached with its last close and is not mounted, this waits for its end:
/// it may still exist for a moment after an unmount.
pub(crate) fn loop_user(file: &File) -> io::Result<Option<String>> {
    let image = FileId::of(&file.metadata()?);
    let mut found = None;
    for _ in 0..LOOKS {
        found = loop_device_on(image);
        match &found {
            Some(device) if device.is_detaching() => thread::sleep(PAUSE),
            _ => break,
        }
    }
    Ok(found.map(|device| device.description()))
}

/// Describes the user of the block device at `path`, as far as it can be found.
pub(crate) fn device_user(path: &Path) -> String {
    let Ok(device) = fs::metadata(path) else {
        return "is in use".into();
    };
    let number = device_number(device.rdev());
    if let Some(place) = mount_point(&number) {
        return format!("is mounted on {place}");
    }
    let holders = fs::read_dir(format!("/sys/dev/block/{number}/holders"));
    let mut holders = holders.into_iter().flatten().flatten();
    match holders.next() {
        Some(holder) => format!("is in use by /dev/{}", holder.file_name().to_string_lossy()),
        None => "is in use by the kernel or another process".into(),
    }
}

/// Describes the holder of the lock on the image `file`.
pub(crate) fn lock_holder(file: &File) -> String {
    let holder = || {
        let image = file.metadata().ok()?;
        let (major, minor) = halves(image.dev());
        let key = format!("{major:02x}:{minor:02x}:{}", image.ino());
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let is_of_image = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words.next() == Some("FLOCK") && words.nth(3) == Some(&key)
        };
        let pid: u32 = locks
            .lines()
            .find(is_of_image)?
            .split_whitespace()
            .nth(4)?
            .parse()
            .ok()?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(format!(
            "is being written by process {pid} ({})",
            name.trim_end()
        ))
    };
    holder().unwrap_or_else(|| "is being written by another process".into())
}

/// A loop device.
struct LoopDevice {
    name: String,
    /// Whether it is detached by its last close.
    autoclear: bool,
    mounted_on: Option<String>,
}

impl LoopDevice {
    fn is_detaching(&self) -> bool {
        self.autoclear && self.mounted_on.is_none()
    }

    fn description(&self) -> String {
        match &self.mounted_on {
            Some(place) => format!("is in use by /dev/{}, mounted on {place}", self.name),
            None => format!("is in use by /dev/{}", self.name),
        }
    }
}

/// The loop device that is attached to `image`.
fn loop_device_on(image: FileId) -> Option<LoopDevice> {
    let devices = fs::read_dir("/sys/block").ok()?;
    let folders = devices.flatten().map(|entry| entry.path());
    let mut attached = folders.filter(|folder| {
        let backing = fs::read_to_string(folder.join("loop/backing_file"));
        let backing = backing
            .ok()
            .map(|text| PathBuf::from(text.trim_end_matches('\n')));
        let file = backing.and_then(|path| fs::metadata(path).ok());
        file.is_some_and(|file| FileId::of(&file) == image)
    });
    let folder = attached.next()?;
    let attribute = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    Some(LoopDevice {
        name: folder.file_name()?.to_string_lossy().into_owned(),
        autoclear: attribute("loop/autoclear").trim_end() == "1",
        mounted_on: mount_point(attribute("dev").trim_end()),
    })
}

/// The mount point of the device with the number `major:minor`.
fn mount_point(number: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        (words.next()? == number).then_some(())?;
        words.nth(1).map(unescaped)
    })
}

/// A path of mountinfo with its octal escapes of blanks and backslashes resolved.
fn unescaped(path: &str) -> String {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    escapes.iter().fold(path.to_owned(), |path, (code, plain)| {
        path.replace(code, plain)
    })
}

fn device_number(device: u64) -> String {
    let (major, minor) = halves(device);
    format!("{major}:{minor}")
}

fn halves(device: u64) -> (u32, u32) {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::io::ErrorKind;

    use fourscore_testkit::image::{Image, MiB};
    use fourscore_testkit::mount::{Access, KernelMount};
    use fourscore_testkit::require;
    use fourscore_testkit::tools::Need;

    use super::*;
    use crate::{DeviceOptions, Sharing, open_path};

    fn refusal(path: &Path) -> String {
        let error = open_path(path, DeviceOptions::read_write()).expect_err("in use");
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        error.to_string()
    }

    #[test]
    fn an_image_that_the_kernel_has_mounted_is_not_written() {
        require!(Need::Program("mke2fs"), Need::KernelMount);
        let image = Image::builder(MiB(16)).make().expect("an image");
        let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("mounted");
        let text = refusal(image.path());
        let device = format!("/dev/{}", mount.device_name().expect("a device"));
        let place = mount.path().to_string_lossy().into_owned();
        assert!(text.contains(&device) && text.contains(&place), "{text}");
        let text = refusal(Path::new(&device));
        assert!(text.contains(&place), "{text}");
        // Reading is possible, and so is writing without the lock.
        open_path(image.path(), DeviceOptions::default()).expect("for reading");
        let unlocked = DeviceOptions {
            sharing: Sharing::Unlocked,
            ..DeviceOptions::read_write()
        };
        open_path(image.path(), unlocked).expect("unlocked");
        mount.unmount().expect("unmounted");
        open_path(image.path(), DeviceOptions::read_write()).expect("not in use any more");
    }

    #[test]
    fn an_error_names_the_process_that_writes_an_image() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("image");
        let first = crate::create_image(&path, 1 << 20, DeviceOptions::default());
        let first = first.expect("created");
        let text = refusal(&path);
        let own = format!("process {} ", std::process::id());
        assert!(text.contains(&own) || text.contains("another"), "{text}");
        drop(first);
        open_path(&path, DeviceOptions::read_write()).expect("released");
    }

    #[test]
    fn escapes_of_mountinfo_are_resolved() {
        assert_eq!(unescaped("/a\\040b\\134c\\011d"), "/a b\\c\td");
        assert_eq!(device_number(rustix::fs::makedev(259, 3)), "259:3");
    }
}
