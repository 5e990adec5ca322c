//! **Purpose.** Where the image of a build goes: a file, a block device, a partition of a disk, or
//! standard output.
//!
//! **Not here.** Whether it may go there (crate `fourscore-build`, `Target`).
//!
//! **Model.** For standard output the image is made in a file without a name in the folder for
//! temporary files, since it is written by all cores in any order, and then copied, with zeroes
//! where it has holes.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, stdout};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fourscore_build::{BuildError, Flow, Overwrite, Size, Target};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::interrupt::Interrupt;
use crate::failure::{Failure, Result};
use crate::image::ImageSpec;
use crate::output::Stdout;

const COPY_BYTES: usize = 1 << 20;

/// Where an image goes.
pub(super) struct Output {
    pub(super) target: Target,
    /// As messages call it.
    pub(super) name: PathBuf,
    /// The image, if it goes to standard output.
    streamed: Option<File>,
}

impl Output {
    /// Finds out what the user named.
    pub(super) fn open(spec: &ImageSpec, size: Option<Size>, overwrite: Overwrite) -> Result<Self> {
        let path = spec.path.as_path();
        if path == Path::new("-") && spec.offset_bytes == 0 {
            return Self::standard_output();
        }
        let target = match spec.offset_bytes {
            0 => Target::find(path, overwrite),
            offset => {
                let size_bytes = match size {
                    Some(Size::Bytes(bytes)) => Some(bytes),
                    _ => None,
                };
                Target::find_part(path, offset, size_bytes, overwrite)
            }
        };
        Ok(Self {
            target: target.map_err(refusal)?,
            name: match spec.offset_bytes {
                0 => path.to_owned(),
                offset => format!("{}@{offset}", path.display()).into(),
            },
            streamed: None,
        })
    }

    fn standard_output() -> Result<Self> {
        if stdout().is_terminal() {
            let why = "standard output is a terminal (send it to a file or a pipe)";
            return Err(Failure::usage("-o -", why));
        }
        let (target, file) = Target::nameless(&std::env::temp_dir()).map_err(refusal)?;
        Ok(Self {
            target,
            name: "standard output".into(),
            streamed: Some(file),
        })
    }

    pub(super) fn is_standard_output(&self) -> bool {
        self.streamed.is_some()
    }

    /// Writes the image to standard output, if it goes there.
    pub(super) fn finish(&self, interrupt: &Interrupt) -> Result<()> {
        let Some(file) = &self.streamed else {
            return Ok(());
        };
        let failed = |why: std::io::Error| Failure::new("the image", why);
        let len_bytes = file.metadata().map_err(failed)?.len();
        let mut out = Stdout::open()?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < len_bytes {
            if interrupt.flow() == Flow::Stop {
                return Err(Failure::new("standard output", "stopped"));
            }
            let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) => data.min(len_bytes),
                Err(Errno::NXIO) => len_bytes,
                Err(_) => at,
            };
            if data > at {
                // In parts, so that Ctrl-C is noticed in a long hole too.
                let part = (data - at).min(COPY_BYTES as u64 * 64);
                out.zeros(part)?;
                at += part;
                continue;
            }
            let left = usize::try_from(len_bytes - at).unwrap_or(COPY_BYTES);
            let part = &mut buffer[..left.min(COPY_BYTES)];
            file.read_exact_at(part, at).map_err(failed)?;
            out.write(part)?;
            at += part.len() as u64;
        }
        out.finish()
    }
}

/// Why an image cannot go where it was to go.
pub(crate) fn refusal(error: BuildError) -> Failure {
    match error {
        BuildError::Occupied { path, what } => {
            let failure = Failure::new(path.display().to_string(), format!("holds {what}"));
            failure.advise("use -F to replace it, or name another output")
        }
        BuildError::Output { path, why } => {
            let is_busy = why.kind() == ErrorKind::ResourceBusy;
            let failure = Failure::new(path.display().to_string(), why);
            match is_busy {
                true => failure
                    .advise("unmount or detach it first, or use -F to overwrite it all the same"),
                false => failure,
            }
        }
        other => Failure::new("the output", other),
    }
}
