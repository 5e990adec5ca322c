//! **Purpose.** Patterns in paths inside an image: `*`, `?` and `[a-z]`, quoted from the shell,
//! which cannot see the names in an image.
//!
//! **Model.** As in a shell: a pattern stands for the paths that match, sorted by their bytes; the
//! three match within a name and no dot at its beginning; a backslash takes the meaning from a
//! character. A path that exists as it is written is no pattern, and neither is one that nothing
//! matches: the error is then about the path as it was written.

use fourscore::{Error, FileType, Follow, Fs};

/// The most paths that a pattern may stand for.
const MOST_PATHS: usize = 1_000_000;

/// The paths that `path` stands for, itself at least.
///
/// # Errors
/// If a directory cannot be read.
pub(crate) fn expand(fs: &Fs, path: &[u8]) -> fourscore::Result<Vec<Vec<u8>>> {
    let is_pattern = path.iter().any(|byte| b"*?[".contains(byte));
    if !is_pattern || fs.resolve(path, Follow::No).is_ok() {
        return Ok(vec![path.to_vec()]);
    }
    let mut found: Vec<Vec<u8>> = vec![Vec::new()];
    for (at, component) in path.split(|&byte| byte == b'/').enumerate() {
        let join = |dir: &[u8], name: &[u8]| match at {
            0 => name.to_vec(),
            _ => [dir, b"/", name].concat(),
        };
        if !component.iter().any(|byte| b"*?[\\".contains(byte)) {
            found.iter_mut().for_each(|dir| *dir = join(dir, component));
            continue;
        }
        let mut next = Vec::new();
        for dir in &found {
            for name in matching(fs, dir, component)? {
                next.push(join(dir, &name));
            }
            if next.len() > MOST_PATHS {
                return Err(Error::InvalidArgument(
                    "the pattern stands for over a million paths",
                ));
            }
        }
        found = next;
    }
    found.retain(|path| fs.resolve(path, Follow::No).is_ok());
    match found.is_empty() {
        true => Ok(vec![path.to_vec()]),
        false => Ok(found),
    }
}

/// The names in a directory that match, sorted. What is no directory has none.
fn matching(fs: &Fs, dir: &[u8], pattern: &[u8]) -> fourscore::Result<Vec<Vec<u8>>> {
    let inode = match fs.resolve(dir, Follow::Yes) {
        Err(Error::NotFound | Error::NotADirectory) => return Ok(Vec::new()),
        found => found?,
    };
    if fs.stat(inode)?.file_type != FileType::Directory {
        return Ok(Vec::new());
    }
    let entries = fs
        .read_dir(inode)?
        .into_iter()
        .map(|entry| entry.name.to_vec());
    let is_match = |name: &Vec<u8>| {
        let is_hidden = name.starts_with(b".") && !pattern.starts_with(b".");
        !is_hidden && !matches!(&name[..], b"." | b"..") && matches(pattern, name)
    };
    let mut names: Vec<Vec<u8>> = entries.filter(is_match).collect();
    names.sort_unstable();
    Ok(names)
}

/// Whether `name` matches, in time proportional to the product of the lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where the last star is, and how much of the name it covers.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if let Some(b'*') = pattern.get(p) {
            star = Some((p, n));
            p += 1;
            continue;
        }
        match name.get(n) {
            None if p == pattern.len() => return true,
            None => return false,
            Some(&byte) => {
                if let Some(len) = one(&pattern[p..], byte) {
                    (p, n) = (p + len, n + 1);
                    continue;
                }
            }
        }
        match star {
            Some((at, covered)) => {
                star = Some((at, covered + 1));
                (p, n) = (at + 1, covered + 1);
            }
            None => return false,
        }
    }
}

/// The length of the first element of the pattern, if it matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', set @ ..] => {
            let (is_negated, set) = match set {
                [b'!' | b'^', rest @ ..] => (true, rest),
                rest => (false, rest),
            };
            // A bracket at the beginning is one of the set.
            let close = set
                .iter()
                .skip(1)
                .position(|&byte| byte == b']')
                .map(|at| at + 1);
            let Some(close) = close else {
                return (byte == b'[').then_some(1);
            };
            let len = pattern.len() - set.len() + close + 1;
            (in_set(&set[..close], byte) != is_negated).then_some(len)
        }
        [plain, ..] => (*plain == byte).then_some(1),
        [] => None,
    }
}

fn in_set(mut set: &[u8], byte: u8) -> bool {
    loop {
        set = match set {
            [from, b'-', to, rest @ ..] => {
                if (*from..=*to).contains(&byte) {
                    return true;
                }
                rest
            }
            [one, rest @ ..] => {
                if *one == byte {
                    return true;
                }
                rest
            }
            [] => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (pattern, name, expected) in [
            ("*", "a", true),
            ("*.o", "main.o", true),
            ("*.o", "main.oo", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("", "", true),
        ] {
            let found = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
        let long = "a".repeat(255);
        assert!(!matches("a*a*a*a*a*a*a*b".as_bytes(), long.as_bytes()));
    }
}
