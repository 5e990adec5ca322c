//! **Purpose.** Who else uses an image file or a block device of the host, in words: loop devices
//! that lie on it, mounts of the kernel, whoever holds its lock.
//!
//! **Not here.** Keeping others away ([`crate::open`]). What is found here was so a moment ago; the
//! lock and `O_EXCL` are what holds. But a loop device takes no lock, so for those this is all
//! there is.
//!
//! **Model.** The kernel tells in `/sys/block/loop*/loop/backing_file` which file a loop device
//! lies on, in `/proc/self/mountinfo` what is mounted where, and in `/proc/locks` who holds which
//! lock. Where one of them is missing or says something else than expected, nobody is found.
//!
//! **References.** proc(5), loop(4).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fourscore_sync::thread;

/// How often a loop device that is on its way out is looked for again, and after what time.
const LOOKS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(25);

/// Who uses the image `file` through a loop device; `None` if nobody does.
///
/// A loop device that goes with its last user, and has none that is seen here, is waited for: after
/// an unmount it may live on for a moment.
pub(crate) fn loop_user(file: &File) -> io::Result<Option<String>> {
    let image = file.metadata()?;
    let mut found = None;
    for _ in 0..LOOKS {
        found = loop_on((image.dev(), image.ino()));
        match &found {
            Some(device) if device.is_leaving() => thread::sleep(PAUSE),
            _ => break,
        }
    }
    Ok(found.map(|device| device.to_words()))
}

/// Who uses the block device `file`, as far as can be told.
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

/// Who holds the lock on the image `file`.
pub(crate) fn lock_holder(file: &File) -> String {
    let holder = || {
        let image = file.metadata().ok()?;
        let (major, minor) = halves(image.dev());
        let key = format!("{major:02x}:{minor:02x}:{}", image.ino());
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let is_it = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words.next() == Some("FLOCK") && words.nth(3) == Some(&key)
        };
        let pid: u32 = locks
            .lines()
            .find(is_it)?
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
struct Loop {
    name: String,
    /// It goes when nobody has it open any more.
    goes_by_itself: bool,
    mounted_on: Option<String>,
}

impl Loop {
    fn is_leaving(&self) -> bool {
        self.goes_by_itself && self.mounted_on.is_none()
    }

    fn to_words(&self) -> String {
        match &self.mounted_on {
            Some(place) => format!("is in use by /dev/{}, mounted on {place}", self.name),
            None => format!("is in use by /dev/{}", self.name),
        }
    }
}

/// The loop device on the file with this device and inode number.
fn loop_on(image: (u64, u64)) -> Option<Loop> {
    let devices = fs::read_dir("/sys/block").ok()?;
    let folders = devices.flatten().map(|entry| entry.path());
    let mut lying_on_it = folders.filter(|folder| {
        let backing = fs::read_to_string(folder.join("loop/backing_file"));
        let backing = backing
            .ok()
            .map(|text| PathBuf::from(text.trim_end_matches('\n')));
        let file = backing.and_then(|path| fs::metadata(path).ok());
        file.is_some_and(|file| (file.dev(), file.ino()) == image)
    });
    let folder = lying_on_it.next()?;
    let word = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    Some(Loop {
        name: folder.file_name()?.to_string_lossy().into_owned(),
        goes_by_itself: word("loop/autoclear").trim_end() == "1",
        mounted_on: mount_point(word("dev").trim_end()),
    })
}

/// Where the device with the number `major:minor` is mounted.
fn mount_point(number: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        (words.next()? == number).then_some(())?;
        words.nth(1).map(unescaped)
    })
}

/// A path of mountinfo, in which blanks and backslashes are written in octal.
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
        // Reading, and writing by who knows better, is possible.
        open_path(image.path(), DeviceOptions::default()).expect("for reading");
        let unlocked = DeviceOptions {
            sharing: Sharing::Unlocked,
            ..DeviceOptions::read_write()
        };
        open_path(image.path(), unlocked).expect("unlocked");
        mount.unmount().expect("unmounted");
        open_path(image.path(), DeviceOptions::read_write()).expect("nobody uses it any more");
    }

    #[test]
    fn who_writes_an_image_is_named() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("image");
        let first = crate::create_image(&path, 1 << 20, DeviceOptions::default());
        let first = first.expect("created");
        let text = refusal(&path);
        let own = format!("process {} ", std::process::id());
        assert!(text.contains(&own) || text.contains("another"), "{text}");
        drop(first);
        open_path(&path, DeviceOptions::read_write()).expect("given up");
    }

    #[test]
    fn paths_of_mountinfo_are_read_as_they_are() {
        assert_eq!(unescaped("/a\\040b\\134c\\011d"), "/a b\\c\td");
        assert_eq!(device_number(rustix::fs::makedev(259, 3)), "259:3");
    }
}
