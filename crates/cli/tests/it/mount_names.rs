//! Mounting under the names of other programs, with their arguments.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use fourscore_testkit::tools;

use crate::common::{fourscore, printed, text};
use crate::mounted::{Mounted, as_a_user, empty, is_mounted, require_mount, umount, wait_until};
use crate::place::Place;

/// The command under another name.
fn named(place: &Place, name: &str) -> PathBuf {
    let path = place.path(name);
    symlink(env!("CARGO_BIN_EXE_fourscore"), &path).expect("space");
    path
}

#[test]
fn the_command_lines_of_fuse2fs_work() {
    require_mount!();
    let place = empty("64M");
    let point = place.path("mnt");
    fs::create_dir(&point).expect("space");
    let (image, at) = (place.text("image"), text(&point).to_owned());
    // In the background, with options before and after the paths.
    let lines: [&[&str]; 3] = [
        &[&image, &at],
        &["-o", "rw,no_default_opts,acl", &image, &at],
        &[&image, &at, "-okernel,errors=continue", "-s"],
    ];
    let program = named(&place, "fuse2fs");
    for (number, line) in lines.into_iter().enumerate() {
        printed(Command::new(&program).args(line));
        fs::write(point.join(number.to_string()), b"written").expect("space");
        umount(&point);
        place.check("image").expect("clean");
    }
    // As apptainer calls it: in the foreground, with an empty list of options.
    for (name, options) in [("fuse2fs", ""), ("fuse4fs", "fakeroot,ro")] {
        let program = match name {
            "fuse2fs" => program.clone(),
            name => named(&place, name),
        };
        let mut command = Command::new(program);
        command.args(["-f", "-o", options, &image, &at]);
        let mut mounted = Mounted {
            server: command.spawn().expect("it starts"),
            point: point.clone(),
        };
        wait_until("mounted", || is_mounted(&point));
        assert_eq!(fs::read(point.join("2")).expect("there"), b"written");
        let is_written = fs::write(point.join("by apptainer"), b"x").is_ok();
        assert_eq!(is_written, options.is_empty());
        umount(&point);
        assert!(mounted.end().success());
    }
    place.check("image").expect("clean");
    // An option that would change the behaviour is refused, not ignored.
    let mut command = Command::new(&program);
    let output = command.args([&image, &at, "-o", "minixdf"]).output();
    let output = output.expect("it exists");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && message.contains("minixdf"),
        "{message}"
    );
    assert!(!is_mounted(&point));
}

/// mount(8) searches helpers in the folders of the system only, so the command is copied there, in
/// a separate mount namespace.
const BY_MOUNT: &str = r#"
set -e
mount --bind "$FOLDER" /usr/local/bin
mount --bind "$FOLDER" /usr/local/sbin
in_turn() {
    "$@"
    grep -q "^$IMAGE $POINT fuse[a-z]*.fourscore " /proc/self/mounts
    echo written > "$POINT/$number"
    number=$((number + 1))
    umount "$POINT"
    e2fsck -fn "$IMAGE"
}
number=0
in_turn mount -t fuse.fourscore -o noatime "$IMAGE" "$POINT"
echo "$IMAGE $POINT fuse.fourscore noauto,noatime,nodev,x-test=1 0 0" > "$FOLDER/fstab"
in_turn mount -T "$FOLDER/fstab" "$POINT"
in_turn "$FOLDER/mount.fuse.fourscore" "$IMAGE" "$POINT" -n -v -o rw,nosuid -t fuse.fourscore
# What is mounted already is known to be.
echo "$IMAGE $POINT fuse.fourscore defaults 0 0" > "$FOLDER/fstab"
all_twice() {
    mount -a -T "$FOLDER/fstab"
    mount -a -T "$FOLDER/fstab"
}
in_turn all_twice
"#;

#[test]
fn mount_and_fstab_use_the_helper() {
    require_mount!("mount.fuse", "unshare");
    let place = empty("64M");
    let (point, folder) = (place.path("mnt"), place.path("bin"));
    for path in [&point, &folder] {
        fs::create_dir(path).expect("space");
    }
    for name in ["bin/fourscore", "bin/mount.fuse.fourscore"] {
        named(&place, name);
    }
    let mut command = tools::command("unshare").expect("it exists");
    command.args(["--mount", "sh", "-c", BY_MOUNT]);
    command
        .env("IMAGE", place.path("image"))
        .env("POINT", &point);
    let output = command.env("FOLDER", &folder).output();
    let output = output.expect("it exists");
    let message = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&message)
    );
    let listed = printed(&mut fourscore(&["ls", &place.text("image"), "/"]));
    let names: Vec<&str> = listed.lines().collect();
    assert_eq!(names, ["0", "1", "2", "3", "lost+found"]);
}

/// A mount is found by its image under any of its names.
const BY_IMAGE: &str = r#"
set -e
cd "${IMAGE%/*}"
ln -s "$IMAGE" "another name"
# A process that looks at all mounts may be in this one at that moment.
leave() {
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        if umount "$1" 2> why; then return 0; fi
        grep -q 'target is busy' why || break
        sleep 0.2
    done
    cat why >&2
    return 1
}
by_image() {
    options="$1"
    named="$2"
    "$FOURSCORE" mount -o "$options" "$named" "$POINT"
    for name in "$named" "$IMAGE" "another name"; do
        test "$(findmnt -n -o TARGET -S "$name")" = "$POINT"
    done
    test "$(findmnt -n -o SOURCE "$POINT")" = "$IMAGE"
    echo "$options" >> "$POINT/options"
    leave "$named"
    e2fsck -fn "$IMAGE"
}
by_image suid,dev "${IMAGE##*/}"
by_image noexec,allow_other "another name"
# The flags of mount(2) are all there.
"$FOURSCORE" mount -o ro,noexec "$IMAGE" "$POINT"
findmnt -n -o OPTIONS "$POINT" | grep -q '^ro,nosuid,nodev,noexec,'
if touch "$POINT/new"; then exit 1; fi
leave "$IMAGE"
# A partition is not its disk.
{ head -c 1M /dev/zero; cat "$IMAGE"; } > disk
"$FOURSCORE" mount disk@1024K "$POINT"
test "$(findmnt -n -o SOURCE "$POINT")" = "$PWD/disk@1M"
leave "$PWD/disk@1M"
# A user who may not make device nodes gets a mount of another name, which umount waits for as well.
setpriv --bounding-set=-mknod "$FOURSCORE" mount "$IMAGE" "$POINT"
findmnt -n -o FSTYPE "$POINT" | grep -q '^fuseblk'
echo last >> "$POINT/options"
leave "$POINT"
e2fsck -fn "$IMAGE"
"#;

/// Through fusermount3, which passes on the source.
const BY_IMAGE_OF_A_USER: &str = r#"
cd "${IMAGE%/*}"
$user "$FOURSCORE" mount "${IMAGE##*/}" "$POINT"
test "$(findmnt -n -o TARGET -S "$IMAGE")" = "$POINT"
$user fusermount3 -u "$POINT"
"#;

#[test]
fn a_mount_is_found_by_its_image() {
    require_mount!("findmnt", "setpriv", "unshare");
    let place = empty("64M");
    let script = [BY_IMAGE, BY_IMAGE_OF_A_USER].concat();
    assert_eq!(as_a_user(&place, &script), Ok(()));
}

/// With fakeroot, a user without root can read files of root in an image of the user.
const WITH_FAKEROOT: &str = r#"
program="${FOURSCORE%/*}/fuse2fs"
ln -s fourscore "$program"
$user "$program" -o fakeroot "$IMAGE" "$POINT"
test "$($user cat "$POINT/closed/file")" = secret
$user sh -c 'echo more > "$POINT/closed/new"'
$user fusermount3 -u "$POINT"
# As apptainer has it for a user: behind stdbuf, with the image open for it to be found there, and
# with a look at the table of mounts until it is done.
mounted() { grep -q " $POINT fuse.fourscore " /proc/self/mounts; }
$user stdbuf -oL "$program" -f -o fakeroot /proc/self/fd/3 "$POINT" 3<>"$IMAGE" &
server=$!
until mounted; do kill -0 $server; sleep 0.02; done
test "$($user cat "$POINT/closed/new")" = more
$user mkdir "$POINT/closed/upper" "$POINT/closed/work"
$user fusermount3 -u "$POINT"
wait $server
$user "$program" -f -o fakeroot,ro /proc/self/fd/3 "$POINT" 3<"$IMAGE" &
server=$!
until mounted; do kill -0 $server; sleep 0.02; done
$user test -d "$POINT/closed/upper"
if $user rmdir "$POINT/closed/upper" 2>/dev/null; then exit 1; fi
$user fusermount3 -u "$POINT"
wait $server
$user "$program" "$IMAGE" "$POINT"
if $user cat "$POINT/closed/file" 2>/dev/null; then exit 1; fi
$user fusermount3 -u "$POINT"
"#;

#[test]
fn fakeroot_checks_no_permissions() {
    require_mount!("setpriv", "unshare");
    let place = empty("64M");
    let mounted = place.mount("");
    fs::create_dir(mounted.path("closed")).expect("space");
    fs::write(mounted.path("closed/file"), b"secret\n").expect("space");
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(mounted.path("closed"), closed).expect("permission");
    mounted.unmount();
    assert_eq!(as_a_user(&place, WITH_FAKEROOT), Ok(()));
    wait_until("the image is let go", || place.check("image").is_ok());
}
