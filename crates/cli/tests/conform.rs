//! Programs that check what they have written, on a mount: each runs to its end and finds
//! everything, and finds it again when the server was killed in the middle of its next run.

mod common;
mod mounted;
mod place;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use common::without_lost_and_found;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
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

fn shell(place: &Place, script: &str, folder: &Path) -> Command {
    let mut command = tools::command("sh").expect("it is there");
    command.args(["-ec", &script.replace("$JOBS", JOBS)]);
    command.current_dir(place.0.path());
    command.env("DIR", folder).env("OUTSIDE", place.0.path());
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

fn conforms(place: &Place, workload: &Workload) {
    let mut mounted = Mounted::new(place, "image", "");
    let (first, second) = (mounted.path("first"), mounted.path("second"));
    fs::create_dir(&first).expect("room");
    succeeds(&mut shell(place, workload.run, &first));
    succeeds(&mut shell(place, workload.verify, &first));
    // From here on it is promised to outlive the server.
    let root = File::open(&mounted.point).expect("there");
    root.sync_all().expect("durable");
    fs::create_dir(&second).expect("room");
    let cut = shell(place, workload.run, &second)
        .stderr(Stdio::null())
        .spawn();
    let mut cut = cut.expect("it starts");
    let has_begun = || fs::read_dir(&second).is_ok_and(|mut names| names.next().is_some());
    wait_until("it has begun", has_begun);
    mounted.signal(Signal::KILL);
    drop(root);
    assert!(!mounted.end().success());
    // It fails, unless it was quick.
    cut.wait().expect("it ends");
    drop(mounted);
    // fio makes the folder that it misses, in the bare place of the mount.
    if second.exists() {
        fs::remove_dir_all(&second).expect("removed");
    }

    let mounted = Mounted::new(place, "image", "");
    let first = mounted.path("first");
    succeeds(&mut shell(place, workload.verify, &first));
    // What the cut left, if anything of it was durable, is in nobody's way.
    if mounted.path("second").exists() {
        fs::remove_dir_all(mounted.path("second")).expect("removed");
    }
    let third = mounted.path("third");
    fs::create_dir(&third).expect("room");
    succeeds(&mut shell(place, workload.run, &third));
    succeeds(&mut shell(place, workload.verify, &third));
    let walk = walk_of_host(&mounted.point);
    mounted.unmount();
    is_the_kernels(place, &walk);
}

fn runs(workload: &Workload, prepare: impl FnOnce(&Place)) {
    require!(
        Need::KernelMount,
        Need::Fuse,
        Need::Program(workload.program),
        Need::Program("e2fsck")
    );
    let place = empty("512M");
    prepare(&place);
    conforms(&place, workload);
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
        succeeds(&mut shell(place, REPOSITORY, folder));
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
