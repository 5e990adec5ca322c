//! **Purpose.** `fourscore ls`: the names in a directory, sorted by their bytes.

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
    let inode = image.resolve(&args.path, Follow::Yes)?;
    let path = args.path.as_os_str().as_bytes();
    let lister = Lister {
        image: &image,
        args,
        problems: Problems::default(),
        seen: Seen::default(),
    };
    let mut out = Stdout::open()?;
    let facts = image.facts(inode).map_err(|why| image.failure(path, why))?;
    if facts.kind == Kind::Directory {
        lister.directories(inode, path, &mut out)?;
    } else {
        lister.object(path, &facts, &mut out)?;
    }
    out.flush()?;
    lister.problems.result()
}

struct Lister<'a> {
    image: &'a Image,
    args: &'a Ls,
    problems: Problems,
    seen: Seen,
}

impl Lister<'_> {
    /// Lists a directory, and with `-R` all directories below it. It does not recurse, since a tree
    /// may be deeper than the stack.
    fn directories(&self, inode: InodeNr, path: &[u8], out: &mut Stdout) -> Result<()> {
        let mut pending = vec![(inode, path.to_vec())];
        let mut first = true;
        while let Some((inode, path)) = pending.pop() {
            if self.args.recursive && !self.args.json {
                out.write(if first { b"" } else { b"\n" })?;
                out.write(&path)?;
                out.write(b":\n")?;
            }
            first = false;
            match self.directory(inode, &path, out)? {
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
        out: &mut Stdout,
    ) -> Result<Result<Vec<(InodeNr, Vec<u8>)>>> {
        let mut listing = Listing::default();
        let listed = self
            .seen
            .visit(inode)
            .and_then(|()| list(self.image, inode, &mut listing, &mut Vec::new()));
        let mut order: Vec<usize> = (0..listing.len()).collect();
        order.sort_unstable_by(|&a, &b| listing.name(a).cmp(listing.name(b)));
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
                    if facts.kind == Kind::Directory {
                        below.push((inode_of(&facts), full));
                    }
                }
                Err(failure) => self.problems.report_at(&full, &failure),
            }
        }
        Ok(listed.map(|()| below))
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
            out.write(long_line(facts).as_bytes())?;
        }
        out.write(name)?;
        if let Some(target) = target {
            out.write(b" -> ")?;
            out.write(&target)?;
        }
        out.write(b"\n")
    }
}

fn inode_of(facts: &Facts) -> InodeNr {
    // The facts came from an inode of the image, whose numbers have 32 bits.
    InodeNr(u32::try_from(facts.inode).unwrap_or(0))
}

/// The columns before the name.
fn long_line(facts: &Facts) -> String {
    let size = if facts.kind.is_device() {
        format!("{}, {}", facts.rdev_major, facts.rdev_minor)
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
