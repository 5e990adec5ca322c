//! The effects of mount options, and when a lack of space is reported.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{debugfs, debugfs_write, dumpe2fs_header};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::common::{failing, fourscore, printed, text};
use crate::mounted::{Mounted, empty, is_mounted, require_mount, umount, wait_until};
use crate::place::{self, Place};

#[test]
fn every_option_is_accepted() {
    require_mount!();
    let place = empty("32M");
    // The options in ext4(5), mount(8) and fuse2fs(1).
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
        let mounted = place.mount(options);
        assert!(mounted.path("lost+found").is_dir(), "{options}");
        mounted.unmount_clean(&place);
    }
    let (image, point) = (place.text("image"), place.text("mnt-image"));
    for refused in [
        "nodelalloc=1",
        "journal_checksum=x",
        "mb_no_such=1",
        "data=",
    ] {
        let (status, message) = failing(&["mount", "-o", refused, &image, &point]);
        assert_eq!(status, Some(1), "{refused}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(!is_mounted(Path::new(&point)));
    }
}

/// Reads files and directories whose atime is older or newer than their mtime, and prints which
/// atimes change. The page cache is emptied first, since a FUSE server does not see reads from it.
/// Each time is a tick of the kernel's clock after the last one.
const ACCESSES: &str = r#"
old='2001-01-01 UTC'
for path in file directory; do
    for written in '2000-01-01 UTC' '2002-01-01 UTC'; do
        touch -d "$old" -a "$path"
        touch -d "$written" -m "$path"
        for again in 1 2; do
            before=$(stat -c %x "$path")
            sleep 0.03
            xfs_io -r -c fsync -c 'fadvise -d 0 0' "$path"
            case $path in
            file) cat file ;;
            directory) ls directory ;;
            esac > /dev/null
            test "$before" = "$(stat -c %x "$path")" && echo "$path kept" || echo "$path noted"
        done
    done
done
"#;

/// Reads a file that is in the page cache, since it was just written, and prints when its atime
/// changes.
const ACCESSES_IN_CACHE: &str = r#"
seen() {
    before=$(stat -c %x "$1")
    sleep 0.03
    shift
    "$@" > /dev/null
    test "$before" = "$(stat -c %x cached)" && echo "$1 kept" || echo "$1 noted"
}
rm -f cached
echo content > cached
sleep 0.03
for again in 1 2; do
    seen cached cat cached
    echo more >> cached
    seen cached dd if=cached iflag=noatime status=none
    seen cached sh -c '. ./cached || true' 2> errors
    chmod +x cached
    seen cached xfs_io -r -c 'mmap -r 0 4096' -c 'mread 0 4' cached
    seen cached cat cached
    sed -i 's/^/#/' cached
done
"#;

fn accesses(root: &Path) -> String {
    let message = [ACCESSES, ACCESSES_IN_CACHE].map(|script| {
        let mut command = tools::command("sh").expect("it exists");
        command.args(["-ec", script]).current_dir(root);
        tools::stdout_of(&mut command).expect("it runs")
    });
    message.concat()
}

#[test]
fn atime_is_updated_like_in_the_kernel() {
    require!(Need::KernelMount, Need::Fuse, Need::Program("xfs_io"));
    let place = empty("32M");
    let kernel = KernelMount::new(&place.path("image"), Access::ReadWrite, "").expect("sound");
    fs::write(kernel.path().join("file"), "content").expect("space");
    fs::create_dir(kernel.path().join("directory")).expect("space");
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
        let mounted = place.mount(options);
        assert_eq!(accesses(&mounted.point), theirs, "{options}");
        mounted.unmount();
        all.push(theirs);
    }
    all.dedup();
    assert_eq!(all.len(), 4, "each has its effect: {all:?}");
}

/// chattr(1) changes the ctime of a file and a directory: at once, and in the next mount.
#[test]
fn chattr_changes_the_ctime() {
    require!(Need::Root, Need::Fuse, Need::Program("chattr"));
    // With the writeback cache the kernel uses its own ctime of a file, which an ioctl does not
    // change.
    for (options, sees_files) in [("nowriteback", true), ("", false)] {
        let place = empty("32M");
        let changed = |mounted: &Mounted| {
            ["file", "directory"].map(|name| {
                let found = fs::metadata(mounted.path(name)).expect("there");
                (found.ctime(), found.ctime_nsec())
            })
        };
        let mounted = place.mount(options);
        mounted.open("file");
        fs::create_dir(mounted.path("directory")).expect("space");
        let [file, directory] = changed(&mounted);
        std::thread::sleep(std::time::Duration::from_millis(30));
        place::run("chattr", &["+A", "file", "directory"], &mounted.point).expect("permission");
        let [file_now, directory_now] = changed(&mounted);
        assert_eq!(file_now > file, sees_files, "{options}");
        assert!(directory_now > directory, "{options}");
        mounted.unmount();
        let again = place.mount(options);
        let [file_again, directory_again] = changed(&again);
        assert!(file_again > file, "{options}");
        assert_eq!(directory_again, directory_now, "{options}");
        again.unmount();
    }
}

/// Number of copies of a unique marker in the image.
fn copies(place: &Place, marker: &[u8]) -> usize {
    let image = fs::read(place.path("image")).expect("there");
    let blocks = image.chunks(4096);
    blocks.filter(|block| block.starts_with(marker)).count()
}

#[test]
fn data_goes_through_the_journal_with_data_journal() {
    require_mount!();
    for (options, expected) in [
        ("data=ordered", 1),
        ("data=writeback", 1),
        ("data=journal", 2),
    ] {
        let place = empty("32M");
        let mounted = place.mount(options);
        let marker = format!("content that is nowhere else, {options}");
        let file = mounted.open("file");
        file.write_all_at(marker.as_bytes(), 0).expect("space");
        file.sync_all().expect("durable");
        drop(file);
        mounted.unmount();
        assert_eq!(copies(&place, marker.as_bytes()), expected, "{options}");
        place.check("image").expect("clean");
    }
}

#[test]
fn commits_are_periodic() {
    require_mount!();
    let place = empty("32M");
    let mounted = place.mount("commit=1");
    let name = "a-name-that-nothing-else-has";
    fs::create_dir(mounted.path(name)).expect("space");
    // The journal has the block of the directory with the name.
    wait_until("it is committed", || {
        let image = fs::read(place.path("image")).expect("there");
        let mut places = image.windows(name.len());
        places.any(|bytes| bytes == name.as_bytes())
    });
    // The commit block may not be written yet; the next commit comes after it.
    fs::create_dir(mounted.path("another-name-of-its-own")).expect("space");
    wait_until("that is committed too", || {
        let image = fs::read(place.path("image")).expect("there");
        let mut places = image.windows(23);
        places.any(|bytes| bytes == b"another-name-of-its-own")
    });
    mounted.kill();
    let again = place.mount("");
    assert!(again.path(name).is_dir());
    again.unmount_clean(&place);
}

/// Project ids of files, by the commands chattr and lsattr.
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
fn project_ids_are_kept_and_inherited() {
    require_mount!("xfs_io");
    let place = Place::new();
    let image = place.text("image");
    let features = ["-O", "project", "-I", "256"];
    let line = [&["mkfs", "-q"], &features[..], &[&image, "64M"]].concat();
    printed(&mut fourscore(&line));
    let mounted = place.mount("");
    let mut command = tools::command("sh").expect("it exists");
    command.args(["-ec", PROJECTS]).current_dir(&mounted.point);
    let output = tools::stdout_of(&mut command).expect("it runs");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines, OF_PROJECTS);
    mounted.unmount_clean(&place);
}

#[test]
fn programs_and_devices_follow_the_mount_options() {
    require!(Need::Root, Need::Fuse, Need::Program("setpriv"));
    let place = empty("64M");
    // The program prints its effective user.
    let user_of = |mounted: &Mounted| {
        let mut command = tools::command("setpriv").expect("it exists");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let output = command.arg(mounted.path("id")).arg("-u").output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    place::run("chmod", &["755", "."], place.0.path()).expect("permission");
    let mounted = place.mount("");
    let id = tools::find("id").expect("a program");
    fs::copy(id, mounted.path("id")).expect("space");
    place::run("chmod", &["4755", "id"], &mounted.point).expect("permission");
    place::run("mknod", &["null", "c", "1", "3"], &mounted.point).expect("root may");
    mounted.unmount();
    for (options, user, device) in [
        ("allow_other", "65534", false),
        ("allow_other,suid,dev", "0", true),
        ("allow_other,noexec", "", false),
        ("dev", "", true),
    ] {
        let mounted = place.mount(options);
        assert_eq!(user_of(&mounted).expect("it exists"), user, "{options}");
        let opened = File::options().write(true).open(mounted.path("null"));
        assert_eq!(opened.is_ok(), device, "{options}");
        drop(opened);
        mounted.unmount();
    }
}

#[test]
fn groups_come_from_the_directory_or_the_caller() {
    require!(Need::Root, Need::Fuse);
    let place = empty("32M");
    let mut groups = Vec::new();
    for options in ["", "grpid", "bsdgroups", "nogrpid", "grpid,sysvgroups"] {
        let mounted = place.mount(options);
        let folder = mounted.path(&format!("folder {options}"));
        fs::create_dir(&folder).expect("space");
        std::os::unix::fs::chown(&folder, None, Some(50)).expect("root may");
        fs::write(folder.join("file"), "").expect("space");
        fs::create_dir(folder.join("directory")).expect("space");
        let of = |name: &str| fs::metadata(folder.join(name)).expect("there").gid();
        assert_eq!(of("file"), of("directory"), "{options}");
        groups.push(of("file"));
        mounted.unmount();
    }
    assert_eq!(groups, [0, 50, 50, 0, 0]);
}

/// The atime of a file in seconds.
fn read_at(mounted: &Mounted, name: &str) -> i64 {
    fs::metadata(mounted.path(name)).expect("there").atime()
}

#[test]
fn lazy_times_are_not_committed_with_other_changes() {
    require_mount!();
    const OLD: i64 = 978_307_200;
    for (options, is_durable) in [("strictatime", true), ("strictatime,lazytime", false)] {
        let place = empty("32M");
        let mounted = place.mount(options);
        fs::write(mounted.path("read"), "content").expect("space");
        let when = format!("@{OLD}");
        place::run("touch", &["-d", &when, "read"], &mounted.point).expect("permission");
        mounted.unmount();
        let mounted = place.mount(options);
        assert_eq!(read_at(&mounted, "read"), OLD);
        assert_eq!(fs::read(mounted.path("read")).expect("there"), b"content");
        let noted = read_at(&mounted, "read");
        assert!(noted > OLD, "{options}");
        let other = mounted.open("written");
        other.write_all_at(b"content", 0).expect("space");
        other.sync_all().expect("durable");
        drop(other);
        mounted.kill();
        let again = place.mount("noatime");
        assert!(again.path("written").is_file());
        let expected = if is_durable { noted } else { OLD };
        assert_eq!(read_at(&again, "read"), expected, "{options}");
        again.unmount();
        // fsync of a file makes its times durable as well.
        let mounted = place.mount(options);
        fs::read(mounted.path("read")).expect("there");
        let noted = read_at(&mounted, "read");
        mounted.open("read").sync_all().expect("durable");
        mounted.kill();
        let again = place.mount("noatime");
        assert_eq!(read_at(&again, "read"), noted, "{options}");
        again.unmount_clean(&place);
    }
}

/// Bytes of the host that the image takes.
fn taken_bytes(place: &Place) -> u64 {
    let image = fs::metadata(place.path("image")).expect("there");
    image.blocks() * 512
}

#[test]
fn freed_space_is_discarded() {
    const BYTES: u64 = 16 << 20;
    require_mount!("fstrim");
    for (options, goes_by_itself) in [("", false), ("discard", true), ("nodiscard", false)] {
        let place = empty("64M");
        let mounted = place.mount(options);
        let kept = vec![6; 1 << 20];
        fs::write(mounted.path("kept"), &kept).expect("space");
        let before = taken_bytes(&place);
        let file = mounted.open("large");
        file.write_all_at(&vec![5; 16 << 20], 0).expect("space");
        file.sync_all().expect("durable");
        drop(file);
        assert!(taken_bytes(&place) > before + BYTES / 2, "{options}");
        fs::remove_file(mounted.path("large")).expect("removed");
        let root = File::open(&mounted.point).expect("there");
        root.sync_all().expect("durable");
        drop(root);
        let has_gone = || taken_bytes(&place) < before + BYTES / 2;
        if goes_by_itself {
            wait_until("it is given back", has_gone);
        } else {
            assert!(!has_gone(), "{options}");
            // The kernel sends the last close to the server asynchronously,
            // and the space of a removed file is free only after that.
            wait_until("it is given back by fstrim", || {
                let mut trim = tools::command("fstrim").expect("it exists");
                let output =
                    tools::stdout_of(trim.arg("-v").arg(&mounted.point)).expect("it works");
                assert!(output.contains("bytes) trimmed"), "{output}");
                has_gone()
            });
        }
        mounted.unmount();
        let again = place.mount("ro");
        assert!(fs::read(again.path("kept")).expect("there") == kept);
        again.unmount_clean(&place);
    }
}

#[test]
fn a_damaged_image_has_the_effect_of_the_option_errors() {
    require_mount!("debugfs");
    const LARGE: [u8; 2000] = [b'v'; 2000];
    let set = |mounted: &Mounted, name: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(mounted.path(name), "user.attribute", value, flags)
    };
    for (options, then) in [
        ("errors=continue", Ok(())),
        ("errors=remount-ro", Err(Errno::ROFS)),
    ] {
        let place = empty("32M");
        let mounted = place.mount("");
        for name in ["damaged", "sound"] {
            fs::write(mounted.path(name), "content").expect("space");
        }
        set(&mounted, "damaged", &LARGE).expect("space");
        mounted.unmount();
        let image = place.path("image");
        let stat = debugfs(&image, &["stat /damaged"]).expect("it exists");
        let block = stat.split("File ACL: ").nth(1).expect("the field");
        let block = block.split_whitespace().next().expect("a block");
        debugfs_write(&image, &[format!("zap_block {block}")]).expect("it exists");
        let mut mounted = place.mount(options);
        let removed = rustix::fs::removexattr(mounted.path("damaged"), "user.attribute");
        assert_eq!(removed, Err(Errno::UCLEAN), "{options}");
        assert_eq!(set(&mounted, "sound", b"new"), then, "{options}");
        let sound = fs::read(mounted.path("sound")).expect("served");
        assert_eq!(sound, b"content", "{options}");
        umount(&mounted.point);
        assert_eq!(mounted.end().success(), then.is_ok(), "{options}");
        let header = dumpe2fs_header(&image).expect("it exists");
        assert_eq!(header["FS Error count"], "1", "{options}");
    }
}

#[test]
fn the_generation_of_an_inode_is_shown() {
    require!(
        Need::Root,
        Need::Fuse,
        Need::Program("lsattr"),
        Need::Program("debugfs")
    );
    let place = empty("32M");
    let mounted = place.mount("");
    let generation = |name: &str| {
        fs::write(mounted.path(name), "").expect("space");
        let mut command = tools::command("lsattr").expect("it exists");
        let line = tools::stdout_of(command.arg("-v").arg(mounted.path(name)));
        let generation = line.expect("it works");
        let generation = generation.split_whitespace().next().expect("a number");
        let inode = fs::metadata(mounted.path(name)).expect("there").ino();
        (inode, generation.to_owned())
    };
    let gone = generation("gone");
    fs::remove_file(mounted.path("gone")).expect("removed");
    let (kept, other) = (generation("kept"), generation("other"));
    assert!(
        gone != kept && gone != other,
        "{gone:?}, {kept:?}, {other:?}"
    );
    mounted.unmount();
    for (name, (inode, generation)) in [("kept", kept), ("other", other)] {
        let stat = debugfs(&place.path("image"), &[format!("stat /{name}")]);
        let stat = stat.expect("it exists");
        assert!(stat.contains(&format!("Inode: {inode} ")), "{stat}");
        let shown = stat.split("Generation: ").nth(1).expect("the field");
        assert_eq!(
            shown.split_whitespace().next(),
            Some(&generation[..]),
            "{name}"
        );
    }
}

#[test]
fn tunables_of_the_allocator_are_set() {
    require!(Need::Root, Need::Fuse);
    let place = empty("32M");
    let mounted = place.mount("mb_optimize_scan=0,mb_stream_req=48");
    // The server prints when it is ready.
    assert!(mounted.path("lost+found").is_dir());
    let tunables = printed(&mut fourscore(&["tune", text(&mounted.point)]));
    let lines: Vec<&str> = tunables.lines().collect();
    assert!(lines.contains(&"mb_optimize_scan=0"), "{tunables}");
    assert!(lines.contains(&"mb_stream_req=48"), "{tunables}");
    mounted.unmount();
}

/// Fills the file system except for `left_bytes`.
fn fill(mounted: &Mounted, left_bytes: u64) {
    let free = rustix::fs::statvfs(&mounted.point).expect("statvfs");
    let take = free.f_bavail * free.f_frsize - left_bytes;
    let ballast = mounted.open("ballast");
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&ballast, flags, 0, take).expect("space");
    ballast.sync_all().expect("durable");
}

fn is_no_space<T>(result: io::Result<T>) -> bool {
    let errno = Errno::NOSPC.raw_os_error();
    result.is_err_and(|why| why.raw_os_error() == Some(errno))
}

#[test]
fn enospc_is_reported_as_documented() {
    const ROOM_BYTES: u64 = 1 << 20;
    require_mount!("xfs_io");
    let content = vec![5; 4 << 20];
    for options in ["", "nowriteback", "nodelalloc", "sync"] {
        let place = empty("32M");
        let mounted = place.mount(options);
        fs::write(mounted.path("there"), "before").expect("space");
        fill(&mounted, ROOM_BYTES);
        let mut file = mounted.open("large");
        let written = file.write_all(&content);
        if options.is_empty() {
            // The page cache accepts the data.
            written.expect("the kernel keeps it");
            assert!(is_no_space(file.sync_all()));
        } else {
            assert!(is_no_space(written), "{options}");
        }
        drop(file);
        fs::remove_file(mounted.path("large")).expect("removed");
        // close(2) reports it as well; libraries ignore its result.
        let closed = Command::new("sh")
            .args(["-c", "head -c 4194304 /dev/zero | dd of=closed bs=64K 2>&1"])
            .current_dir(&mounted.point)
            .output();
        let closed = String::from_utf8_lossy(&closed.expect("it runs").stdout).into_owned();
        assert!(closed.contains("No space left"), "{options}: {closed}");
        fs::remove_file(mounted.path("closed")).expect("removed");
        // A hole in a mapped file gets its blocks at writeback.
        let mut mapped = tools::command("xfs_io").expect("it exists");
        mapped.args(["-f", "-c", "truncate 4m", "-c", "mmap -rw 0 4m"]);
        mapped.args(["-c", "mwrite 0 4m", "-c", "msync -s"]);
        let output = tools::output_of(mapped.arg(mounted.path("mapped"))).expect("it runs");
        let message = tools::describe(&mapped, &output);
        assert!(
            message.contains("msync: No space left"),
            "{options}: {message}"
        );
        fs::remove_file(mounted.path("mapped")).expect("removed");
        // There is space again when the server has got the last close, which is asynchronous; and
        // the other files are intact.
        wait_until("there is space again", || {
            let written = fs::write(mounted.path("small"), &content[..100_000]);
            let small = File::open(mounted.path("small")).expect("there");
            let is_durable = written.is_ok() && small.sync_all().is_ok();
            drop(small);
            is_durable
        });
        assert_eq!(fs::read(mounted.path("there")).expect("there"), b"before");
        mounted.unmount_clean(&place);
    }
}

#[test]
fn efbig_is_reported_by_the_same_calls_as_enospc() {
    const BEHIND_ALL: u64 = 1 << 50;
    require_mount!();
    let is_too_large = |result: io::Result<()>| {
        let errno = Errno::FBIG.raw_os_error();
        result.is_err_and(|why| why.raw_os_error() == Some(errno))
    };
    let place = empty("32M");
    for (options, is_kept_back) in [("", true), ("nowriteback", false)] {
        let mounted = place.mount(options);
        let file = mounted.open("file");
        file.write_all_at(b"before", 0).expect("space");
        file.sync_all().expect("durable");
        let written = file.write_all_at(b"behind", BEHIND_ALL);
        match is_kept_back {
            true => {
                written.expect("the kernel keeps it");
                assert!(is_too_large(file.sync_all()), "{options}");
            }
            false => assert!(is_too_large(written), "{options}"),
        }
        assert!(is_too_large(file.set_len(BEHIND_ALL)), "{options}");
        drop(file);
        // For close(2), Linux knows only `ENOSPC` and `EIO` of a write-back.
        let seek = format!("seek={BEHIND_ALL}");
        let mut dd = Command::new("dd");
        dd.args([
            "if=/dev/zero",
            "of=closed",
            "bs=1",
            "count=1",
            "conv=notrunc",
        ]);
        let closed = dd.arg(seek).current_dir(&mounted.point).output();
        let closed = String::from_utf8_lossy(&closed.expect("it runs").stderr).into_owned();
        let expected = match is_kept_back {
            true => "Input/output error",
            false => "File too large",
        };
        assert!(closed.contains(expected), "{options}: {closed}");
        mounted.unmount_clean(&place);
        let inside = printed(&mut fourscore(&["cat", &place.text("image"), "/file"]));
        assert_eq!(inside, "before", "{options}");
    }
}

#[test]
fn times_are_the_same_after_a_remount() {
    const FILES: u32 = 200;
    require_mount!();
    for bytes in ["128", "256"] {
        let place = Place::new();
        let image = place.text("image");
        let line = ["mkfs", "-q", "-I", bytes, "-b", "4096", &image, "32M"];
        printed(&mut fourscore(&line));
        let times = |mounted: &Mounted| {
            let of = |name: &str| {
                let found = fs::metadata(mounted.path(name)).expect("there");
                let (mtime, atime) = (found.mtime_nsec(), found.atime_nsec());
                [
                    found.mtime(),
                    mtime,
                    found.atime(),
                    atime,
                    found.ctime_nsec(),
                ]
            };
            let files = (0..FILES).map(|number| of(&number.to_string()));
            files.chain([of("directory")]).collect::<Vec<_>>()
        };
        let mounted = place.mount("noatime");
        // The kernel writes some of them after the clock has advanced.
        for number in 0..FILES {
            fs::write(mounted.path(&number.to_string()), "content").expect("space");
        }
        fs::create_dir(mounted.path("directory")).expect("space");
        let before = times(&mounted);
        mounted.unmount();
        let again = place.mount("noatime");
        assert_eq!(times(&again), before, "{bytes}");
        again.unmount_clean(&place);
    }
}

#[test]
fn fsync_of_the_root_commits_everything() {
    require_mount!();
    let place = empty("64M");
    let mut mounted = place.mount("commit=100000");
    fs::create_dir_all(mounted.path("a/b")).expect("space");
    for number in 0..100 {
        let path = mounted.path(&format!("a/b/{number}"));
        fs::write(&path, number.to_string()).expect("space");
        fs::rename(&path, mounted.path(&format!("a/{number}"))).expect("renamed");
    }
    let link = mounted.path("a/link");
    std::os::unix::fs::symlink("target", link).expect("space");
    let root = File::open(&mounted.point).expect("there");
    root.sync_all().expect("durable");
    // Changes after the fsync are not durable.
    fs::write(mounted.path("a/later"), "later").expect("space");
    mounted.signal(Signal::KILL);
    drop(root);
    assert!(!mounted.end().success());
    drop(mounted);
    let again = place.mount("");
    for number in 0..100 {
        let content = fs::read_to_string(again.path(&format!("a/{number}")));
        assert_eq!(content.expect("durable"), number.to_string());
    }
    let link = fs::read_link(again.path("a/link")).expect("durable");
    assert_eq!(link, Path::new("target"));
    assert_eq!(fs::metadata(again.path("a/b")).expect("durable").nlink(), 2);
    again.unmount_clean(&place);
}

#[test]
fn a_write_that_does_not_fit_returns_a_short_count() {
    const ROOM_BYTES: u64 = 100 << 10;
    require_mount!();
    let content = vec![5; 128 << 10];
    for options in ["nowriteback", "nowriteback,data=journal"] {
        let place = empty("32M");
        let mounted = place.mount(options);
        fill(&mounted, ROOM_BYTES);
        let file = mounted.open("grown");
        let grown = file.write_at(&content, 0).expect("a part fits");
        assert!(grown > 50 << 10 && grown < content.len(), "{grown}");
        assert_eq!(file.metadata().expect("it exists").len(), grown as u64);
        assert!(is_no_space(file.write_at(&content, grown as u64)));
        // A removed file keeps its space until the kernel releases it, some time after the close.
        file.set_len(0).expect("it is empty");
        drop(file);
        // The size does not show how much of a hole is filled.
        let file = mounted.open("hole");
        file.set_len(1 << 20).expect("a hole");
        let filled = file.write_at(&content, 0).expect("a part fits");
        assert!(filled > 50 << 10 && filled < content.len(), "{filled}");
        let mut read = vec![1; content.len()];
        file.read_exact_at(&mut read, 0).expect("it is long enough");
        assert!(read[..filled].iter().all(|&byte| byte == 5));
        assert!(read[filled..].iter().all(|&byte| byte == 0));
        drop(file);
        mounted.unmount_clean(&place);
    }
}
