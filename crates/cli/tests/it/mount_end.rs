//! `fourscore mount`: durability, and the end of a mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use rustix::process::Signal;

use crate::common::{fourscore, printed, text};
use crate::mounted::{Mounted, TIMEOUT, empty, is_mounted, require_mount, umount, wait_until};

#[test]
fn umount_returns_when_all_data_is_on_the_device() {
    require!(Need::KernelMount, Need::Fuse, Need::Program("e2fsck"));
    let place = empty("64M");
    for round in 0..4 {
        let mounted = place.mount("commit=100000");
        for number in 0..300 {
            let name = format!("{round}-{number}");
            fs::write(mounted.path(&name), name.repeat(700)).expect("space");
        }
        // A file without a name is deleted.
        let unnamed = mounted.open("unnamed");
        unnamed.write_all_at(&[1; 100_000], 0).expect("space");
        fs::remove_file(mounted.path("unnamed")).expect("removed");
        drop(unnamed);
        umount(&mounted.point);
        // Directly after it, without a wait for the server.
        place.check("image").expect("clean");
        let image = place.path("image");
        let kernel = KernelMount::new(&image, Access::ReadWrite, "").expect("sound");
        for number in 0..300 {
            let name = format!("{round}-{number}");
            let content = fs::read_to_string(kernel.path().join(&name));
            assert_eq!(content.expect("it exists"), name.repeat(700));
        }
        fs::write(kernel.path().join("the kernel's"), b"written").expect("space");
        drop(kernel);
        place.check("image").expect("it was not written since");
    }
}

#[test]
fn the_image_is_unlocked_when_umount_returns() {
    require!(Need::KernelMount, Need::Fuse);
    let place = empty("16M");
    fs::write(place.path("file"), b"content").expect("space");
    let (file, image) = (place.text("file"), place.text("image"));
    for round in 0..40 {
        let mounted = place.mount("");
        umount(&mounted.point);
        printed(&mut fourscore(&["cp", &file, &format!("{image}:/{round}")]));
    }
}

#[test]
fn a_mount_under_nohup_outlives_its_terminal() {
    require_mount!();
    let place = empty("16M");
    let point = place.path("mnt");
    fs::create_dir(&point).expect("space");
    let server = Command::new("env")
        .args(["--ignore-signal=HUP", env!("CARGO_BIN_EXE_fourscore")])
        .args(["mount", "-f", &place.text("image"), text(&point)])
        .spawn()
        .expect("it starts");
    let mounted = Mounted { server, point };
    wait_until("mounted", || is_mounted(&mounted.point));
    mounted.signal(Signal::HUP);
    // A server that the signal reaches unmounts at once.
    std::thread::sleep(Duration::from_millis(300));
    fs::write(mounted.path("file"), "data").expect("it is mounted");
    assert!(is_mounted(&mounted.point));
    mounted.unmount_clean(&place);
}

/// Kills the server directly after `act`, mounts again and calls `look`.
fn killed_after(options: &str, act: impl FnOnce(&Mounted), look: impl FnOnce(&Mounted)) {
    let place = empty("64M");
    let mounted = place.mount(&format!("{options},commit=100000"));
    act(&mounted);
    mounted.kill();
    let again = place.mount("");
    look(&again);
    again.unmount_clean(&place);
}

#[test]
fn synchronous_options_make_changes_durable() {
    require_mount!();
    killed_after(
        "sync",
        |mounted| {
            let file = mounted.open("file");
            file.write_all_at(&[7; 9000], 100).expect("space");
            file.set_len(5000).expect("shorter");
        },
        |again| {
            let content = fs::read(again.path("file")).expect("durable");
            assert_eq!(content, [&[0; 100][..], &[7; 4900]].concat());
        },
    );
    killed_after(
        "dirsync",
        |mounted| {
            fs::create_dir(mounted.path("dir")).expect("space");
            File::create(mounted.path("old")).expect("space");
            fs::rename(mounted.path("old"), mounted.path("dir/new")).expect("renamed");
        },
        |again| {
            assert!(again.path("dir/new").exists() && !again.path("old").exists());
        },
    );
    // Without the options the changes are lost, or the checks above prove nothing.
    killed_after(
        "",
        |mounted| fs::create_dir(mounted.path("dir")).expect("space"),
        |again| assert!(!again.path("dir").exists()),
    );
}

#[test]
fn a_mount_without_recovery_is_read_only() {
    require_mount!();
    let place = empty("64M");
    let mut mounted = place.mount("");
    fs::write(mounted.path("in the journal"), b"x").expect("space");
    let root = File::open(&mounted.point).expect("there");
    root.sync_all().expect("durable");
    mounted.signal(Signal::KILL);
    drop(root);
    assert!(!mounted.end().success());
    drop(mounted);
    let before = fs::read(place.path("image")).expect("there");
    for (options, is_there) in [("norecovery", false), ("noload,rw", false), ("ro", true)] {
        let mounted = place.mount(options);
        assert_eq!(mounted.path("in the journal").exists(), is_there);
        File::create(mounted.path("new")).expect_err("only read");
        mounted.unmount();
        assert!(fs::read(place.path("image")).expect("there") == before);
    }
}

#[test]
fn a_partition_is_mounted_by_its_offset() {
    require_mount!();
    let place = empty("32M");
    let image = fs::read(place.path("image")).expect("there");
    fs::write(place.path("disk"), [&vec![0; 1 << 20], &image[..]].concat()).expect("space");
    for (number, offset) in ["offset=1048576", "offset=1M"].into_iter().enumerate() {
        let mounted = Mounted::new(&place, "disk", offset);
        fs::write(mounted.path(&number.to_string()), b"inside").expect("space");
        mounted.unmount();
    }
    let disk = fs::read(place.path("disk")).expect("there");
    fs::write(place.path("image"), &disk[1 << 20..]).expect("space");
    place.check("image").expect("clean");
    for number in ["/0", "/1"] {
        let inside = printed(&mut fourscore(&["cat", &place.text("image"), number]));
        assert_eq!(inside, "inside");
    }
}

#[test]
fn a_service_manager_is_notified() {
    require_mount!();
    let place = empty("32M");
    let (point, path) = (place.path("mnt"), place.path("notify"));
    fs::create_dir(&point).expect("space");
    let socket = UnixDatagram::bind(&path).expect("space");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time");
    let mut command = fourscore(&["mount", "-f", &place.text("image"), text(&point)]);
    let server = command.env("NOTIFY_SOCKET", &path).spawn();
    let mut mounted = Mounted {
        server: server.expect("it starts"),
        point,
    };
    let received = || {
        let mut text = [0; 100];
        let len = socket.recv(&mut text).expect("a notification");
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    let expected = format!("READY=1\nMAINPID={}", mounted.server.id());
    assert_eq!(received(), expected);
    assert!(is_mounted(&mounted.point));
    mounted.signal(Signal::TERM);
    assert_eq!(received(), "STOPPING=1");
    assert!(mounted.end().success());
    assert!(!is_mounted(&mounted.point));
    place.check("image").expect("clean");
}
