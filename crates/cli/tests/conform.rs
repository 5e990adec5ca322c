//! Programs that check what they have written, on a mount: each runs to its end and finds
//! everything, and finds it again when the server was killed at some moment of its next run.
//!
//! `FOURSCORE_KILLS=20` kills it so often in each; what is `ignored` takes as long as a record.

mod common;
mod mounted;
mod place;

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::without_lost_and_found;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::tools::{self, Need};
use mounted::{Mounted, empty, wait_until};
use place::{Place, walk_of_host};
use rustix::process::Signal;

/// What a program does in the folder `$DIR`, with what lies outside in `$OUTSIDE`.
struct Workload {
    program: &'static str,
    /// Makes its files, and checks them.
    run: &'static str,
    /// Checks the files that a run has made.
    verify: &'static str,
}

const FIO: Workload = Workload {
    program: "fio",
    run: "fio --fsync=64 --end_fsync=1 $JOBS",
    verify: "fio --verify_only=1 $JOBS",
};
/// One job for each way of asking the kernel.
const JOBS: &str = "--output-format=terse --rw=randwrite --directory=$DIR --size=8M --bs=4k \
                    --verify=crc32c --verify_fatal=1 \
                    --name=sync --ioengine=psync --bsrange=512-64k \
                    --name=libaio --ioengine=libaio --direct=1 --iodepth=8 \
                    --name=uring --ioengine=io_uring --bs=16k --iodepth=8 \
                    --name=mmap --ioengine=mmap";

const SQLITE: Workload = Workload {
    program: "sqlite3",
    run: r#"
for mode in DELETE WAL; do
    {
        echo "PRAGMA journal_mode=$mode; CREATE TABLE rows(number INTEGER PRIMARY KEY, text);"
        for number in $(seq 300); do
            echo "INSERT INTO rows VALUES($number, hex(randomblob(500)));"
            echo "UPDATE rows SET text = hex(randomblob(700)) WHERE number = $number / 2;"
        done
    } | sqlite3 "$DIR/$mode" > "$DIR/out.$mode"
done
"#,
    verify: r#"
for mode in DELETE WAL; do
    test "$(sqlite3 "$DIR/$mode" 'PRAGMA integrity_check; SELECT count(*) FROM rows;')" = "ok
300"
done
"#,
};

const GIT: Workload = Workload {
    program: "git",
    run: r#"git clone -q "file://$OUTSIDE/repository" "$DIR/clone" && git -C "$DIR/clone" gc -q"#,
    verify: r#"
git -C "$DIR/clone" fsck --full --strict --no-progress
test -z "$(git -C "$DIR/clone" status --porcelain)"
"#,
};
/// Makes the repository that is cloned.
const REPOSITORY: &str = r#"
git init -q repository
cd repository
for commit in 1 2 3 4 5; do
    mkdir $commit
    for file in $(seq 60); do seq $((commit * file)) $((commit * 100 + file)) > $commit/$file; done
    git add .
    git -c user.name=N -c user.email=e commit -q -m $commit
done
"#;

const TAR: Workload = Workload {
    program: "tar",
    run: r#"tar -C "$OUTSIDE/tree" -cf - . | tar -C "$DIR" -xpf -"#,
    verify: r#"diff -r --no-dereference "$OUTSIDE/tree" "$DIR""#,
};

/// Each run has a file to itself, and none has more than the model has at its end.
const FSX: Workload = Workload {
    program: "fsx",
    run: r#"
for way in plain direct mapped; do
    (
        test $way != direct || export LD_PRELOAD="$OUTSIDE/direct.so" DIRECT="$DIR/$way"
        fsx -S 88 -N "$OPERATIONS" -f "$OUTSIDE/$way.toml" -P "$OUTSIDE" "$DIR/$way"
    ) &
    runs="$runs $!"
done
failed=
for run in $runs; do wait "$run" || failed=yes; done
test -z "$failed"
cd "$DIR"
sha256sum plain direct mapped > sums
"#,
    verify: r#"cd "$DIR" && sha256sum --check --quiet sums"#,
};
/// What is done to the file, and how often beside the others. To preallocate nothing is refused by
/// Linux, which `fsx` does not know.
const WAYS: [(&str, &str); 3] = [
    (
        "plain",
        "mapread = 0\nmapwrite = 0\nclose_open = 1\nsendfile = 2\n\
         posix_fadvise = 1\nfsync = 0.2\nposix_fallocate = 2\npunch_hole = 2\n\
         copy_file_range = 2\n",
    ),
    (
        "direct",
        "mapread = 0\nmapwrite = 0\nclose_open = 1\nfdatasync = 0.2\n\
         posix_fallocate = 2\npunch_hole = 2\ncopy_file_range = 2\n",
    ),
    (
        "mapped",
        "read = 3\nwrite = 3\ntruncate = 3\ninvalidate = 1\nclose_open = 1\n\
         fsync = 1\nfdatasync = 1\nposix_fallocate = 1\npunch_hole = 1\n",
    ),
];
/// Has `fsx`, which knows no such thing, open its file with `O_DIRECT`, and leaves a mark of that.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int open64(const char *path, int flags, ...)
{
    const char *direct = getenv("DIRECT");
    unsigned mode = 0;
    if (flags & O_CREAT) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, unsigned);
        va_end(more);
    }
    if (direct && !strcmp(path, direct)) {
        symlink("O_DIRECT", "opened");
        flags |= O_DIRECT;
    }
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
"#;

/// What it makes it removes.
const STRESS: Workload = Workload {
    program: "stress-ng",
    run: r#"
for stressor in $STRESSORS; do all="$all --$stressor 1"; done
stress-ng $all --timeout "$DURATION" --temp-path "$DIR" --verify --hdd-bytes 8M --seek-size 8M \
    --fallocate-bytes 8M --iomix-bytes 8M --copy-file-bytes 128M --sync-file-bytes 8M \
    --dentries 500 --quiet
"#,
    verify: r#"test -z "$(ls -A "$DIR")""#,
};
/// Those of the class `filesystem` that work in the folder that they are given.
const STRESSORS: &str = "access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dup \
                         fallocate fcntl file-ioctl filename flock fpunch fsize fstat getdent \
                         handle hdd inode-flags iomix lease link locka lockf lockofd mknod open \
                         rename seek sendfile symlink sync-file touch utime xattr";

const DBENCH: Workload = Workload {
    program: "dbench",
    run: r#"dbench -t "$DURATION" -D "$DIR" 4"#,
    verify: r#"test -z "$(find "$DIR" -type f)""#,
};

/// How long a program runs that does not end by itself.
#[derive(Clone, Copy)]
enum Length {
    Short,
    /// As long as was promised of a record.
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

fn shell(place: &Place, script: &str, folder: &Path, length: Length) -> Command {
    let mut command = tools::command("sh").expect("it is there");
    let script = script.replace("$JOBS", JOBS);
    command.args(["-ec", &script.replace("$STRESSORS", STRESSORS)]);
    command.current_dir(place.0.path());
    command.env("DIR", folder).env("OUTSIDE", place.0.path());
    command.env("OPERATIONS", length.operations());
    command.env("DURATION", length.seconds());
    // Nothing that this machine's owner has set.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.stdout(Stdio::null());
    command
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let output = command.stderr(Stdio::piped()).output().expect("it starts");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complaint}");
}

/// The walk of the mount is the one of the kernel's ext4.
fn is_the_kernels(place: &Place, walk: &str) {
    place.check("image").expect("clean");
    let kernel = KernelMount::new(&place.path("image"), Access::ReadOnly, "").expect("sound");
    let theirs = walk_of_host(kernel.path());
    assert_eq!(without_times(&theirs), without_times(walk));
}

/// The lines of a walk without the times of changes, which the kernel may hand on after it was
/// asked for them.
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

/// How often a server is killed for each program.
fn kills() -> u32 {
    let kills = std::env::var("FOURSCORE_KILLS").map_or(Ok(1), |kills| kills.parse());
    kills.expect("FOURSCORE_KILLS is a number")
}

/// Runs a program in a folder, and has it check what it made. Says how long it ran.
fn run_in(place: &Place, workload: &Workload, folder: &Path, length: Length) -> Duration {
    fs::create_dir(folder).expect("room");
    let began = Instant::now();
    succeeds(&mut shell(place, workload.run, folder, length));
    let took = began.elapsed();
    succeeds(&mut shell(place, workload.verify, folder, length));
    took
}

/// Begins to run a program in the folder `second`, and kills the server after a part of the time
/// that the run would take.
fn cut(place: &Place, workload: &Workload, mut mounted: Mounted, whole: Duration) {
    let second = mounted.path("second");
    fs::create_dir(&second).expect("room");
    let cut = shell(place, workload.run, &second, Length::Short)
        .stderr(Stdio::null())
        .spawn();
    let mut cut = cut.expect("it starts");
    let has_begun = || fs::read_dir(&second).is_ok_and(|mut names| names.next().is_some());
    wait_until("it has begun", has_begun);
    let part = RandomState::new().hash_one(()) % 1000;
    let part = whole * u32::try_from(part).expect("small") / 1000;
    eprintln!("{}: killed after {part:?} of {whole:?}", workload.program);
    std::thread::sleep(part);
    mounted.signal(Signal::KILL);
    assert!(!mounted.end().success());
    // It fails, unless it was quick.
    cut.wait().expect("it ends");
    drop(mounted);
    // fio makes the folder that it misses, in the bare place of the mount.
    if second.exists() {
        fs::remove_dir_all(&second).expect("removed");
    }
}

fn conforms(place: &Place, workload: &Workload) {
    let mut mounted = Mounted::new(place, "image", "");
    let (first, second) = (mounted.path("first"), mounted.path("second"));
    let whole = run_in(place, workload, &first, Length::Short);
    // From here on it is promised to outlive the server.
    let root = File::open(&mounted.point).expect("there");
    root.sync_all().expect("durable");
    drop(root);
    for _ in 0..kills() {
        cut(place, workload, mounted, whole);
        mounted = Mounted::new(place, "image", "");
        succeeds(&mut shell(place, workload.verify, &first, Length::Short));
        // What the cut left, if anything of it was durable, is in nobody's way.
        if second.exists() {
            fs::remove_dir_all(&second).expect("removed");
        }
    }
    run_in(place, workload, &mounted.path("third"), Length::Short);
    ends_as_the_kernels(place, mounted);
}

fn ends_as_the_kernels(place: &Place, mounted: Mounted) {
    let walk = walk_of_host(&mounted.point);
    mounted.unmount();
    is_the_kernels(place, &walk);
}

fn are_there(workload: &Workload) -> bool {
    tools::are_met(&[
        Need::KernelMount,
        Need::Fuse,
        Need::Program(workload.program),
        Need::Program("e2fsck"),
    ])
}

/// Gives the place where it ran, unless something is missing.
fn runs(workload: &Workload, prepare: impl FnOnce(&Place)) -> Option<Place> {
    if !are_there(workload) {
        return None;
    }
    let place = empty("512M");
    prepare(&place);
    conforms(&place, workload);
    Some(place)
}

/// Runs it once, as long as a record takes.
fn lasts(workload: &Workload, prepare: impl FnOnce(&Place)) -> Option<Place> {
    if !are_there(workload) {
        return None;
    }
    let place = empty("2G");
    prepare(&place);
    let mounted = Mounted::new(&place, "image", "");
    let took = run_in(&place, workload, &mounted.path("run"), Length::Recorded);
    eprintln!("{}: {took:?}", workload.program);
    ends_as_the_kernels(&place, mounted);
    Some(place)
}

#[test]
fn fio_reads_what_it_has_written() {
    runs(&FIO, |_| {});
    assert!(JOBS.contains("mmap"));
}

#[test]
fn a_database_is_whole() {
    runs(&SQLITE, |_| {});
    assert!(SQLITE.run.contains("WAL"));
}

#[test]
fn a_repository_is_whole() {
    let prepare = |place: &Place| {
        let folder = place.0.path();
        succeeds(&mut shell(place, REPOSITORY, folder, Length::Short));
        assert!(folder.join("repository/5/60").exists());
    };
    runs(&GIT, prepare);
}

#[test]
fn an_archive_is_unpacked_whole() {
    let prepare = |place: &Place| {
        // diff would wait at a pipe, and reads devices.
        for name in ["fifo", "null"] {
            fs::remove_file(place.path("tree").join(name)).expect("there");
        }
        let many = place.path("tree/more");
        for number in 0..3000 {
            let folder = many.join((number % 30).to_string());
            fs::create_dir_all(&folder).expect("room");
            let content = "x".repeat(number * 7);
            fs::write(folder.join(number.to_string()), content).expect("room");
        }
        assert!(many.join("29/2999").exists());
    };
    runs(&TAR, prepare);
}

/// Says what `fsx` is to do, and makes what has it do that with `O_DIRECT`.
fn prepare_fsx(place: &Place) {
    for (way, weights) in WAYS {
        let wanted = format!("[opsize]\nmin = 1\n[weights]\n{weights}");
        fs::write(place.path(&format!("{way}.toml")), wanted).expect("room");
    }
    fs::write(place.path("direct.c"), SHIM).expect("room");
    let compiler = r#"cc -shared -fPIC -o "$OUTSIDE/direct.so" "$OUTSIDE/direct.c""#;
    succeeds(&mut shell(place, compiler, place.0.path(), Length::Short));
}

#[test]
fn contents_are_those_of_a_model() {
    let place = runs(&FSX, prepare_fsx);
    assert!(place.is_none_or(|place| place.path("opened").is_symlink()));
}

#[test]
#[ignore = "a million operations in each of three ways"]
fn contents_are_those_of_a_model_for_long() {
    let place = lasts(&FSX, prepare_fsx);
    assert!(place.is_none_or(|place| place.path("opened").is_symlink()));
}

#[test]
fn every_call_at_once_leaves_nothing() {
    runs(&STRESS, |_| {});
    assert!(STRESSORS.contains("rename"));
}

#[test]
#[ignore = "a minute"]
fn every_call_at_once_leaves_nothing_for_long() {
    lasts(&STRESS, |_| {});
    assert!(STRESSORS.contains("rename"));
}

#[test]
fn the_files_of_a_server_are_served() {
    runs(&DBENCH, |_| {});
    assert!(DBENCH.run.contains("-D"));
}

#[test]
#[ignore = "a minute"]
fn the_files_of_a_server_are_served_for_long() {
    lasts(&DBENCH, |_| {});
    assert!(DBENCH.run.contains("-D"));
}
