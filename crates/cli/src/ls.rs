//! **Purpose.** `fourscore ls`: the names in directories, sorted by their bytes or by time.

use std::cmp::Reverse;
use std::os::unix::ffi::OsStrExt;

use fourscore::Follow;
use fourscore_ondisk::InodeNr;
use serde_json::json;

use crate::args::Ls;
use crate::facts::{Facts, Kind, mode_string};
use crate::failure::{Failure, Problems, Result};
use crate::image::Image;
use crate::output::Stdout;
use crate::text::printable;
use crate::time::{self, Zone};
use crate::tree::listing::Listing;
use crate::walk::image::{Seen, list};

/// Runs the verb.
pub(crate) fn run(args: &Ls) -> Result<()> {
    let image = Image::open(&args.image)?;
    let lister = Lister {
        image: &image,
        args,
        problems: Problems::default(),
    };
    let mut paths = Vec::new();
    for path in &args.paths {
        paths.extend(image.expand(path)?);
    }
    let mut out = Stdout::open()?;
    let follow = match args.directory {
        true => Follow::No,
        false => Follow::Yes,
    };
    let mut directories = Vec::new();
    for path in &paths {
        let bytes = path.as_os_str().as_bytes();
        let found = image.resolve(path, follow);
        let found = found.and_then(|inode| {
            let facts = image.facts(inode);
            Ok((inode, facts.map_err(|why| image.failure(bytes, why))?))
        });
        match found {
            Ok((inode, facts)) if facts.kind == Kind::Directory && !args.directory => {
                directories.push((inode, bytes));
            }
            Ok((_, facts)) => lister.object(bytes, &facts, &mut out)?,
            Err(failure) => lister.problems.report(&failure),
        }
    }
    let heads = match args.recursive || paths.len() > 1 {
        true => Heads::Shown,
        false => Heads::Hidden,
    };
    let mut is_first = directories.len() == paths.len();
    for (inode, path) in directories {
        lister.directories(inode, path, heads, is_first, &mut out)?;
        is_first = false;
    }
    out.flush()?;
    lister.problems.result()
}

/// Whether the path of a directory is printed before its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heads {
    Shown,
    Hidden,
}

struct Lister<'a> {
    image: &'a Image,
    args: &'a Ls,
    problems: Problems,
}

impl Lister<'_> {
    /// Lists a directory, and with `-R` all directories below it. It does not recurse, since a tree
    /// may be deeper than the stack.
    fn directories(
        &self,
        inode: InodeNr,
        path: &[u8],
        heads: Heads,
        is_first: bool,
        out: &mut Stdout,
    ) -> Result<()> {
        let seen = Seen::default();
        let mut pending = vec![(inode, path.to_vec())];
        let mut first = is_first;
        while let Some((inode, path)) = pending.pop() {
            if heads == Heads::Shown && !self.args.json {
                out.write(if first { b"" } else { b"\n" })?;
                out.name(&path)?;
                out.write(b":\n")?;
            }
            first = false;
            match self.directory(inode, &path, &seen, out)? {
                Ok(below) if self.args.recursive => pending.extend(below.into_iter().rev()),
                Ok(_) => {}
                Err(failure) => self.problems.report_at(&path, &failure),
            }
        }
        Ok(())
    }

    /// Lists one directory and returns the directories in it. The outer error is that of the
    /// output.
    #[expect(
        clippy::type_complexity,
        reason = "two kinds of errors with different consequences"
    )]
    fn directory(
        &self,
        inode: InodeNr,
        path: &[u8],
        seen: &Seen,
        out: &mut Stdout,
    ) -> Result<Result<Vec<(InodeNr, Vec<u8>)>>> {
        let mut listing = Listing::default();
        let listed = seen
            .visit(inode)
            .and_then(|()| list(self.image, inode, &mut listing, &mut Vec::new()));
        if self.args.all {
            for name in [&b"."[..], b".."] {
                // A directory without one of them is reported by check.
                if let Ok(found) = self.image.fs.lookup(inode, name) {
                    listing.push(name, found.0.into(), None);
                }
            }
        }
        let mut order: Vec<usize> = (0..listing.len()).collect();
        order.sort_unstable_by(|&a, &b| listing.name(a).cmp(listing.name(b)));
        if self.args.by_time {
            order.sort_by_key(|&nr| Reverse(self.mtime(listing.inode(nr))));
        }
        let mut below = Vec::new();
        for nr in order {
            let name = listing.name(nr);
            let separator: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
            let full = [path, separator, name].concat();
            let facts = u32::try_from(listing.inode(nr))
                .map_err(|why| Failure::new("", why))
                .and_then(|nr| {
                    self.image
                        .facts(InodeNr(nr))
                        .map_err(|why| Failure::new("", why))
                });
            match facts {
                Ok(facts) => {
                    self.object(if self.args.json { &full } else { name }, &facts, out)?;
                    let is_itself = matches!(name, b"." | b"..");
                    if facts.kind == Kind::Directory && !is_itself {
                        below.push((inode_of(&facts), full));
                    }
                }
                Err(failure) => self.problems.report_at(&full, &failure),
            }
        }
        Ok(listed.map(|()| below))
    }

    /// The time of the last change; an error is reported when the object is printed.
    fn mtime(&self, inode: u64) -> (i64, u32) {
        let nr = u32::try_from(inode).map(InodeNr);
        let facts = nr.ok().and_then(|nr| self.image.facts(nr).ok());
        facts.map_or((i64::MIN, 0), |facts| {
            (facts.mtime.seconds, facts.mtime.nanoseconds)
        })
    }

    fn object(&self, name: &[u8], facts: &Facts, out: &mut Stdout) -> Result<()> {
        let target = if facts.kind == Kind::Symlink && (self.args.long || self.args.json) {
            match self.image.fs.read_link(inode_of(facts)) {
                Ok(target) => Some(target),
                Err(why) => {
                    self.problems.report(&self.image.failure(name, why));
                    None
                }
            }
        } else {
            None
        };
        if self.args.json {
            let value = as_json(name, facts, target.as_deref());
            return out.write(format!("{value}\n").as_bytes());
        }
        if self.args.long {
            out.write(long_line(facts, self.args.human_readable).as_bytes())?;
        }
        out.name(name)?;
        if let Some(target) = target {
            out.write(b" -> ")?;
            out.name(&target)?;
        }
        out.write(b"\n")
    }
}

fn inode_of(facts: &Facts) -> InodeNr {
    // The facts came from an inode of the image, whose numbers have 32 bits.
    InodeNr(u32::try_from(facts.inode).unwrap_or(0))
}

/// The columns before the name.
fn long_line(facts: &Facts, human_readable: bool) -> String {
    let size = if facts.kind.is_device() {
        format!("{}, {}", facts.rdev_major, facts.rdev_minor)
    } else if human_readable {
        human(facts.size_bytes)
    } else {
        facts.size_bytes.to_string()
    };
    format!(
        "{} {:>3} {:>5} {:>5} {size:>10} {} ",
        mode_string(facts.kind, facts.permissions),
        facts.links,
        facts.uid,
        facts.gid,
        time::minutes(facts.mtime, Zone::Local),
    )
}

/// A size as `ls -h` prints it: rounded up, with one decimal below ten.
fn human(bytes: u64) -> String {
    let mut unit: u64 = 1;
    let mut letters = "KMGTPE".chars();
    let mut letter = None;
    while bytes.div_ceil(unit) >= 1024 {
        unit <<= 10;
        letter = letters.next();
    }
    let Some(letter) = letter else {
        return bytes.to_string();
    };
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
    match tenths {
        0..100 => format!("{}.{}{letter}", tenths / 10, tenths % 10),
        _ => format!("{}{letter}", bytes.div_ceil(unit)),
    }
}

/// One object as JSON on one line.
fn as_json(name: &[u8], facts: &Facts, target: Option<&[u8]>) -> serde_json::Value {
    json!({
        "path": printable(name),
        "inode": facts.inode,
        "type": facts.kind.name(),
        "mode": format!("{:04o}", facts.permissions),
        "links": facts.links,
        "uid": facts.uid,
        "gid": facts.gid,
        "size_bytes": facts.size_bytes,
        "mtime": time::rfc3339(facts.mtime),
        "target": target.map(printable),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_as_by_ls() {
        for (bytes, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_239, "10K"),
            (10_240, "10K"),
            (1_047_553, "1.0M"),
            (1 << 20, "1.0M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), expected, "{bytes}");
        }
    }
}
