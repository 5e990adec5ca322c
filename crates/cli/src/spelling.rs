//! **Purpose.** `IMAGE:PATH` in the place of `IMAGE PATH`, for the verbs that read objects of an
//! image: the spelling of `cp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Verbs whose first operand is an image, and the next one a path in it.
const VERBS: [&str; 6] = ["ls", "stat", "cat", "readlink", "filefrag", "walk"];

/// Splits `IMAGE:PATH` in the first operand of such a verb. Where the operands that follow begin
/// with the same image, they are paths in it as well.
pub(crate) fn split(arguments: Vec<OsString>) -> Vec<OsString> {
    let is_one = |word: &&OsString| VERBS.iter().any(|verb| word.as_os_str() == *verb);
    if arguments.get(1).filter(is_one).is_none() {
        return arguments;
    }
    let mut image: Option<OsString> = None;
    let mut had_operand = false;
    let mut out = Vec::with_capacity(arguments.len() + 1);
    for (nr, word) in arguments.into_iter().enumerate() {
        let is_operand = nr > 1 && !word.as_bytes().starts_with(b"-");
        match split_one(&word).filter(|_| is_operand) {
            Some((this, path)) if !had_operand => {
                image = Some(this.to_owned());
                out.extend([this.to_owned(), path.to_owned()]);
            }
            Some((this, path)) if image.as_deref() == Some(this) => out.push(path.to_owned()),
            _ => out.push(word),
        }
        had_operand |= is_operand;
    }
    out
}

/// The image and the path of `IMAGE:PATH`. A file whose whole name this is, is no such thing.
fn split_one(word: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = word.as_bytes();
    if Path::new(word).exists() {
        return None;
    }
    let mut colons = { bytes.iter().enumerate() }.filter(|(_, byte)| **byte == b':');
    colons.find_map(|(at, _)| {
        let (image, path) = (&bytes[..at], &bytes[at + 1..]);
        let file = image.split(|&byte| byte == b'@').next()?;
        let exists = |name: &[u8]| {
            let path = Path::new(OsStr::from_bytes(name));
            path.exists() && !path.is_dir()
        };
        let path = if path.is_empty() { b"/" } else { path };
        let parts = (OsStr::from_bytes(image), OsStr::from_bytes(path));
        (exists(image) || exists(file)).then_some(parts)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_and_path_are_split() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("a:b").display().to_string();
        std::fs::write(&image, "").expect("space");
        let words = |text: &str| -> Vec<OsString> {
            let text = text.replace("IMG", &image);
            text.split(' ').map(OsString::from).collect()
        };
        for (given, expected) in [
            ("x cat IMG:/a IMG:/b", "x cat IMG /a /b"),
            ("x cat IMG@p1:/a c:d", "x cat IMG@p1 /a c:d"),
            ("x ls -l IMG:", "x ls -l IMG /"),
            ("x ls IMG /a:b", "x ls IMG /a:b"),
            ("x ls IMG", "x ls IMG"),
            ("x stat none:/a", "x stat none:/a"),
            ("x cp IMG:/a .", "x cp IMG:/a ."),
        ] {
            assert_eq!(split(words(given)), words(expected), "{given}");
        }
    }
}
