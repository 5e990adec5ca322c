//! **Purpose.** What commands do with a mount: `umount`, and `tune`, `stats` and `resize` of a
//! mount point.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use fourscore_fuse::Unmounter;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::image::ImageSpec;
use crate::mount::{figures, source_of};
use crate::output::Stdout;

/// `umount`
#[derive(Debug, Args)]
pub(crate) struct Umount {
    /// Mount point
    #[arg(value_name = "DIR")]
    point: PathBuf,
}

fn failed(point: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(point.display().to_string(), why)
}

/// Changes the tunables of the mount on `point`, or shows all if there is none to change.
pub(crate) fn tune(point: &Path, values: &[String]) -> Result<()> {
    for value in values {
        let Some((name, number)) = value.split_once('=') else {
            return Err(Failure::usage(value, "does not have the form NAME=VALUE"));
        };
        let line = format!("tune {name} {number}");
        let reply = figures::request(point, &line);
        let reply = reply.map_err(|why| failed(point, why).advise(NO_SERVER))?;
        if !reply.is_empty() {
            return Err(Failure::new(value.as_str(), reply));
        }
    }
    if !values.is_empty() {
        return Ok(());
    }
    let stats = read_stats(point)?;
    let mut out = Stdout::open()?;
    for (name, value) in stats["tunables"].as_object().into_iter().flatten() {
        out.write(format!("{name}={value}\n").as_bytes())?;
    }
    out.flush()
}

/// Sends a request to the server of the mount on `point`, and returns the reply.
pub(crate) fn request(point: &Path, line: &str) -> Result<String> {
    let reply = figures::request(point, line);
    reply.map_err(|why| failed(point, why).advise(NO_SERVER))
}

/// The mount point of a file system of fourscore: a directory, or where an image is mounted.
pub(crate) fn point_of(image: &ImageSpec) -> Option<PathBuf> {
    match image.path.is_dir() {
        true => Some(image.path.clone()),
        false => figures::point_of(&source_of(image)),
    }
}

const NO_SERVER: &str = "give a mount point of fourscore that you have mounted, or run as root";

fn read_stats(point: &Path) -> Result<Value> {
    let reply = figures::request(point, "stats");
    let reply = reply.map_err(|why| failed(point, why).advise(NO_SERVER))?;
    serde_json::from_str(&reply).map_err(|_| failed(point, reply))
}

/// Prints the figures of the mount on `point`, as `stats` does.
pub(crate) fn stats(point: &Path, as_json: bool) -> Result<()> {
    let stats = read_stats(point)?;
    let mut out = Stdout::open()?;
    match as_json {
        true => out.write(format!("{stats:#}\n").as_bytes())?,
        false => print(&stats, 0, &mut out)?,
    }
    out.flush()
}

/// Prints one member per line, indented with tabs by depth, as in files of `/proc`.
fn print(stats: &Value, depth: usize, out: &mut Stdout) -> Result<()> {
    for (name, value) in stats.as_object().into_iter().flatten() {
        let tabs = "\t".repeat(depth);
        match value {
            Value::Object(_) => {
                out.write(format!("{tabs}{name}:\n").as_bytes())?;
                print(value, depth + 1, out)?;
            }
            Value::Number(number) if number.is_f64() => {
                let number = number.as_f64().unwrap_or_default();
                out.write(format!("{tabs}{name}: {number:.1}\n").as_bytes())?;
            }
            value => out.write(format!("{tabs}{name}: {value}\n").as_bytes())?,
        }
    }
    Ok(())
}

/// Runs `umount`: unmounts, and returns when the server has ended.
pub(crate) fn umount(args: &Umount) -> Result<()> {
    let point = args.point.canonicalize();
    let point = point.map_err(|why| failed(&args.point, why))?;
    let server = figures::send(&point, "wait");
    let mut server = server.map_err(|why| failed(&args.point, why).advise(NO_SERVER))?;
    let ended = Unmounter::of(point).unmount();
    ended.map_err(|why| failed(&args.point, why))?;
    // The stream ends when the server does, with or without an error.
    let _ = server.read_to_end(&mut Vec::new());
    Ok(())
}
