//! Databases on a mount: committed data is there after the server is killed at any moment.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fourscore_testkit::tools;
use rustix::process::Signal;

use crate::mounted::wait_until;
use crate::place::Place;
use crate::workload::{FOR_ALL, Length, Workload, are_there, for_all, runs, succeeds};

/// It refuses to run as root. Its sockets and logs are outside of the mount, one for each folder.
const POSTGRES: Workload = Workload {
    program: "postgres",
    prologue: r#"
PATH=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1):$PATH
user="setpriv --reuid=nobody --regid=nogroup --clear-groups"
outside=$OUTSIDE/$(basename "$DIR").postgres
install -d -o nobody "$outside"
begin() {
    $user postgres -D "$DIR/data" -c listen_addresses= -c unix_socket_directories="$outside" \
        -c dynamic_shared_memory_type=mmap -c checkpoint_timeout=30s -c max_wal_size=8MB \
        >> "$outside/message" 2>&1 &
    postmaster=$!
    trap 'kill -QUIT $postmaster; wait $postmaster' EXIT
    until pg_isready -q -h "$outside"; do
        kill -0 $postmaster
        sleep 0.05
    done
}
end() {
    kill -INT $postmaster
    wait $postmaster
    trap - EXIT
    $user pg_checksums --check -D "$DIR/data"
}
ask() {
    psql -X -h "$outside" -U bench -A -t -c "$1" postgres
}
# Every transaction adds one number to a row of three tables, and a row to the fourth.
is_consistent() {
    test "$(ask 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = delta
        AND (SELECT sum(bbalance) FROM pgbench_branches) = delta
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = delta
        FROM (SELECT coalesce(sum(delta), 0) AS delta FROM pgbench_history) AS history')" = t
}
create() {
    install -d -o nobody -m 700 "$DIR/data"
    $user initdb -D "$DIR/data" -A trust -U bench --locale=C -E UTF8 --data-checksums \
        --wal-segsize=1
    begin
    pgbench -q -i -h "$outside" -U bench postgres
}
"#,
    run: r#"
create
pgbench -n -c 4 -t 100 -h "$outside" -U bench postgres
end
"#,
    verify: r#"
begin
is_consistent
test "$(ask 'SELECT count(*) FROM pgbench_history')" = 400
end
"#,
};

/// Commits until the server dies, and records acknowledged commits outside of the mount.
const COMMITS: &str = r#"
begin
touch "$OUTSIDE/begun"
! pgbench -n -c 4 -T 600 -l --log-prefix="$OUTSIDE/committed" -h "$outside" -U bench postgres
"#;

/// All recorded commits are there. The last record may be half a line and does not count.
const COMMITTED: &str = r#"
begin
is_consistent
noted=$(cat "$OUTSIDE"/committed* | wc -l)
echo "$noted transactions were committed" >&2
test "$noted" -gt 0
test "$(ask 'SELECT count(*) FROM pgbench_history')" -ge "$noted"
end
"#;

/// With all its ways of I/O: buffered, direct, mapped.
const ROCKSDB: Workload = Workload {
    program: "db_bench",
    prologue: r#"
keys=3000
bench() {
    db_bench --db="$DIR/$way" --num=$keys --threads=1 --value_size=400 --sync=1 \
        --write_buffer_size=262144 --target_file_size_base=262144 --max_background_jobs=2 \
        --compression_type=none --verify_checksum=true $ways "$@"
}
each_way() {
    for way in cached direct mapped; do
        case $way in
        cached) ways= ;;
        direct) ways="--use_direct_reads --use_direct_io_for_flush_and_compaction" ;;
        mapped) ways="--mmap_read=1 --mmap_write=1" ;;
        esac
        "$@"
    done
}
"#,
    run: r#"
each_way bench --benchmarks=fillseq,overwrite,compact,readrandom
"#,
    verify: r#"
whole() {
    ldb --db="$DIR/$way" checkconsistency
    test "$(ldb --db="$DIR/$way" scan --hex --no_value | wc -l)" = $keys
    bench --use_existing_db=1 --benchmarks=readseq,verifychecksum
}
each_way whole
"#,
};

#[test]
fn accounts_are_consistent() {
    runs(&POSTGRES, |_| {});
    assert!(POSTGRES.run.contains("pgbench"));
}

#[test]
fn keys_and_values_are_consistent() {
    runs(&ROCKSDB, |_| {});
    assert!(ROCKSDB.run.contains("overwrite"));
}

/// The accounts in `folder` of a mount, with the script `run`.
fn accounts(place: &Place, folder: &Path, run: &'static str) -> std::process::Command {
    Workload { run, ..POSTGRES }.run(place, folder, Length::Short)
}

#[test]
fn commits_survive_the_death_of_the_server() {
    if !are_there(&POSTGRES) {
        return;
    }
    let place = for_all("512M");
    let mut mounted = place.mount(FOR_ALL);
    let folder = mounted.path("accounts");
    fs::create_dir(&folder).expect("space");
    succeeds(&mut accounts(&place, &folder, "create\nend\n"));
    let root = File::open(&mounted.point).expect("there");
    root.sync_all().expect("durable");
    drop(root);
    let mut commits = accounts(&place, &folder, COMMITS);
    let commits = commits.stderr(Stdio::null()).process_group(0).spawn();
    let mut commits = commits.expect("it starts");
    wait_until("it has begun", || place.path("begun").exists());
    let part = Duration::from_millis(500 + RandomState::new().hash_one(()) % 2000);
    std::thread::sleep(part);
    mounted.signal(Signal::KILL);
    assert!(!mounted.end().success());
    // It records the last acknowledged commit before it ends.
    wait_until("it ends", || commits.try_wait().expect("a child").is_some());
    drop(mounted);
    let mounted = place.mount(FOR_ALL);
    succeeds(&mut accounts(&place, &folder, COMMITTED));
    mounted.unmount_clean(&place);
    let message = place.path("accounts.postgres/message");
    let message = fs::read_to_string(message).expect("it message something");
    assert!(message.contains("redo done"), "{message}");
    assert!(tools::find("pgbench").is_some());
}
