//! `fourscore bench`: the workloads run and report, and errors of unknown names list the known
//! ones.

use fourscore_testkit::oracle::{self, assert_clean};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require, scratch};
use serde_json::Value;

use crate::common::{failing, fourscore, printed, text};

const ALLOC: [&str; 2] = ["bench", "alloc"];
const SMALL: [&str; 4] = ["bench", "alloc", "--scenario", "16g-aged-64k"];

fn json(arguments: &[&str]) -> Value {
    let text = printed(&mut fourscore(arguments));
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

#[test]
fn every_workload_runs_and_reports() {
    for workload in [
        "pair",
        "fallocate2",
        "fallocate3",
        "files",
        "large-goals",
        "append",
    ] {
        let mut arguments = SMALL.to_vec();
        arguments.extend([
            "--workload",
            workload,
            "--threads",
            "1,3",
            "--steps",
            "20",
            "--json",
        ]);
        let report = json(&arguments);
        let runs = report["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2);
        for (run, threads) in runs.iter().zip([1, 3]) {
            assert_eq!(run["operations"], 20 * threads, "{workload}: {run}");
            assert_eq!(
                run["mb_stats"]["reqs"], run["allocations"],
                "{workload}: {run}"
            );
            assert!(run["fairness"]["jain"].as_f64() > Some(0.0), "{run}");
            assert!(
                run["free_before"]["free_extents"].as_u64() > Some(0),
                "{run}"
            );
        }
    }
}

#[test]
fn a_report_has_the_names_of_the_kernel_and_of_e2freefrag() {
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--workload", "files", "--threads", "2", "--steps", "50"]);
    arguments.extend(["--switch", "trim=0", "--switch", "changes=applied"]);
    arguments.extend(["--set", "mb_group_prealloc=64", "--switch", "hold_times=on"]);
    let report = printed(&mut fourscore(&arguments));
    for part in [
        "scenario 16g-aged-64k: 16 GiB, blocks of 64 KiB, 75 % used\n",
        "mb_best_avail_max_trim_order = 0\nmb_hold_times = 1\nmb_group_prealloc = 64\n",
        "threads 2: ",
        "Jain index",
        "groups considered: mean ",
        "group locks held: p99 below ",
        "mballoc:\n\treqs: 100\n",
        "\tcr_best_avail_stats:\n\t\thits: ",
        "free space before:\nMin. free extent: ",
        "free space after:\nMin. free extent: ",
        "Extent Size Range :  Free extents   Free Blocks  Percent\n",
    ] {
        assert!(report.contains(part), "{part:?} is missing in:\n{report}");
    }
}

#[test]
fn errors_of_unknown_names_list_the_known_ones() {
    for (arguments, known) in [
        (["--scenario", "nothing"], "15t"),
        (["--workload", "nothing"], "fallocate3"),
        (["--set", "mb_nothing=1"], "mb_max_to_scan"),
        (["--set", "mb_optimize_scan=2"], "from 0 to 1"),
        (["--set", "mb_optimize_scan"], "NAME=VALUE"),
        (["--switch", "nothing=1"], "optimize_scan"),
        (["--switch", "goals=many"], "core, inode or one"),
        (["--seconds", "0"], "positive"),
    ] {
        let (status, message) = failing(&[&ALLOC[..], &arguments].concat());
        assert_eq!(status, Some(2), "{arguments:?}: {message}");
        assert!(message.contains(known), "{arguments:?}: {message}");
    }
    let help = printed(&mut fourscore(&["bench", "alloc", "--help"]));
    for name in ["842g", "append", "prefetch", "mb_best_avail_max_trim_order"] {
        assert!(help.contains(name), "{name} is missing in:\n{help}");
    }
}

#[test]
fn a_directory_of_the_host_takes_the_same_workloads() {
    let place = scratch::folder().expect("a folder");
    let arguments = ["--threads", "2", "--steps", "130", "--json", "--dir"];
    let mut whole = vec!["bench", "alloc", "--workload", "fallocate2"];
    whole.extend(arguments);
    whole.push(text(place.path()));
    assert_eq!(json(&whole)["runs"][0]["operations"], 260);
}

#[test]
fn a_tree_is_read_in_an_image_and_on_the_host() {
    require!(Need::Program("mke2fs"));
    let source = scratch::folder().expect("a folder");
    for name in ["a", "b", "c"] {
        std::fs::write(source.path().join(name), [1; 100]).expect("space");
    }
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .source(source.path())
        .make();
    let image = image.expect("mke2fs runs");
    let read = |of: &[&str]| {
        let options = ["--threads", "1,2", "--steps", "8", "--json"];
        json(&[&["bench", "read-tree"], of, &options].concat())
    };
    let (ours, theirs) = (
        read(&[text(image.path())]),
        read(&["--dir", text(source.path())]),
    );
    // The image also has lost+found.
    assert_eq!(
        (&ours["objects"], &theirs["objects"]),
        (&4.into(), &3.into())
    );
    assert_eq!(ours["runs"][1]["operations"], 16);
    assert_eq!(ours["runs"][0]["bytes"], 2 * 300);
    assert_eq!(failing(&["bench", "read-tree"]).0, Some(2));
}

#[test]
fn workloads_on_files_run_in_an_image_and_in_a_directory() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Image::builder(MiB(256)).kind("ext4").make().unwrap();
    let folder = scratch::folder().unwrap();
    let (image_path, dir) = (image.path().to_str().unwrap(), folder.path());
    for workload in ["create", "stat", "unlink", "readdir", "write", "fallocate2"] {
        let of = |place: &[&str]| {
            let mut arguments = vec!["bench", "files"];
            arguments.extend(place);
            arguments.extend(["--workload", workload, "--threads", "1,2"]);
            arguments.extend(["--steps", "7", "--json"]);
            let report = json(&arguments);
            let runs = report["runs"].as_array().expect("runs").clone();
            let operations = runs.iter().map(|run| run["operations"].as_u64());
            let operations: Vec<_> = operations.collect();
            assert_eq!(operations, [Some(7), Some(14)], "{workload}: {report}");
            assert!(runs[0]["seconds"].as_f64() > Some(0.0), "{report}");
        };
        of(&[image_path]);
        of(&["--dir", dir.to_str().unwrap()]);
    }
    assert_clean(image.path());
    let told = printed(&mut fourscore(&[
        "bench",
        "files",
        image_path,
        "--steps",
        "5",
        "--threads",
        "1",
    ]));
    assert!(
        told.contains("workload create: creates an empty file\nthreads 1: "),
        "{told}"
    );
    assert_eq!(failing(&["bench", "files"]).0, Some(2));
}

#[test]
fn workloads_of_fsync_run_in_an_image_in_memory_and_in_a_directory() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Image::builder(MiB(256))
        .kind("ext4")
        .features(&["fast_commit"])
        .make()
        .unwrap();
    let folder = scratch::folder().unwrap();
    let path = text(image.path());
    let of = |place: &[&str], workload: &str| {
        let size = ["--threads", "2", "--files", "3", "--json", "--workload"];
        json(&[&["bench", "fsync"], place, &size, &[workload]].concat())
    };
    for workload in [
        "append",
        "append-beside",
        "each",
        "each-16k",
        "after",
        "after-empty",
        "pending",
    ] {
        let in_memory = [
            "--in-memory",
            "--flush-us",
            "20",
            "--directories",
            "4",
            path,
        ];
        // The changes of `pending` are made 100 times, and each thread syncs one of them.
        let (repetitions, syncs) = match workload {
            "pending" => (100, 200),
            _ => (1, 12),
        };
        let report = of(&in_memory, workload);
        assert_eq!(report["operations"], 12 * repetitions, "{report}");
        assert_eq!(report["fsyncs"], syncs, "{report}");
        assert!(report["counts"]["flushes"].as_u64() >= Some(2), "{report}");
        let report = of(&["--directories", "4", path], workload);
        assert_eq!(report["operations"], 12 * repetitions, "{report}");
        let made = &report["counts"];
        let commits = made["fast_commits"]
            .as_u64()
            .expect("fast commits are made")
            + made["full_commits"].as_u64().expect("counted");
        assert!(commits > 0, "{report}");
        if workload == "append" {
            assert!(made["fast_commits"].as_u64() > Some(0), "{report}");
        }
        // Not every file system has attributes of users.
        if workload != "append-beside" {
            let report = of(&["--dir", text(folder.path())], workload);
            assert_eq!(report["operations"], 6 * repetitions, "{report}");
            assert!(report["fsync_p50_ns"].as_u64() > Some(0), "{report}");
        }
    }
    assert_clean(image.path());
    let size = ["--workload", "pending", "--files", "2", "--quadratic"];
    let told = printed(&mut fourscore(
        &[&["bench", "fsync", path], &size[..]].concat(),
    ));
    for part in ["  100 calls of fsync, ", "  quadratic: 4 records in "] {
        assert!(told.contains(part), "{told}");
    }
    assert_eq!(failing(&["bench", "fsync"]).0, Some(2));
}

#[test]
fn files_get_the_attributes_of_those_of_another_image() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    let make = || {
        let image = Image::builder(MiB(128)).inode_size_bytes(128).make();
        image.expect("mke2fs runs")
    };
    let source = make();
    // Twenty files, of which the first fifteen have attributes, of three contents.
    let write = |nr: u32| format!("write /dev/null f{nr}");
    let set = |nr: u32| format!("ea_set f{nr} user.a value-{}", nr % 3);
    let commands: Vec<String> = (0..20).map(write).chain((0..15).map(set)).collect();
    oracle::debugfs_write(source.path(), &commands).expect("debugfs");
    for (options, threads, files, contents) in [
        ("mbcache", "1", "100", 3),
        ("no_mbcache", "1", "100", 15),
        ("mbcache", "1", "10", 3),
        ("mbcache", "2", "100", 3),
    ] {
        let image = make();
        let done = json(&[
            "bench",
            "xattr",
            text(image.path()),
            "--like",
            text(source.path()),
            "--threads",
            threads,
            "--files",
            files,
            "-o",
            options,
            "--json",
        ]);
        assert!(done["runs"][0]["operations"].as_u64() >= Some(10), "{done}");
        let found = json(&["xattr-report", "--json", text(image.path())]);
        let users = if files == "10" { 10 } else { 15 };
        assert_eq!(found["blocks"]["users"], users, "{found}");
        assert_eq!(found["blocks"]["count"], contents, "{options}: {found}");
        assert_eq!(found["blocks"]["contents"], 3, "{found}");
        assert_clean(image.path());
    }
    let (image, like) = (make(), ["--like", text(source.path())]);
    let bench = ["bench", "xattr", text(image.path())];
    for wrong in [["--threads", "1,2"], ["--values", "same"]] {
        assert_eq!(failing(&[&bench[..], &like, &wrong].concat()).0, Some(2));
    }
    let (status, message) =
        failing(&[&bench[..], &["--like", "/dev/null", "--threads", "1"]].concat());
    assert_eq!(status, Some(1), "{message}");
}

#[test]
fn attributes_are_set_in_an_image_and_in_a_directory() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let image = Image::builder(MiB(128)).inode_size_bytes(128).make();
    let image = image.expect("mke2fs runs");
    let options = ["--threads", "1,2", "--files", "300", "--json"];
    for (workload, values, operations) in [
        ("set", "same", 300),
        ("set", "distinct", 300),
        ("set", "7", 300),
        ("mix", "100", 300 * 4 + 75 * 2),
    ] {
        let load = ["--workload", workload, "--values", values];
        let whole = [&["bench", "xattr", text(image.path())], &load[..], &options].concat();
        let report = json(&whole);
        assert_eq!(report["values"], values);
        let runs = report["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2);
        assert_eq!(runs[0]["operations"], operations, "{report}");
        assert!(
            runs[1]["operations"].as_u64() >= Some(operations),
            "{report}"
        );
        assert_clean(image.path());
    }
    let place = scratch::folder().expect("a folder");
    let mut whole = vec![
        "bench",
        "xattr",
        "--values",
        "distinct",
        "--dir",
        text(place.path()),
    ];
    whole.extend(options);
    let output = fourscore(&whole).output().expect("it runs");
    // Not every file system has attributes of users.
    if output.status.success() {
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["runs"][1]["operations"], 300);
    } else {
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("not supported"), "{message}");
    }
    for cache in ["one-lock", "unshared", "fourscore"] {
        let whole = [
            "bench",
            "xattr",
            "--workload",
            "mix",
            "--values",
            "10",
            "--cache",
            cache,
        ];
        let report = json(&[&whole[..], &options].concat());
        assert_eq!(report["target"], cache);
        assert_eq!(report["runs"][0]["operations"], 300 * 4 + 75 * 2);
    }
    for wrong in [
        ["--like", "y.img"],
        ["--cache", "one-lock"],
        ["--values", "0"],
        ["--values", "x"],
        ["--value-bytes", "15"],
    ] {
        let (status, message) = failing(&[&["bench", "xattr", "x.img"], &wrong[..]].concat());
        assert_eq!(status, Some(2), "{wrong:?}: {message}");
    }
}

/// The rows of the profile of a run by name, with the shares checked.
fn profile_of(run: &Value, threads: f64) -> impl Fn(&str) -> Value {
    let profile = run["profile"].clone();
    let rows = profile["rows"].as_array().expect("rows").clone();
    let sum: f64 = rows.iter().filter_map(|row| row["seconds"].as_f64()).sum();
    let wall = run["seconds"].as_f64();
    let wall = wall.or_else(|| Some(run["wall_ns"].as_f64()? / 1e9));
    let wall = wall.expect("a time");
    assert!(sum > 0.0 && sum <= wall * threads * 1.000_001, "{run}");
    move |name: &str| {
        let mut rows = rows.iter();
        let row = rows.find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("{name} in {profile}")).clone()
    }
}

#[test]
fn a_profile_says_where_the_time_of_the_allocator_goes() {
    // With blocks of 4 KiB each step is a request.
    let scenario = ["--scenario", "16g-aged-4k", "--workload", "fallocate2"];
    let arguments = [&ALLOC[..], &scenario, &["--threads", "2"]].concat();
    let more = ["--steps", "20000", "--profile", "--json"];
    let report = json(&[&arguments[..], &more].concat());
    let run = &report["runs"][0];
    let row = profile_of(run, 2.0);
    assert!(row("group choice")["share"].as_f64() > Some(0.05), "{run}");
    assert!(row("bitmap")["share"].as_f64() > Some(0.01), "{run}");
    assert_eq!(row("device")["share"], 0.0, "{run}");
    let entered = row("group choice")["entered_per_operation"].as_f64();
    assert!((0.9..1.1).contains(&entered.expect("a count")), "{run}");
    let measured = run["profile"]["measured"].as_u64().expect("a count");
    assert!((2..20_000).contains(&measured), "{run}");
    let text = printed(&mut fourscore(&[&arguments[..], &more[..3]].concat()));
    assert!(text.contains("    group lock wait "), "{text}");
    let without = json(&[&arguments[..], &["--steps", "20", "--json"]].concat());
    assert_eq!(without["runs"][0]["profile"], Value::Null);
}

#[test]
fn a_profile_says_where_the_time_of_a_file_system_goes() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(256))
        .kind("ext4")
        .make()
        .expect("mke2fs");
    let arguments = ["bench", "files", text(image.path()), "--workload", "append"];
    let more = ["--threads", "2", "--steps", "3000", "--profile", "--json"];
    let report = json(&[&arguments[..], &more].concat());
    let run = &report["runs"][0];
    let row = profile_of(run, 2.0);
    for name in ["handle", "map", "group choice", "bitmap", "device"] {
        assert!(row(name)["share"].as_f64() > Some(0.0), "{name}: {run}");
    }
    let writes = row("device")["entered_per_operation"].as_f64();
    assert!(writes > Some(0.9), "each append writes its data: {run}");
    assert!(row("outside")["share"].as_f64() < Some(0.5), "{run}");
    let (status, message) = failing(&["bench", "files", "--dir", "/tmp", "--profile"]);
    assert_eq!(status, Some(2), "{message}");
}
