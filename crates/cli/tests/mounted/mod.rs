//! A mount through the command, as a test needs it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fourscore_testkit::tools::{self, Need};

use super::common::{fourscore, printed, text};
use super::place::Place;

/// So long anything may take on a machine that has other things to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A mount whose server runs in the foreground. What is left of it goes when this does.
pub(crate) struct Mounted {
    pub(crate) server: Child,
    pub(crate) point: PathBuf,
}

/// How requests come in this program of tests: `mount_ring` is `mount` over rings.
pub(crate) fn transport() -> &'static str {
    match env!("CARGO_CRATE_NAME") {
        "mount_ring" if tools::are_met(&[Need::FuseRings]) => "ring",
        _ => "classic",
    }
}

pub(crate) fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("proc");
    let point = text(point);
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(point))
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Mounted {
    pub(crate) fn new(place: &Place, image: &str, options: &str) -> Self {
        let point = place.path(&format!("mnt-{image}"));
        fs::create_dir_all(&point).expect("room");
        let image = place.text(image);
        let options = format!("{options},transport={}", transport());
        let mut command = fourscore(&["mount", "-f", "-o", &options, &image, text(&point)]);
        let server = command.spawn().expect("it starts");
        let mut mounted = Self { server, point };
        wait_until("mounted", || {
            let ended = mounted.server.try_wait().expect("a child");
            assert!(ended.is_none(), "the server ended: {ended:?}");
            is_mounted(&mounted.point)
        });
        mounted
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    pub(crate) fn open(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(self.path(name)).expect("opened")
    }

    /// Unmounts, and waits until the server has brought everything to its place.
    pub(crate) fn unmount(mut self) {
        let status = Command::new("umount").arg(&self.point).status();
        assert!(status.expect("it is there").success());
        assert!(self.end().success());
    }

    /// Waits for the end of the server.
    pub(crate) fn end(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        wait_until("the server ends", || {
            status = self.server.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("it ended")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.server.id()).expect("a number");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it runs");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.point) {
            let mut command = Command::new("umount");
            let _ = command
                .arg("-l")
                .arg(&self.point)
                .stderr(Stdio::null())
                .status();
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A place with an empty file system.
pub(crate) fn empty(size: &str) -> Place {
    with_image(Place::new(), size)
}

pub(crate) fn with_image(place: Place, size: &str) -> Place {
    let image = place.text("image");
    printed(&mut fourscore(&["mkfs", "-q", "-b", "4096", &image, size]));
    place
}
