//! **Purpose.** Blobs by their digests: where they are, and whether they are what was promised.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256, Sha512};

use super::documents::Descriptor;
use super::wrong;
use crate::source::fault::Fault;
use crate::source::sink::read_some;

/// Documents are small; a longer one is none.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;
const READ_BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
enum Algorithm {
    Sha256,
    Sha512,
}

/// The algorithm and the digits of a digest. What is neither cannot become part of a path.
fn parse(digest: &str) -> Result<(Algorithm, &str, &str), Fault> {
    let is_hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let algorithm = match digest.split_once(':') {
        Some(("sha256", hex)) if hex.len() == 64 && is_hex(hex) => Some((Algorithm::Sha256, hex)),
        Some(("sha512", hex)) if hex.len() == 128 && is_hex(hex) => Some((Algorithm::Sha512, hex)),
        _ => None,
    };
    let (algorithm, hex) = algorithm.ok_or_else(|| {
        wrong(format!(
            "'{digest}' is not a digest of the kind sha256 or sha512"
        ))
    })?;
    let name = digest.split(':').next().unwrap_or_default();
    Ok((algorithm, name, hex))
}

/// Where the blob is.
pub(super) fn blob_path(layout: &Path, digest: &str) -> Result<PathBuf, Fault> {
    let (_, algorithm, hex) = parse(digest)?;
    Ok(layout.join("blobs").join(algorithm).join(hex))
}

/// Reads a document that an index or manifest leads to.
pub(super) fn read_checked(path: &Path, promised: &Descriptor) -> Result<Vec<u8>, Fault> {
    let bytes = read_limited(path);
    let bytes = bytes.map_err(|error| wrong(format!("{}: {error}", promised.digest)))?;
    check(&mut bytes.as_slice(), promised)?;
    Ok(bytes)
}

/// Reads a file that must not be long.
pub(super) fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Compares length and digest with what was promised.
pub(super) fn check(from: &mut dyn Read, promised: &Descriptor) -> Result<(), Fault> {
    let (algorithm, name, hex) = parse(&promised.digest)?;
    let (found, len_bytes) = match algorithm {
        Algorithm::Sha256 => digest_of(from, Sha256::new())?,
        Algorithm::Sha512 => digest_of(from, Sha512::new())?,
    };
    if found != hex {
        return Err(Fault::Digest {
            found: format!("{name}:{found}"),
            expected: promised.digest.clone(),
        });
    }
    if promised.size != len_bytes {
        let size = promised.size;
        return Err(wrong(format!(
            "it has {len_bytes} bytes, and {size} were promised"
        )));
    }
    Ok(())
}

fn digest_of<D: sha2::Digest>(from: &mut dyn Read, mut hash: D) -> io::Result<(String, u64)> {
    let mut buffer = vec![0; READ_BYTES];
    let mut len_bytes = 0;
    loop {
        let count = read_some(from, &mut buffer)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        len_bytes += count as u64;
    }
    let hex = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok((hex, len_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_cannot_lead_anywhere_else() {
        let layout = Path::new("/l");
        let hex = "0".repeat(64);
        let path = blob_path(layout, &format!("sha256:{hex}")).expect("a digest");
        assert_eq!(path, Path::new("/l/blobs/sha256").join(&hex));
        for wrong in [
            "sha256:../../x".to_owned(),
            format!("../x:{hex}"),
            format!("sha256:{}", "A".repeat(64)),
            format!("md5:{hex}"),
            hex,
        ] {
            assert!(blob_path(layout, &wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn known_digests() {
        let promised = |digest: &str, size| Descriptor {
            digest: digest.to_owned(),
            size,
            ..Descriptor::default()
        };
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let good = promised(&format!("sha256:{abc}"), 3);
        assert!(check(&mut &b"abc"[..], &good).is_ok());
        assert!(matches!(
            check(&mut &b"abd"[..], &good),
            Err(Fault::Digest { .. })
        ));
        let long = promised(&format!("sha256:{abc}"), 4);
        assert!(matches!(
            check(&mut &b"abc"[..], &long),
            Err(Fault::Layout { .. })
        ));
        let abc = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                   2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        assert!(check(&mut &b"abc"[..], &promised(&format!("sha512:{abc}"), 3)).is_ok());
    }
}
