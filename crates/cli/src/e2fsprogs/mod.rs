//! **Purpose.** The names of programs of e2fsprogs: under each of them the command takes the
//! arguments of that program, which are those of a verb, or are translated into them.
//!
//! | name | verb |
//! |---|---|
//! | `tune2fs`, with `-l` | `tune`, `info` |
//! | `e2label` | `tune -L`, or prints the label |
//! | `dumpe2fs`, with `-h`, `-o` | `info --groups`, `info`, `info --superblock` |
//! | `debugfs` | [`crate::debugfs`] |
//! | `resize2fs` | `resize` |
//! | `e2fsck`, `fsck.ext4`, `fsck.ext3`, `fsck.ext2` | `check`, which always checks everything |
//!
//! | module | responsibility |
//! |---|---|
//! | [`e2fsck`] | the options of e2fsck |
//! | [`dumpe2fs`] | the options of dumpe2fs |
//!
//! **Model.** The exit statuses are those of the program: for wrong usage, for what the command
//! does not do, and for an image that cannot be opened ([`Program::failure_status`]).
//!
//! **Not here.** `mke2fs` and its other names ([`crate::mkfs::ProgramName`]); `fuse2fs` and the
//! helpers of mount(8) ([`crate::mount::names`]).

mod dumpe2fs;
mod e2fsck;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;

use fourscore_ondisk::superblock::{SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};

use crate::failure::Failure;
use crate::image::ImageSpec;

/// The exit status of most programs for wrong usage.
const USAGE: u8 = 1;
/// The exit status of dumpe2fs for a file that ends before its superblock: the low byte of the
/// error code of its library.
const SHORT_READ: u8 = 36;
/// The same for a file without a superblock.
const BAD_MAGIC: u8 = 19;
/// The exit status of `dumpe2fs -m` where it cannot find out who uses the file system.
const UNKNOWN_USE: u8 = 2;
/// The place of `s_magic` in the superblock, and its value.
const MAGIC: (usize, [u8; 2]) = (0x38, [0x53, 0xef]);
/// The longest label, in bytes.
const LABEL_BYTES: usize = 16;

/// A program whose exit statuses differ from those of the verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Dumpe2fs,
    /// `dumpe2fs -m`
    Dumpe2fsMmp,
    E2fsck,
    Other,
}

/// The call of a verb for that of another program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Translated {
    pub(crate) arguments: Vec<OsString>,
    pub(crate) program: Program,
    /// A warning of that program about its arguments.
    pub(crate) warning: Option<&'static str>,
}

/// A call that the program, or the command in its place, refuses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) message: String,
    pub(crate) status: u8,
}

impl Program {
    /// The exit status for wrong usage.
    pub(crate) fn usage_status(self) -> u8 {
        match self {
            Self::E2fsck => e2fsck::USAGE,
            Self::Dumpe2fs | Self::Dumpe2fsMmp | Self::Other => USAGE,
        }
    }

    /// The exit status after a failure with an image, if it is not that of the verb. That of
    /// dumpe2fs says why an image cannot be opened, and with `-m` whether it is in use, which is
    /// reported already, or nothing is known.
    pub(crate) fn failure_status(self, image: Option<&ImageSpec>, failure: &Failure) -> Option<u8> {
        if self == Self::Dumpe2fsMmp {
            return (!matches!(failure, Failure::AlreadyReported)).then_some(UNKNOWN_USE);
        }
        let image = image.filter(|_| self == Self::Dumpe2fs)?;
        let mut sb = [0; SUPERBLOCK_SIZE_BYTES];
        let at = image.offset_bytes.checked_add(SUPERBLOCK_OFFSET_BYTES)?;
        let file = File::open(&image.path);
        match file.and_then(|file| file.read_exact_at(&mut sb, at)) {
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => Some(SHORT_READ),
            Err(why) => why.raw_os_error().and_then(|code| u8::try_from(code).ok()),
            Ok(()) => {
                let (at, magic) = MAGIC;
                let has_magic = sb.get(at..at + 2) == Some(&magic[..]);
                (!has_magic).then_some(BAD_MAGIC)
            }
        }
    }
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
    changes: &[],
};
/// With `-l`.
const TUNE2FS_LIST: Options = Options {
    // -f: go on although there are warnings, of which there are none here.
    changes: &[(b'l', Change::Out), (b'f', Change::Out)],
    ..TUNE2FS
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

/// Returns the call of a verb, for a command that is called by the name of one of the programs;
/// `None` if it is called by another name.
pub(crate) fn translate(arguments: &[OsString]) -> Option<Result<Translated, Refused>> {
    let (first, rest) = arguments.split_first()?;
    let name = Path::new(first).file_name()?.to_str()?;
    let (mut program, mut warning) = (Program::Other, None);
    let arguments = match name {
        "tune2fs" if TUNE2FS.has(rest, b'l') => TUNE2FS_LIST.verb(&["info"], rest),
        "tune2fs" => {
            let mut words = TUNE2FS.verb(&["tune"], rest);
            let labels = (1..words.len()).filter(|&at| words[at - 1] == "-L");
            for at in labels.collect::<Vec<_>>() {
                warning = warning.or(shorten(&mut words[at]));
            }
            words
        }
        "e2label" => match rest {
            [image, label] => {
                let mut label = label.clone();
                warning = shorten(&mut label);
                unchanged(&["tune", "-L"], &[label, image.clone()])
            }
            rest => unchanged(&["print-label"], rest),
        },
        "dumpe2fs" => {
            program = dumpe2fs::program(rest);
            match dumpe2fs::translate(rest) {
                Ok(arguments) => arguments,
                Err(refused) => return Some(Err(refused)),
            }
        }
        "debugfs" => unchanged(&["debugfs"], rest),
        "resize2fs" => match (RESIZE2FS.has(rest, b'b'), RESIZE2FS.has(rest, b's')) {
            (true, false) => RESIZE2FS_WIDTH.verb(&["tune", "-O", "64bit"], rest),
            (false, true) => RESIZE2FS_WIDTH.verb(&["tune", "-O", "^64bit"], rest),
            _ => RESIZE2FS.verb(&["resize"], rest),
        },
        "e2fsck" | "fsck.ext4" | "fsck.ext3" | "fsck.ext2" => {
            program = Program::E2fsck;
            match e2fsck::translate(rest) {
                Ok(arguments) => arguments,
                Err(refused) => return Some(Err(refused)),
            }
        }
        _ => return None,
    };
    Some(Ok(Translated {
        arguments,
        program,
        warning,
    }))
}

/// Shortens a label to its most bytes, with the warning of tune2fs.
fn shorten(label: &mut OsString) -> Option<&'static str> {
    let bytes = label.as_bytes().get(..LABEL_BYTES)?;
    if bytes.len() == label.len() {
        return None;
    }
    *label = OsString::from_vec(bytes.to_vec());
    Some("warning: the label is too long and was truncated to 16 bytes")
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
            let words = translate(&words)?
                .expect("a call that is possible")
                .arguments;
            let words: Vec<_> = words.into_iter().map(OsString::into_vec).collect();
            Some(String::from_utf8(words.join(&b' ')).expect("text"))
        };
        for (given, expected) in [
            (
                "/sbin/tune2fs -f -L x a.img",
                "fourscore tune -f -L x a.img",
            ),
            ("tune2fs -l a.img", "fourscore info a.img"),
            (
                "tune2fs -fE clear_mmp a.img",
                "fourscore tune -f -E clear_mmp a.img",
            ),
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
            ("e2fsck -fy -C 0 a.img", "fourscore check -y -f a.img"),
            ("e2fsck -fyC0 a.img", "fourscore check -y -f a.img"),
            ("e2fsck -ttfyC 0 a.img", "fourscore check -y -f a.img"),
            (
                "e2fsck -yzu -- a.img",
                "fourscore check -y --undo u -- a.img",
            ),
            ("tune2fs -fc -1 a.img", "fourscore tune -f -c -1 a.img"),
            ("tune2fs -fLx a.img", "fourscore tune -f -L x a.img"),
            ("tune2fs -Ll a.img", "fourscore tune -L l a.img"),
            ("dumpe2fs -fh a.img", "fourscore info a.img"),
            ("resize2fs -pfM a.img", "fourscore resize -f -M a.img"),
            ("e2label a.img -ab", "fourscore tune -L -ab a.img"),
            ("dumpe2fs -gx a.img", "fourscore info --table --hex a.img"),
            ("dumpe2fs -b a.img", "fourscore info --bad-blocks a.img"),
            (
                "dumpe2fs -ho superblock=0x2001 -o blocksize=1024 a.img",
                "fourscore info --superblock=8193 --block-size=1024 a.img",
            ),
            (
                "dumpe2fs -oblocksize=4096,superblock=32768 a.img",
                "fourscore info --groups --superblock=32768 --block-size=4096 a.img",
            ),
            (
                "dumpe2fs -o superblock=0 a.img",
                "fourscore info --groups a.img",
            ),
            ("dumpe2fs -xm a.img", "fourscore info --mmp-status a.img"),
            (
                "e2fsck -rkaP 4 -E nodiscard -b 32768 -B4096 a.img",
                "fourscore check -p --superblock 32768 --block-size 4096 a.img",
            ),
            (
                "tune2fs -L 12345678901234567 a.img",
                "fourscore tune -L 1234567890123456 a.img",
            ),
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
