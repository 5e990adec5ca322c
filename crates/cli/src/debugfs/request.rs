//! **Purpose.** The requests of `debugfs`, and the words of a line.

use std::ops::RangeInclusive;

use fourscore::InodeNr;

use crate::failure::{Failure, Result};
use crate::output::Stdout;
use crate::text::printable;

use super::session::Session;
use super::{Next, change, content, show};

/// A request.
struct Request {
    /// Its name and its abbreviations.
    names: &'static [&'static str],
    /// Its arguments, for messages.
    usage: &'static str,
    arguments: RangeInclusive<usize>,
    run: Run,
}

/// What a request does.
enum Run {
    Show(fn(&mut Session, &[Vec<u8>], &mut Stdout) -> Result<()>),
    /// The file system has to be open for changes.
    Change(fn(&mut Session, &[Vec<u8>]) -> Result<()>),
    /// As `Change`; the number of the new inode is printed.
    Create(fn(&mut Session, &[Vec<u8>]) -> Result<InodeNr>),
    Help,
    Quit,
}

/// Returns a request that takes so many arguments.
const fn request(
    names: &'static [&'static str],
    usage: &'static str,
    arguments: RangeInclusive<usize>,
    run: Run,
) -> Request {
    Request {
        names,
        usage,
        arguments,
        run,
    }
}

const MANY: usize = usize::MAX;

const REQUESTS: &[Request] = &[
    request(
        &["ls", "list_directory"],
        "[-l] [-p] [DIR]",
        0..=3,
        Run::Show(show::ls),
    ),
    request(
        &["stat", "show_inode_info"],
        "FILE",
        1..=1,
        Run::Show(show::stat),
    ),
    request(&["cat"], "FILE", 1..=1, Run::Show(content::cat)),
    request(
        &["dump", "dump_inode"],
        "[-p] FILE HOST_FILE",
        2..=3,
        Run::Show(content::dump),
    ),
    request(
        &["rdump"],
        "FILE... HOST_DIR",
        2..=MANY,
        Run::Show(content::rdump),
    ),
    request(&["blocks"], "FILE", 1..=1, Run::Show(show::blocks)),
    request(&["bmap"], "FILE BLOCK", 2..=2, Run::Show(show::bmap)),
    request(
        &["ncheck"],
        "[-c] INODE...",
        1..=MANY,
        Run::Show(show::ncheck),
    ),
    request(&["testi"], "FILE", 1..=1, Run::Show(show::testi)),
    request(&["ea_list"], "FILE", 1..=1, Run::Show(show::ea_list)),
    request(
        &["ea_get"],
        "[-x] [-V] FILE NAME",
        2..=4,
        Run::Show(show::ea_get),
    ),
    request(
        &["features", "feature"],
        "",
        0..=0,
        Run::Show(show::features),
    ),
    request(
        &["pwd", "print_working_directory"],
        "",
        0..=0,
        Run::Show(show::pwd),
    ),
    request(
        &["cd", "change_working_directory"],
        "DIR",
        1..=1,
        Run::Show(show::cd),
    ),
    request(
        &["write"],
        "HOST_FILE NAME",
        2..=2,
        Run::Create(content::write),
    ),
    request(&["mkdir"], "DIR", 1..=1, Run::Change(change::mkdir)),
    request(&["rmdir"], "DIR", 1..=1, Run::Change(change::rmdir)),
    request(&["rm"], "FILE", 1..=1, Run::Change(change::rm)),
    request(&["ln", "link"], "FILE NAME", 2..=2, Run::Change(change::ln)),
    request(
        &["symlink"],
        "NAME TARGET",
        2..=2,
        Run::Change(change::symlink),
    ),
    request(
        &["mknod"],
        "NAME p|c|b|s [MAJOR MINOR]",
        2..=4,
        Run::Create(change::mknod),
    ),
    request(
        &["ea_set"],
        "[-f HOST_FILE] FILE NAME [VALUE]",
        3..=4,
        Run::Change(change::ea_set),
    ),
    request(
        &["ea_rm"],
        "FILE NAME...",
        2..=MANY,
        Run::Change(change::ea_rm),
    ),
    request(
        &["set_inode_field", "sif"],
        "FILE mode|uid|gid|atime|mtime VALUE",
        3..=3,
        Run::Change(change::set_inode_field),
    ),
    request(&["list_requests", "lr", "help", "?"], "", 0..=0, Run::Help),
    request(&["quit", "q"], "", 0..=0, Run::Quit),
];

/// Runs the request that `words` give.
///
/// # Errors
/// `Usage` for one that is not known.
pub(super) fn run(
    session: &mut Option<Session>,
    words: &[Vec<u8>],
    out: &mut Stdout,
) -> Result<Next> {
    let Some((name, arguments)) = words.split_first() else {
        return Ok(Next::Continue);
    };
    let is_named = |request: &&Request| request.names.iter().any(|known| known.as_bytes() == name);
    let request = REQUESTS.iter().find(is_named).ok_or_else(|| {
        let why = "is no request; `list_requests` lists them";
        Failure::usage(printable(name), why)
    })?;
    if !request.arguments.contains(&arguments.len()) {
        let why = format!("usage: {} {}", request.names[0], request.usage);
        return Err(Failure::new(request.names[0], why));
    }
    match request.run {
        Run::Help => {
            list(out)?;
            return Ok(Next::Continue);
        }
        Run::Quit => return Ok(Next::Quit),
        Run::Show(_) | Run::Change(_) | Run::Create(_) => {}
    }
    let closed = || Failure::new(request.names[0], "no file system is open");
    let session = session.as_mut().ok_or_else(closed)?;
    match request.run {
        Run::Show(run) => run(session, arguments, out)?,
        Run::Change(_) | Run::Create(_) if !session.is_writable() => {
            let why = "the file system is open for reading only";
            return Err(Failure::new(request.names[0], why).advise("use -w"));
        }
        Run::Change(run) => run(session, arguments)?,
        Run::Create(run) => {
            let nr = run(session, arguments)?;
            out.write(format!("Allocated inode: {nr}\n").as_bytes())?;
        }
        Run::Help | Run::Quit => {}
    }
    Ok(Next::Continue)
}

fn list(out: &mut Stdout) -> Result<()> {
    for Request { names, usage, .. } in REQUESTS {
        out.write(format!("{} {usage}\n", names.join(", ")).as_bytes())?;
    }
    Ok(())
}

/// Splits a line at blanks; between double quotes blanks are part of a word, and `""` is a quote.
pub(super) fn words(line: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let (mut word, mut is_quoted) = (Vec::new(), false);
        let mut bytes = rest.iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' if is_quoted && bytes.peek() == Some(&b'"') => {
                    bytes.next();
                    word.push(b'"');
                }
                b'"' => is_quoted = !is_quoted,
                b' ' | b'\t' if !is_quoted => break,
                byte => word.push(byte),
            }
        }
        if is_quoted {
            return Err(Failure::new(printable(line), "a quote is not closed"));
        }
        rest = rest[rest.len() - bytes.len()..].trim_ascii_start();
        words.push(word);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_at_blanks_outside_of_quotes() {
        let split = |line: &str| {
            let words = words(line.as_bytes()).ok()?;
            let text = |word| String::from_utf8(word).unwrap();
            Some(words.into_iter().map(text).collect::<Vec<_>>())
        };
        let expected = |words: &[&str]| Some(words.iter().map(ToString::to_string).collect());
        assert_eq!(split("  ls -l\t/a "), expected(&["ls", "-l", "/a"]));
        assert_eq!(split("rm \"a b\"c"), expected(&["rm", "a bc"]));
        assert_eq!(split("rm \"a\"\"b\" \"\""), expected(&["rm", "a\"b", ""]));
        assert_eq!(split("cat <12>"), expected(&["cat", "<12>"]));
        assert_eq!(split("rm \"a"), None);
        assert_eq!(split(" "), expected(&[]));
    }

    #[test]
    fn names_are_not_used_twice() {
        let mut names: Vec<_> = REQUESTS.iter().flat_map(|request| request.names).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
