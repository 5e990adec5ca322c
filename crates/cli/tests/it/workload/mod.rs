//! Programs that verify their own data, and their runs on a mount: to the end, and until the server
//! is killed.
//!
//! `FOURSCORE_KILLS=20` sets the number of kills for each.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::tools::{self, Need};
use rustix::process::Signal;

use crate::common::without_lost_and_found;
use crate::mounted::{Mounted, empty, wait_until};
use crate::place::{Place, walk_of_host};

/// Some programs run as other users.
pub(crate) const FOR_ALL: &str = "allow_other";

/// The scripts of a program in the folder `$DIR`; `$OUTSIDE` is a folder outside of the mount.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    /// The programs that must be installed.
    pub(crate) program: &'static str,
    /// The common beginning of both scripts.
    pub(crate) prologue: &'static str,
    /// Creates files and verifies them.
    pub(crate) run: &'static str,
    /// Verifies the files of a run.
    pub(crate) verify: &'static str,
}

/// The length of a run of a program that does not end by itself.
#[derive(Clone, Copy)]
pub(crate) enum Length {
    /// Short, for faults that show at once.
    Short,
    /// The length of a record.
    Recorded,
}

impl Length {
    fn operations(self) -> &'static str {
        match self {
            Self::Short => "5000",
            Self::Recorded => "1000000",
        }
    }

    fn seconds(self) -> &'static str {
        match self {
            Self::Short => "3",
            Self::Recorded => "60",
        }
    }
}

/// A shell that runs a script in a folder.
pub(crate) fn shell(place: &Place, script: &str, folder: &Path, length: Length) -> Command {
    let mut command = tools::command("sh").expect("it exists");
    command.args(["-ec", script]);
    command.current_dir(place.0.path());
    command.env("DIR", folder).env("OUTSIDE", place.0.path());
    command.env("OPERATIONS", length.operations());
    command.env("DURATION", length.seconds());
    // Without the configuration of the user.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.stdout(Stdio::null());
    command
}

impl Workload {
    fn shell(&self, place: &Place, script: &str, folder: &Path, length: Length) -> Command {
        shell(place, &[self.prologue, script].concat(), folder, length)
    }

    /// Runs it in a folder.
    pub(crate) fn run(&self, place: &Place, folder: &Path, length: Length) -> Command {
        self.shell(place, self.run, folder, length)
    }

    /// Verifies the files in a folder.
    pub(crate) fn verify(&self, place: &Place, folder: &Path) -> Command {
        self.shell(place, self.verify, folder, Length::Short)
    }
}

#[track_caller]
pub(crate) fn succeeds(command: &mut Command) {
    let output = command.stderr(Stdio::piped()).output().expect("it starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {message}");
}

/// Compares the walk of the mount with that of the kernel's ext4.
fn is_the_kernels(place: &Place, walk: &str) {
    place.check("image").expect("clean");
    let kernel = KernelMount::new(&place.path("image"), Access::ReadOnly, "").expect("sound");
    let theirs = walk_of_host(kernel.path());
    assert_eq!(without_times(&theirs), without_times(walk));
}

/// The lines of a walk without mtimes, which the kernel may write back after the walk.
fn without_times(walk: &str) -> Vec<String> {
    const TIME: usize = 7;
    let fields = |line: &str| {
        let fields = line.split(' ').enumerate();
        let kept = fields.filter(|(number, _)| *number != TIME);
        let kept: Vec<&str> = kept.map(|(_, field)| field).collect();
        kept.join(" ")
    };
    let lines = without_lost_and_found(walk);
    lines.into_iter().map(fields).collect()
}

/// Number of kills for each program.
fn kills() -> u32 {
    let kills = std::env::var("FOURSCORE_KILLS").map_or(Ok(1), |kills| kills.parse());
    kills.expect("FOURSCORE_KILLS is a number")
}

/// Runs a program in a folder, and verifies its files. Returns the time of the run.
fn run_in(place: &Place, workload: &Workload, folder: &Path, length: Length) -> Duration {
    fs::create_dir(folder).expect("space");
    let began = Instant::now();
    succeeds(&mut workload.run(place, folder, length));
    let took = began.elapsed();
    succeeds(&mut workload.verify(place, folder));
    took
}

/// Ends a program and all its children. Without the mount they would fail, or wait for each other.
pub(crate) fn end_all(mut program: Child) {
    let group = i32::try_from(program.id()).expect("a number");
    let group = rustix::process::Pid::from_raw(group).expect("a process");
    wait_until("it ends", || {
        // An error means that none is left.
        let _ = rustix::process::kill_process_group(group, Signal::TERM);
        program.try_wait().expect("a child").is_some()
    });
}

/// Runs a program in the folder `second`, and kills the server after a part of the time of a
/// complete run.
fn cut(place: &Place, workload: &Workload, mut mounted: Mounted, whole: Duration) {
    let second = mounted.path("second");
    fs::create_dir(&second).expect("space");
    let mut cut = workload.run(place, &second, Length::Short);
    let cut = cut.stderr(Stdio::null()).process_group(0).spawn();
    let cut = cut.expect("it starts");
    let has_begun = || fs::read_dir(&second).is_ok_and(|mut names| names.next().is_some());
    wait_until("it has begun", has_begun);
    let part = RandomState::new().hash_one(()) % 1000;
    let part = whole * u32::try_from(part).expect("small") / 1000;
    eprintln!("{}: killed after {part:?} of {whole:?}", workload.program);
    std::thread::sleep(part);
    mounted.signal(Signal::KILL);
    assert!(!mounted.end().success());
    end_all(cut);
    drop(mounted);
    // fio creates the missing folder in the mount point.
    if second.exists() {
        fs::remove_dir_all(&second).expect("removed");
    }
}

fn conforms(place: &Place, workload: &Workload) {
    let mut mounted = place.mount(FOR_ALL);
    let (first, second) = (mounted.path("first"), mounted.path("second"));
    let whole = run_in(place, workload, &first, Length::Short);
    // From here on the data survives the death of the server.
    let root = File::open(&mounted.point).expect("there");
    root.sync_all().expect("durable");
    drop(root);
    for _ in 0..kills() {
        cut(place, workload, mounted, whole);
        mounted = place.mount(FOR_ALL);
        succeeds(&mut workload.verify(place, &first));
        // Removes the files of the killed run, if any of them was durable.
        if second.exists() {
            // stress-ng creates immutable files, and had no time to clear the flag.
            let mut chattr = tools::command("chattr").expect("it comes with e2fsck");
            let chattr = chattr.args(["-R", "-f", "-ia"]).arg(&second).output();
            chattr.expect("it runs");
            fs::remove_dir_all(&second).expect("removed");
        }
    }
    run_in(place, workload, &mounted.path("third"), Length::Short);
    ends_as_the_kernels(place, mounted);
}

/// Unmounts, and compares the mount with that of the kernel.
pub(crate) fn ends_as_the_kernels(place: &Place, mounted: Mounted) {
    let walk = walk_of_host(&mounted.point);
    mounted.unmount();
    is_the_kernels(place, &walk);
}

/// Whether its programs are installed.
pub(crate) fn are_there(workload: &Workload) -> bool {
    tools::are_met(&[
        Need::KernelMount,
        Need::Fuse,
        Need::Program(workload.program),
        Need::Program("e2fsck"),
    ])
}

/// A place that other users can search, with an empty file system.
pub(crate) fn for_all(size: &str) -> Place {
    let place = empty(size);
    let passable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.0.path(), passable).expect("permission");
    place
}

/// Returns the place of the run, or `None` if a program is not installed.
pub(crate) fn runs(workload: &Workload, prepare: impl FnOnce(&Place)) -> Option<Place> {
    if !are_there(workload) {
        return None;
    }
    let place = for_all("512M");
    prepare(&place);
    conforms(&place, workload);
    Some(place)
}

/// Runs it once with the length of a record.
pub(crate) fn lasts(workload: &Workload, prepare: impl FnOnce(&Place)) -> Option<Place> {
    if !are_there(workload) {
        return None;
    }
    let place = for_all("2G");
    prepare(&place);
    let mounted = place.mount(FOR_ALL);
    let took = run_in(&place, workload, &mounted.path("run"), Length::Recorded);
    eprintln!("{}: {took:?}", workload.program);
    ends_as_the_kernels(&place, mounted);
    Some(place)
}
