//! **Purpose.** `fourscore build`: an image from directories, archives, file systems and container
//! images.
//!
//! | module | responsibility |
//! |---|---|
//! | [`output`] | where the image goes |
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
mod output;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use fourscore_build::manifest::{Manifest, Saved};
use fourscore_build::source::{
    Context, Destination, Excludes, IdMap, IdRange, Notices, Owner, Owners, Platform, Source,
    SourceError,
};
use fourscore_build::{
    BuildError, Comparison, Meta, NodeId, Overwrite, ReadBack, Summary, Target, Tree, TreeError,
    Xattrs,
};
use fourscore_mkfs::parse_size;

pub(crate) use bar::Bar;
pub(crate) use fourscore_build::{Options, Size};
pub(crate) use interrupt::Interrupt;
use output::Output;
pub(crate) use output::refusal;

use crate::failure::{Failure, Result, say};
use crate::image::ImageSpec;
use crate::mkfs::{FormatArgs, profile, source_date_epoch, told};
use crate::output::Stdout;

/// `build`
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// Directories, tar archives (plain, gzip or zstd; `-` is standard input), images of ext2, ext3
    /// and ext4 (IMAGE or IMAGE@OFFSET) and container images (directories and archives of OCI, of
    /// `docker save` and of skopeo; with several in one oci:DIR:TAG, oci-archive:FILE:TAG,
    /// docker-archive:FILE:NAME); later ones over earlier ones. What a source is its content says;
    /// tree:PATH packs a container image as the files it consists of
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Where the image goes: a file, which is replaced once the image is complete; a block device
    /// or a partition of a disk (disk.img@1M), which is filled in place; or - for standard output.
    /// What is not empty is refused, but for an image that was built and in which nothing was
    /// changed since
    #[arg(short = 'o', long, value_name = "IMAGE")]
    output: ImageSpec,
    /// Replaces the output whatever it holds and whoever uses it
    #[arg(short = 'F', long)]
    force: bool,
    /// auto (just enough), +SIZE or +PERCENT% (auto with room), or SIZE [default: auto, of a
    /// partition all of it]
    #[arg(long)]
    size: Option<String>,
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
    /// Takes the container image for this platform [default: this machine's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    platform: Option<Platform>,
    /// Makes the same image of the same files, whether they come from a directory, an archive or a
    /// pipe (with SOURCE_DATE_EPOCH). Times are cut to seconds and blocks of zeroes become holes.
    /// It costs one more reading of all contents; those of a pipe or a compressed archive are kept
    /// in a temporary file meanwhile, beside the image
    #[arg(long)]
    canonical: bool,
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
    let mut options = options(args, threads)?;
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
    let (output, size) = destination(args)?;
    options.size = size;
    let bar = Bar::new();
    let intake = Intake {
        options: &options,
        sources: args.sources.iter().map(|text| source(text)).collect(),
        target: &output.target,
        excludes: &excludes,
        saved: manifest.as_ref().and_then(Manifest::saved),
        platform: args.platform.as_ref(),
        threads,
    };
    let mut tree = intake.tree(&bar)?;
    let moved = owners.apply(&mut tree);
    moved.map_err(|error| Failure::new(output.name.display().to_string(), error))?;
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
    let interrupt = Interrupt::install()?;
    let summary = make(&options, tree, &output.target, &interrupt, bar)?;
    output.finish(&interrupt)?;
    let style = match args.json {
        true => Style::Json,
        false => Style::Text,
    };
    let text = summary_text(&output.name, &summary, style);
    if output.is_standard_output() {
        // When standard error is gone there is no other place to say so.
        let _ = anstream::stderr().write_all(text.as_bytes());
        return Ok(());
    }
    print(&text)
}

/// Where the image goes, and how large it is there.
fn destination(args: &Build) -> Result<(Output, Size)> {
    let size = match (args.shrink, &args.size) {
        (true, _) if args.output.offset_bytes != 0 => {
            let why =
                "a partition is as long as it is (use --size auto for no more than is needed)";
            return Err(Failure::usage("--shrink", why));
        }
        (true, _) => Some(Size::Minimum),
        (false, None) => None,
        (false, Some(text)) => Some(size(text)?),
    };
    let overwrite = match args.force {
        true => Overwrite::EvenInUse,
        false => Overwrite::OwnImages,
    };
    for (option, list) in [
        ("--sums", &args.sums),
        ("--write-manifest", &args.write_manifest),
    ] {
        if list
            .as_deref()
            .is_some_and(|list| is_one_file(list, &args.output.path))
        {
            return Err(Failure::usage(option, "would replace the image itself"));
        }
    }
    let output = Output::open(&args.output, size, overwrite)?;
    let whole = || output.target.part_bytes().map_or(Size::Auto, Size::Bytes);
    let size = size.unwrap_or_else(whole);
    Ok((output, size))
}

/// Whether two paths lead to one file, or will.
fn is_one_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    place(a) == place(b)
}

/// What the user means by a source: a file or block device with an offset is a file system.
pub(crate) fn source(text: &OsStr) -> Source {
    let spec = ImageSpec::parse(text).ok();
    let spec = spec.filter(|spec| {
        let found = std::fs::metadata(&spec.path).map(|found| found.file_type());
        spec.offset_bytes != 0
            && found.is_ok_and(|found| found.is_file() || found.is_block_device())
    });
    match spec {
        Some(ImageSpec { path, offset_bytes }) => Source::FileSystem { path, offset_bytes },
        None => Source::parse(text),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
fn source_failure(error: SourceError) -> Failure {
    Failure::new(error.place.clone(), error.reason())
}

/// What an image is made of.
pub(crate) struct Intake<'a> {
    pub(crate) options: &'a Options,
    pub(crate) sources: Vec<Source>,
    pub(crate) target: &'a Target,
    pub(crate) excludes: &'a Excludes,
    pub(crate) saved: Option<&'a Saved>,
    pub(crate) platform: Option<&'a Platform>,
    pub(crate) threads: usize,
}

impl Intake<'_> {
    /// Everything that the sources hold.
    pub(crate) fn tree(&self, bar: &Bar) -> Result<Tree> {
        let mut tree = Tree::new();
        let scratch = scratch(self.target);
        let mut context = Context {
            excludes: self.excludes,
            saved: self.saved,
            destination: Some(Destination {
                options: self.options,
                target: self.target,
            }),
            scratch: &scratch,
            threads: self.threads,
            read_objects: bar.read_objects(),
            read_bytes: bar.read_bytes(),
            notices: Notices::default(),
            platform: self.platform,
        };
        for source in &self.sources {
            let added = source.add_to(&mut tree, &mut context);
            added.map_err(source_failure)?;
        }
        for notice in context.notices.kept() {
            say(notice);
        }
        if context.notices.more() > 0 {
            say(&format!("and {} more like these", context.notices.more()));
        }
        if self.options.format.without_source_xattrs {
            let in_tree =
                |why: TreeError| Failure::new(self.target.path().display().to_string(), why);
            for id in tree.ids() {
                tree.set_xattrs(id, &Xattrs::new()).map_err(in_tree)?;
            }
        }
        Ok(tree)
    }
}

/// Contents that can be read only once and cannot go into the image at once wait beside it, where
/// they may become part of it without being copied; beside what is filled in place there is no
/// room.
fn scratch(target: &Target) -> PathBuf {
    target
        .folder()
        .map_or_else(std::env::temp_dir, Path::to_owned)
}

/// Makes the image, shows how far it is, and stops at Ctrl-C.
pub(crate) fn make(
    options: &Options,
    tree: Tree,
    target: &Target,
    interrupt: &Interrupt,
    bar: Bar,
) -> Result<Summary> {
    let made = fourscore_build::build(options, tree, target, &|progress| {
        bar.set(progress);
        interrupt.flow()
    });
    drop(bar);
    made.map_err(|error| failure(target.path(), error))
}

const NOTHING_LEFT: &str = "stopped; nothing was left behind";

fn failure(image: &Path, error: BuildError) -> Failure {
    let name = image.display().to_string();
    match error {
        BuildError::Format(error) => told(error),
        error @ BuildError::NoSpace { .. } => {
            Failure::new(name, error).advise("use --size auto for just enough")
        }
        error @ BuildError::Output { .. } => refusal(error),
        BuildError::Overwritten { why } => match failure(image, *why) {
            Failure::Told { what, why, .. } => {
                let why = match why.as_str() {
                    NOTHING_LEFT => "stopped",
                    why => why,
                };
                Failure::new(what, why).advise(
                    "writing had begun: what the output held is lost, and its content is undefined now",
                )
            }
            other => other,
        },
        BuildError::Stopped => Failure::new(name, NOTHING_LEFT),
        error => Failure::new(name, error),
    }
}

fn options(args: &Build, threads: usize) -> Result<Options> {
    let format = args.format.options().map_err(told)?;
    if format.offset_bytes != 0 {
        let why = "name the partition as in -o disk.img@1M";
        return Err(Failure::usage("-E offset", why));
    }
    if format.journal_device.is_some() {
        let why = "an image has its journal inside of it";
        return Err(Failure::usage("-J device", why));
    }
    Ok(Options {
        source_date_epoch: source_date_epoch(&format),
        format,
        profile: profile().map_err(told)?,
        size: Size::Auto,
        canonical: args.canonical,
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
    print(&summary_text(image, summary, style))
}

fn print(text: &str) -> Result<()> {
    let mut out = Stdout::open()?;
    out.write(text.as_bytes())?;
    out.flush()
}

fn summary_text(image: &Path, summary: &Summary, style: Style) -> String {
    let seconds = summary.elapsed.as_secs_f64();
    let is_verified = summary.comparison == Comparison::Everything;
    if style == Style::Json {
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
        return format!("{facts:#}\n");
    }
    let verified = if is_verified { ", verified" } else { "" };
    format!(
        "{}: {} objects, {} MiB of content, an image of {} MiB{verified}, {seconds:.2} s\n",
        image.display(),
        summary.objects,
        summary.content_bytes.div_ceil(1 << 20),
        summary.size_bytes.div_ceil(1 << 20),
    )
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
        let target = |path: &str| Target::find(path.as_ref(), Overwrite::OwnImages).expect("free");
        assert_eq!(scratch(&target("a/b.img")), Path::new("a"));
        assert_eq!(scratch(&target("b.img")), Path::new("."));
    }
}
