//! The server in its sandbox, and corrupt images on a mount.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use fourscore_testkit::tools;

use crate::common::{self, failing, fourscore, text};
use crate::mounted::{Mounted, empty, is_mounted, require_mount, umount, wait_until};

/// The field `name` in the status of each thread of a process.
fn of_threads(process: u32, name: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let of_thread = |thread: &Path| {
        let status = fs::read_to_string(thread.join("status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect("the kernel says so").trim().to_owned()
    };
    threads
        .map(|thread| of_thread(&thread.expect("listed").path()))
        .collect()
}

#[test]
fn all_threads_of_the_server_are_in_the_sandbox() {
    require_mount!();
    let place = empty("64M");
    let mounted = place.mount("");
    // The first reply comes after the server has entered the sandbox.
    fs::write(mounted.path("file"), b"served").expect("space");
    let server = mounted.server.id();
    for (name, value) in [
        ("NoNewPrivs:", "1"),
        ("Seccomp:", "2"),
        ("CapEff:", "0000000000000000"),
        ("CapPrm:", "0000000000000000"),
    ] {
        let told = of_threads(server, name);
        assert!(
            told.len() > 4 && told.iter().all(|told| told == value),
            "{name} {told:?}"
        );
    }
    let limits = fs::read_to_string(format!("/proc/{server}/limits")).expect("it runs");
    let cores = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<&str> = cores.expect("a limit").split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"]);
    mounted.unmount_clean(&place);

    let point = place.path("mnt-image");
    let mut command = common::fourscore(&["mount", "-f", "--no-sandbox"]);
    let server = command.arg(place.path("image")).arg(&point).spawn();
    let free = Mounted {
        server: server.expect("it starts"),
        point,
    };
    wait_until("mounted", || is_mounted(&free.point));
    assert_eq!(fs::read(free.path("file")).expect("served"), b"served");
    let told = of_threads(free.server.id(), "Seccomp:");
    assert!(told.iter().all(|told| told == "0"), "{told:?}");
    free.unmount();
}

/// Offset of an inode in the image according to debugfs.
fn place_of_inode(image: &str, path: &str) -> u64 {
    let request = format!("imap {path}");
    let arguments = ["-R".as_ref(), request.as_ref(), image.as_ref()];
    let message = tools::run("debugfs", &arguments).expect("it exists");
    // Inode 12 is part of block group 0
    //         located at block 37, offset 0x0b00
    let (_, place) = message.split_once("located at block ").expect("a block");
    let (block, offset) = place.trim().split_once(", offset 0x").expect("an offset");
    let block: u64 = block.parse().expect("a number");
    block * 4096 + u64::from_str_radix(offset, 16).expect("a number")
}

#[test]
fn corruption_is_reported_and_the_rest_is_served() {
    const EUCLEAN: i32 = 117;
    require_mount!("debugfs");
    let place = empty("64M");
    let mounted = place.mount("");
    for name in ["whole", "broken"] {
        fs::create_dir(mounted.path(name)).expect("space");
        fs::write(mounted.path(name).join("file"), name).expect("space");
        fs::write(mounted.path(&format!("{name}.txt")), name).expect("space");
    }
    mounted.unmount();
    let image = place.text("image");
    let file = OpenOptions::new().write(true).open(&image).expect("there");
    for path in ["/broken", "/broken.txt"] {
        // The size, which the checksum of the inode covers.
        let size = place_of_inode(&image, path) + 4;
        file.write_all_at(&[0xff; 3], size).expect("there");
    }
    drop(file);
    for options in ["", "ro", "errors=continue"] {
        let mounted = place.mount(options);
        let errno = |result: std::io::Result<()>| result.expect_err("broken").raw_os_error();
        for path in ["broken.txt", "broken", "broken/file"] {
            let met = fs::metadata(mounted.path(path)).map(drop);
            assert_eq!(errno(met), Some(EUCLEAN), "{path}");
        }
        assert_eq!(
            fs::read(mounted.path("whole.txt")).expect("whole"),
            b"whole"
        );
        assert_eq!(
            fs::read(mounted.path("whole/file")).expect("whole"),
            b"whole"
        );
        assert_eq!(fs::read_dir(&mounted.point).expect("listed").count(), 5);
        if options != "ro" {
            let new = File::create(mounted.path("new")).expect("the rest is whole");
            new.write_all_at(b"x", 0).expect("space");
            assert_eq!(new.metadata().expect("there").size(), 1);
            drop(new);
            fs::remove_file(mounted.path("new")).expect("removed");
        }
        mounted.unmount();
    }
    // An image that cannot be mounted leaves nothing behind.
    let file = OpenOptions::new().write(true).open(&image).expect("there");
    file.write_all_at(&[0; 4096], 0).expect("there");
    let point = place.text("mnt-image");
    let (status, message) = failing(&["mount", &image, &point]);
    assert_eq!(status, Some(1), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(!is_mounted(Path::new(&point)));
}

#[test]
fn a_server_goes_on_when_nobody_reads_its_messages() {
    const EUCLEAN: i32 = 117;
    require_mount!("debugfs");
    let place = empty("64M");
    let mounted = place.mount("");
    for name in ["broken", "whole"] {
        fs::write(mounted.path(name), name).expect("space");
    }
    mounted.unmount();
    let image = place.text("image");
    let file = OpenOptions::new().write(true).open(&image).expect("there");
    let size = place_of_inode(&image, "/broken") + 4;
    file.write_all_at(&[0xff; 3], size).expect("there");
    let point = place.path("mnt-image");
    // The command ends when the mount can be used, and with it the reader of what -v prints.
    let started = fourscore(&["-v", "mount", &image, text(&point)]).output();
    assert!(started.expect("it exists").status.success());
    for _ in 0..2 {
        let met = fs::metadata(point.join("broken")).map(drop);
        assert_eq!(met.expect_err("broken").raw_os_error(), Some(EUCLEAN));
    }
    assert_eq!(fs::read(point.join("whole")).expect("served"), b"whole");
    umount(&point);
}
