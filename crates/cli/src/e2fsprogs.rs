//! **Purpose.** The names of programs of e2fsprogs: under each of them the command takes the
//! arguments of that program, which are those of a verb, or are translated into them.
//!
//! | name | verb |
//! |---|---|
//! | `tune2fs`, with `-l` | `tune`, `info` |
//! | `e2label` | `tune -L`, or prints the label |
//! | `dumpe2fs`, with `-h` | `info --groups`, `info` |
//! | `debugfs` | [`crate::debugfs`] |
//! | `resize2fs` | `resize` |
//! | `e2fsck`, `fsck.ext4`, `fsck.ext3`, `fsck.ext2` | `check`, which always checks everything |
//!
//! **Not here.** `mke2fs` and its other names ([`crate::mkfs::ProgramName`]); `fuse2fs` and the
//! helpers of mount(8) ([`crate::mount::names`]).

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The exit status of most programs for wrong usage.
const USAGE: u8 = 1;
/// That of e2fsck.
const CHECK_USAGE: u8 = 16;

/// The call of a verb for that of another program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) arguments: Vec<OsString>,
    /// The exit status of that program for wrong usage.
    pub(crate) usage_status: u8,
}

/// What becomes of an option.
enum Change {
    /// It is left out: it asks for what is so in any case.
    None,
    /// It is left out with its value.
    NoneWithValue,
    /// It has another name.
    To(&'static str),
}

/// Returns the call of a verb, for a command that is called by the name of one of the programs;
/// `None` if it is called by another name.
pub(crate) fn translate(arguments: &[OsString]) -> Option<Translated> {
    use Change::{None as Nothing, NoneWithValue, To};
    let (first, rest) = arguments.split_first()?;
    let has = |option: &str| rest.iter().any(|word| word == option);
    let name = Path::new(first).file_name()?.to_str()?;
    let arguments = match name {
        "tune2fs" if has("-l") => verb(&["info"], rest, &[("-l", Nothing)]),
        // -f: go on although there are warnings, of which there are none here.
        "tune2fs" => verb(&["tune"], rest, &[("-f", Nothing)]),
        "e2label" => match rest {
            [image, label] => verb(&["tune", "-L"], &[label.clone(), image.clone()], &[]),
            rest => verb(&["print-label"], rest, &[]),
        },
        "dumpe2fs" if has("-h") => verb(&["info"], rest, &[("-h", Nothing)]),
        // -f: go on although features are not known, which the verb does.
        "dumpe2fs" => verb(&["info", "--groups"], rest, &[("-f", Nothing)]),
        "debugfs" => verb(&["debugfs"], rest, &[]),
        // -F: flush the buffers of the device. -p: show the progress. -d: print for developers.
        "resize2fs" => {
            let changes = [
                ("-F", Nothing),
                ("-p", Nothing),
                ("-d", NoneWithValue),
                ("-b", Nothing),
                ("-s", Nothing),
                ("-f", Nothing),
            ];
            // -b, -s: descriptors of 64 or of 32 bytes, and no other size. -f: without a check.
            match (has("-b"), has("-s")) {
                (true, false) => verb(&["tune", "-O", "64bit"], rest, &changes),
                (false, true) => verb(&["tune", "-O", "^64bit"], rest, &changes),
                _ => verb(&["resize"], rest, &changes[..3]),
            }
        }
        // -t: print times. -C: show the progress on a file descriptor.
        "e2fsck" | "fsck.ext4" | "fsck.ext3" | "fsck.ext2" => {
            let changes = [
                ("-F", Nothing),
                ("-d", Nothing),
                ("-t", Nothing),
                ("-tt", Nothing),
                ("-C", NoneWithValue),
                ("-C0", Nothing),
                ("-z", To("--undo")),
                ("-V", To("--version")),
            ];
            verb(&["check"], rest, &changes)
        }
        _ => return None,
    };
    let usage_status = match arguments.get(1).is_some_and(|verb| verb == "check") {
        true => CHECK_USAGE,
        false => USAGE,
    };
    Some(Translated {
        arguments,
        usage_status,
    })
}

/// A command line with the words of a verb and the arguments, of which some options are changed.
fn verb(words: &[&str], arguments: &[OsString], changes: &[(&str, Change)]) -> Vec<OsString> {
    let words = ["fourscore"].iter().chain(words).map(OsString::from);
    let mut words: Vec<OsString> = words.collect();
    let change_of = |word: &OsStr| {
        let found = changes.iter().find(|(option, _)| word == *option);
        found.map(|(_, change)| change)
    };
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match change_of(word) {
            None => words.push(word.clone()),
            Some(Change::None) => {}
            Some(Change::NoneWithValue) => drop(rest.next()),
            Some(Change::To(name)) => words.push(name.into()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn command_lines_of_other_programs_are_translated() {
        let line = |text: &str| {
            let words: Vec<_> = text.split(' ').map(OsString::from).collect();
            let words = translate(&words)?.arguments;
            let words: Vec<_> = words.into_iter().map(OsString::into_vec).collect();
            Some(String::from_utf8(words.join(&b' ')).expect("text"))
        };
        for (given, expected) in [
            ("/sbin/tune2fs -f -L x a.img", "fourscore tune -L x a.img"),
            ("tune2fs -l a.img", "fourscore info a.img"),
            ("e2label a.img", "fourscore print-label a.img"),
            ("e2label a.img x", "fourscore tune -L x a.img"),
            ("dumpe2fs -h a.img", "fourscore info a.img"),
            ("dumpe2fs a.img", "fourscore info --groups a.img"),
            ("debugfs -R stats a.img", "fourscore debugfs -R stats a.img"),
            ("resize2fs -f -b a.img", "fourscore tune -O 64bit a.img"),
            ("resize2fs -s a.img", "fourscore tune -O ^64bit a.img"),
            (
                "/sbin/resize2fs -d 31 -f -p a.img 4G",
                "fourscore resize -f a.img 4G",
            ),
            ("e2fsck -fy -C 0 a.img", "fourscore check -fy a.img"),
            (
                "fsck.ext4 -p -z u a.img",
                "fourscore check -p --undo u a.img",
            ),
        ] {
            assert_eq!(line(given).as_deref(), Some(expected));
        }
        assert_eq!(line("fourscore tune a.img"), None);
    }
}
