//! **Purpose.** `fourscore build`: makes an image of directories, archives, file systems and
//! container images.
//!
//! | module | responsibility |
//! |---|---|
//! | [`output`] | the destination of the image |
//! | [`bar`] | the progress bar |
//! | [`interrupt`] | Ctrl-C |
//!
//! **Not here.** Reading sources and writing the image: crate `fourscore-build`.
//!
//! **Model.** Sources are merged in the order given, later ones over earlier ones. Then owners are
//! changed (that of the root again by `-E root_owner`), the manifest is applied, the image is made
//! and, with `--verify` and similar options, read back. The image file gets its name after that.

mod bar;
mod interrupt;
mod output;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use fourscore_build::manifest::{Manifest, Saved};
use fourscore_build::source::{
    Context, Destination, Excludes, IdMap, IdRange, Notices, Owners, Platform, Source, SourceError,
};
use fourscore_build::{
    BuildError, Comparison, ListTarget, Meta, NodeId, Overwrite, ReadBack, Summary, Target, Tree,
    TreeError, Xattrs, read_file,
};
use fourscore_mkfs::parse_size;

pub(crate) use bar::Bar;
pub(crate) use fourscore_build::{Options, Size};
pub(crate) use interrupt::Interrupt;
use output::Output;
pub(crate) use output::refusal;

use crate::edit::ids;
use crate::failure::{Failure, Result, message};
use crate::image::ImageSpec;
use crate::mkfs::{FormatArgs, format_failure, profile, source_date_epoch};
use crate::output::Stdout;
use crate::text::printable;
use crate::verbosity;

/// The longest list of users or groups that is read, in bytes.
const MOST_NAMES_BYTES: u64 = 16 << 20;

/// `build`
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// Directories, tar archives (plain, gzip or zstd; `-` is standard input), images of ext2, ext3
    /// and ext4 (IMAGE or IMAGE@OFFSET), and container images (directories and archives of OCI,
    /// `docker save` and skopeo; to choose one of several: oci:DIR:TAG, oci-archive:FILE:TAG,
    /// docker-archive:FILE:NAME). Later sources are merged over earlier ones. The kind of a source
    /// is detected by its content; tree:PATH takes a container image as ordinary files
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Destination: a file, which is replaced when the image is complete; a block device or a
    /// partition (disk.img@1M), which is written in place; or - for standard output. A destination
    /// with other content is refused, unless it is an unchanged image that build has made
    #[arg(short = 'o', long, value_name = "IMAGE")]
    output: ImageSpec,
    /// Replaces the destination whatever its content, even if it is in use
    #[arg(short = 'F', long)]
    force: bool,
    /// auto (just large enough), +SIZE or +PERCENT% (auto plus free space), or SIZE [default: auto,
    /// for a partition its size]
    #[arg(long)]
    size: Option<String>,
    /// Makes the image as small as possible, with the smallest journal
    #[arg(long, conflicts_with = "size")]
    shrink: bool,
    /// Owner of all objects: OWNER, OWNER:GROUP or :GROUP, numbers or names that /etc/passwd and
    /// /etc/group of the sources have
    #[arg(long, conflicts_with_all = ["uid_map", "gid_map"])]
    owner: Option<String>,
    /// Maps a range of user ids; can be repeated
    #[arg(long, value_name = "FROM:TO:COUNT")]
    uid_map: Vec<IdRange>,
    /// Maps a range of group ids; can be repeated
    #[arg(long, value_name = "FROM:TO:COUNT")]
    gid_map: Vec<IdRange>,
    /// Platform of the container image [default: that of this machine]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    platform: Option<Platform>,
    /// Makes an identical image of the same files, whether they come from a directory, an archive
    /// or a pipe (with SOURCE_DATE_EPOCH). Times are rounded down to seconds, and blocks of zeroes
    /// become holes. All data is read once more; that of a pipe or a compressed archive is stored
    /// in a temporary file beside the image
    #[arg(long)]
    canonical: bool,
    /// Leaves out objects that match: a name or, if it contains a slash, a path from the root (`*`,
    /// `**`, `?`, `[a-z]`)
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,
    /// Applies an mtree manifest, which sets owners, modes and more and adds missing devices; or
    /// the state that `fakeroot -s FILE` has saved
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Reads the image back and compares it with the sources
    #[arg(long)]
    verify: bool,
    /// Writes the SHA-256 sums of all files of the image in the format of sha256sum. A file with
    /// content is replaced only with -F
    #[arg(long, value_name = "FILE")]
    sums: Option<PathBuf>,
    /// Writes an mtree manifest of the image with SHA-256 sums, for --manifest and bsdtar. A file
    /// with content is replaced only with -F
    #[arg(long, value_name = "FILE")]
    write_manifest: Option<PathBuf>,
    /// Number of threads [default: all cores]
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
    if let Some(owner) = &args.owner {
        ids::check_form(owner)?;
    }
    let manifest = args.manifest.as_deref().map(Manifest::read).transpose();
    let manifest = manifest.map_err(source_failure)?;
    let (output, size) = destination(args)?;
    options.size = size;
    options.read_back = read_back(args)?;
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
    let moved = owners(args, &mut tree)?.apply(&mut tree);
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
    for pattern in excludes.without_effect() {
        let pattern = printable(pattern);
        message(&format!("--exclude '{pattern}': leaves nothing out"));
    }
    let interrupt = Interrupt::install()?;
    let summary = make(&options, tree, &output.target, &interrupt, bar)?;
    output.finish(&interrupt)?;
    let style = match args.json {
        true => Style::Json,
        false => Style::Text,
    };
    if verbosity::is_quiet() && style == Style::Text {
        return Ok(());
    }
    let text = summary_text(&output.name, &summary, style);
    if output.is_standard_output() {
        // If standard error is closed, there is no other place for the message.
        let _ = anstream::stderr().write_all(text.as_bytes());
        return Ok(());
    }
    print(&text)
}

/// How the owners of the tree are changed.
fn owners(args: &Build, tree: &mut Tree) -> Result<Owners> {
    let Some(owner) = &args.owner else {
        return Ok(Owners::Moved {
            users: IdMap::new(args.uid_map.clone()),
            groups: IdMap::new(args.gid_map.clone()),
        });
    };
    let names = TreeNames(RefCell::new(tree));
    let found = ids::owner(&names, owner).map_err(|failure| failure.within("--owner"));
    found.map(|(uid, gid)| Owners::One { uid, gid })
}

/// Names of users and groups, of the sources.
struct TreeNames<'t>(RefCell<&'t mut Tree>);

impl ids::Names for TreeNames<'_> {
    fn read(&self, path: &str) -> std::result::Result<Vec<u8>, String> {
        let read = read_file(&mut self.0.borrow_mut(), path.as_bytes(), MOST_NAMES_BYTES);
        read.map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => "the sources have no such file".into(),
            _ => why.to_string(),
        })
    }
}

/// The destination of the image, and its size.
fn destination(args: &Build) -> Result<(Output, Size)> {
    let size = match (args.shrink, &args.size) {
        (true, _) if args.output.offset_bytes != 0 => {
            let why =
                "a partition keeps its size; use --size auto for a file system that is smaller";
            return Err(Failure::usage("--shrink", why));
        }
        (true, _) => Some(Size::Minimum),
        (false, None) => None,
        (false, Some(text)) => Some(size(text)?),
    };
    for (option, list) in [
        ("--sums", &args.sums),
        ("--write-manifest", &args.write_manifest),
    ] {
        if list
            .as_deref()
            .is_some_and(|list| is_one_file(list, &args.output.path))
        {
            return Err(Failure::usage(
                option,
                "is the image itself; name another file",
            ));
        }
    }
    let output = Output::open(&args.output, size, overwrite(args))?;
    let part = || output.target.part_bytes().map_or(Size::Auto, Size::Bytes);
    let size = size.unwrap_or_else(part);
    Ok((output, size))
}

/// What may be overwritten.
fn overwrite(args: &Build) -> Overwrite {
    match args.force {
        true => Overwrite::EvenInUse,
        false => Overwrite::OwnImages,
    }
}

/// What is done with the finished image: it is compared, and lists are written.
fn read_back(args: &Build) -> Result<ReadBack> {
    let (sums, manifest) = (args.sums.as_deref(), args.write_manifest.as_deref());
    if let (Some(sums), Some(manifest)) = (sums, manifest)
        && is_one_file(sums, manifest)
        && !is_stream(sums)
    {
        let why = "is also the file of --sums; name another file";
        return Err(Failure::usage("--write-manifest", why));
    }
    let find = |path: Option<&Path>| {
        let found = path.map(|path| ListTarget::find(path, overwrite(args)));
        found.transpose().map_err(refusal)
    };
    Ok(ReadBack {
        comparison: match args.verify {
            true => Comparison::Everything,
            false => Comparison::No,
        },
        sums: find(sums)?,
        manifest: find(manifest)?,
    })
}

/// Whether a path is a pipe or terminal, which takes several lists.
fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Whether two paths are the same file, which may not exist yet.
fn is_one_file(a: &Path, b: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    canonical(a) == canonical(b)
}

/// Parses a source. A file or block device with an offset is a file system.
pub(crate) fn source(text: &OsStr) -> Source {
    let spec = ImageSpec::parse(text).ok();
    let spec = spec.filter(|spec| {
        let found = std::fs::metadata(&spec.path).map(|found| found.file_type());
        spec.offset_bytes != 0
            && found.is_ok_and(|found| found.is_file() || found.is_block_device())
    });
    match spec {
        Some(ImageSpec {
            path, offset_bytes, ..
        }) => Source::FileSystem { path, offset_bytes },
        None => Source::parse(text),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err passes it by value")]
fn source_failure(error: SourceError) -> Failure {
    Failure::new(error.place.clone(), error.reason())
}

/// The sources of an image, and how they are read.
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
    /// Reads the sources into a tree.
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
            tracing::info!(?source, objects = tree.len(), "the source is read");
        }
        for notice in context.notices.kept() {
            message(notice);
        }
        if context.notices.more() > 0 {
            message(&format!(
                "{} more messages like these are not shown",
                context.notices.more()
            ));
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

/// The directory of temporary files, for data that can be read only once and cannot be written to
/// the image at once. It is that of the image, where the kernel may share their blocks with the
/// image. A device that is written in place has none.
fn scratch(target: &Target) -> PathBuf {
    target
        .folder()
        .map_or_else(std::env::temp_dir, Path::to_owned)
}

/// Makes the image, shows the progress, and stops at Ctrl-C.
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

const STOPPED_CLEAN: &str = "stopped; nothing is left behind";

fn failure(image: &Path, error: BuildError) -> Failure {
    let name = image.display().to_string();
    match error {
        BuildError::Format(error) => format_failure(error),
        error @ BuildError::NoSpace { .. } => {
            Failure::new(name, error).advise("use --size auto, which is just large enough")
        }
        error @ BuildError::Owner { .. } => Failure::new(name, error)
            .advise("give it another owner: with --uid-map, --gid-map, --owner or a manifest"),
        error @ BuildError::Output { .. } => refusal(error),
        BuildError::Overwritten { why } => match failure(image, *why) {
            Failure::Error { what, why, .. } => {
                let why = match why.as_str() {
                    STOPPED_CLEAN => "stopped",
                    why => why,
                };
                Failure::new(what, why).advise(
                    "writing had begun: the previous content is lost, and the content is undefined now",
                )
            }
            other => other,
        },
        BuildError::Stopped => Failure::new(name, STOPPED_CLEAN),
        error => Failure::new(name, error),
    }
}

fn options(args: &Build, threads: usize) -> Result<Options> {
    let format = args.format.options().map_err(format_failure)?;
    if format.offset_bytes != 0 {
        let why = "is not supported; give the offset with the output, as in -o disk.img@1M";
        return Err(Failure::usage("-E offset", why));
    }
    if format.journal_device.is_some() {
        let why = "build cannot make an image with an external journal";
        return Err(Failure::usage("-J device", why));
    }
    Ok(Options {
        source_date_epoch: source_date_epoch(&format),
        format,
        profile: profile().map_err(format_failure)?,
        size: Size::Auto,
        canonical: args.canonical,
        threads: Some(threads),
        read_back: ReadBack::default(),
    })
}

fn size(text: &str) -> Result<Size> {
    let bytes = |text| parse_size("--size", text, 1).map_err(format_failure);
    let Some(more) = text.strip_prefix('+') else {
        return match text {
            "auto" => Ok(Size::Auto),
            text => bytes(text).map(Size::Bytes),
        };
    };
    match more.strip_suffix('%') {
        Some(percent) => {
            let parsed = percent.parse().map(Size::AutoPlusPercent);
            parsed.map_err(|_| {
                Failure::usage("--size", format!("{percent} is not a number of percent"))
            })
        }
        None => bytes(more).map(Size::AutoPlusBytes),
    }
}

/// The format of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Json,
}

/// Prints the summary of an image.
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
        "{}: {} objects, {} MiB of data, an image of {} MiB{verified}, {seconds:.2} s\n",
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
    fn temporary_files_are_beside_the_image() {
        let target = |path: &str| Target::find(path.as_ref(), Overwrite::OwnImages).expect("free");
        assert_eq!(scratch(&target("a/b.img")), Path::new("a"));
        assert_eq!(scratch(&target("b.img")), Path::new("."));
    }
}
