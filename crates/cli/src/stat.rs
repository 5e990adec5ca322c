//! **Purpose.** `fourscore stat`: all attributes of one object.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use fourscore::Follow;
use fourscore_ondisk::inode::InodeFlags;
use serde_json::json;

use crate::args::Stat as Args;
use crate::facts::{Facts, Kind, mode_string};
use crate::failure::Result;
use crate::image::Image;
use crate::output::Stdout;
use crate::text::{printable, push_hex};
use crate::time::{self, Zone};

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = Image::open(&args.image)?;
    let path = args.path.as_os_str().as_bytes();
    let follow = if args.dereference {
        Follow::Yes
    } else {
        Follow::No
    };
    let inode = image.resolve(&args.path, follow)?;
    let failed = |why: fourscore::Error| image.failure(path, why);
    let object = Object {
        path: printable(path),
        stat: image.fs.stat(inode).map_err(failed)?,
        xattrs: image.fs.xattrs(inode).map_err(failed)?,
        block_bytes: image.fs.geometry().block_size().bytes(),
        target: None,
    };
    let facts = Facts::from(&object.stat);
    let target = if facts.kind == Kind::Symlink {
        Some(printable(&image.fs.read_link(inode).map_err(failed)?))
    } else {
        None
    };
    let object = Object { target, ..object };
    let mut out = Stdout::open()?;
    if args.json {
        out.write(format!("{:#}\n", object.as_json(&facts)).as_bytes())?;
    } else {
        out.write(object.as_text(&facts).as_bytes())?;
    }
    out.flush()
}

struct Object {
    path: String,
    stat: fourscore::Stat,
    xattrs: Vec<fourscore::Xattr>,
    block_bytes: usize,
    target: Option<String>,
}

impl Object {
    fn as_text(&self, facts: &Facts) -> String {
        let stat = &self.stat;
        let mut text = format!("  File: {}", self.path);
        // Writing into a String cannot fail.
        if let Some(target) = &self.target {
            let _ = write!(text, " -> {target}");
        }
        let _ = write!(
            text,
            "\n  Size: {:<15} Blocks: {:<10} IO Block: {:<6} {}\n Inode: {:<11} Links: {}",
            facts.size_bytes,
            facts.blocks_512,
            self.block_bytes,
            facts.kind.name(),
            facts.inode,
            facts.links,
        );
        if facts.kind.is_device() {
            let _ = write!(
                text,
                "     Device type: {},{}",
                facts.rdev_major, facts.rdev_minor
            );
        }
        let _ = writeln!(
            text,
            "\nAccess: ({:04o}/{})  Uid: {}   Gid: {}   Project: {}",
            facts.permissions,
            mode_string(facts.kind, facts.permissions),
            facts.uid,
            facts.gid,
            stat.project_id,
        );
        let birth = facts
            .btime
            .map_or_else(|| "-".to_owned(), |at| time::full(at, Zone::Local));
        let _ = writeln!(
            text,
            "Access: {}\nModify: {}\nChange: {}\n Birth: {birth}",
            time::full(facts.atime, Zone::Local),
            time::full(facts.mtime, Zone::Local),
            time::full(facts.ctime, Zone::Local),
        );
        let _ = writeln!(
            text,
            " Flags: {:#x} ({})\nGeneration: {}   Version: {}",
            stat.flags.bits(),
            flag_names(stat.flags).join(" "),
            stat.generation,
            stat.version,
        );
        for xattr in &self.xattrs {
            let _ = writeln!(
                text,
                " Xattr: {}={}",
                printable(&xattr.name),
                hex(&xattr.value)
            );
        }
        text
    }

    fn as_json(&self, facts: &Facts) -> serde_json::Value {
        let xattrs: serde_json::Map<_, _> = self
            .xattrs
            .iter()
            .map(|xattr| (printable(&xattr.name), hex(&xattr.value).into()))
            .collect();
        json!({
            "path": self.path,
            "inode": facts.inode,
            "type": facts.kind.name(),
            "mode": format!("{:04o}", facts.permissions),
            "links": facts.links,
            "uid": facts.uid,
            "gid": facts.gid,
            "project": self.stat.project_id,
            "size_bytes": facts.size_bytes,
            "blocks_512": facts.blocks_512,
            "device": facts.kind.is_device().then_some([facts.rdev_major, facts.rdev_minor]),
            "atime": time::rfc3339(facts.atime),
            "mtime": time::rfc3339(facts.mtime),
            "ctime": time::rfc3339(facts.ctime),
            "btime": facts.btime.map(time::rfc3339),
            "flags": flag_names(self.stat.flags),
            "generation": self.stat.generation,
            "version": self.stat.version,
            "target": self.target,
            "xattrs": xattrs,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut out = b"0x".to_vec();
    push_hex(&mut out, bytes);
    String::from_utf8(out).unwrap_or_default()
}

/// The names of the flags in the kernel's spelling; bits without a name as a number.
fn flag_names(flags: InodeFlags) -> Vec<String> {
    let known = flags.iter_names().map(|(name, _)| name.to_owned());
    let rest = flags.difference(InodeFlags::all()).bits();
    known
        .chain((rest != 0).then(|| format!("{rest:#x}")))
        .collect()
}
