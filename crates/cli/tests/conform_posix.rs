//! What POSIX says of calls, as pjdfstest asks for it: on a mount as on the kernel's ext4.

mod common;
mod mounted;
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use mounted::{Mounted, empty};
use place::Place;

/// What became of each test, by its name.
type Verdicts = BTreeMap<String, String>;

/// What cannot be asked of a mount through FUSE; docs/COMPAT.md says why.
const NOT_ASKED: [&str; 1] = ["link::link_count_max"];

/// All that Linux has: what is left out are flags and lists of other systems.
fn configuration(remounts: bool) -> String {
    // Users that are everywhere; they have no files.
    let user = |name: &str| {
        let group = tools::run("id", &["-gn".as_ref(), name.as_ref()]).expect("a user");
        format!("[{name:?}, {:?}]", group.trim())
    };
    format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\n\
         utimensat = {{}}\n[settings]\nnaptime = 0.02\nallow_remount = {remounts}\n\
         [dummy_auth]\nentries = [{}, {}]\n",
        user("nobody"),
        user("daemon")
    )
}

/// Runs every test in `folder`. Those that mount it read-only for a moment have a process to
/// themselves: others leave files open for writing.
fn verdicts(place: &Place, folder: &Path) -> Verdicts {
    let mut verdicts = verdicts_of(place, folder, (false, None));
    let of_remounts = verdicts_of(place, folder, (true, Some("::erofs_")));
    assert!(of_remounts.len() > 10, "{}", of_remounts.len());
    verdicts.extend(of_remounts);
    verdicts
}

/// What it says goes to standard error, where it is seen if this fails.
fn verdicts_of(
    place: &Place,
    folder: &Path,
    (remounts, pattern): (bool, Option<&str>),
) -> Verdicts {
    let configured = place.path("pjdfstest.toml");
    fs::write(&configured, configuration(remounts)).expect("room");
    let mut command = tools::command("pjdfstest").expect("it is there");
    command.arg("-c").arg(configured).arg("-p").arg(folder);
    command.arg("-s").arg(place.path("other"));
    command.args(pattern);
    let output = tools::output_of(&mut command).expect("it starts");
    let said = tools::describe(&command, &output);
    eprintln!("{said}");
    let verdict = |line: &str| {
        let (name, verdict) = line.split_once(' ')?;
        let verdict = verdict.trim();
        let is_one = ["ok", "skipped", "FAILED"].contains(&verdict);
        is_one.then(|| (name.to_owned(), verdict.to_owned()))
    };
    let verdicts: Verdicts = said.lines().filter_map(verdict).collect();
    let total = format!(" {} total", verdicts.len());
    assert!(said.contains(&total), "a verdict for each test");
    verdicts
}

fn without_success(verdicts: &Verdicts) -> Vec<&str> {
    let others = verdicts.iter().filter(|(_, verdict)| *verdict != "ok");
    others.map(|(name, _)| name.as_str()).collect()
}

#[test]
fn calls_do_what_posix_says() {
    require!(
        Need::KernelMount,
        Need::Fuse,
        Need::Program("pjdfstest"),
        Need::Program("e2fsck")
    );
    let place = empty("256M");
    // Other users come through it.
    let passable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.0.path(), passable).expect("ours");
    fs::create_dir(place.path("other")).expect("room");
    fs::copy(place.path("image"), place.path("theirs")).expect("room");

    let kernel = KernelMount::new(&place.path("theirs"), Access::ReadWrite, "").expect("sound");
    let theirs = verdicts(&place, kernel.path());
    kernel.unmount().expect("idle");
    let mounted = Mounted::new(&place, "image", "allow_other,suid,dev");
    let ours = verdicts(&place, &mounted.point);
    mounted.unmount();
    place.check("image").expect("clean");

    assert!(theirs.len() > 390, "{}", theirs.len());
    assert!(ours.keys().eq(theirs.keys()));
    assert_eq!(without_success(&theirs), [""; 0]);
    assert_eq!(without_success(&ours), NOT_ASKED);
    assert_eq!(ours[NOT_ASKED[0]], "skipped");
}
