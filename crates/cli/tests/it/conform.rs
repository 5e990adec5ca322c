//! Programs that verify their own data, on a mount. Each runs to its end and finds all its data,
//! and finds it again after the server was killed at some moment of its next run.
//!
//! `FOURSCORE_KILLS=20` sets the number of kills. The ignored tests take as long as a record.

use std::fs;

use crate::place::Place;
use crate::workload::{Length, Workload, lasts, runs, shell, succeeds};

const FIO: Workload = Workload {
    program: "fio",
    // One job for each I/O engine.
    prologue: r#"
jobs="--output-format=terse --rw=randwrite --directory=$DIR --size=8M --bs=4k
      --verify=crc32c --verify_fatal=1
      --name=sync --ioengine=psync --bsrange=512-64k
      --name=libaio --ioengine=libaio --direct=1 --iodepth=8
      --name=uring --ioengine=io_uring --bs=16k --iodepth=8
      --name=mmap --ioengine=mmap"
"#,
    run: "fio --fsync=64 --end_fsync=1 $jobs",
    verify: "fio --verify_only=1 $jobs",
};

const SQLITE: Workload = Workload {
    program: "sqlite3",
    prologue: "",
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
    prologue: "",
    run: r#"git clone -q "file://$OUTSIDE/repository" "$DIR/clone" && git -C "$DIR/clone" gc -q"#,
    verify: r#"
git -C "$DIR/clone" fsck --full --strict --no-progress
test -z "$(git -C "$DIR/clone" status --porcelain)"
"#,
};
/// Creates the repository that is cloned.
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
    prologue: "",
    run: r#"tar -C "$OUTSIDE/tree" -cf - . | tar -C "$DIR" -xpf -"#,
    verify: r#"diff -r --no-dereference "$OUTSIDE/tree" "$DIR""#,
};

/// Each way has a file to itself, and none has more than the model has at its end. What `fsx` maps
/// it leaves mapped, so mapped calls take ever longer: they are made in pieces, with a seed each.
/// `FOURSCORE_FSX=mapped` leaves the others out.
const FSX: Workload = Workload {
    program: "fsx",
    prologue: "ways=${FOURSCORE_FSX:-plain direct mapped}\n",
    run: r#"
for way in $ways; do
    (
        test $way != direct || export LD_PRELOAD="$OUTSIDE/direct.so" DIRECT="$DIR/$way"
        seed=88
        left=$OPERATIONS
        while test $left -gt 0; do
            piece=$left
            test $way != mapped || test $left -le 10000 || piece=10000
            fsx -S $seed -N $piece -f "$OUTSIDE/$way.toml" -P "$OUTSIDE" "$DIR/$way" || exit
            seed=$((seed + 1))
            left=$((left - piece))
        done
    ) &
    runs="$runs $!"
done
failed=
for run in $runs; do wait "$run" || failed=yes; done
test -z "$failed"
cd "$DIR"
sha256sum $ways > sums
"#,
    verify: r#"cd "$DIR" && sha256sum --check --quiet sums"#,
};
/// The operations and their weights. Linux refuses to preallocate 0 bytes, which `fsx` does not
/// expect.
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

/// It removes all that it creates.
const STRESS: Workload = Workload {
    program: "stress-ng",
    // Those of the class `filesystem` that work in the folder that they are given.
    prologue: r#"
stressors="access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dup
           fallocate fcntl file-ioctl filename flock fpunch fsize fstat getdent
           handle hdd inode-flags iomix lease link locka lockf lockofd mknod open
           rename seek sendfile symlink sync-file touch utime xattr"
"#,
    run: r#"
for stressor in $stressors; do all="$all --$stressor 1"; done
stress-ng $all --timeout "$DURATION" --temp-path "$DIR" --verify --hdd-bytes 8M --seek-size 8M \
    --fallocate-bytes 8M --iomix-bytes 8M --copy-file-bytes 128M --sync-file-bytes 8M \
    --dentries 500 --quiet
"#,
    verify: r#"test -z "$(ls -A "$DIR")""#,
};
const DBENCH: Workload = Workload {
    program: "dbench",
    prologue: "",
    run: r#"dbench -t "$DURATION" -D "$DIR" 4"#,
    verify: r#"test -z "$(find "$DIR" -type f)""#,
};

#[test]
fn fio_reads_what_it_has_written() {
    runs(&FIO, |_| {});
    assert!(FIO.prologue.contains("mmap"));
}

#[test]
fn a_database_is_consistent() {
    runs(&SQLITE, |_| {});
    assert!(SQLITE.run.contains("WAL"));
}

#[test]
fn a_repository_is_consistent() {
    let prepare = |place: &Place| {
        let folder = place.0.path();
        succeeds(&mut shell(place, REPOSITORY, folder, Length::Short));
        assert!(folder.join("repository/5/60").exists());
    };
    runs(&GIT, prepare);
}

#[test]
fn an_archive_is_unpacked_completely() {
    let prepare = |place: &Place| {
        // diff would block on a pipe, and reads devices.
        for name in ["fifo", "null"] {
            fs::remove_file(place.path("tree").join(name)).expect("there");
        }
        let many = place.path("tree/more");
        for number in 0..3000 {
            let folder = many.join((number % 30).to_string());
            fs::create_dir_all(&folder).expect("space");
            let content = "x".repeat(number * 7);
            fs::write(folder.join(number.to_string()), content).expect("space");
        }
        assert!(many.join("29/2999").exists());
    };
    runs(&TAR, prepare);
}

/// Writes the configuration of `fsx` and the library that makes it use `O_DIRECT`.
fn prepare_fsx(place: &Place) {
    for (way, weights) in WAYS {
        let wanted = format!("[opsize]\nmin = 1\n[weights]\n{weights}");
        fs::write(place.path(&format!("{way}.toml")), wanted).expect("space");
    }
    fs::write(place.path("direct.c"), SHIM).expect("space");
    let compiler = r#"cc -shared -fPIC -o "$OUTSIDE/direct.so" "$OUTSIDE/direct.c""#;
    succeeds(&mut shell(place, compiler, place.0.path(), Length::Short));
}

#[test]
fn file_data_equals_a_model() {
    let place = runs(&FSX, prepare_fsx);
    assert!(place.is_none_or(|place| place.path("opened").is_symlink()));
}

#[test]
#[ignore = "a million operations in each of three ways"]
fn file_data_equals_a_model_for_long() {
    let place = lasts(&FSX, prepare_fsx);
    let is_direct = std::env::var("FOURSCORE_FSX").map_or(true, |ways| ways.contains("direct"));
    assert!(place.is_none_or(|place| place.path("opened").is_symlink() == is_direct));
}

#[test]
fn concurrent_system_calls_leave_nothing() {
    runs(&STRESS, |_| {});
    assert!(STRESS.prologue.contains("rename"));
}

#[test]
#[ignore = "a minute"]
fn concurrent_system_calls_leave_nothing_for_long() {
    lasts(&STRESS, |_| {});
    assert!(STRESS.prologue.contains("rename"));
}

#[test]
fn the_load_of_a_file_server_runs() {
    runs(&DBENCH, |_| {});
    assert!(DBENCH.run.contains("-D"));
}

#[test]
#[ignore = "a minute"]
fn the_load_of_a_file_server_runs_for_long() {
    lasts(&DBENCH, |_| {});
    assert!(DBENCH.run.contains("-D"));
}
