//! `resize` of a file system on a block device: the device keeps its length, and its new length is
//! found when it has become longer, unmounted beside resize2fs, and mounted.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;

use fourscore_testkit::oracle::{assert_clean, dumpe2fs_header};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{Access, KernelMount, LoopDevice, require};

use crate::common::{failing, fourscore, printed, text};
use crate::mounted::{Mounted, require_mount};
use crate::place::{Place, walk_of_host};

const MIB: u64 = 1 << 20;

/// A file system on a loop device over a file.
struct Disk {
    device: LoopDevice,
    file: std::path::PathBuf,
}

impl Disk {
    /// A copy of an image, on a device.
    fn new(place: &Place, name: &str, image: &Path) -> Self {
        let file = place.path(name);
        fs::copy(image, &file).expect("space");
        let device = LoopDevice::new(&file).expect("a device");
        Self { device, file }
    }

    fn name(&self) -> &str {
        text(self.device.path())
    }

    /// Makes the file longer, and then the device.
    fn lengthen(&self, mib: u64) {
        let file = OpenOptions::new().write(true).open(&self.file);
        file.expect("a file").set_len(mib * MIB).expect("space");
        self.device.update_length().expect("a loop device");
    }

    fn file_mib(&self) -> u64 {
        fs::metadata(&self.file).expect("a file").len() / MIB
    }

    fn blocks(&self) -> u64 {
        let header = dumpe2fs_header(self.device.path()).expect("a header");
        header["Block count"].parse().expect("a number")
    }

    fn walk(&self) -> String {
        printed(&mut fourscore(&["walk", "--hash", self.name()]))
    }

    fn resize(&self, size: &[&str]) -> String {
        let said = printed(&mut fourscore(&[&["resize", self.name()], size].concat()));
        assert_clean(self.device.path());
        said
    }

    /// The same by resize2fs, which wants a check before.
    fn resize2fs(&self, size: &[&str]) {
        for (program, arguments) in [("e2fsck", &["-fy"][..]), ("resize2fs", &["-f"])] {
            let mut command = tools::command(program).expect("found before");
            command.args(arguments).arg(self.name());
            if program == "resize2fs" {
                command.args(size);
            }
            tools::output_of(&mut command).expect("it runs");
        }
    }
}

/// An image of mke2fs with some files.
fn made(place: &Place, mib: u64) -> std::path::PathBuf {
    let image = place.path("made");
    let mut command = tools::command("mke2fs").expect("found before");
    command.args(["-q", "-t", "ext4", "-b", "1024", "-d"]);
    command.arg(place.tree()).arg(&image);
    tools::stdout_of(command.arg(format!("{mib}M"))).expect("mke2fs runs");
    image
}

#[test]
fn a_file_system_gets_the_length_that_its_device_has() {
    require!(
        Need::KernelMount,
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("resize2fs"),
        Need::Program("dumpe2fs")
    );
    let place = Place::new();
    let image = made(&place, 24);
    let ours = Disk::new(&place, "ours", &image);
    let theirs = Disk::new(&place, "theirs", &image);
    let tree = ours.walk();
    assert!(ours.resize(&[]).contains("24576 blocks of 1 KiB already"));
    let (status, why) = failing(&["resize", ours.name(), "64M"]);
    assert_eq!(status, Some(1), "{why}");
    assert!(why.contains("the device has 24576 blocks"), "{why}");
    assert_eq!((ours.blocks(), ours.file_mib()), (24 << 10, 24));
    // The device is longer; then a part of it; then all of it again.
    for (mib, size) in [(64, &[][..]), (64, &["20M"]), (64, &["50000"]), (96, &[])] {
        for disk in [&ours, &theirs] {
            disk.lengthen(mib);
        }
        ours.resize(size);
        theirs.resize2fs(size);
        assert_eq!(ours.blocks(), theirs.blocks(), "{size:?}");
        assert_eq!((ours.file_mib(), ours.walk()), (mib, tree.clone()));
    }
    ours.resize(&["-M"]);
    assert_eq!((ours.file_mib(), ours.walk()), (96, tree.clone()));
    ours.resize(&[]);
    assert_eq!(ours.blocks(), 96 << 10);
    let kernel = KernelMount::new(ours.device.path(), Access::ReadWrite, "").expect("a mount");
    assert!(walk_of_host(kernel.path()).contains("lost+found"));
    // A mount of the kernel is resize2fs's.
    let (status, why) = failing(&["resize", ours.name(), "32M"]);
    assert_eq!(status, Some(1), "{why}");
    assert!(why.contains("mounted"), "{why}");
    kernel.unmount().expect("unmounted");
    assert_eq!(ours.walk(), tree);
}

#[test]
fn a_mount_of_a_device_grows_when_the_device_has_grown() {
    require_mount!("losetup", "mke2fs", "dumpe2fs");
    require!(Need::KernelMount);
    let place = Place::new();
    let disk = Disk::new(&place, "disk", &made(&place, 24));
    let mounted = Mounted::new(&place, disk.name(), "nowriteback");
    let point = text(&mounted.point).to_owned();
    let said = printed(&mut fourscore(&["resize", &point]));
    assert!(said.contains("24576 blocks of 1 KiB already"), "{said}");
    let (status, why) = failing(&["resize", &point, "64M"]);
    assert_eq!(status, Some(1), "{why}");
    assert!(why.contains("the device has 24576 blocks"), "{why}");
    assert_eq!(disk.file_mib(), 24);
    disk.lengthen(64);
    let said = printed(&mut fourscore(&["resize", &point, "40M"]));
    assert!(said.contains("40960 blocks of 1 KiB, 24576"), "{said}");
    fs::write(mounted.path("first"), vec![1; 25 << 20]).expect("space");
    // By the name of the device, and all of it.
    let said = printed(&mut fourscore(&["resize", disk.name()]));
    assert!(said.contains("65536 blocks of 1 KiB, 40960"), "{said}");
    fs::write(mounted.path("second"), vec![2; 20 << 20]).expect("space");
    let (_, why) = failing(&["resize", &point, "30M"]);
    assert!(why.contains("only grows"), "{why}");
    mounted.unmount();
    assert_eq!((disk.blocks(), disk.file_mib()), (64 << 10, 64));
    assert_clean(disk.device.path());
    let kernel = KernelMount::new(disk.device.path(), Access::ReadOnly, "").expect("a mount");
    for (name, byte, mib) in [("first", 1, 25), ("second", 2, 20)] {
        let found = fs::read(kernel.path().join(name)).expect("a file");
        assert!(found == vec![byte; mib << 20], "{name}");
    }
    kernel.unmount().expect("unmounted");
    let size = Command::new("blockdev")
        .args(["--getsize64", disk.name()])
        .output();
    let size = String::from_utf8(size.expect("it runs").stdout).expect("digits");
    assert_eq!(size.trim(), (64 * MIB).to_string());
}
