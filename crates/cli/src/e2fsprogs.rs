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
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
#[derive(Clone, Copy)]
enum Change {
    /// It is left out, with its value: it asks for what is so in any case.
    Out,
    /// It has another name.
    To(&'static str),
}

/// Options of a program that getopt(3) splits.
#[derive(Clone, Copy)]
struct Options {
    /// The letters of options with a value.
    with_value: &'static [u8],
    /// The letters that are not options of the verb, or other ones.
    changes: &'static [(u8, Change)],
}

const TUNE2FS: Options = Options {
    with_value: b"cCeEgiJLmMoOQrTuUzI",
    // -f: go on although there are warnings, of which there are none here.
    changes: &[(b'f', Change::Out)],
};
/// With `-l`.
const TUNE2FS_LIST: Options = Options {
    changes: &[(b'l', Change::Out)],
    ..TUNE2FS
};
const DUMPE2FS: Options = Options {
    with_value: b"io",
    // -h: no groups. -f: go on although features are not known, which the verb does.
    changes: &[(b'h', Change::Out), (b'f', Change::Out)],
};
const RESIZE2FS: Options = Options {
    with_value: b"dSz",
    // -F: flush the buffers of the device. -p: show the progress. -d: print for developers.
    changes: &[
        (b'F', Change::Out),
        (b'p', Change::Out),
        (b'd', Change::Out),
    ],
};
/// With `-b` or `-s`: descriptors of 64 or of 32 bytes, and no other size.
const RESIZE2FS_WIDTH: Options = Options {
    changes: &[
        (b'F', Change::Out),
        (b'p', Change::Out),
        (b'd', Change::Out),
        (b'b', Change::Out),
        (b's', Change::Out),
        // Without a check.
        (b'f', Change::Out),
    ],
    ..RESIZE2FS
};
const E2FSCK: Options = Options {
    with_value: b"CBEbIjPlLMNz",
    // -t: print times. -C: show the progress on a file descriptor.
    changes: &[
        (b'F', Change::Out),
        (b'd', Change::Out),
        (b't', Change::Out),
        (b'C', Change::Out),
        (b'z', Change::To("--undo")),
        (b'V', Change::To("--version")),
    ],
};

/// Returns the call of a verb, for a command that is called by the name of one of the programs;
/// `None` if it is called by another name.
pub(crate) fn translate(arguments: &[OsString]) -> Option<Translated> {
    let (first, rest) = arguments.split_first()?;
    let name = Path::new(first).file_name()?.to_str()?;
    let arguments = match name {
        "tune2fs" if TUNE2FS.has(rest, b'l') => TUNE2FS_LIST.verb(&["info"], rest),
        "tune2fs" => TUNE2FS.verb(&["tune"], rest),
        "e2label" => match rest {
            [image, label] => unchanged(&["tune", "-L"], &[label.clone(), image.clone()]),
            rest => unchanged(&["print-label"], rest),
        },
        "dumpe2fs" if DUMPE2FS.has(rest, b'h') => DUMPE2FS.verb(&["info"], rest),
        "dumpe2fs" => DUMPE2FS.verb(&["info", "--groups"], rest),
        "debugfs" => unchanged(&["debugfs"], rest),
        "resize2fs" => match (RESIZE2FS.has(rest, b'b'), RESIZE2FS.has(rest, b's')) {
            (true, false) => RESIZE2FS_WIDTH.verb(&["tune", "-O", "64bit"], rest),
            (false, true) => RESIZE2FS_WIDTH.verb(&["tune", "-O", "^64bit"], rest),
            _ => RESIZE2FS.verb(&["resize"], rest),
        },
        "e2fsck" | "fsck.ext4" | "fsck.ext3" | "fsck.ext2" => E2FSCK.verb(&["check"], rest),
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

/// A command line with the words of a verb and the arguments.
fn unchanged(words: &[&str], arguments: &[OsString]) -> Vec<OsString> {
    let words = ["fourscore"].iter().chain(words).map(OsString::from);
    words.chain(arguments.iter().cloned()).collect()
}

/// A word of a command line, or one of the options in it: `-fyC0` is `-f`, `-y` and `-C 0`.
enum Part<'a> {
    Option(u8),
    /// An option, and its value if the command line does not end before it.
    WithValue(u8, Option<&'a OsStr>),
    Other(&'a OsStr),
}

impl Options {
    fn has(&self, arguments: &[OsString], letter: u8) -> bool {
        let parts = self.parts(arguments);
        let mut parts = parts.iter();
        parts.any(|part| matches!(part, Part::Option(found) if *found == letter))
    }

    fn parts<'a>(&self, arguments: &'a [OsString]) -> Vec<Part<'a>> {
        let mut parts = Vec::with_capacity(arguments.len());
        let mut words = arguments.iter();
        let mut has_ended = false;
        while let Some(word) = words.next() {
            has_ended |= word == "--";
            let letters = word.as_bytes().strip_prefix(b"-").unwrap_or_default();
            if has_ended || !letters.first().is_some_and(u8::is_ascii_alphanumeric) {
                parts.push(Part::Other(word));
                continue;
            }
            for (at, &letter) in letters.iter().enumerate() {
                if !self.with_value.contains(&letter) {
                    parts.push(Part::Option(letter));
                    continue;
                }
                let value = match &letters[at + 1..] {
                    [] => words.next().map(OsString::as_os_str),
                    value => Some(OsStr::from_bytes(value)),
                };
                parts.push(Part::WithValue(letter, value));
                break;
            }
        }
        parts
    }

    /// A command line with the words of a verb and the arguments, of which some options are
    /// changed.
    fn verb(&self, words: &[&str], arguments: &[OsString]) -> Vec<OsString> {
        let mut words = unchanged(words, &[]);
        for part in self.parts(arguments) {
            let (letter, value) = match part {
                Part::Other(word) => {
                    words.push(word.to_owned());
                    continue;
                }
                Part::Option(letter) => (letter, None),
                Part::WithValue(letter, value) => (letter, value),
            };
            let change = self.changes.iter().find(|(of, _)| *of == letter);
            match change.map(|(_, change)| change) {
                Some(Change::Out) => continue,
                Some(Change::To(name)) => words.push(name.into()),
                None => words.push(OsString::from_vec(vec![b'-', letter])),
            }
            words.extend(value.map(OsStr::to_owned));
        }
        words
    }
}

#[cfg(test)]
mod tests {
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
            ("e2fsck -fy -C 0 a.img", "fourscore check -f -y a.img"),
            ("e2fsck -fyC0 a.img", "fourscore check -f -y a.img"),
            ("e2fsck -ttfyC 0 a.img", "fourscore check -f -y a.img"),
            (
                "e2fsck -yzu -- a.img",
                "fourscore check -y --undo u -- a.img",
            ),
            ("tune2fs -fc -1 a.img", "fourscore tune -c -1 a.img"),
            ("tune2fs -fLx a.img", "fourscore tune -L x a.img"),
            ("tune2fs -Ll a.img", "fourscore tune -L l a.img"),
            ("dumpe2fs -fh a.img", "fourscore info a.img"),
            ("resize2fs -pfM a.img", "fourscore resize -f -M a.img"),
            ("e2label a.img -ab", "fourscore tune -L -ab a.img"),
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
