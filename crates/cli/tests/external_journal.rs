//! A journal on a device of its own, through the command: `check -j`, `mount -o journal_path=`, and
//! what is said where the device is missing.

mod common;
mod mounted;
mod place;

use std::fs;

use common::{complained, fourscore, printed};
use fourscore_testkit::loop_device::LoopDevice;
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use mounted::Mounted;
use place::Place;

/// A file system in `image`, with its journal in `journal`.
fn pair() -> Place {
    let place = Place::new();
    let made = |how: &[&str]| {
        printed(&mut fourscore(
            &[&["mkfs", "-q", "-F", "-b", "4096"], how].concat(),
        ));
    };
    let (image, journal) = (place.text("image"), place.text("journal"));
    made(&["-O", "journal_dev", &journal, "16M"]);
    let device = LoopDevice::new(&place.path("journal")).expect("a device");
    let device = format!("device={}", device.path().display());
    made(&["-t", "ext4", "-J", &device, &image, "64M"]);
    place
}

/// Two files that can be read anywhere, written through a mount and synced, and the two devices as
/// they were then.
fn dirty() -> Place {
    let place = pair();
    let options = format!("journal_path={}", place.text("journal"));
    let mounted = Mounted::new(&place, "image", &options);
    for name in ["one", "two"] {
        fs::write(mounted.path(name), name.repeat(3000)).expect("room");
    }
    printed(
        std::process::Command::new("sync")
            .arg("-f")
            .arg(mounted.path("one")),
    );
    for name in ["image", "journal"] {
        fs::copy(place.path(name), place.path(&format!("{name}-copy"))).expect("room");
    }
    mounted.unmount();
    place
}

#[test]
fn a_file_system_is_written_through_its_own_journal() {
    require!(Need::Fuse, Need::KernelMount, Need::Program("e2fsck"));
    let place = dirty();
    let (image, journal) = (place.text("image"), place.text("journal"));
    let options = format!("journal_path={journal}");
    let mounted = Mounted::new(&place, "image", &options);
    let found = fs::read_to_string(mounted.path("two")).expect("it is there");
    assert_eq!(found, "two".repeat(3000));
    mounted.unmount();
    let mut e2fsck = tools::command("e2fsck").expect("it is there");
    let e2fsck = e2fsck.args(["-fn", "-j", &journal, &image]).output();
    assert_eq!(e2fsck.expect("it runs").status.code(), Some(0));
    let said = printed(&mut fourscore(&["check", "-n", "-j", &journal, &image]));
    assert!(
        said.contains(": sound: ") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn what_is_only_in_the_log_is_read_with_its_device() {
    require!(Need::Fuse, Need::KernelMount);
    let place = dirty();
    let (image, journal) = (place.text("image-copy"), place.text("journal-copy"));
    let before = [&image, &journal].map(|path| fs::read(path).expect("it is there"));
    let said = printed(&mut fourscore(&["check", "-n", "-j", &journal, &image]));
    assert!(said.contains("[journal-replayed]"), "{said}");
    let options = format!("ro,journal_path={journal}");
    let mounted = Mounted::new(&place, "image-copy", &options);
    let found = fs::read_to_string(mounted.path("one")).expect("it is there");
    assert_eq!(found, "one".repeat(3000));
    mounted.unmount();
    let after = [&image, &journal].map(|path| fs::read(path).expect("it is there"));
    assert!(before == after, "something was written");
}

#[test]
fn a_journal_that_was_not_given_is_named() {
    require!(Need::Fuse, Need::KernelMount);
    let place = dirty();
    let (image, clean) = (place.text("image-copy"), place.text("image"));
    let said = fourscore(&["check", "-n", &image])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said.status.code(), Some(4), "{text}");
    assert!(
        text.contains("[journal-not-given]") && text.contains("(-j)"),
        "{text}"
    );
    let point = place.text("mnt");
    fs::create_dir_all(&point).expect("room");
    let options = ["ro", "rw"];
    let mounts = options.map(|option| vec!["mount", "-f", "-o", option, &image, &point]);
    let others = [vec!["walk", &image], vec!["mount", "-f", &clean, &point]];
    for arguments in mounts.into_iter().chain(others) {
        let (status, complaint) = complained(&arguments);
        assert_eq!(status, Some(1), "{arguments:?}: {complaint}");
        let advice = "journal_path=DEVICE";
        assert!(
            complaint.contains("UUID") && complaint.contains(advice),
            "{complaint}"
        );
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    // Not a journal at all, and one that is not there.
    for (path, says) in [
        (&clean, "s_feature_incompat"),
        (&place.text("no"), "No such file"),
    ] {
        let option = format!("journal_path={path}");
        let (status, complaint) = complained(&["mount", "-f", "-o", &option, &image, &point]);
        assert_eq!(status, Some(1));
        assert!(complaint.contains(says), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    // A journal that is given to a file system that has its own.
    let inside = place.text("inside");
    printed(&mut fourscore(&[
        "mkfs", "-q", "-t", "ext4", &inside, "64M",
    ]));
    for option in ["ro", "rw"] {
        let option = format!("{option},journal_path={}", place.text("journal"));
        let (status, complaint) = complained(&["mount", "-f", "-o", &option, &inside, &point]);
        assert_eq!(status, Some(1));
        let says = "no journal on a device of its own; leave the option out";
        assert!(
            complaint.contains("inside") && complaint.contains(says),
            "{complaint}"
        );
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    // A clean one can be read without its journal.
    let walk = printed(&mut fourscore(&["walk", &clean]));
    assert!(walk.contains("/one ") && walk.contains("/two "), "{walk}");
}
