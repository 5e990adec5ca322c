//! `fourscore mount`: the kernel's ext4 and e2fsck find all changes through the mount in the image.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use fourscore_block::{
    Access as DeviceAccess, Batch, BlockDevice, Caching, DeviceOptions, IoBuf, Sharing,
    UringDevice, open_path,
};
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::thread;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use rustix::fs::{FallocateFlags, XattrFlags};

use crate::common::{failing, fourscore, printed, text};
use crate::mounted::{
    Mounted, as_a_user, empty, is_mounted, require_mount, umount, wait_until, with_image,
};
use crate::place::{Place, walk_of_host};

/// The transport of requests in these tests: `mount_ring` has all of them again, over rings.
fn transport() -> &'static str {
    match module_path!().contains("mount_ring") && tools::are_met(&[Need::FuseRings]) {
        true => "ring",
        false => "classic",
    }
}

/// Mounts the image with mount options.
#[track_caller]
fn mount(place: &Place, options: &str) -> Mounted {
    place.mount_over(transport(), options)
}

#[test]
fn copied_objects_are_read_by_the_kernel() {
    require!(
        Need::KernelMount,
        Need::Fuse,
        Need::Program("setfacl"),
        Need::Program("e2fsck")
    );
    let place = with_image(Place::odd(), "128M");
    let mounted = mount(&place, "dev,suid");
    let copied = Command::new("cp")
        .arg("-a")
        .arg(format!("{}/.", place.text("tree")))
        .arg(&mounted.point)
        .status();
    assert!(copied.expect("it exists").success());
    // Through the mount, with the kernel's caches filled and after they were dropped.
    let without = |walk: &str| -> Vec<String> {
        let lines = walk
            .lines()
            .filter(|line| !line.starts_with("/lost+found "));
        lines.map(str::to_owned).collect()
    };
    let source = without(&walk_of_host(&place.tree()));
    assert_eq!(without(&walk_of_host(&mounted.point)), source);
    mounted.unmount_clean(&place);
    assert_eq!(without(&place.walk("image")), source);
    let kernel = KernelMount::new(&place.path("image"), Access::ReadOnly, "").expect("sound");
    assert_eq!(without(&walk_of_host(kernel.path())), source);
    drop(kernel);
    let mounted = mount(&place, "ro");
    assert_eq!(without(&walk_of_host(&mounted.point)), source);
    let refused = File::create(mounted.path("new")).expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    mounted.unmount();
}

#[test]
fn files_behave_as_files() {
    require_mount!();
    let place = empty("64M");
    for options in ["", "nowriteback"] {
        let mounted = mount(&place, options);
        let file = mounted.open("file");
        file.write_all_at(&[1; 10_000], 0).expect("space");
        // Truncated data does not come back, neither from the page cache nor from the image.
        file.set_len(5).expect("shorter");
        file.set_len(9_000).expect("longer");
        let mut content = Vec::new();
        (&file).read_to_end(&mut content).expect("there");
        assert_eq!(content, [&[1; 5][..], &[0; 8_995]].concat());
        file.sync_all().expect("durable");
        // A file without a name, holes, and writes at the end.
        fs::remove_file(mounted.path("file")).expect("removed");
        file.write_all_at(b"still", 20_000).expect("space");
        assert_eq!(file.metadata().expect("open").nlink(), 0);
        let mut end = OpenOptions::new()
            .append(true)
            .create(true)
            .open(mounted.path("log"))
            .expect("made");
        for _ in 0..100 {
            end.write_all(b"a line\n").expect("space");
        }
        assert_eq!(
            fs::read(mounted.path("log")).expect("there"),
            b"a line\n".repeat(100)
        );
        let holes = mounted.open("holes");
        holes.write_all_at(b"data", 1 << 20).expect("space");
        let found = (&holes)
            .seek(SeekFrom::Start(0))
            .and_then(|_| Ok(rustix::fs::seek(&holes, rustix::fs::SeekFrom::Data(0))?));
        // Dirty data in the page cache must not be taken for a hole.
        assert!(found.expect("there is data") <= 1 << 20);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&holes, flags, 1 << 20, 2).expect("punched");
        let mut left = [0; 4];
        holes.read_exact_at(&mut left, 1 << 20).expect("there");
        assert_eq!(&left, b"\0\0ta");
        fs::remove_file(mounted.path("holes")).expect("removed");
        fs::remove_file(mounted.path("log")).expect("removed");
        drop((file, end, holes));
        mounted.unmount_clean(&place);
    }
}

#[test]
fn times_owners_and_attributes_are_kept() {
    require_mount!();
    let place = empty("64M");
    let mounted = mount(&place, "");
    let path = mounted.path("file");
    let file = mounted.open("file");
    file.write_all_at(b"written before its time is set", 0)
        .expect("space");
    let time = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let times = fs::FileTimes::new().set_modified(time).set_accessed(time);
    file.set_times(times).expect("permission");
    drop(file);
    std::os::unix::fs::chown(&path, Some(1234), Some(70_000)).expect("root may");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("root may");
    rustix::fs::setxattr(&path, "user.note", b"kept", XattrFlags::CREATE).expect("space");
    let made = fs::metadata(&path)
        .expect("there")
        .created()
        .expect("known");
    assert!(made > time, "the time of creation is shown");
    mounted.unmount_clean(&place);
    let again = mount(&place, "noatime");
    let found = fs::metadata(again.path("file")).expect("there");
    assert_eq!(
        (found.uid(), found.gid(), found.mode() & 0o7777),
        (1234, 70_000, 0o640)
    );
    assert_eq!(
        (found.mtime(), found.mtime_nsec()),
        (1_000_000_000, 123_456_789)
    );
    assert_eq!(
        (found.atime(), found.atime_nsec()),
        (1_000_000_000, 123_456_789)
    );
    assert_eq!(found.created().expect("known"), made);
    let mut value = [0; 10];
    let len = rustix::fs::getxattr(again.path("file"), "user.note", &mut value).expect("there");
    assert_eq!(&value[..len], b"kept");
    again.unmount();
}

#[test]
fn many_threads_create_and_remove_names() {
    const THREADS: usize = 4;
    const NAMES: usize = 300;
    require_mount!();
    let place = empty("128M");
    let mounted = mount(&place, "");
    thread::scope(|scope| {
        for number in 0..THREADS {
            let mounted = &mounted;
            scope.spawn(move || {
                let own = mounted.path(&format!("dir-{number}"));
                fs::create_dir(&own).expect("made");
                for name in 0..NAMES {
                    fs::write(own.join(name.to_string()), name.to_string()).expect("space");
                    let shared = mounted.path(&format!("{number}-{name}"));
                    fs::rename(own.join(name.to_string()), &shared).expect("renamed");
                    match name % 3 {
                        0 => fs::remove_file(&shared).expect("removed"),
                        _ => fs::hard_link(&shared, own.join(name.to_string())).expect("linked"),
                    }
                }
            });
        }
    });
    let names = fs::read_dir(&mounted.point).expect("listed").count();
    // A third of the names is removed; lost+found and the directories are there as well.
    assert_eq!(names, THREADS * NAMES * 2 / 3 + THREADS + 1);
    mounted.unmount_clean(&place);
}

#[test]
fn synced_data_survives_the_death_of_the_server() {
    require_mount!();
    let place = empty("64M");
    for round in 0..3 {
        let mut mounted = mount(&place, "commit=100000");
        let file = mounted.open(&format!("synced-{round}"));
        file.write_all_at(&[9; 50_000], 0).expect("space");
        file.sync_all().expect("durable");
        File::open(&mounted.point)
            .and_then(|root| root.sync_all())
            .expect("durable");
        for number in 0..200 {
            fs::write(mounted.path(&format!("more-{round}-{number}")), b"x").expect("space");
        }
        mounted.signal(rustix::process::Signal::KILL);
        drop(file);
        assert!(!mounted.end().success());
        drop(mounted);
        // The next mount replays the journal.
        let again = mount(&place, "");
        for synced in 0..=round {
            let content = fs::read(again.path(&format!("synced-{synced}")));
            assert_eq!(content.expect("it was synced"), [9; 50_000]);
        }
        again.unmount_clean(&place);
    }
}

#[test]
fn a_dead_server_leaves_no_mount_behind() {
    require_mount!();
    let place = empty("64M");
    for options in ["", "ro"].repeat(4) {
        let mut mounted = mount(&place, options);
        let listed = fs::read_dir(&mounted.point).expect("served").count();
        assert_eq!(listed, 1);
        mounted.signal(rustix::process::Signal::KILL);
        assert!(!mounted.end().success());
        wait_until("the mount is removed", || !is_mounted(&mounted.point));
    }
    let again = mount(&place, "");
    again.unmount_clean(&place);
}

#[test]
fn a_signal_writes_everything_and_unmounts() {
    require_mount!();
    let place = empty("64M");
    let mut mounted = mount(&place, "commit=100000");
    fs::write(mounted.path("file"), b"never synced").expect("space");
    mounted.signal(rustix::process::Signal::TERM);
    assert!(mounted.end().success());
    assert!(!is_mounted(&mounted.point));
    place.check("image").expect("clean");
    let inside = printed(&mut fourscore(&["cat", &place.text("image"), "/file"]));
    assert_eq!(inside, "never synced");
    // With an open file the mount point is removed at once, and the file stays usable.
    let mut mounted = mount(&place, "");
    let file = mounted.open("open");
    mounted.signal(rustix::process::Signal::INT);
    wait_until("it is not mounted", || !is_mounted(&mounted.point));
    file.write_all_at(b"written afterwards", 0)
        .expect("still there");
    drop(file);
    assert!(mounted.end().success());
    place.check("image").expect("clean");
    let inside = printed(&mut fourscore(&["cat", &place.text("image"), "/open"]));
    assert_eq!(inside, "written afterwards");
}

#[test]
fn the_command_returns_when_the_mount_can_be_used() {
    require_mount!();
    let place = empty("64M");
    let (image, point) = (place.text("image"), place.path("mnt"));
    fs::create_dir(&point).expect("space");
    for round in 0..3 {
        // Directly after the last unmount, whose server may still be writing.
        printed(&mut fourscore(&["mount", &image, text(&point)]));
        assert!(is_mounted(&point));
        assert_eq!(fs::read_dir(&point).expect("listed").count(), 1 + round);
        fs::write(point.join(format!("file-{round}")), b"x").expect("space");
        umount(&point);
    }
    // e2fsck does not wait for the last server, so this does.
    wait_until("the image is let go", || place.check("image").is_ok());
    let listed = printed(&mut fourscore(&["ls", &image, "/"]));
    assert_eq!(
        listed
            .lines()
            .filter(|line| line.starts_with("file-"))
            .count(),
        3
    );
}

/// Mounts as a user, reads, and unmounts.
const BY_A_USER: &str = r#"
$user "$FOURSCORE" mount "$IMAGE" "$POINT"
grep -q " $POINT fuse.fourscore " /proc/self/mounts
$user ls "$POINT" | grep -q lost+found
# Only who made the mount can see into it.
if ls "$POINT" 2>/dev/null; then exit 1; fi
$user fusermount3 -u "$POINT"
if grep -q " $POINT " /proc/self/mounts; then exit 1; fi
"#;

#[test]
fn without_root_the_helper_mounts() {
    require_mount!("setpriv", "unshare");
    let place = empty("64M");
    assert_eq!(as_a_user(&place, BY_A_USER), Ok(()));
    wait_until("the image is let go", || place.check("image").is_ok());
}

#[test]
fn permissions_are_checked() {
    require_mount!("setpriv", "setfacl");
    let place = empty("64M");
    fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).expect("permission");
    let mounted = mount(&place, "allow_other");
    let (closed, listed) = (mounted.path("closed"), mounted.path("listed"));
    for path in [&closed, &listed] {
        fs::write(path, b"secret").expect("space");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permission");
    }
    let reads = |path: &Path| {
        let mut command = tools::command("setpriv").expect("it exists");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]);
        let output = command.arg(path).output().expect("it exists");
        output.status.success()
    };
    assert!(!reads(&closed) && !reads(&listed));
    let list = Command::new("setfacl")
        .args(["-m", "u:65534:r"])
        .arg(&listed)
        .status();
    assert!(list.expect("it exists").success());
    assert!(!reads(&closed) && reads(&listed));
    mounted.unmount_clean(&place);
}

#[test]
fn the_error_of_a_mount_is_one_line() {
    require!(Need::Root, Need::Fuse);
    let place = empty("64M");
    let (image, point) = (place.text("image"), place.path("mnt"));
    fs::create_dir(&point).expect("space");
    let (point, tree) = (text(&point).to_owned(), place.text("tree"));
    let (missing, file) = (place.text("missing"), place.text("file"));
    fs::write(&file, [0; 1 << 16]).expect("space");
    let refused = |arguments: &[&str], why: &str| {
        let all = [&["mount"], arguments].concat();
        let (status, message) = failing(&all);
        assert_eq!(status, Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(
            message.starts_with("fourscore: ") && message.contains(why),
            "{message}"
        );
        assert!(!is_mounted(Path::new(&point)));
    };
    refused(&[&image, &tree], "not empty");
    refused(&[&image, &missing], "No such file");
    refused(&[&image, &file], "not a directory");
    refused(&["-o", "noatime,no_such", &image, &point], "no_such");
    refused(&["-o", "offset=1x", &image, &point], "offset=1x");
    refused(&[&missing, &point], "No such file");
    refused(&[&file, &point], "file");
    let mounted = mount(&place, "");
    refused(&[&image, &point], "is being written");
    mounted.unmount();
}

#[test]
fn inode_numbers_are_stable_and_direct_reads_agree() {
    require_mount!();
    let place = empty("64M");
    let mounted = mount(&place, "");
    fs::write(mounted.path("file"), b"by number").expect("space");
    let inode = fs::metadata(mounted.path("file")).expect("there").ino();
    mounted.unmount();
    let mounted = mount(&place, "");
    assert_eq!(
        fs::metadata(mounted.path("file")).expect("there").ino(),
        inode
    );
    // O_DIRECT bypasses the page cache and reads the same bytes.
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    let direct = options.open(mounted.path("file")).expect("opened");
    let mut room = vec![0; 8192];
    let start = room.as_ptr().align_offset(4096);
    let len = direct
        .read_at(&mut room[start..start + 4096], 0)
        .expect("there");
    assert_eq!(&room[start..start + len], b"by number");
    drop(direct);
    mounted.unmount();
}

/// Some threads write a file with asynchronous direct I/O while others read it through the page
/// cache. Every read after the completion of a write returns its data, also after a new open.
#[test]
fn buffered_reads_return_what_asynchronous_direct_writes_wrote() {
    const PAGE: usize = 4096;
    const PAGES: usize = 64;
    const ROUNDS: u8 = 250;
    require_mount!();
    let place = empty("64M");
    let mounted = mount(&place, "");
    let path = mounted.path("file");
    let content = |round: u8| vec![round; PAGES * PAGE];
    fs::write(&path, content(0)).expect("space");
    mounted.open("file").sync_all().expect("durable");
    let options = DeviceOptions {
        access: DeviceAccess::ReadWrite,
        sharing: Sharing::Unlocked,
        caching: Caching::Direct,
    };
    let writer = open_path(&path, options).and_then(UringDevice::new);
    let writer = writer.expect("io_uring");
    let is_over = AtomicBool::new(false);
    let stale = thread::scope(|scope| {
        let reader = mounted.open("file");
        let is_over = &is_over;
        scope.spawn(move || {
            let mut page = [0; PAGE];
            while !is_over.load(Ordering::Relaxed) {
                for number in 0..PAGES {
                    let at = (number * PAGE) as u64;
                    reader.read_exact_at(&mut page, at).expect("there");
                }
            }
        });
        let stale = (1..=ROUNDS).filter(|round| {
            let mut batch = Batch::with_capacity(PAGES);
            for number in 0..PAGES {
                let mut page = IoBuf::zeroed(PAGE);
                page.as_mut_slice().expect("not shared").fill(*round);
                batch.write(vec![page], (number * PAGE) as u64);
            }
            writer.submit(batch).wait_all_ok().expect("written");
            fs::read(&path).expect("there") != content(*round)
        });
        let stale = stale.count();
        is_over.store(true, Ordering::Relaxed);
        stale
    });
    assert_eq!(stale, 0, "of {ROUNDS} rounds");
    drop(writer);
    mounted.unmount_clean(&place);
}

/// Opens a file by its handle, which stays valid after a remount, and prints its content. There are
/// no commands for these system calls; their numbers are those of x86-64 and of other
/// architectures.
const BY_HANDLE: &str = r#"
use strict;
use POSIX ();
my ($how, $path, $saved) = @ARGV;
my ($ask, $open) = (POSIX::uname())[4] eq "x86_64" ? (303, 304) : (264, 265);
if ($how eq "ask") {
    my ($handle, $mount) = (pack("L i", 128, 0) . "\0" x 128, pack("i", 0));
    syscall($ask, -100, $path, $handle, $mount, 0) == 0 or die "name_to_handle_at: $!\n";
    open(my $file, ">", $saved) or die "$!\n";
    print $file $handle;
} else {
    open(my $file, "<", $saved) or die "$!\n";
    my $handle = do { local $/; <$file> };
    open(my $mount, "<", $path) or die "$!\n";
    my $number = syscall($open, fileno($mount), $handle, 0);
    $number >= 0 or die "open_by_handle_at: $!\n";
    open(my $found, "<&=", $number) or die "$!\n";
    print while <$found>;
}
"#;

#[test]
fn file_handles_survive_a_remount() {
    require_mount!("perl");
    let place = empty("64M");
    let by_handle = |how: &str, path: &Path, handle: &str| {
        let mut command = tools::command("perl").expect("it exists");
        command.args(["-e", BY_HANDLE, how, text(path), &place.text(handle)]);
        let output = command.output().expect("it runs");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    };
    let mounted = mount(&place, "");
    fs::create_dir(mounted.path("dir")).expect("space");
    for name in ["dir/kept", "removed"] {
        fs::write(mounted.path(name), format!("content of {name}")).expect("space");
    }
    by_handle("ask", &mounted.path("dir/kept"), "kept").expect("it has one");
    by_handle("ask", &mounted.path("removed"), "removed").expect("it has one");
    let read = by_handle("open", &mounted.point, "kept");
    assert_eq!(read.as_deref(), Ok("content of dir/kept"));
    mounted.unmount();
    let mounted = mount(&place, "");
    let read = by_handle("open", &mounted.point, "kept");
    assert_eq!(read.as_deref(), Ok("content of dir/kept"));
    // Another file has the number of the removed inode now, with another generation.
    let inode = fs::metadata(mounted.path("removed")).expect("there").ino();
    fs::remove_file(mounted.path("removed")).expect("removed");
    let refused = by_handle("open", &mounted.point, "removed").expect_err("it is gone");
    assert!(refused.contains("Stale"), "{refused}");
    let mut others = Vec::new();
    while others.last() != Some(&inode) && others.len() < 1000 {
        let path = mounted.path(&format!("other-{}", others.len()));
        fs::write(&path, b"of another user").expect("space");
        others.push(fs::metadata(&path).expect("there").ino());
    }
    assert_eq!(others.last(), Some(&inode), "its number is used again");
    let refused = by_handle("open", &mounted.point, "removed").expect_err("it is another file");
    assert!(refused.contains("Stale"), "{refused}");
    mounted.unmount_clean(&place);
}

/// Number of commands that a process has put into its rings for `/dev/fuse`, and number of rings.
fn passed_to_rings(server: &Child) -> (u64, u64) {
    let folder = format!("/proc/{}/fdinfo", server.id());
    let (mut commands, mut rings) = (0, 0);
    for entry in fs::read_dir(folder).expect("it runs") {
        // A file that is closed meanwhile is no ring of the server.
        let info = entry.and_then(|entry| fs::read_to_string(entry.path()));
        let info = info.unwrap_or_default();
        let tail = info.lines().find_map(|line| line.strip_prefix("SqTail:"));
        if let (Some(tail), true) = (tail, info.contains("fuse")) {
            commands += tail.trim().parse::<u64>().expect("a number");
            rings += 1;
        }
    }
    (commands, rings)
}

#[test]
fn requests_use_the_given_transport() {
    require_mount!();
    let place = empty("64M");
    let mounted = mount(&place, "");
    for number in 0..200 {
        fs::write(mounted.path(&number.to_string()), b"x").expect("space");
    }
    let (commands, rings) = passed_to_rings(&mounted.server);
    match transport() {
        // At least one for each file, besides the first one of each ring entry.
        "ring" => assert!(
            rings > 0 && commands >= rings + 200,
            "{commands} on {rings}"
        ),
        _ => assert_eq!(rings, 0),
    }
    mounted.unmount();
}
