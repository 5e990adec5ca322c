//! **Purpose.** `fourscore bench xattr`: setting extended attributes on many files, in an image in
//! this process, in a directory of the host, or in a cache of attribute blocks alone; or
//! making files with the attributes of another image. The measured time includes a sync at the end.

use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use fourscore::{Fs, MountOptions, OpenOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_lab::attribute_cache::{self, CacheTarget};
use fourscore_lab::fs_attributes::Attributes;
use fourscore_lab::fs_target::FsTarget;
use fourscore_lab::target::MAX_ATTRIBUTE_BYTES;
use fourscore_lab::{
    DirectoryTarget, MonotonicClock, Target, ThreadCount, Values, XattrLoad, XattrWorkload,
};
use fourscore_sync::Arc;
use serde_json::json;

use crate::bench::report;
use crate::failure::{Failure, Result};
use crate::output::Stdout;

/// The shortest value: it has the number of the step and that of the thread.
const MIN_VALUE_BYTES: u64 = 16;

/// `bench xattr`
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Image file or block device; it is changed
    #[arg(required_unless_present_any = ["dir", "cache"], conflicts_with_all = ["dir", "cache"])]
    image: Option<PathBuf>,
    /// Directory of this host, on any file system, instead of IMAGE
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A cache of attribute blocks alone, instead of IMAGE
    #[arg(long, conflicts_with = "dir", value_parser = PossibleValuesParser::new(attribute_cache::NAMES))]
    cache: Option<String>,
    /// Makes files with the attributes that the first --files regular files of this image have, in
    /// the order of their inodes, instead of the workload
    #[arg(long, conflicts_with_all = ["dir", "cache", "workload", "values", "value_bytes"], value_name = "IMAGE2")]
    like: Option<PathBuf>,
    /// What each thread does
    #[arg(long, default_value = "set")]
    workload: Load,
    /// `same` for all files, `distinct` for each, or the number of values that files have in turns
    #[arg(long, default_value = "same", value_parser = values, value_name = "VALUES")]
    values: Values,
    /// Length of a value in bytes, 16 to 512
    #[arg(
        long,
        default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(MIN_VALUE_BYTES..=MAX_ATTRIBUTE_BYTES as u64),
        value_name = "BYTES"
    )]
    value_bytes: u64,
    /// Number of threads; a list makes one run for each number
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2",
        value_name = "N,.."
    )]
    threads: Vec<usize>,
    /// Number of files, or of steps of the mix, of all threads together
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    files: u32,
    /// Options of the mount, as mount(8) has them
    #[arg(
        short,
        default_value = "",
        conflicts_with_all = ["dir", "cache"],
        value_name = "OPTIONS"
    )]
    options: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// The workloads by their names on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Load {
    /// Sets an attribute on each of many files
    Set,
    /// Creates files with attributes, changes and removes attributes, and removes files
    Mix,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Mix => "mix",
        }
    }
}

fn values(text: &str) -> std::result::Result<Values, String> {
    match text {
        "same" => Ok(Values::Same),
        "distinct" => Ok(Values::Distinct),
        number => match number.parse() {
            Ok(count @ 1..) => Ok(Values::Few(count)),
            _ => Err("give `same`, `distinct` or the number of different values".to_owned()),
        },
    }
}

/// The name of the values on the command line.
fn values_in_words(values: Values) -> String {
    match values {
        Values::Same => "same".to_owned(),
        Values::Distinct => "distinct".to_owned(),
        Values::Few(count) => count.to_string(),
    }
}

/// Runs the verb.
pub(super) fn run(options: &Options) -> Result<()> {
    // The files of a first run would be in the way of those of a second one.
    if options.like.is_some() && options.threads.len() != 1 {
        return Err(Failure::usage("--threads", "give one number with --like"));
    }
    if let Some(name) = &options.cache {
        let cache = attribute_cache::by_name(name);
        let cache = cache.ok_or_else(|| Failure::usage("--cache", name))?;
        return drive(options, name, &CacheTarget::new(&*cache));
    }
    match (&options.image, &options.dir) {
        (Some(image), _) => {
            let name = image.display().to_string();
            let failed = |why| Failure::new(name.as_str(), why);
            let mount_options = MountOptions::new().parse(&options.options);
            let mount_options = mount_options.map_err(|why| Failure::usage("-o", why))?;
            let device = open_path(image, DeviceOptions::read_write())
                .map_err(|why| Failure::new(name.as_str(), why))?;
            let fs = Fs::mount(Arc::new(device), &mount_options).map_err(failed)?;
            if let Some(like) = &options.like {
                copy_attributes(options, like, &name, &fs)?;
                return fs.unmount().map_err(failed);
            }
            let target = FsTarget::new(fs);
            drive(options, &name, &target)?;
            target.into_fs().unmount().map_err(failed)
        }
        (None, Some(directory)) => {
            let name = directory.display().to_string();
            drive(options, &name, &DirectoryTarget::new(directory))
        }
        (None, None) => Err(Failure::usage(
            "bench xattr",
            "give IMAGE, --dir or --cache",
        )),
    }
}

/// Makes files in `fs` with the attributes of the files of the image `like`.
fn copy_attributes(options: &Options, like: &Path, name: &str, fs: &Arc<Fs>) -> Result<()> {
    let threads = ThreadCount::new(options.threads.first().copied().unwrap_or(1));
    let failed = |why: fourscore::Error| Failure::new(like.display().to_string(), why);
    let device = open_path(like, DeviceOptions::default())
        .map_err(|why| Failure::new(like.display().to_string(), why))?;
    let source = Fs::open(Arc::new(device), &OpenOptions::new()).map_err(failed)?;
    let most = usize::try_from(options.files).unwrap_or(usize::MAX);
    let attributes = Attributes::of(&source, most).map_err(failed)?;
    let driven = attributes.copy_to(fs, threads, &MonotonicClock::default());
    let driven = driven.map_err(|why| Failure::new(name, why))?;
    let mut out = Stdout::open()?;
    if !options.json {
        let files = attributes.files();
        let head = format!("{name}, {files} files as in {}\n", like.display());
        out.write(head.as_bytes())?;
    }
    if let Some(run) = report(threads, &driven, options.json, &mut out)? {
        let all = json!({ "target": name, "like": like.display().to_string(), "runs": [run] });
        out.write(format!("{all:#}\n").as_bytes())?;
    }
    out.flush()
}

fn drive(options: &Options, name: &str, target: &dyn Target) -> Result<()> {
    let clock = MonotonicClock::default();
    let workload = XattrWorkload {
        load: match options.workload {
            Load::Set => XattrLoad::Set,
            Load::Mix => XattrLoad::Mix,
        },
        values: options.values,
        value_bytes: usize::try_from(options.value_bytes).unwrap_or(MAX_ATTRIBUTE_BYTES),
    };
    let what = options.workload.name();
    let values = values_in_words(options.values);
    let mut out = Stdout::open()?;
    if !options.json {
        let bytes = options.value_bytes;
        let head = format!("{name}, workload {what}, values of {bytes} bytes: {values}\n");
        out.write(head.as_bytes())?;
    }
    let mut runs = Vec::new();
    for threads in options.threads.iter().copied().map(ThreadCount::new) {
        let driven = workload
            .run(target, threads, options.files, &clock)
            .map_err(|why| Failure::new(name, why))?;
        runs.extend(report(threads, &driven, options.json, &mut out)?);
    }
    if options.json {
        let all = json!({ "target": name, "workload": what, "values": values, "runs": runs });
        out.write(format!("{all:#}\n").as_bytes())?;
    }
    out.flush()
}
