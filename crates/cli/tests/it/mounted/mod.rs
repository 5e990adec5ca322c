//! A mount by the command, for tests.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fourscore_testkit::tools;

use crate::common::{fourscore, printed, text};
use crate::place::Place;

/// Skips the test without these programs and e2fsck, or where this user cannot mount with FUSE.
macro_rules! require_mount {
    ($($program:literal),*) => {
        fourscore_testkit::require!(
            fourscore_testkit::tools::Need::Root,
            fourscore_testkit::tools::Need::Fuse,
            $(fourscore_testkit::tools::Need::Program($program),)*
            fourscore_testkit::tools::Need::Program("e2fsck")
        )
    };
}

pub(crate) use require_mount;

/// Time limit for everything, on a machine with other load.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// A mount whose server runs in the foreground. Dropping it unmounts and kills the server.
pub(crate) struct Mounted {
    pub(crate) server: Child,
    pub(crate) point: PathBuf,
}

pub(crate) fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("proc");
    let point = text(point);
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(point))
}

/// Unmounts. A child that another thread has forked has all files of this process open until it
/// calls execve, and keeps the mount busy until then.
pub(crate) fn umount(point: &Path) {
    wait_until("unmounted", || {
        let status = Command::new("umount").arg(point).status();
        status.expect("it exists").success()
    });
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Place {
    /// Mounts the image with mount options.
    #[track_caller]
    pub(crate) fn mount(&self, options: &str) -> Mounted {
        Mounted::new(self, "image", options)
    }

    /// The same, with a transport of requests by name.
    #[track_caller]
    pub(crate) fn mount_over(&self, transport: &str, options: &str) -> Mounted {
        Mounted::over(transport, self, "image", options)
    }
}

impl Mounted {
    pub(crate) fn new(place: &Place, image: &str, options: &str) -> Self {
        Self::over("classic", place, image, options)
    }

    fn over(transport: &str, place: &Place, image: &str, options: &str) -> Self {
        let point = place.path(&format!("mnt-{image}"));
        fs::create_dir_all(&point).expect("space");
        let image = place.text(image);
        let options = format!("{options},transport={transport}");
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

    /// Unmounts, and waits until the server has written everything and ended.
    pub(crate) fn unmount(mut self) {
        umount(&self.point);
        assert!(self.end().success());
    }

    /// Unmounts, and checks the image of `place` with e2fsck.
    #[track_caller]
    pub(crate) fn unmount_clean(self, place: &Place) {
        self.unmount();
        place.check("image").expect("clean");
    }

    /// Kills the server, and waits for its end.
    pub(crate) fn kill(mut self) {
        self.signal(rustix::process::Signal::KILL);
        assert!(!self.end().success());
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

/// Lets users open `/dev/fuse` whatever its mode on this machine, in a separate mount namespace.
const AS_A_USER: &str = r#"
set -e
user="setpriv --reuid=65534 --regid=65534 --clear-groups"
mount -t tmpfs -o dev none "$DEVICES"
mknod -m 666 "$DEVICES/fuse" c 10 229
mount --bind "$DEVICES/fuse" /dev/fuse
"#;

/// Runs a shell script. `$user` before a command runs it as a user without root, and `$FOURSCORE`
/// is the command. The image of `place`, `$IMAGE`, and the directory `$POINT` belong to the user.
///
/// # Errors
/// The output of the script, if a command in it failed.
pub(crate) fn as_a_user(place: &Place, script: &str) -> Result<(), String> {
    let (image, point, devices) = (
        place.path("image"),
        place.path("mnt"),
        place.path("devices"),
    );
    for path in [&point, &devices] {
        fs::create_dir(path).expect("space");
    }
    for path in [&image, &point] {
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).expect("root may");
    }
    // Copies the command to a folder that the user can read.
    let _ = place.as_unprivileged_user(&["--version"]);
    let mut command = tools::command("unshare").expect("it exists");
    command.args(["--mount", "sh", "-c", &[AS_A_USER, script].concat()]);
    command.env("IMAGE", &image).env("POINT", &point);
    command.env("DEVICES", &devices);
    command.env("FOURSCORE", place.path("output/fourscore"));
    let output = command.output().expect("it exists");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into()),
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
