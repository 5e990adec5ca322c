//! An external journal: `check -j`, `mount -o journal_path=`, and the messages if the device is
//! missing.

use std::fs;

use fourscore_testkit::loop_device::LoopDevice;
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::common::{failing, fourscore, printed};
use crate::mounted::Mounted;
use crate::place::Place;

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

/// Two files that were written through a mount and synced, and copies of the two devices at that
/// moment.
fn dirty() -> Place {
    let place = pair();
    let options = format!("journal_path={}", place.text("journal"));
    let mounted = place.mount(&options);
    for name in ["one", "two"] {
        fs::write(mounted.path(name), name.repeat(3000)).expect("space");
    }
    printed(
        std::process::Command::new("sync")
            .arg("-f")
            .arg(mounted.path("one")),
    );
    for name in ["image", "journal"] {
        fs::copy(place.path(name), place.path(&format!("{name}-copy"))).expect("space");
    }
    mounted.unmount();
    place
}

#[test]
fn a_file_system_is_written_through_its_external_journal() {
    require!(Need::Fuse, Need::KernelMount, Need::Program("e2fsck"));
    let place = dirty();
    let (image, journal) = (place.text("image"), place.text("journal"));
    let options = format!("journal_path={journal}");
    let mounted = place.mount(&options);
    let found = fs::read_to_string(mounted.path("two")).expect("it exists");
    assert_eq!(found, "two".repeat(3000));
    mounted.unmount();
    let mut e2fsck = tools::command("e2fsck").expect("it exists");
    let e2fsck = e2fsck.args(["-fn", "-j", &journal, &image]).output();
    assert_eq!(e2fsck.expect("it runs").status.code(), Some(0));
    let message = printed(&mut fourscore(&["check", "-n", "-j", &journal, &image]));
    assert!(
        message.contains(": clean: ") && message.lines().count() == 1,
        "{message}"
    );
}

#[test]
fn the_journal_is_replayed_from_its_device() {
    require!(Need::Fuse, Need::KernelMount);
    let place = dirty();
    let (image, journal) = (place.text("image-copy"), place.text("journal-copy"));
    let before = [&image, &journal].map(|path| fs::read(path).expect("it exists"));
    let message = printed(&mut fourscore(&["check", "-n", "-j", &journal, &image]));
    assert!(message.contains("[journal-replayed]"), "{message}");
    let options = format!("ro,journal_path={journal}");
    let mounted = Mounted::new(&place, "image-copy", &options);
    let found = fs::read_to_string(mounted.path("one")).expect("it exists");
    assert_eq!(found, "one".repeat(3000));
    mounted.unmount();
    let after = [&image, &journal].map(|path| fs::read(path).expect("it exists"));
    assert!(before == after, "something was written");
}

#[test]
fn a_missing_journal_device_is_named() {
    require!(Need::Fuse, Need::KernelMount);
    let place = dirty();
    let (image, clean) = (place.text("image-copy"), place.text("image"));
    let message = fourscore(&["check", "-n", &image])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&message.stdout).into_owned();
    assert_eq!(message.status.code(), Some(4), "{text}");
    assert!(
        text.contains("[journal-not-given]") && text.contains("(-j)"),
        "{text}"
    );
    let point = place.text("mnt");
    fs::create_dir_all(&point).expect("space");
    let options = ["ro", "rw"];
    let mounts = options.map(|option| vec!["mount", "-f", "-o", option, &image, &point]);
    let others = [vec!["walk", &image], vec!["mount", "-f", &clean, &point]];
    for arguments in mounts.into_iter().chain(others) {
        let (status, message) = failing(&arguments);
        assert_eq!(status, Some(1), "{arguments:?}: {message}");
        let advice = "journal_path=DEVICE";
        assert!(
            message.contains("UUID") && message.contains(advice),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    // A device without a journal, and a missing one.
    for (path, says) in [
        (&clean, "s_feature_incompat"),
        (&place.text("no"), "No such file"),
    ] {
        let option = format!("journal_path={path}");
        let (status, message) = failing(&["mount", "-f", "-o", &option, &image, &point]);
        assert_eq!(status, Some(1));
        assert!(message.contains(says), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    // A journal for a file system that has an internal one.
    let inside = place.text("inside");
    printed(&mut fourscore(&[
        "mkfs", "-q", "-t", "ext4", &inside, "64M",
    ]));
    for option in ["ro", "rw"] {
        let option = format!("{option},journal_path={}", place.text("journal"));
        let (status, message) = failing(&["mount", "-f", "-o", &option, &inside, &point]);
        assert_eq!(status, Some(1));
        let says = "no journal on a device of its own; leave the option out";
        assert!(
            message.contains("inside") && message.contains(says),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    // A clean file system can be read without its journal.
    let walk = printed(&mut fourscore(&["walk", &clean]));
    assert!(walk.contains("/one ") && walk.contains("/two "), "{walk}");
}
