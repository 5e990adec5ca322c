//! **Purpose.** A qcow2 image as a device that can be read.
//!
//! **Not here.** The format itself (the crate imago); other formats of virtual machines, which a
//! message names ([`crate::foreign`]).
//!
//! **Model.** Compressed clusters and both versions of the format are read. An image that consists
//! of several files is refused: the names of the others come from the image, and an image of
//! unknown origin could name any file of this machine.
//!
//! **Locking.** That of the crate; any number of threads may read.

use std::fs::{File, FileType};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use fourscore_block::{BlockDevice, Hints};
use imago::qcow2::Qcow2;
use imago::{FormatAccess, StorageOpenOptions};

/// The first bytes of such a file.
pub(crate) const MAGIC: &[u8; 4] = b"QFI\xfb";

/// What a message calls the format.
pub(crate) const NAME: &str = "a qcow2 image";

/// The content of a qcow2 image.
#[derive(Debug)]
pub(crate) struct Qcow2Device {
    content: FormatAccess<imago::file::File>,
    len_bytes: u64,
}

/// Opens a qcow2 image for reading; `None` for a file that is none.
///
/// # Errors
/// Those of the host, and of an image that is damaged or refers to other files.
pub(crate) fn open(path: &Path) -> io::Result<Option<Qcow2Device>> {
    if !is_one(path) {
        return Ok(None);
    }
    let file = File::open(path)?;
    let options = StorageOpenOptions::new().filename(path);
    let storage = imago::file::File::from_open_file(file, options)?;
    let image = Qcow2::<imago::file::File>::open_image(storage, false)?;
    if let Some(backing) = image.implicit_backing_file() {
        return Err(several_files(backing));
    }
    if image.requires_external_data_file() {
        let name = image.implicit_external_data_file();
        return Err(several_files(name.map_or("", String::as_str)));
    }
    let content = FormatAccess::new(image);
    let len_bytes = content.size();
    Ok(Some(Qcow2Device { content, len_bytes }))
}

/// Whether a file has the magic number of the format.
pub(crate) fn is_one(path: &Path) -> bool {
    // A fifo would block, and a device that is not a disk has no such number.
    let is_disk = |kind: FileType| kind.is_file() || kind.is_block_device();
    let mut magic = [0; MAGIC.len()];
    path.metadata()
        .is_ok_and(|found| is_disk(found.file_type()))
        && File::open(path).is_ok_and(|file| file.read_exact_at(&mut magic, 0).is_ok())
        && magic == *MAGIC
}

fn several_files(other: &str) -> io::Error {
    let other = crate::text::printable(other.as_bytes());
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "is {NAME} with another file, '{other}', which is not opened because the image names \
             it; make one file of both: qemu-img convert -O qcow2 IMAGE disk.qcow2"
        ),
    )
}

impl BlockDevice for Qcow2Device {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn hints(&self) -> Hints {
        Hints {
            read_only: true,
            ..Hints::default()
        }
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
        for buf in bufs {
            let len_bytes = buf.len() as u64;
            let end = offset.checked_add(len_bytes);
            let Some(end) = end.filter(|&end| end <= self.len_bytes) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            self.content.read(&mut **buf, offset)?;
            offset = end;
        }
        Ok(())
    }

    fn write_vectored_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
