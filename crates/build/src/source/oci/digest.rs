//! **Purpose.** Parses digests, derives names of blobs from them, and verifies blobs.

use std::io::{self, Read};

use sha2::{Digest as _, Sha256, Sha512};

use super::documents::Descriptor;
use super::wrong;
use crate::source::fault::Fault;
use crate::source::sink::read_some;

const READ_BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
enum Algorithm {
    Sha256,
    Sha512,
}

/// A parsed digest; it has hexadecimal digits only, so it is safe as a part of a path.
#[derive(Clone, Copy)]
pub(super) struct Digest<'a> {
    algorithm: Algorithm,
    hex: &'a str,
}

impl<'a> Digest<'a> {
    pub(super) fn parse(digest: &'a str) -> Result<Self, Fault> {
        let is_hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let parsed = match digest.split_once(':') {
            Some(("sha256", hex)) if hex.len() == 64 && is_hex(hex) => {
                Some((Algorithm::Sha256, hex))
            }
            Some(("sha512", hex)) if hex.len() == 128 && is_hex(hex) => {
                Some((Algorithm::Sha512, hex))
            }
            _ => None,
        };
        let (algorithm, hex) =
            parsed.ok_or_else(|| wrong(format!("'{digest}' is not a sha256 or sha512 digest")))?;
        Ok(Self { algorithm, hex })
    }

    fn algorithm(self) -> &'static str {
        match self.algorithm {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    /// The name of the blob in an OCI layout.
    pub(super) fn layout_name(self) -> String {
        format!("blobs/{}/{}", self.algorithm(), self.hex)
    }

    /// The name of the blob in skopeo's `dir:` transport.
    pub(super) fn flat_name(self) -> String {
        match self.algorithm {
            Algorithm::Sha256 => self.hex.to_owned(),
            Algorithm::Sha512 => format!("sha512-{}", self.hex),
        }
    }

    /// Verifies the data from `from`; returns its length in bytes.
    pub(super) fn check(self, from: &mut dyn Read) -> Result<u64, Fault> {
        let (found, len_bytes) = match self.algorithm {
            Algorithm::Sha256 => digest_of(from, Sha256::new())?,
            Algorithm::Sha512 => digest_of(from, Sha512::new())?,
        };
        if found == self.hex {
            return Ok(len_bytes);
        }
        let name = self.algorithm();
        Err(Fault::Digest {
            found: format!("{name}:{found}"),
            expected: format!("{name}:{}", self.hex),
        })
    }
}

/// Verifies the length and digest of a blob.
pub(super) fn check_bytes(from: &mut dyn Read, expected: &Descriptor) -> Result<(), Fault> {
    let len_bytes = Digest::parse(&expected.digest)?.check(from)?;
    if expected.size != len_bytes {
        let size = expected.size;
        return Err(wrong(format!("it has {len_bytes} bytes, expected {size}")));
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
    fn digests_with_path_components_are_refused() {
        let hex = "0".repeat(64);
        let digest = format!("sha256:{hex}");
        let parsed = Digest::parse(&digest).expect("a digest");
        assert_eq!(parsed.layout_name(), format!("blobs/sha256/{hex}"));
        assert_eq!(parsed.flat_name(), hex);
        for wrong in [
            "sha256:../../x".to_owned(),
            format!("../x:{hex}"),
            format!("sha256:{}", "A".repeat(64)),
            format!("md5:{hex}"),
            hex,
        ] {
            assert!(Digest::parse(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn length_and_digest_are_verified() {
        let expected = |digest: &str, size| Descriptor {
            digest: digest.to_owned(),
            size,
            ..Descriptor::default()
        };
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let good = expected(&format!("sha256:{abc}"), 3);
        assert!(check_bytes(&mut &b"abc"[..], &good).is_ok());
        assert!(matches!(
            check_bytes(&mut &b"abd"[..], &good),
            Err(Fault::Digest { .. })
        ));
        let long = expected(&format!("sha256:{abc}"), 4);
        assert!(matches!(
            check_bytes(&mut &b"abc"[..], &long),
            Err(Fault::Layout { .. })
        ));
        let abc = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                   2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
        assert!(check_bytes(&mut &b"abc"[..], &expected(&format!("sha512:{abc}"), 3)).is_ok());
    }
}
