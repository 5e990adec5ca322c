//! The rules of POSIX for system calls, as pjdfstest checks them: on a mount and on the kernel's
//! ext4.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::mounted::empty;
use crate::place::Place;

/// The result of each test, by its name.
type Verdicts = BTreeMap<String, String>;

/// Tests that a FUSE mount cannot pass; docs/COMPAT.md has the reasons.
const NOT_ASKED: [&str; 1] = ["link::link_count_max"];

/// All features of Linux; file flags and NFSv4 ACLs of other systems are left out.
fn configuration(remounts: bool) -> String {
    // Users that exist on every system and have no files.
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

/// Runs every test in `folder`. Tests that remount it read-only run in a separate process, since
/// others leave files open for writing.
fn verdicts(place: &Place, folder: &Path) -> Verdicts {
    let mut verdicts = verdicts_of(place, folder, None);
    let of_remounts = verdicts_of(place, folder, Some("::erofs_"));
    assert!(of_remounts.len() > 10, "{}", of_remounts.len());
    verdicts.extend(of_remounts);
    verdicts
}

/// Runs the tests that match the pattern, which remount the file system; without a pattern, all
/// others. The output goes to standard error, which is shown if this test fails.
fn verdicts_of(place: &Place, folder: &Path, pattern_of_remounts: Option<&str>) -> Verdicts {
    let configured = place.path("pjdfstest.toml");
    fs::write(&configured, configuration(pattern_of_remounts.is_some())).expect("space");
    let mut command = tools::command("pjdfstest").expect("it exists");
    command.arg("-c").arg(configured).arg("-p").arg(folder);
    command.arg("-s").arg(place.path("other"));
    command.args(pattern_of_remounts);
    let output = tools::output_of(&mut command).expect("it starts");
    let message = tools::describe(&command, &output);
    eprintln!("{message}");
    let verdict = |line: &str| {
        let (name, verdict) = line.split_once(' ')?;
        let verdict = verdict.trim();
        let is_one = ["ok", "skipped", "FAILED"].contains(&verdict);
        is_one.then(|| (name.to_owned(), verdict.to_owned()))
    };
    let verdicts: Verdicts = message.lines().filter_map(verdict).collect();
    let total = format!(" {} total", verdicts.len());
    assert!(message.contains(&total), "a verdict for each test");
    verdicts
}

fn without_success(verdicts: &Verdicts) -> Vec<&str> {
    let others = verdicts.iter().filter(|(_, verdict)| *verdict != "ok");
    others.map(|(name, _)| name.as_str()).collect()
}

#[test]
fn system_calls_follow_posix() {
    require!(
        Need::KernelMount,
        Need::Fuse,
        Need::Program("pjdfstest"),
        Need::Program("e2fsck")
    );
    let place = empty("256M");
    // Other users need to search it.
    let passable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.0.path(), passable).expect("permission");
    fs::create_dir(place.path("other")).expect("space");
    fs::copy(place.path("image"), place.path("theirs")).expect("space");

    let kernel = KernelMount::new(&place.path("theirs"), Access::ReadWrite, "").expect("sound");
    let theirs = verdicts(&place, kernel.path());
    kernel.unmount().expect("idle");
    let mounted = place.mount("allow_other,suid,dev");
    let ours = verdicts(&place, &mounted.point);
    mounted.unmount_clean(&place);

    assert!(theirs.len() > 390, "{}", theirs.len());
    assert!(ours.keys().eq(theirs.keys()));
    assert_eq!(without_success(&theirs), [""; 0]);
    assert_eq!(without_success(&ours), NOT_ASKED);
    assert_eq!(ours[NOT_ASKED[0]], "skipped");
}
