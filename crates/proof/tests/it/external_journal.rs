//! A journal on a device of its own: read, written, recovered, and shared with the kernel and
//! e2fsck.

use fourscore::{Error, Fs, MountOptions, OpenOptions, Result, block::BlockDevice};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::loop_device::LoopDevice;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use std::path::Path;

use crate::common::{self, OWNER, ROOT, names, require_kernel};

fn device(path: &Path, options: DeviceOptions) -> Arc<dyn BlockDevice> {
    Arc::new(open_path(path, options).unwrap())
}

/// A file system, and the device of its journal.
struct Pair {
    image: Image,
    journal: Image,
}

impl Pair {
    fn new(features: &str) -> Self {
        let journal = Image::blank(MiB(16)).unwrap();
        let text = |image: &Image| image.path().to_str().unwrap().to_owned();
        let mut mke2fs = tools::command("mke2fs").unwrap();
        mke2fs.args([
            "-q",
            "-F",
            "-O",
            "journal_dev",
            "-b",
            "4096",
            &text(&journal),
        ]);
        assert!(mke2fs.status().unwrap().success());
        let attached = LoopDevice::new(journal.path()).unwrap();
        let place = format!("device={}", attached.path().display());
        let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(4096);
        let image = image.features(&[features]).arguments(["-J", &place]);
        let image = image.make().unwrap();
        Self { image, journal }
    }

    fn copy(&self) -> Self {
        Self {
            image: self.image.copy().unwrap(),
            journal: self.journal.copy().unwrap(),
        }
    }

    fn mount(&self) -> Result<Arc<Fs>> {
        let journal = device(self.journal.path(), DeviceOptions::read_write());
        let open = OpenOptions::new().journal_device(journal);
        let image = device(self.image.path(), DeviceOptions::read_write());
        Fs::mount(image, &MountOptions::new().open(open))
    }

    fn open(&self) -> Result<Arc<Fs>> {
        let journal = device(self.journal.path(), DeviceOptions::default());
        let open = OpenOptions::new().journal_device(journal);
        Fs::open(device(self.image.path(), DeviceOptions::default()), &open)
    }

    #[track_caller]
    fn assert_clean(&self) {
        let mut e2fsck = tools::command("e2fsck").unwrap();
        e2fsck.arg("-fn").arg("-j").arg(self.journal.path());
        let output = e2fsck.arg(self.image.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}");
    }

    /// Has the kernel mount the file system, list the names in the root, and unmount it.
    fn names_for_the_kernel(&self) -> Vec<Vec<u8>> {
        let attached = LoopDevice::new(self.journal.path()).unwrap();
        let options = format!("journal_path={}", attached.path().display());
        let mount = KernelMount::new(self.image.path(), Access::ReadWrite, &options).unwrap();
        let names = common::host_names(mount.path());
        std::fs::write(mount.path().join("by the kernel"), b"x").unwrap();
        mount.unmount().unwrap();
        names
    }
}

fn fill(fs: &Fs, prefix: &str) {
    for nr in 0..30 {
        let name = format!("{prefix}-{nr}");
        let file = fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
        fs.write_at(file, &[7; 9000], 0).unwrap();
    }
}

#[test]
fn what_is_written_is_in_the_journal_and_then_in_place() {
    require_kernel!();
    for features in ["extent", "^metadata_csum,^64bit", "fast_commit"] {
        let pair = Pair::new(features);
        let fs = pair.mount().unwrap();
        fill(&fs, "one");
        fs.sync().unwrap();
        // The state after a crash: only the log is certain to be there.
        let crashed = pair.copy();
        fill(&fs, "two");
        fs.unmount().unwrap();
        pair.assert_clean();
        let listed = names(&pair.open().unwrap(), ROOT);
        assert_eq!(listed.len(), 61, "{features}");
        assert_eq!(pair.names_for_the_kernel(), listed);

        // Read with the log, recovered by us, and recovered by the kernel.
        let by_kernel = crashed.copy();
        let read = crashed.open().unwrap();
        assert_eq!(names(&read, ROOT).len(), 31, "{features}");
        drop(read);
        let fs = crashed.mount().unwrap();
        assert_eq!(names(&fs, ROOT).len(), 31, "{features}");
        fill(&fs, "three");
        fs.unmount().unwrap();
        crashed.assert_clean();
        assert_eq!(by_kernel.names_for_the_kernel().len(), 31, "{features}");
        by_kernel.assert_clean();
        // The image that the kernel left is mounted again.
        let fs = by_kernel.mount().unwrap();
        assert_eq!(names(&fs, ROOT).len(), 32, "{features}");
        fs.unmount().unwrap();
        by_kernel.assert_clean();
    }
}

#[test]
fn without_its_device_a_journal_is_not_passed_over() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let pair = Pair::new("extent");
    let refused = |outcome: Result<Arc<Fs>>| match outcome {
        Err(Error::JournalNotGiven { uuid }) => uuid,
        other => panic!("{other:?}"),
    };
    let write = || {
        let image = device(pair.image.path(), DeviceOptions::read_write());
        Fs::mount(image, &MountOptions::new())
    };
    let read = || {
        let image = device(pair.image.path(), DeviceOptions::default());
        Fs::open(image, &OpenOptions::new())
    };
    let uuid = refused(write());
    assert!(
        Error::JournalNotGiven { uuid }
            .to_string()
            .contains(&uuid.to_string())
    );
    // A clean file system can be read.
    assert_eq!(names(&read().unwrap(), ROOT), [b"lost+found"]);
    let fs = pair.mount().unwrap();
    fill(&fs, "one");
    fs.sync().unwrap();
    let crashed = pair.copy();
    fs.unmount().unwrap();
    let image = device(crashed.image.path(), DeviceOptions::default());
    assert_eq!(refused(Fs::open(image, &OpenOptions::new())), uuid);
    // The journal of another file system is refused before anything is written.
    let other = Pair::new("extent");
    let mixed = Pair {
        image: crashed.image,
        journal: other.journal,
    };
    let before = std::fs::read(mixed.image.path()).unwrap();
    let error = mixed.mount().unwrap_err();
    assert!(error.to_string().contains("s_uuid"), "{error}");
    assert!(mixed.open().is_err());
    assert!(before == std::fs::read(mixed.image.path()).unwrap());
}
