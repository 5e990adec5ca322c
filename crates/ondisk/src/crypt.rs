//! **Purpose.** Encrypted files without their key: the encryption context, and the no-key names
//! under which Linux lists encrypted names.
//!
//! **Not here.** Decryption: fourscore has no keys.
//!
//! **Model.** The context is the value of the attribute with the index
//! [`NameIndex::ENCRYPTION`](crate::xattr::NameIndex::ENCRYPTION) and the name [`ATTRIBUTE`]. A
//! no-key name is the base64url, without padding, of
//!
//! ```text
//! hash u32 | minor hash u32 | the first 149 encrypted bytes [ | SHA-256 of the rest ]
//! ```
//!
//! so that it contains no `/`, is short enough, and identifies the entry. The hashes are those of
//! the directory's index, or 0. `.` and `..` are never encrypted.
//!
//! **References.** Kernel documentation, `filesystems/fscrypt`; RFC 4648 section 5 (base64url).

use sha2::{Digest as _, Sha256};

use crate::dirent::StoredHash;

/// The name of the attribute that holds the context.
pub const ATTRIBUTE: &[u8] = b"c";
/// The shortest encrypted name in bytes.
pub const MIN_NAME_BYTES: usize = 16;
/// Encrypted bytes that a no-key name contains unchanged.
const SHOWN_BYTES: usize = 149;
const DIGEST_BYTES: usize = 32;
const HASH_BYTES: usize = 8;
const V1_BYTES: usize = 28;
const V2_BYTES: usize = 40;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// An error in an encryption context, name or symlink.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CryptError {
    /// A context of a version or length that does not exist.
    #[error(
        "encryption context: version {version:?} in {found} bytes, expected 1 in {V1_BYTES} or 2 in {V2_BYTES}"
    )]
    Context {
        /// Value of the version, if there is one.
        version: Option<u8>,
        /// Bytes of the context.
        found: usize,
    },
    /// A name that is too short to be an encrypted one.
    #[error("encrypted name of {found} bytes, expected at least {MIN_NAME_BYTES}")]
    NameShort {
        /// Bytes of the name.
        found: usize,
    },
    /// A symlink whose target is empty or longer than its content.
    #[error("encrypted symlink: target of {found} bytes, expected 1 to {max}")]
    Symlink {
        /// The length field.
        found: usize,
        /// Bytes of the content.
        max: usize,
    },
}

/// The identifier of a master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyName {
    /// Version 1: a descriptor that user space chose.
    Descriptor([u8; 8]),
    /// Version 2: a hash of the key.
    Identifier([u8; 16]),
}

/// How a file is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Number of the mode that encrypts content.
    pub contents_mode: u8,
    /// Number of the mode that encrypts names.
    pub filenames_mode: u8,
    /// `FSCRYPT_POLICY_FLAG_*`, which also give the padding of names.
    pub flags: u8,
    /// The master key.
    pub key: KeyName,
    /// The nonce, from which the file's own key is derived.
    pub nonce: [u8; 16],
}

impl Context {
    /// Reads the value of the attribute.
    ///
    /// # Errors
    /// If it has an unknown version, or a wrong length for its version.
    pub fn parse(value: &[u8]) -> Result<Self, CryptError> {
        let error = CryptError::Context {
            version: value.first().copied(),
            found: value.len(),
        };
        let (expected, key_at) = match value.first() {
            Some(1) => (V1_BYTES, 4),
            // Between come log2 of the data unit's size and three reserved bytes.
            Some(2) => (V2_BYTES, 8),
            _ => return Err(error),
        };
        let (key, nonce) = value
            .get(key_at..)
            .unwrap_or(&[])
            .split_at_checked(expected - key_at - 16)
            .ok_or_else(|| error.clone())?;
        let key = match (<[u8; 8]>::try_from(key), <[u8; 16]>::try_from(key)) {
            (Ok(descriptor), _) => KeyName::Descriptor(descriptor),
            (_, Ok(identifier)) => KeyName::Identifier(identifier),
            _ => return Err(error),
        };
        let nonce = <[u8; 16]>::try_from(nonce).map_err(|_| error.clone())?;
        let [_, contents_mode, filenames_mode, flags, ..] = *value else {
            return Err(error);
        };
        Ok(Self {
            contents_mode,
            filenames_mode,
            flags,
            key,
            nonce,
        })
    }
}

/// The no-key name of an encrypted name. `.` and `..` stay unchanged.
///
/// # Errors
/// If the name is too short to be an encrypted one.
pub fn no_key_name(name: &[u8], hash: StoredHash) -> Result<String, CryptError> {
    match name {
        b"." => return Ok(".".to_owned()),
        b".." => return Ok("..".to_owned()),
        _ if name.len() < MIN_NAME_BYTES => {
            return Err(CryptError::NameShort { found: name.len() });
        }
        _ => {}
    }
    let (shown, rest) = name.split_at(name.len().min(SHOWN_BYTES));
    let mut bytes = Vec::with_capacity(HASH_BYTES + SHOWN_BYTES + DIGEST_BYTES);
    bytes.extend(hash.hash.to_le_bytes());
    bytes.extend(hash.minor_hash.to_le_bytes());
    bytes.extend(shown);
    if !rest.is_empty() {
        bytes.extend(Sha256::digest(rest));
    }
    Ok(base64url(&bytes))
}

/// A parsed no-key name, for the search of its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoKeyName {
    /// The hashes in it.
    pub hash: StoredHash,
    shown: Vec<u8>,
    digest: Option<[u8; DIGEST_BYTES]>,
}

impl NoKeyName {
    /// Parses a no-key name; `None` if it is not a valid one.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        let bytes = from_base64url(name)?;
        let (hash, rest) = bytes.split_first_chunk::<4>()?;
        let (minor_hash, rest) = rest.split_first_chunk::<4>()?;
        let (shown, digest) = rest.split_at(rest.len().min(SHOWN_BYTES));
        if shown.len() < MIN_NAME_BYTES {
            return None;
        }
        let digest = match digest {
            [] => None,
            digest => Some(<[u8; DIGEST_BYTES]>::try_from(digest).ok()?),
        };
        let hash = StoredHash {
            hash: u32::from_le_bytes(*hash),
            minor_hash: u32::from_le_bytes(*minor_hash),
        };
        Some(Self {
            hash,
            shown: shown.to_vec(),
            digest,
        })
    }

    /// Whether an entry has this name.
    #[must_use]
    pub fn matches(&self, entry: &[u8]) -> bool {
        let (shown, rest) = entry.split_at(entry.len().min(SHOWN_BYTES));
        shown == self.shown
            && match self.digest {
                None => rest.is_empty(),
                Some(digest) => !rest.is_empty() && Sha256::digest(rest)[..] == digest,
            }
    }
}

/// The encrypted target in the content of an encrypted symlink. It is listed as [`no_key_name`]
/// with hashes of 0.
///
/// # Errors
/// If the length field before it is 0 or larger than the content.
pub fn symlink_target(content: &[u8]) -> Result<&[u8], CryptError> {
    let (len, rest) = content
        .split_first_chunk::<2>()
        .ok_or(CryptError::Symlink { found: 0, max: 0 })?;
    let found = usize::from(u16::from_le_bytes(*len));
    rest.get(..found)
        .filter(|target| !target.is_empty())
        .ok_or(CryptError::Symlink {
            found,
            max: rest.len(),
        })
}

fn base64url(bytes: &[u8]) -> String {
    let mut out = String::with_capacity((bytes.len() * 4).div_ceil(3));
    for chunk in bytes.chunks(3) {
        let bits = chunk
            .iter()
            .fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte))
            << (8 * (3 - chunk.len()));
        for position in 0..=chunk.len() {
            let index = (bits >> (18 - 6 * position)) & 63;
            out.push(char::from(ALPHABET[index as usize]));
        }
    }
    out
}

fn from_base64url(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    for chunk in text.chunks(4) {
        let mut bits = 0_u32;
        for &byte in chunk {
            let index = ALPHABET.iter().position(|&letter| letter == byte)?;
            bits = bits << 6 | u32::try_from(index).ok()?;
        }
        bits <<= 6 * (4 - chunk.len());
        let [_, whole @ ..] = bits.to_be_bytes();
        let (bytes, unused) = whole.split_at(chunk.len().checked_sub(1).filter(|&n| n > 0)?);
        // Unused bits must be 0, so that no two texts have the same meaning.
        if unused.iter().any(|&byte| byte != 0) {
            return None;
        }
        out.extend(bytes);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: StoredHash = StoredHash {
        hash: 0x0403_0201,
        minor_hash: 0x0807_0605,
    };

    #[test]
    fn the_vectors_of_rfc_4648() {
        let vectors = [
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in vectors {
            assert_eq!(base64url(plain.as_bytes()), encoded);
            assert_eq!(
                from_base64url(encoded.as_bytes()).unwrap(),
                plain.as_bytes()
            );
        }
        assert_eq!(base64url(&[0xfb, 0xff]), "-_8");
        for wrong in ["Z", "Zh", "Z/8A", "Zg=="] {
            assert_eq!(from_base64url(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn short_names_are_complete_and_long_ones_have_a_digest() {
        let name = no_key_name(&[0; 16], HASH).unwrap();
        assert_eq!(name, "AQIDBAUGBwgAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(no_key_name(&[7; 255], HASH).unwrap().len(), 252);
        assert_eq!(no_key_name(b"..", HASH).unwrap(), "..");
        let error = CryptError::NameShort { found: 15 };
        assert_eq!(no_key_name(&[0; 15], HASH), Err(error));
    }

    #[test]
    fn contexts_of_both_versions() {
        let mut v1 = vec![1, 1, 4, 2];
        v1.extend([8; 8]);
        v1.extend([9; 16]);
        let context = Context::parse(&v1).unwrap();
        assert_eq!(
            (context.contents_mode, context.filenames_mode, context.flags),
            (1, 4, 2)
        );
        assert_eq!(
            (context.key, context.nonce),
            (KeyName::Descriptor([8; 8]), [9; 16])
        );
        let mut v2 = vec![2, 1, 4, 2, 0, 0, 0, 0];
        v2.extend([8; 16]);
        v2.extend([9; 16]);
        let context = Context::parse(&v2).unwrap();
        assert_eq!(
            (context.key, context.nonce),
            (KeyName::Identifier([8; 16]), [9; 16])
        );
        for wrong in [&[][..], &v1[..27], &v2[..39], &[3; 40], &[1; 40], &[2; 28]] {
            assert!(Context::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn symlinks_have_a_length_field() {
        assert_eq!(symlink_target(&[2, 0, b'a', b'b', 0]), Ok(&b"ab"[..]));
        let error = |found, max| Err(CryptError::Symlink { found, max });
        assert_eq!(symlink_target(&[3, 0, b'a']), error(3, 1));
        assert_eq!(symlink_target(&[0, 0, b'a']), error(0, 1));
        assert_eq!(symlink_target(&[1]), error(0, 0));
    }

    proptest! {
        #[test]
        fn a_no_key_name_finds_its_entry(
            name in proptest::collection::vec(any::<u8>(), 16..=255),
            at: prop::sample::Index,
        ) {
            let shown = no_key_name(&name, HASH).unwrap();
            prop_assert!(shown.len() <= 255);
            let back = NoKeyName::parse(shown.as_bytes()).unwrap();
            prop_assert_eq!(back.hash, HASH);
            prop_assert!(back.matches(&name));
            let mut other = name.clone();
            other[at.index(name.len())] ^= 1;
            prop_assert!(!back.matches(&other));
            prop_assert!(!back.matches(&name[..name.len() - 1]));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Context::parse(&bytes);
            let _ = symlink_target(&bytes);
            if let Some(name) = NoKeyName::parse(&bytes) {
                prop_assert!(!name.matches(b""));
            }
        }
    }
}
