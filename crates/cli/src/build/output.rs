//! **Purpose.** The destination of a build: a file, a block device, a partition of a disk, or
//! standard output.
//!
//! **Not here.** The check that it may be overwritten (`Target` in the crate `fourscore-build`).
//!
//! **Model.** All cores write the image in any order. For standard output it is therefore made in a
//! file without a name in the folder for temporary files, and then copied, with zeroes for its
//! holes.

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
const REPLACE_ADVICE: &str = "use -F to replace it, or name another destination";

/// The destination of an image.
pub(super) struct Output {
    pub(super) target: Target,
    /// Its name in messages.
    pub(super) name: PathBuf,
    /// The image, if the destination is standard output.
    streamed: Option<File>,
}

impl Output {
    /// Opens the destination that the user has named.
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
                if let (Some(size), Some(most)) = (size_bytes, spec.len_bytes)
                    && size > most
                {
                    let why = format!("is larger than the partition, which has {most} bytes");
                    return Err(Failure::usage("--size", why));
                }
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
            let why = "standard output is a terminal; redirect it to a file or a pipe";
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

    /// Copies the image to standard output, if that is the destination.
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
                // In parts, so that Ctrl-C takes effect in a long hole.
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

/// The error of a destination that cannot be written.
pub(crate) fn refusal(error: BuildError) -> Failure {
    match error {
        BuildError::Occupied { path, what } => {
            let failure = Failure::new(path.display().to_string(), format!("contains {what}"));
            failure.advise(REPLACE_ADVICE)
        }
        BuildError::Output { path, why } => {
            let is_busy = why.kind() == ErrorKind::ResourceBusy;
            let is_another = why.kind() == ErrorKind::AlreadyExists;
            let failure = Failure::new(path.display().to_string(), why);
            if is_another {
                return failure.advise(REPLACE_ADVICE);
            }
            match is_busy {
                true => {
                    failure.advise("unmount or detach it first, or use -F to overwrite it anyway")
                }
                false => failure,
            }
        }
        other => Failure::new("the output", other),
    }
}
