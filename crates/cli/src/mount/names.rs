//! **Purpose.** Mounting under other names: translates the arguments of `fuse2fs` and of helpers of
//! mount(8) and mount.fuse(8) into a command line of `mount`.
//!
//! **Model.**
//!
//! | called as | arguments |
//! |---|---|
//! | `fuse2fs`, `fuse4fs` | `IMAGE DIR` and options in any order, as in libfuse |
//! | `mount.fourscore`, `mount.fuse.fourscore` | those that mount(8) passes to a helper |
//! | `fourscore /IMAGE DIR -o OPTIONS` | those that mount.fuse(8) passes for the type `fuse.fourscore` |
//!
//! Options of libfuse about performance and messages are accepted and have no effect. An option
//! that would change the behaviour of the mount and is not supported is refused by `mount` itself.
//!
//! **References.** fuse2fs(1), mount(8) (external helpers), mount.fuse3(8).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The program under whose name the command was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Fuse2fs,
    Helper,
    MountFuse,
}

/// Options of libfuse and of fuse2fs that have no effect here.
const WITHOUT_EFFECT: &[&str] = &[
    "async_read",
    "auto_unmount",
    "big_writes",
    "bsddf",
    "clone_fd",
    "debug",
    "fuse2fs_debug",
    "hard_remove",
    "no_default_opts",
    "sync_read",
    "use_ino",
];
const VALUES_WITHOUT_EFFECT: &[&str] = &[
    "congestion_threshold=",
    "max_background=",
    "max_idle_threads=",
    "max_read=",
    "max_readahead=",
    "max_threads=",
    "max_write=",
    "subtype=",
];
/// The options of `fuse2fs -o kernel`, with which a mount behaves like one of the kernel.
const AS_THE_KERNEL: &str = "allow_other,default_permissions,suid,dev";

/// Translates a command line to one of `mount`; `None` if it is not a mount under another name.
pub(crate) fn translate(
    arguments: &[OsString],
    is_verb: impl Fn(&OsStr) -> bool,
) -> Option<Vec<OsString>> {
    let (program, rest) = arguments.split_first()?;
    let caller = match Path::new(program).file_name()?.to_str()? {
        "fuse2fs" | "fuse4fs" => Caller::Fuse2fs,
        "mount.fourscore" | "mount.fuse.fourscore" => Caller::Helper,
        _ if is_call_of_mount_fuse(rest, is_verb) => Caller::MountFuse,
        _ => return None,
    };
    let mut line = vec![program.clone(), "mount".into()];
    let (options, paths) = split(rest, caller, &mut line);
    let words = options.join(&b","[..]);
    let words = words.split(|byte| *byte == b',');
    let words: Vec<&[u8]> = words.filter_map(|word| effective(word, caller)).collect();
    if !words.is_empty() {
        line.push("-o".into());
        line.push(OsString::from_vec(words.join(&b","[..])));
    }
    line.push("--".into());
    line.extend(paths);
    Some(line)
}

fn is_call_of_mount_fuse(rest: &[OsString], is_verb: impl Fn(&OsStr) -> bool) -> bool {
    match rest {
        // mount(8) makes the image an absolute path.
        [image, _, more @ ..] => {
            image.as_bytes().starts_with(b"/")
                && !is_verb(image)
                && (more.is_empty() || more[0] == "-o")
        }
        _ => false,
    }
}

/// Splits arguments into options for `-o` and paths. Flags that `mount` has too are added to its
/// `line`.
fn split(
    rest: &[OsString],
    caller: Caller,
    line: &mut Vec<OsString>,
) -> (Vec<Vec<u8>>, Vec<OsString>) {
    let (mut options, mut paths) = (Vec::new(), Vec::new());
    let mut rest = rest.iter();
    while let Some(argument) = rest.next() {
        let is_helper = caller == Caller::Helper;
        match argument.as_bytes() {
            b"-o" => options.extend(rest.next().map(|next| next.as_bytes().to_vec())),
            b"-r" => options.push(b"ro".to_vec()),
            b"-w" | b"-s" => {}
            // Of mount(8): no entry in mtab, verbose; the type, the namespace.
            b"-n" | b"-v" if is_helper => {}
            b"-t" | b"-N" if is_helper => drop(rest.next()),
            b"-d" | b"-f" if !is_helper => line.push("-f".into()),
            [b'-', b'o', attached @ ..] => options.push(attached.to_vec()),
            [b'-', _, ..] => line.push(argument.clone()),
            _ => paths.push(argument.clone()),
        }
    }
    (options, paths)
}

/// Returns the option as `mount` has it; `None` if it has no effect.
fn effective(word: &[u8], caller: Caller) -> Option<&[u8]> {
    // Options of mount(8) itself, which it passes on.
    let is_for_mount = word == b"_netdev" || word.starts_with(b"x-");
    let text = str::from_utf8(word).unwrap_or_default();
    let has_no_effect = WITHOUT_EFFECT.contains(&text)
        || VALUES_WITHOUT_EFFECT
            .iter()
            .any(|name| text.starts_with(name));
    match text {
        "kernel" if caller == Caller::Fuse2fs => Some(AS_THE_KERNEL.as_bytes()),
        _ if word.is_empty() || is_for_mount || has_no_effect => None,
        _ => Some(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &str) -> Option<String> {
        let arguments: Vec<OsString> = arguments.split(' ').map(OsString::from).collect();
        let line = translate(&arguments, |word| word == "ls")?;
        let words: Vec<&str> = line.iter().map(|word| word.to_str().unwrap()).collect();
        Some(words.join(" "))
    }

    #[test]
    fn command_lines_of_other_programs_are_translated() {
        let pairs = [
            (
                "/usr/bin/fuse2fs -f -o fakeroot,ro disk.img mnt",
                "/usr/bin/fuse2fs mount -f -o fakeroot,ro -- disk.img mnt",
            ),
            ("fuse2fs -f -o  a b", "fuse2fs mount -f -- a b"),
            (
                "fuse4fs a b -oro,no_default_opts,offset=512 -s",
                "fuse4fs mount -o ro,offset=512 -- a b",
            ),
            (
                "fuse2fs a b -o kernel -d",
                "fuse2fs mount -f -o allow_other,default_permissions,suid,dev -- a b",
            ),
            (
                "/sbin/mount.fuse.fourscore /a /b -n -o rw,_netdev,x-systemd.automount -t c",
                "/sbin/mount.fuse.fourscore mount -o rw -- /a /b",
            ),
            (
                "fourscore /a /b -o rw,dev,suid",
                "fourscore mount -o rw,dev,suid -- /a /b",
            ),
            // Unknown options are kept, so that `mount` refuses them.
            ("fuse2fs a b -o minixdf", "fuse2fs mount -o minixdf -- a b"),
            ("fuse2fs --no-such a b", "fuse2fs mount --no-such -- a b"),
        ];
        for (theirs, ours) in pairs {
            assert_eq!(line(theirs).as_deref(), Some(ours));
        }
        for others in ["fourscore ls /a -o", "fourscore /a", "fourscore a b -o ro"] {
            assert_eq!(line(others), None);
        }
    }
}
