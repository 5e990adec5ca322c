//! **Purpose.** Locates the documents and blobs of a container image: in an OCI layout, in a
//! directory of skopeo, or in an archive of the Docker or OCI format.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use fourscore_sync::Arc;

use super::archive::Catalog;
use super::digest::{Digest, check_bytes};
use super::documents::Descriptor;
use super::wrong;
use crate::source::fault::Fault;

/// Size limit of a document.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;

/// The location of an image.
#[derive(Debug)]
pub(super) enum Store {
    /// The directory of an OCI layout.
    Layout(PathBuf),
    /// A directory of skopeo: blobs named by the digits of their digests, and `manifest.json`.
    Flat(PathBuf),
    /// An archive of `docker save` or of an OCI layout.
    Archive(Catalog),
}

/// A range of a file.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    pub(super) file: Arc<File>,
    pub(super) range: Range<u64>,
}

impl Blob {
    /// A reader from the start of the blob.
    pub(super) fn reader(&self) -> BlobReader {
        BlobReader(self.clone())
    }

    fn small(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let reader = self.reader();
        reader
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    }
}

/// Reads a blob without the file position, which other readers share.
pub(super) struct BlobReader(Blob);

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Blob { file, range } = &mut self.0;
        let left = range.end.saturating_sub(range.start);
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = file.read_at(&mut buffer[..most], range.start)?;
        range.start += count as u64;
        Ok(count)
    }
}

impl Store {
    /// Opens a file by its name in the layout or archive.
    pub(super) fn named(&self, name: &str) -> io::Result<Blob> {
        let path = match self {
            Self::Layout(directory) | Self::Flat(directory) => directory.join(name),
            Self::Archive(catalog) => {
                let range = catalog.find(name);
                return Ok(Blob {
                    range: range.ok_or(io::ErrorKind::NotFound)?,
                    file: Arc::clone(catalog.file()),
                });
            }
        };
        let file = File::open(path)?;
        Ok(Blob {
            range: 0..file.metadata()?.len(),
            file: Arc::new(file),
        })
    }

    /// Opens a blob by its digest.
    pub(super) fn blob(&self, digest: &str) -> Result<Blob, Fault> {
        let parsed = Digest::parse(digest)?;
        Ok(self.named(&match self {
            Self::Flat(_) => parsed.flat_name(),
            Self::Layout(_) | Self::Archive(_) => parsed.layout_name(),
        })?)
    }

    /// Reads a document that has no descriptor.
    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>, Fault> {
        let bytes = self.named(name).and_then(|blob| blob.small());
        bytes.map_err(|error| {
            let kind = match self {
                Self::Layout(_) => "an OCI layout",
                Self::Flat(_) => "a directory of skopeo",
                Self::Archive(_) => "an archive of an image",
            };
            wrong(format!("{name}: {error} (is this {kind}?)"))
        })
    }

    /// Reads the document of a descriptor, and verifies it.
    pub(super) fn checked_document(&self, expected: &Descriptor) -> Result<Vec<u8>, Fault> {
        let digest = &expected.digest;
        let named = |error: io::Error| wrong(format!("{digest}: {error}"));
        let manifest = match self {
            // Manifests referred to by an index have a suffix.
            Self::Flat(_) => {
                let name = Digest::parse(digest)?.flat_name() + ".manifest.json";
                self.named(&name).ok()
            }
            Self::Layout(_) | Self::Archive(_) => None,
        };
        let blob = match manifest {
            Some(blob) => blob,
            None => self.blob(digest).map_err(|fault| match fault {
                Fault::Io(error) => named(error),
                other => other,
            })?,
        };
        let bytes = blob.small().map_err(named)?;
        check_bytes(&mut bytes.as_slice(), expected)?;
        Ok(bytes)
    }
}
