//! What the options of a mount bring about, and when it is told that there is no room.

mod common;
mod mounted;
mod place;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use common::{complained, fourscore, printed, text};
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use mounted::{Mounted, empty, is_mounted, wait_until};
use place::Place;
use rustix::io::Errno;
use rustix::process::Signal;

#[test]
fn every_option_is_accepted() {
    require!(Need::Root, Need::Fuse, Need::Program("e2fsck"));
    let place = empty("32M");
    // As ext4(5), mount(8) and fuse2fs(1) have them.
    for options in [
        "rw,suid,dev,exec,async,defaults",
        "ro,nosuid,nodev,noexec",
        "noatime,nodiratime,lazytime",
        "relatime,diratime,nolazytime",
        "strictatime,sync",
        "dirsync,commit=7",
        "data=ordered,errors=continue",
        "data=journal,errors=remount-ro",
        "data=writeback,errors=panic",
        "delalloc,nobarrier",
        "nodelalloc,barrier=1",
        "no_mbcache,mb_optimize_scan=0",
        "mb_stream_req=32,mb_max_to_scan=100",
        "offset=0,allow_other,default_permissions",
        "fakeroot,nonempty,fsname=named",
        "nowriteback,grpid",
        "norecovery,acl,user_xattr",
        "discard,bsdgroups",
    ] {
        let mounted = Mounted::new(&place, "image", options);
        assert!(mounted.path("lost+found").is_dir(), "{options}");
        mounted.unmount();
        place.check("image").expect("clean");
    }
    let (image, point) = (place.text("image"), place.text("mnt-image"));
    for refused in [
        "nodelalloc=1",
        "journal_checksum=x",
        "mb_no_such=1",
        "data=",
    ] {
        let (status, complaint) = complained(&["mount", "-o", refused, &image, &point]);
        assert_eq!(status, Some(1), "{refused}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(!is_mounted(Path::new(&point)));
    }
}

/// Reads a file and a directory whose times of access are older and newer than those of writing,
/// and says which change. The page cache is emptied first: FUSE does not tell who reads there.
const ACCESSES: &str = r#"
old='2001-01-01 UTC'
for path in file directory; do
    for written in '2000-01-01 UTC' '2002-01-01 UTC'; do
        touch -d "$old" -a "$path"
        touch -d "$written" -m "$path"
        for again in 1 2; do
            before=$(stat -c %X "$path")
            test ! -f "$path" || xfs_io -c fsync -c 'fadvise -d 0 0' "$path"
            case $path in
            file) cat file ;;
            directory) ls directory ;;
            esac > /dev/null
            test "$before" = "$(stat -c %X "$path")" && echo "$path kept" || echo "$path noted"
        done
    done
done
"#;

fn accesses(root: &Path) -> String {
    let mut command = tools::command("sh").expect("it is there");
    command.args(["-ec", ACCESSES]).current_dir(root);
    tools::stdout_of(&mut command).expect("it runs")
}

#[test]
fn times_of_access_are_noted_as_the_kernel_does() {
    require!(Need::KernelMount, Need::Fuse, Need::Program("xfs_io"));
    let place = empty("32M");
    let kernel = KernelMount::new(&place.path("image"), Access::ReadWrite, "").expect("sound");
    fs::write(kernel.path().join("file"), "content").expect("room");
    fs::create_dir(kernel.path().join("directory")).expect("room");
    kernel.unmount().expect("idle");
    let mut all = Vec::new();
    for options in [
        "relatime",
        "noatime",
        "strictatime",
        "nodiratime,strictatime",
    ] {
        let image = place.path("image");
        let kernel = KernelMount::new(&image, Access::ReadWrite, options).expect("sound");
        let theirs = accesses(kernel.path());
        kernel.unmount().expect("idle");
        let mounted = Mounted::new(&place, "image", options);
        assert_eq!(accesses(&mounted.point), theirs, "{options}");
        mounted.unmount();
        all.push(theirs);
    }
    all.dedup();
    assert_eq!(all.len(), 4, "each has its effect: {all:?}");
}

/// How often bytes that nothing else has are in the image.
fn copies(place: &Place, marker: &[u8]) -> usize {
    let image = fs::read(place.path("image")).expect("there");
    let blocks = image.chunks(4096);
    blocks.filter(|block| block.starts_with(marker)).count()
}

#[test]
fn contents_go_through_the_journal_if_they_are_to() {
    require!(Need::Root, Need::Fuse, Need::Program("e2fsck"));
    for (options, expected) in [
        ("data=ordered", 1),
        ("data=writeback", 1),
        ("data=journal", 2),
    ] {
        let place = empty("32M");
        let mounted = Mounted::new(&place, "image", options);
        let marker = format!("content that is nowhere else, {options}");
        let file = mounted.open("file");
        file.write_all_at(marker.as_bytes(), 0).expect("room");
        file.sync_all().expect("durable");
        drop(file);
        mounted.unmount();
        assert_eq!(copies(&place, marker.as_bytes()), expected, "{options}");
        place.check("image").expect("clean");
    }
}

#[test]
fn a_commit_comes_by_itself() {
    require!(Need::Root, Need::Fuse, Need::Program("e2fsck"));
    let place = empty("32M");
    let mut mounted = Mounted::new(&place, "image", "commit=1");
    let name = "a-name-that-nothing-else-has";
    fs::create_dir(mounted.path(name)).expect("room");
    // The journal has the block of the directory with the name.
    wait_until("it is committed", || {
        let image = fs::read(place.path("image")).expect("there");
        let mut places = image.windows(name.len());
        places.any(|bytes| bytes == name.as_bytes())
    });
    // The commit block may be on its way; the next commit is behind it.
    fs::create_dir(mounted.path("another-name-of-its-own")).expect("room");
    wait_until("that is committed too", || {
        let image = fs::read(place.path("image")).expect("there");
        let mut places = image.windows(23);
        places.any(|bytes| bytes == b"another-name-of-its-own")
    });
    mounted.signal(Signal::KILL);
    assert!(!mounted.end().success());
    drop(mounted);
    let again = Mounted::new(&place, "image", "");
    assert!(again.path(name).is_dir());
    again.unmount();
    place.check("image").expect("clean");
}

/// Projects of files, by the commands that know them.
const PROJECTS: &str = r#"
exec 2>&1
mkdir project
chattr +P -p 7 project
touch project/file lonely
mkdir project/directory
lsattr -p -d project project/file project/directory lonely
ln lonely project/linked || echo "not linked"
mv project/file project/moved && echo moved
xfs_io -c 'chproj 9' -c 'chattr +A' lonely
lsattr -p -d lonely
"#;
const OF_PROJECTS: [&str; 8] = [
    "    7 --------------e----P-- project",
    "    7 --------------e------- project/file",
    "    7 --------------e----P-- project/directory",
    "    0 --------------e------- lonely",
    "ln: failed to create hard link 'project/linked' => 'lonely': Invalid cross-device link",
    "not linked",
    "moved",
    "    9 -------A------e------- lonely",
];

#[test]
fn projects_are_kept_to() {
    require!(
        Need::Root,
        Need::Fuse,
        Need::Program("xfs_io"),
        Need::Program("e2fsck")
    );
    let place = Place::new();
    let image = place.text("image");
    let features = ["-O", "project", "-I", "256"];
    let line = [&["mkfs", "-q"], &features[..], &[&image, "64M"]].concat();
    printed(&mut fourscore(&line));
    let mounted = Mounted::new(&place, "image", "");
    let mut command = tools::command("sh").expect("it is there");
    command.args(["-ec", PROJECTS]).current_dir(&mounted.point);
    let told = tools::stdout_of(&mut command).expect("it runs");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines, OF_PROJECTS);
    mounted.unmount();
    place.check("image").expect("clean");
}

#[test]
fn programs_and_devices_are_what_the_mount_lets_them_be() {
    require!(Need::Root, Need::Fuse, Need::Program("setpriv"));
    let place = empty("64M");
    // The caller of the program is told whose it is.
    let told = |mounted: &Mounted| {
        let mut command = tools::command("setpriv").expect("it is there");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let output = command.arg(mounted.path("id")).arg("-u").output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    place::run("chmod", &["755", "."], place.0.path()).expect("ours");
    let mounted = Mounted::new(&place, "image", "");
    let id = tools::find("id").expect("a program");
    fs::copy(id, mounted.path("id")).expect("room");
    place::run("chmod", &["4755", "id"], &mounted.point).expect("ours");
    place::run("mknod", &["null", "c", "1", "3"], &mounted.point).expect("root may");
    mounted.unmount();
    for (options, user, device) in [
        ("allow_other", "65534", false),
        ("allow_other,suid,dev", "0", true),
        ("allow_other,noexec", "", false),
        ("dev", "", true),
    ] {
        let mounted = Mounted::new(&place, "image", options);
        assert_eq!(told(&mounted).expect("it is there"), user, "{options}");
        let opened = File::options().write(true).open(mounted.path("null"));
        assert_eq!(opened.is_ok(), device, "{options}");
        drop(opened);
        mounted.unmount();
    }
}

#[test]
fn tunables_of_the_allocator_are_set() {
    require!(Need::Root, Need::Fuse);
    let place = empty("32M");
    let mounted = Mounted::new(&place, "image", "mb_optimize_scan=0,mb_stream_req=48");
    // It tells when it serves.
    assert!(mounted.path("lost+found").is_dir());
    let told = printed(&mut fourscore(&["tune", text(&mounted.point)]));
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.contains(&"mb_optimize_scan=0"), "{told}");
    assert!(lines.contains(&"mb_stream_req=48"), "{told}");
    mounted.unmount();
}

/// Takes all room but `left_bytes` of it.
fn fill(mounted: &Mounted, left_bytes: u64) {
    let free = rustix::fs::statvfs(&mounted.point).expect("told");
    let take = free.f_bavail * free.f_frsize - left_bytes;
    let ballast = mounted.open("ballast");
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&ballast, flags, 0, take).expect("room");
    ballast.sync_all().expect("durable");
}

fn is_no_room<T>(result: io::Result<T>) -> bool {
    let errno = Errno::NOSPC.raw_os_error();
    result.is_err_and(|why| why.raw_os_error() == Some(errno))
}

#[test]
fn no_room_is_told_when_it_is_promised_to_be() {
    const ROOM_BYTES: u64 = 1 << 20;
    require!(
        Need::Root,
        Need::Fuse,
        Need::Program("xfs_io"),
        Need::Program("e2fsck")
    );
    let content = vec![5; 4 << 20];
    for options in ["", "nowriteback", "nodelalloc", "sync"] {
        let place = empty("32M");
        let mounted = Mounted::new(&place, "image", options);
        fs::write(mounted.path("there"), "before").expect("room");
        fill(&mounted, ROOM_BYTES);
        let mut file = mounted.open("large");
        let written = file.write_all(&content);
        if options.is_empty() {
            // The page cache has room.
            written.expect("the kernel keeps it");
            assert!(is_no_room(file.sync_all()));
        } else {
            assert!(is_no_room(written), "{options}");
        }
        drop(file);
        fs::remove_file(mounted.path("large")).expect("removed");
        // close(2) tells it as well; libraries do not say what that returns.
        let closed = Command::new("sh")
            .args(["-c", "head -c 4194304 /dev/zero | dd of=closed bs=64K 2>&1"])
            .current_dir(&mounted.point)
            .output();
        let closed = String::from_utf8_lossy(&closed.expect("it runs").stdout).into_owned();
        assert!(closed.contains("No space left"), "{options}: {closed}");
        fs::remove_file(mounted.path("closed")).expect("removed");
        // A hole that is mapped gets its blocks when it is written back.
        let mut mapped = tools::command("xfs_io").expect("it is there");
        mapped.args(["-f", "-c", "truncate 4m", "-c", "mmap -rw 0 4m"]);
        mapped.args(["-c", "mwrite 0 4m", "-c", "msync -s"]);
        let output = tools::output_of(mapped.arg(mounted.path("mapped"))).expect("it runs");
        let said = tools::describe(&mapped, &output);
        assert!(said.contains("msync: No space left"), "{options}: {said}");
        fs::remove_file(mounted.path("mapped")).expect("removed");
        // There is room again, and what was there is whole.
        fs::write(mounted.path("small"), &content[..100_000]).expect("room");
        let small = File::open(mounted.path("small")).expect("there");
        small.sync_all().expect("room");
        drop(small);
        assert_eq!(fs::read(mounted.path("there")).expect("there"), b"before");
        mounted.unmount();
        place.check("image").expect("clean");
    }
}

#[test]
fn fsync_of_the_root_commits_everything() {
    require!(Need::Root, Need::Fuse, Need::Program("e2fsck"));
    let place = empty("64M");
    let mut mounted = Mounted::new(&place, "image", "commit=100000");
    fs::create_dir_all(mounted.path("a/b")).expect("room");
    for number in 0..100 {
        let path = mounted.path(&format!("a/b/{number}"));
        fs::write(&path, number.to_string()).expect("room");
        fs::rename(&path, mounted.path(&format!("a/{number}"))).expect("renamed");
    }
    let link = mounted.path("a/link");
    std::os::unix::fs::symlink("target", link).expect("room");
    let root = File::open(&mounted.point).expect("there");
    root.sync_all().expect("durable");
    // What comes behind it is not promised.
    fs::write(mounted.path("a/later"), "later").expect("room");
    mounted.signal(Signal::KILL);
    drop(root);
    assert!(!mounted.end().success());
    drop(mounted);
    let again = Mounted::new(&place, "image", "");
    for number in 0..100 {
        let content = fs::read_to_string(again.path(&format!("a/{number}")));
        assert_eq!(content.expect("durable"), number.to_string());
    }
    let link = fs::read_link(again.path("a/link")).expect("durable");
    assert_eq!(link, Path::new("target"));
    assert_eq!(fs::metadata(again.path("a/b")).expect("durable").nlink(), 2);
    again.unmount();
    place.check("image").expect("clean");
}
