//! **Purpose.** `fourscore build`: an image from directories, archives and OCI layouts.
//!
//! | module | responsibility |
//! |---|---|
//! | [`bar`] | the progress bar |
//! | [`interrupt`] | Ctrl-C |
//!
//! **Not here.** Reading sources and writing the image: crate `fourscore-build`.
//!
//! **Model.** Sources are laid over each other in the order given, then owners are changed (that of
//! the root once more by `-E root_owner`), then the manifest is applied, then the image is made
//! and, if that was asked for, read back. Until all of that is done it has no name.

mod bar;
mod interrupt;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use fourscore::format::parse_size;
use fourscore_build::manifest::{Manifest, Saved};
use fourscore_build::source::{
    Context, Destination, Excludes, IdMap, IdRange, Notices, Owner, Owners, Source, SourceError,
};
use fourscore_build::{
    BuildError, Comparison, Meta, NodeId, ReadBack, Summary, Tree, TreeError, Xattrs,
};

pub(crate) use bar::Bar;
pub(crate) use fourscore_build::{Options, Size};

use crate::failure::{Failure, Result, say};
use crate::mkfs::{FormatArgs, profile, source_date_epoch, told};
use crate::output::Stdout;

/// `build`
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// Directories, tar archives (plain, gzip or zstd; `-` is standard input) and OCI layouts
    /// (oci:DIR or oci:DIR:TAG); later ones over earlier ones
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Where the image goes; what is there is replaced once the image is complete
    #[arg(short = 'o', long, value_name = "IMAGE")]
    output: PathBuf,
    /// auto (just enough), +SIZE or +PERCENT% (auto with room), or SIZE
    #[arg(long, default_value = "auto")]
    size: String,
    /// Makes the image as small as it can be, with the smallest journal
    #[arg(long, conflicts_with = "size")]
    shrink: bool,
    /// Gives everything to one owner
    #[arg(long, value_name = "UID:GID", conflicts_with_all = ["uid_map", "gid_map"])]
    owner: Option<Owner>,
    /// Moves a range of users; may be given several times
    #[arg(long, value_name = "FROM:TO:COUNT")]
    uid_map: Vec<IdRange>,
    /// Moves a range of groups; may be given several times
    #[arg(long, value_name = "FROM:TO:COUNT")]
    gid_map: Vec<IdRange>,
    /// Leaves out what matches: a name, or with a slash in it a path from the root (`*`, `**`,
    /// `?`, `[a-z]`)
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,
    /// Changes whose the objects are, and makes devices and the like that are missing, as an mtree
    /// says; or takes what `fakeroot -s FILE` saved
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Reads the finished image back and compares all of it with the sources
    #[arg(long)]
    verify: bool,
    /// Writes SHA-256 sums of all files of the image, as sha256sum does
    #[arg(long, value_name = "FILE")]
    sums: Option<PathBuf>,
    /// Writes an mtree of the image with SHA-256 sums, which --manifest and bsdtar read
    #[arg(long, value_name = "FILE")]
    write_manifest: Option<PathBuf>,
    /// How many threads to use [default: all cores]
    #[arg(long)]
    threads: Option<usize>,
    /// Prints a summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// Runs the verb.
pub(crate) fn run(args: &Build) -> Result<()> {
    let threads = crate::threads(args.threads);
    let options = options(args, threads)?;
    let mut excludes = Excludes::default();
    for pattern in &args.exclude {
        let added = excludes.add(pattern.as_bytes());
        added.map_err(|why| Failure::usage("--exclude", why.to_string()))?;
    }
    let owners = match args.owner {
        Some(owner) => Owners::One(owner),
        None => Owners::Moved {
            users: IdMap::new(args.uid_map.clone()),
            groups: IdMap::new(args.gid_map.clone()),
        },
    };
    let manifest = args.manifest.as_deref().map(Manifest::read).transpose();
    let manifest = manifest.map_err(source_failure)?;
    let bar = Bar::new();
    let intake = Intake {
        options: &options,
        sources: &args.sources,
        image: &args.output,
        excludes: &excludes,
        saved: manifest.as_ref().and_then(Manifest::saved),
        threads,
    };
    let mut tree = intake.tree(&bar)?;
    let moved = owners.apply(&mut tree);
    moved.map_err(|error| Failure::new(args.output.display().to_string(), error))?;
    if let Some(owner) = options.format.root_owner {
        let root = Meta {
            uid: owner.uid,
            gid: owner.gid,
            ..tree.meta(NodeId::ROOT)
        };
        tree.set_meta(NodeId::ROOT, &root);
    }
    if let Some(manifest) = &manifest {
        let applied = manifest.apply(&mut tree, &excludes);
        applied.map_err(source_failure)?;
    }
    let summary = make(&options, tree, &args.output, bar)?;
    let style = match args.json {
        true => Style::Json,
        false => Style::Text,
    };
    report(&args.output, &summary, style)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn source_failure(error: SourceError) -> Failure {
    Failure::new(error.place.clone(), error.reason())
}

/// What an image is made of.
pub(crate) struct Intake<'a> {
    pub(crate) options: &'a Options,
    pub(crate) sources: &'a [OsString],
    pub(crate) image: &'a Path,
    pub(crate) excludes: &'a Excludes,
    pub(crate) saved: Option<&'a Saved>,
    pub(crate) threads: usize,
}

impl Intake<'_> {
    /// Everything that the sources hold.
    pub(crate) fn tree(&self, bar: &Bar) -> Result<Tree> {
        let mut tree = Tree::new();
        let scratch = scratch(self.image);
        let mut context = Context {
            excludes: self.excludes,
            saved: self.saved,
            destination: Some(Destination {
                options: self.options,
                target: self.image,
            }),
            scratch: &scratch,
            threads: self.threads,
            read_objects: bar.read_objects(),
            read_bytes: bar.read_bytes(),
            notices: Notices::default(),
        };
        for source in self.sources {
            let added = Source::parse(source).add_to(&mut tree, &mut context);
            added.map_err(source_failure)?;
        }
        for notice in context.notices.kept() {
            say(notice);
        }
        if context.notices.more() > 0 {
            say(&format!("and {} more like these", context.notices.more()));
        }
        if self.options.format.without_source_xattrs {
            let in_tree = |why: TreeError| Failure::new(self.image.display().to_string(), why);
            for id in tree.ids() {
                tree.set_xattrs(id, &Xattrs::new()).map_err(in_tree)?;
            }
        }
        Ok(tree)
    }
}

/// Contents that can be read only once and cannot go into the image at once wait beside it, where
/// they may become part of it without being copied; beside a block device there is no room.
fn scratch(image: &Path) -> PathBuf {
    let is_device = std::fs::metadata(image).is_ok_and(|it| it.file_type().is_block_device());
    match image.parent() {
        _ if is_device => std::env::temp_dir(),
        Some(parent) if parent != OsStr::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes the image, shows how far it is, and stops at Ctrl-C.
pub(crate) fn make(options: &Options, tree: Tree, image: &Path, bar: Bar) -> Result<Summary> {
    let interrupt = interrupt::Interrupt::install().map_err(|why| Failure::new("signals", why))?;
    let made = fourscore_build::build(options, tree, image, &|progress| {
        bar.set(progress);
        interrupt.flow()
    });
    drop(bar);
    made.map_err(|error| failure(image, error))
}

fn failure(image: &Path, error: BuildError) -> Failure {
    let name = image.display().to_string();
    match error {
        BuildError::Format(error) => told(error),
        error @ BuildError::NoSpace { .. } => {
            Failure::new(name, error).advise("use --size auto for just enough")
        }
        BuildError::Output { path, why } => Failure::new(path.display().to_string(), why),
        BuildError::Stopped => Failure::new(name, "stopped; nothing was left behind"),
        error => Failure::new(name, error),
    }
}

fn options(args: &Build, threads: usize) -> Result<Options> {
    let format = args.format.options().map_err(told)?;
    if format.offset_bytes != 0 {
        return Err(Failure::usage("-E offset", "an image begins at its start"));
    }
    if format.journal_device.is_some() {
        let why = "an image has its journal inside of it";
        return Err(Failure::usage("-J device", why));
    }
    Ok(Options {
        source_date_epoch: source_date_epoch(&format),
        format,
        profile: profile().map_err(told)?,
        size: match args.shrink {
            true => Size::Minimum,
            false => size(&args.size)?,
        },
        threads: Some(threads),
        read_back: ReadBack {
            comparison: match args.verify {
                true => Comparison::Everything,
                false => Comparison::No,
            },
            sums: args.sums.clone(),
            manifest: args.write_manifest.clone(),
        },
    })
}

fn size(text: &str) -> Result<Size> {
    let bytes = |text| parse_size("--size", text, 1).map_err(told);
    let Some(more) = text.strip_prefix('+') else {
        return match text {
            "auto" => Ok(Size::Auto),
            text => bytes(text).map(Size::Bytes),
        };
    };
    match more.strip_suffix('%') {
        Some(percent) => {
            let parsed = percent.parse().map(Size::AutoPlusPercent);
            parsed
                .map_err(|_| Failure::usage("--size", format!("{percent} is no number of percent")))
        }
        None => bytes(more).map(Size::AutoPlusBytes),
    }
}

/// For whom a summary is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Json,
}

/// Prints what was made.
pub(crate) fn report(image: &Path, summary: &Summary, style: Style) -> Result<()> {
    let mut out = Stdout::open()?;
    let seconds = summary.elapsed.as_secs_f64();
    let is_verified = summary.comparison == Comparison::Everything;
    let text = if style == Style::Json {
        let facts = serde_json::json!({
            "image": image.display().to_string(),
            "size_bytes": summary.size_bytes,
            "content_bytes": summary.content_bytes,
            "free_bytes": summary.free_bytes,
            "objects": summary.objects,
            "uuid": summary.uuid.to_string(),
            "verified": is_verified,
            "seconds": seconds,
        });
        format!("{facts:#}\n")
    } else {
        let verified = if is_verified { ", verified" } else { "" };
        format!(
            "{}: {} objects, {} MiB of content, an image of {} MiB{verified}, {seconds:.2} s\n",
            image.display(),
            summary.objects,
            summary.content_bytes.div_ceil(1 << 20),
            summary.size_bytes.div_ceil(1 << 20),
        )
    };
    out.write(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let parsed = |text| size(text).ok();
        assert_eq!(parsed("auto"), Some(Size::Auto));
        assert_eq!(parsed("4G"), Some(Size::Bytes(4 << 30)));
        assert_eq!(parsed("+512M"), Some(Size::AutoPlusBytes(512 << 20)));
        assert_eq!(parsed("+20%"), Some(Size::AutoPlusPercent(20)));
        for wrong in ["", "+", "+x%", "%", "4X", "-1", "20%", "+-1%"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn contents_wait_beside_the_image() {
        assert_eq!(scratch("a/b.img".as_ref()), Path::new("a"));
        assert_eq!(scratch("b.img".as_ref()), Path::new("."));
    }
}
