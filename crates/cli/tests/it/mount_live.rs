//! A mount reports statistics, takes new values of tunables, and unmounts on request.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use crate::common::{failing, fourscore, printed, text};
use crate::mounted::{Mounted, as_a_user, empty, is_mounted, require_mount};

fn stats(point: &Path) -> Value {
    let printed = printed(&mut fourscore(&["stats", "--json", text(point)]));
    serde_json::from_str(&printed).expect("JSON")
}

/// Whether the statistics have the waits for locks of several kinds.
fn has_lock_waits(figures: &Value) -> bool {
    let locks = ["directory", "inode", "buffer", "group"];
    let waits = |lock: &&str| &figures["locks"][*lock]["waits"];
    locks.iter().all(|lock| waits(lock).is_u64())
}

#[test]
fn a_mount_reports_statistics_and_takes_tunables() {
    require_mount!("setpriv");
    let place = empty("64M");
    let mounted = place.mount("allow_other,nowriteback");
    for number in 0..50 {
        fs::write(mounted.path(&number.to_string()), [7; 10_000]).expect("space");
    }
    let figures = stats(&mounted.point);
    let count = |path: &[&str]| {
        let found = path.iter().fold(&figures, |value, name| &value[*name]);
        found
            .as_u64()
            .unwrap_or_else(|| panic!("{path:?} in {figures:#}"))
    };
    assert_eq!(count(&["operations", "CREATE", "requests"]), 50);
    let writes = count(&["operations", "WRITE", "requests"]);
    assert!(writes >= 50);
    let histogram = figures["operations"]["WRITE"]["below_2_to_the_i_us"].as_array();
    let sum: u64 = histogram
        .expect("counts")
        .iter()
        .filter_map(Value::as_u64)
        .sum();
    assert_eq!(sum, writes);
    assert!(count(&["mb_stats", "reqs"]) >= 50);
    assert!(has_lock_waits(&figures), "{figures:#}");
    count(&["journal", "commits"]);
    count(&["buffers", "loads"]);
    let text_form = printed(&mut fourscore(&["stats", text(&mounted.point)]));
    assert!(text_form.contains("\tCREATE:\n\t\t"), "{text_form}");

    // A new value is shown in all forms.
    let point = text(&mounted.point);
    assert_ne!(count(&["tunables", "mb_stream_req"]), 32);
    printed(&mut fourscore(&["tune", point, "mb_stream_req=32"]));
    assert_eq!(stats(&mounted.point)["tunables"]["mb_stream_req"], 32);
    let all = printed(&mut fourscore(&["tune", point]));
    assert!(all.lines().any(|line| line == "mb_stream_req=32"), "{all}");
    for (value, why) in [
        ("no_such=1", "no_such"),
        ("mb_stream_req=x", "number"),
        ("mb_optimize_scan=2", "mb_optimize_scan"),
    ] {
        let (status, message) = failing(&["tune", point, value]);
        assert_eq!(status, Some(1), "{message}");
        assert!(
            message.contains(why) && message.lines().count() == 1,
            "{message}"
        );
    }

    // Another user, who may use the mount, can neither read statistics nor change tunables.
    fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).expect("permission");
    let others = [
        vec!["stats", point],
        vec!["tune", point, "mb_stream_req=8"],
        vec!["umount", point],
    ];
    for arguments in others {
        let output = place
            .as_unprivileged_user(&arguments)
            .output()
            .expect("it exists");
        assert!(!output.status.success(), "{arguments:?}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(stats(&mounted.point)["tunables"]["mb_stream_req"], 32);
    // Another mount is refused.
    let (status, message) = failing(&["stats", "/proc"]);
    assert_eq!(status, Some(1), "{message}");
    mounted.unmount_clean(&place);
}

#[test]
fn listing_and_writing_take_few_requests() {
    const NAMES: u64 = 3000;
    require_mount!();
    let place = empty("64M");
    let mounted = place.mount("");
    fs::create_dir(mounted.path("many")).expect("space");
    for number in 0..NAMES {
        fs::write(mounted.path(&format!("many/{number}")), "").expect("space");
    }
    mounted.unmount();
    let requests = |mounted: &Mounted, name: &str| {
        let figures = stats(&mounted.point);
        figures["operations"][name]["requests"]
            .as_u64()
            .unwrap_or_default()
    };
    // ls takes READDIR requests; only the first may be READDIRPLUS.
    let mounted = place.mount("");
    let listed = fs::read_dir(mounted.path("many")).expect("listed").count();
    assert_eq!(listed as u64, NAMES);
    assert!(requests(&mounted, "READDIR") > requests(&mounted, "READDIRPLUS"));
    mounted.unmount();
    // ls -l takes READDIRPLUS requests, which return the attributes with the names.
    let mounted = place.mount("");
    for entry in fs::read_dir(mounted.path("many")).expect("listed") {
        entry.and_then(|entry| entry.metadata()).expect("there");
    }
    assert!(requests(&mounted, "READDIRPLUS") > requests(&mounted, "READDIR"));
    assert!(requests(&mounted, "LOOKUP") < NAMES / 4);
    // A direct write is split into requests of at least 1 MiB.
    let mut options = fs::OpenOptions::new();
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    options.write(true).create(true).custom_flags(direct);
    let file = options.open(mounted.path("large")).expect("made");
    let content = vec![7; (4 << 20) + 4096];
    let start = content.as_ptr().align_offset(4096);
    let written = file.write_at(&content[start..start + (4 << 20)], 0);
    assert_eq!(written.expect("space"), 4 << 20);
    drop(file);
    assert!((1..=5).contains(&requests(&mounted, "WRITE")));
    mounted.unmount_clean(&place);
}

/// File data does not stay in memory, and removed inodes take none.
#[test]
fn memory_is_bounded_by_existing_inodes() {
    require_mount!();
    const MIB: usize = 1 << 20;
    let place = empty("512M");
    let mounted = place.mount("nowriteback");
    let in_use = || {
        let path = format!("/proc/{}/status", mounted.server.id());
        let status = fs::read_to_string(path).expect("it runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse::<usize>().ok())
            .expect("a number")
            << 10
    };
    let names = || {
        let dir = mounted.path("dir");
        fs::create_dir(&dir).expect("space");
        for number in 0..4000 {
            fs::write(dir.join(number.to_string()), [7; 10]).expect("space");
        }
        fs::remove_dir_all(&dir).expect("there");
    };
    // The number fills the caches to their limits.
    (0..4).for_each(|_| names());
    let after_some = in_use();
    // If the inode of each stayed in memory, it would be more.
    (0..12).for_each(|_| names());
    let after_all = in_use();
    assert!(
        after_all < after_some + 40 * MIB,
        "{after_some}, {after_all}"
    );
    let piece = vec![7; MIB];
    let file = mounted.open("large");
    for nth in 0..256 {
        file.write_all_at(&piece, nth * MIB as u64).expect("space");
    }
    drop(file);
    assert_eq!(
        fs::read(mounted.path("large")).expect("there").len(),
        256 * MIB
    );
    let with_content = in_use();
    assert!(
        with_content < after_all + 24 * MIB,
        "{after_all}, {with_content}"
    );
    mounted.unmount();
    fourscore_testkit::oracle::assert_clean(&place.path("image"));
}

#[test]
fn umount_waits_for_the_server() {
    require_mount!();
    let place = empty("64M");
    let mut mounted = place.mount("commit=100000");
    fs::write(mounted.path("file"), b"never synced").expect("space");
    printed(&mut fourscore(&["umount", text(&mounted.point)]));
    assert!(!is_mounted(&mounted.point));
    place.check("image").expect("clean");
    assert!(mounted.end().success());
    let (status, message) = failing(&["umount", text(&mounted.point)]);
    assert!(message.contains("is not a mount point"), "{message}");
    assert_eq!(status, Some(1));
}

/// Mounts as a user, writes, unmounts, and reads the image at once.
const BY_A_USER: &str = r#"
for round in 1 2 3; do
    $user "$FOURSCORE" mount -o fakeroot,commit=100000 "$IMAGE" "$POINT"
    $user sh -c "seq 100000 > $POINT/$round"
    $user "$FOURSCORE" stats "$POINT" | grep -q CREATE
    $user "$FOURSCORE" tune "$POINT" mb_stream_req=32
    $user "$FOURSCORE" umount "$POINT"
    e2fsck -fn "$IMAGE"
done
"#;

#[test]
fn umount_of_a_user_leaves_the_image_clean() {
    require_mount!("setpriv", "unshare");
    let place = empty("64M");
    assert_eq!(as_a_user(&place, BY_A_USER), Ok(()));
}
