//! The same commands on a mount and on the kernel's ext4, each on a copy of one image: their output
//! and the resulting trees are the same.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps, XattrFlags};

use crate::common::{fourscore, printed, text};
use crate::place::Place;

/// The beginning of each script. Error messages are compared as well.
const PROLOGUE: &str = r#"
exec 2>&1
umask 022
user="setpriv --reuid=1000 --regid=1000 --clear-groups"
told() { stat -c '%n %A %u:%g %h %s' "$@"; }
"#;

/// A write by a user without root, and a change of the owner, clear the setuid and setgid bits.
const SET_ID: &str = r#"
head -c 9000 /dev/zero > source
chmod 644 source
each() {
    for mode in 4777 2777 6777 2767 6766 6755; do
        echo content > file
        chown 1000:1000 file
        chmod $mode file
        "$@"
        echo "$* $mode: $(stat -c '%a %s' file)"
    done
}
all() {
    each $1 sh -c 'echo more >> file'
    each $1 sh -c ': > file'
    each $1 truncate -s 3 file
    each $1 truncate -s 30 file
    each $1 fallocate -l 5000 file
    each $1 fallocate -n -l 5000 file
    each $1 fallocate -p -o 0 -l 2 file
    each $1 fallocate -z -o 0 -l 2 file
    each $1 xfs_io -c 'pwrite -q 0 10' file
    each $1 xfs_io -d -c 'pwrite -q 0 4096' file
    each $1 xfs_io -c 'copy_range -l 5000 source' file
    each $1 chmod 6777 file
    each $1 touch file
}
chmod 777 .
user_only="setpriv --reuid=1000 --regid=1000 --clear-groups"
all "$user_only"
all env
each chown 1000 file
each chown 1001:1001 file
each chgrp 1001 file
each $user chgrp 1000 file
mkdir directory
chmod 6777 directory
chown 1000:1000 directory
told directory
# A user outside the group cannot set the set-group-ID bit.
chown 1000:50 file
chmod 755 file
$user chmod 2755 file
told file
$user setfacl -m u:7:r file
told file
"#;

/// A change of the owner to the same owner clears the bits as well.
const OWNED: &str = r#"
chmod 777 .
for mode in 4777 2767 6777 6644; do
    for owner in 0 1000 1001; do
        for who in env "$user"; do
            echo content > file
            chown $owner:1000 file
            chmod $mode file
            $who perl -e 'chown(-1, -1, "file")'
            echo "$who $owner $mode: $(stat -c '%a' file)"
        done
    done
done
"#;

/// Attributes that new inodes inherit from their directory.
const INHERITED: &str = r#"
all_of() { getfacl -n -p -R "$1"; }
make() {
    touch "$1/file"
    mkdir "$1/directory"
    mkdir -m 700 "$1/closed"
    mkfifo "$1/fifo"
    mknod -m 600 "$1/null" c 1 3
    ln -s x "$1/link"
    install -m 2755 /dev/null "$1/program"
    xfs_io -T -c 'flink '"$1/unnamed" "$1"
}
for mask in 000 022 027 077 777; do
    umask $mask
    for list in u:1234:rwx,g:99:r-x u:1234:rwx,m::r-x u::rw,g::-,o::- g:50:rwx,o::rwx; do
        mkdir -m 777 "$mask $list"
        setfacl -d -m "$list" "$mask $list"
        make "$mask $list"
        all_of "$mask $list"
    done
    mkdir -m 2777 "$mask"
    chown 0:50 "$mask"
    chmod g+s "$mask"
    make "$mask"
    $user touch "$mask/of a user"
    $user mkdir "$mask/directory of a user"
    $user install -m 2755 /dev/null "$mask/program of a user"
    all_of "$mask"
done
umask 022
# Modes and lists change each other.
touch file
setfacl -m u:1234:rwx,g:99:rw file
told file
chmod 640 file
all_of file
setfacl -m m::rwx file
told file
setfacl -x u:1234 file
setfacl -b file
all_of file
setfacl -m u::rw,g::r,o::- file
told file
mkdir defaults
setfacl -d -m u:7:r defaults
setfacl -k defaults
all_of defaults
setfacl -d -m u:7:r file
$user setfacl -m u:1000:rwx file
getfattr -h -m - -d file
"#;

/// The flags of renameat2(2), for which there is no command: 1 is NOREPLACE, 2 EXCHANGE, 4
/// WHITEOUT.
const RENAMED: &str = r#"
rename2() {
    perl -e '
        use POSIX ();
        my $number = (POSIX::uname())[4] eq "x86_64" ? 316 : 276;
        my ($flags, $from, $to) = @ARGV;
        my $done = syscall($number, -100, $from, -100, $to, $flags + 0);
        print "$flags $from $to: ", $done == 0 ? "done" : "$!", "\n";
    ' "$@"
}
echo one > one
echo two > two
mkdir -p directory/below empty
echo three > directory/three
rename2 1 one two
rename2 1 one new
rename2 2 new two
cat new two
rename2 2 new directory
ls -R
rename2 2 directory two
rename2 2 two missing
rename2 2 two two/below/deeper
rename2 3 one two
rename2 4 directory whited
rename2 5 whited two
rename2 6 whited two
rename2 8 whited two
rename2 0 empty two
rename2 0 two/below empty
told directory whited two
stat -c '%n %t:%T %F' directory
find . | sort
"#;

/// Files without a name are linked, or deleted at the last close.
const UNNAMED: &str = r#"
mkdir directory
chmod 2777 directory
chown 0:50 directory
setfacl -d -m u:1234:rw directory
xfs_io -T -c 'pwrite -q 0 5000' -c 'flink directory/linked' directory
told directory/*
getfacl -n directory/linked
sum directory/linked
$user xfs_io -T -c 'pwrite -q 0 10' -c 'stat' directory | grep -e 'stat.size' -e 'stat.type'
perl -e '
    use Fcntl;
    sysopen(my $file, "directory", 020200000 | O_EXCL | O_RDWR, 0600) or die "no: $!\n";
    print $file "never linked";
    print link("/proc/self/fd/" . fileno($file), "directory/not") ? "linked" : "$!", "\n";
'
ls -A directory
"#;

/// Holes, and fallocate(2) and copies of ranges.
const RANGES: &str = r#"
# What was read counts as data for Linux, so it is asked before.
left() {
    xfs_io -c fsync -c 'fadvise -d 0 0' file
    xfs_io -c 'seek -a -r 0' file
    echo "$* $(stat -c '%s %b' file) $(sha256sum < file)"
}
xfs_io -f -c 'truncate 1m' -c 'pwrite -q 256k 4k' -c 'pwrite -q 512k 64k' file
left written
for how in '-o 700K -l 64K' '-n -o 2M -l 64K' '-p -o 520K -l 16K' '-p -o 257K -l 1K' \
    '-z -o 530K -l 3K' '-z -n -o 3M -l 4K'; do
    fallocate $how file
    left "$how"
done
xfs_io -c 'seek -d 900k' -c 'seek -h 900k' -c 'seek -d 5m' -c 'seek -h 1m' file
xfs_io -f -c 'copy_range -s 256k -d 4k -l 300k file' copied
xfs_io -c 'copy_range -s 1000 -d 2m -l 3333 file' copied
xfs_io -c 'copy_range -s 5m -d 0 -l 10 file' copied
xfs_io -c 'copy_range -s 0 -d 100 -l 1000 copied' copied
xfs_io -c fsync copied
sha256sum copied
stat -c %s copied
fallocate -l 1K -o 1E file
fallocate -p -o 0 -l 10 .
truncate -s 17T file
truncate -s -1 file
"#;

/// Appends, truncation, and partial writes.
const WRITTEN: &str = r#"
exec 3>>log 4>>log
echo one >&3
echo two >&4
truncate -s 2 log
echo three >&3
xfs_io -a -c 'pwrite -q 0 4' log
echo four >&4
exec 3>&- 4>&-
od -c log
# Data that was cut off does not come back.
head -c 10000 /dev/urandom > cut
truncate -s 5 cut
truncate -s 9000 cut
stat -c %s cut
tail -c +6 cut | tr -d '\0' | wc -c
xfs_io -c 'pwrite -q -S 1 0 9000' -c 'truncate 100' -c fsync -c 'pwrite -q -S 2 50 10' cut
stat -c %s cut
sum cut
# Through a descriptor that must not read, into a page that was not read before.
seq 5000 > blind
xfs_io -c fsync -c 'fadvise -d 0 0' blind
printf middle | dd of=blind bs=6 count=1 seek=1000 conv=notrunc status=none
sum blind
# The time of a write that came before it was set.
echo written > dated
touch -d '2001-02-03 04:05:06.123456789 UTC' dated
xfs_io -c fsync dated
stat -c %y dated
test "$(stat -c %W dated)" -gt 1600000000 && echo born
"#;

/// Names of attributes, and who may set them.
const NAMED: &str = r#"
touch file
ln -s file link
mkdir -m 1777 sticky
setfattr -n gnu.translator -v /bin/program file
getfattr -d -m - file
getfattr -n gnu.translator file
getfattr -n gnu.missing file
setfattr -n gnu. -v 1 file
setfattr -h -n gnu.of-a-link -v 1 link
getfattr -h -d -m - link
$user setfattr -n gnu.of-a-user -v 1 file
$user getfattr -n gnu.translator file
chmod 600 file
$user getfattr -n gnu.translator file
$user getfattr -d -m - file
chmod 666 file
$user setfattr -n gnu.of-a-user -v 1 file
$user setfattr -n gnu.of-a-user -v 1 sticky
$user setfattr -n user.of-a-user -v 1 sticky
setfattr -x gnu.translator file
setfattr -x gnu.translator file
chattr +i file
setfattr -n gnu.sealed -v 1 file
chattr -i file
head -c 3000 /dev/zero | tr '\0' x > long
setfattr -n gnu.long -v $(cat long) file
getfattr -d -m - file | wc -c
"#;

/// Data that is written back after a flag forbids writing.
const SEALED: &str = r#"
for flag in i a; do
    exec 3>kept-$flag
    seq 20000 >&3
    chattr +$flag kept-$flag && echo sealed
    xfs_io -r -c fsync kept-$flag
    exec 3>&-
    xfs_io -r -c 'fadvise -d 0 0' kept-$flag
    sum kept-$flag
    stat -c '%n %s' kept-$flag
    echo more >> kept-$flag
    echo other > kept-$flag
    chattr -$flag kept-$flag
done
"#;

/// The ioctls of chattr(1) and others.
const FLAGS: &str = r#"
touch file
for flag in A S D T a c d i s t u; do
    for path in file .; do
        chattr +$flag $path
        lsattr -d $path
        chattr -$flag $path
    done
done
lsattr -d file .
chattr +a file
echo one >> file
echo two > file
truncate -s 0 file
rm file
mv file other
touch file && echo touched
touch -d '2001-02-03 UTC' file
chattr +i file
echo three >> file
chmod 600 file
chown 7 file
ln file linked
setfattr -n user.x -v 1 file
touch file
$user chattr -i file
chattr -ai file
cat file
chattr -v 4711 file
$user chattr -v 1 file
chown 1000 file
$user chattr +j file
$user chattr +A file
lsattr file
touch lonely
chattr -p 7 lonely
xfs_io -c lsproj lonely
xfs_io -c 'chattr +A' lonely
xfs_io -c 'lsattr' lonely
changed() {
    before=$(stat -c %z directory)
    sleep 0.03
    "$@"
    test "$before" = "$(stat -c %z directory)" || echo "$* changed it"
}
mkdir directory
stat -c %n directory
changed chattr +A directory
changed xfs_io -c 'chattr -A' directory
changed lsattr -d directory
xfs_io -c label .
xfs_io -c 'label -s sixteen-bytes-is' .
xfs_io -c label .
xfs_io -c 'label -s seventeen-byteser' .
$user xfs_io -r -c 'label -s other' .
xfs_io -c 'label -c' .
xfs_io -c label .
xfs_io -c 'label -s other' .
"#;

/// File locks of several programs.
const LOCKED: &str = r#"
touch file
flock file sh -c 'flock -n file true || echo taken'
flock -s file sh -c 'flock -s -n file echo shared; flock -n file true || echo taken'
flock -n file echo free
perl -e '
    use Fcntl ":DEFAULT", ":flock";
    open(my $file, "+<", "file") or die;
    my $lock = pack("s s x4 q q l x4", F_WRLCK, 0, 10, 10, 0);
    fcntl($file, F_SETLK, $lock) or die "$!";
    my $child = fork();
    if (!$child) {
        open(my $again, "+<", "file") or die;
        for my $start (0, 10, 15, 20) {
            my $wanted = pack("s s x4 q q l x4", F_WRLCK, 0, $start, 5, 0);
            print "$start ", fcntl($again, F_SETLK, $wanted) ? "got" : "taken", "\n";
        }
        exit;
    }
    waitpid($child, 0);
'
"#;

/// Directory positions, which stay valid in this and in the next listing.
const LISTED: &str = r#"
mkdir many
(cd many && seq 3000 | xargs touch)
perl -e '
    sub all { my ($list, %place) = @_; while (defined(my $name = readdir($list))) {
        $place{$name} = telldir($list); } %place }
    opendir(my $list, "many") or die;
    my %place = all($list);
    print scalar(keys %place), " names\n";
    unlink("many/$_") for grep { $_ % 7 == 0 } 1..3000;
    for (1..2000) { open(my $new, ">", "many/new-$_") or die; }
    opendir(my $later, "many") or die;
    my $wrong = 0;
    for my $open ($list, $later) {
        rewinddir($open);
        # A listing that continues behind a name has each name once that was there all the time.
        for my $start ("700", "1", "2999", "1500", "77") {
            my $from = $place{$start};
            seekdir($open, $from);
            my %seen;
            while (defined(my $name = readdir($open))) { $wrong++ if $seen{$name}++; }
            for my $name (grep { /^\d+$/ && $_ % 7 } keys %place) {
                my $is_behind = $place{$name} > $from;
                $wrong++ if $is_behind != exists $seen{$name};
            }
        }
    }
    print "$wrong wrong\n";
'
ls many | wc -l
"#;

/// The numbers of statfs(2). The space for users without root is not compared: Linux reserves two
/// of a hundred blocks for growing extent trees, which fourscore does not.
const COUNTED: &str = r#"
stat -f -c '%b %f %c %d %s %S %l' .
# How its map is kept is no matter of what is counted.
head -c 5000000 /dev/zero > large
xfs_io -c fsync large
free=$(stat -f -c %f .)
test $free -gt 56000 && test $free -lt 56100 && stat -f -c '%b %c %d' .
rm large
"#;

const SCRIPTS: [(&str, &str); 13] = [
    ("counted", COUNTED),
    ("set-id", SET_ID),
    ("owned", OWNED),
    ("inherited", INHERITED),
    ("renamed", RENAMED),
    ("unnamed", UNNAMED),
    ("ranges", RANGES),
    ("written", WRITTEN),
    ("named", NAMED),
    ("sealed", SEALED),
    ("flags", FLAGS),
    ("locked", LOCKED),
    ("listed", LISTED),
];

/// The output of a script in a new folder of a mount.
fn output_of(script: &str, name: &str, root: &Path) -> String {
    let folder = root.join(name);
    fs::create_dir(&folder).expect("space");
    let mut command = tools::command("sh").expect("it exists");
    command.args(["-c", &[PROLOGUE, script].concat()]);
    let output = command.current_dir(&folder).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    told.replace(text(root), "@")
}

/// The same image twice, in a folder that all may enter, and the kernel's mount of the second.
fn pair(kernel_options: &str) -> (Place, KernelMount) {
    let place = Place::new();
    let passable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.0.path(), passable).expect("permission");
    let image = place.text("image");
    printed(&mut fourscore(&[
        "mkfs", "-q", "-b", "4096", "-L", "twin", &image, "256M",
    ]));
    fs::copy(&image, place.path("theirs")).expect("space");
    let kernel = KernelMount::new(&place.path("theirs"), Access::ReadWrite, kernel_options);
    let kernel = kernel.expect("sound");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(kernel.path(), open).expect("permission");
    (place, kernel)
}

/// Runs all scripts on a mount with these options, and on the kernel's with its own. Returns the
/// label that they left.
fn twins(options: &str, kernel_options: &str, scripts: &[(&str, &str)]) -> String {
    let (place, kernel) = pair(kernel_options);
    let theirs: Vec<String> = scripts
        .iter()
        .map(|(name, script)| output_of(script, name, kernel.path()))
        .collect();
    kernel.unmount().expect("idle");
    let mounted = place.mount(options);
    for ((name, script), theirs) in scripts.iter().zip(theirs) {
        let ours = output_of(script, name, &mounted.point);
        let pairs = ours.lines().zip(theirs.lines()).enumerate();
        for (number, (ours, theirs)) in pairs {
            assert_eq!(ours, theirs, "{name} with {options}, line {number}");
        }
        assert_eq!(ours, theirs, "{name} with {options}");
        assert!(ours.lines().count() > 1, "{name}: {ours}");
    }
    mounted.unmount_clean(&place);
    let image = place.path("image");
    let label = tools::run("e2label", &[image.as_ref()]).expect("it exists");
    label.trim().to_owned()
}

#[test]
fn commands_behave_like_on_the_kernels_ext4() {
    require!(
        Need::KernelMount,
        Need::Fuse,
        Need::Program("setfacl"),
        Need::Program("setfattr"),
        Need::Program("xfs_io"),
        Need::Program("perl"),
        Need::Program("e2fsck")
    );
    assert!(SCRIPTS.len() > 9);
    let without = |left_out| -> Vec<_> {
        let scripts = SCRIPTS.into_iter();
        scripts.filter(|(name, _)| *name != left_out).collect()
    };
    // The exceptions for holes with the writeback cache, and for changes that set no owner
    // without it, are in docs/COMPAT.md.
    let cached = twins("allow_other,suid,dev", "", &without("ranges"));
    let nowriteback = "allow_other,suid,dev,nowriteback";
    let uncached = twins(nowriteback, "", &without("owned"));
    assert_eq!([cached, uncached], ["other", "other"]);
}

#[test]
fn groups_and_their_bits_are_inherited_as_on_the_kernels_ext4() {
    require!(
        Need::KernelMount,
        Need::Fuse,
        Need::Program("setfacl"),
        Need::Program("xfs_io"),
        Need::Program("e2fsck")
    );
    twins(
        "allow_other,suid,dev,grpid",
        "grpid",
        &[("inherited", INHERITED)],
    );
}

/// What `result` is: `done`, or the number of the error.
fn outcome<T>(result: rustix::io::Result<T>) -> String {
    result.map_or_else(
        |errno| errno.raw_os_error().to_string(),
        |_| "done".to_owned(),
    )
}

fn flag(change: &str, path: &Path) {
    tools::run("chattr", &[change.as_ref(), path.as_ref()]).expect("root may");
}

/// Times as programs set them: now, and one of their own.
fn results_of_times(root: &Path) -> Vec<String> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let old = Timespec {
        tv_sec: 978_307_200,
        tv_nsec: 5,
    };
    let mut results = Vec::new();
    for (name, is_directory) in [("a file", false), ("a directory", true)] {
        let path = root.join(name);
        match is_directory {
            true => fs::create_dir(&path).expect("space"),
            false => fs::write(&path, "content").expect("space"),
        }
        for change in ["-a", "+a"] {
            flag(change, &path);
            for [last_access, last_modification] in [[now, old], [old, now], [old; 2], [now, now]] {
                let times = Timestamps {
                    last_access,
                    last_modification,
                };
                let opened = fs::File::open(&path).expect("there");
                let set = outcome(rustix::fs::futimens(&opened, &times));
                let is_old = fs::metadata(&path).expect("there").mtime() == old.tv_sec;
                results.push(format!("{name} {change} {set} {is_old}"));
            }
        }
        flag("-a", &path);
    }
    results
}

/// What calls return that commands do not make.
fn results_of_calls(root: &Path) -> Vec<String> {
    let mut results = Vec::new();
    let file = root.join("named");
    fs::write(&file, "content").expect("space");
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    for how in [both, XattrFlags::empty(), both] {
        let set = rustix::fs::setxattr(&file, "user.name", b"value", how);
        results.push(format!("{how:?} {}", outcome(set)));
    }
    results.push(outcome(rustix::fs::setxattr(
        &file,
        "other.name",
        b"",
        both,
    )));
    let gone = root.join("gone");
    fs::create_dir(&gone).expect("space");
    let opened = fs::File::open(&gone).expect("there");
    fs::remove_dir(&gone).expect("empty");
    for flags in [OFlags::TMPFILE, OFlags::CREATE] {
        let name = if flags == OFlags::CREATE { "new" } else { "." };
        let flags = flags | OFlags::RDWR;
        let made = rustix::fs::openat(&opened, name, flags, Mode::RUSR);
        results.push(format!("{name} {}", outcome(made)));
    }
    results
}

#[test]
fn calls_return_what_they_return_on_the_kernels_ext4() {
    require!(Need::KernelMount, Need::Fuse, Need::Program("e2fsck"));
    for options in ["", "nowriteback"] {
        let (place, kernel) = pair("");
        let all = |root: &Path| [results_of_times(root), results_of_calls(root)].concat();
        let theirs = all(kernel.path());
        kernel.unmount().expect("idle");
        let mounted = place.mount(options);
        let ours = all(&mounted.point);
        assert_eq!(ours, theirs, "{options}");
        assert!(theirs.iter().any(|result| result == "a file +a 1 false"));
        mounted.unmount_clean(&place);
    }
}
