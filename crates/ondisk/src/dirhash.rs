//! **Purpose.** The hashes that order the names of a hashed directory.
//!
//! **Not here.** Casefolding of the name before it is hashed (`casefold`), the tree (`htree`).
//!
//! **Model.** A hash has 32 bits that order the tree, with the lowest bit always 0 (the tree uses
//! it to mark that a hash continues in the next block), and 32 minor bits that only distinguish
//! names with equal hashes. Bytes from 0x80 on were originally hashed as the machine's `char`,
//! signed on some machines and unsigned on others; a flag of the superblock records the choice of
//! the file system.
//!
//! **Invariants.** A hash is even and never [`END_OF_DIRECTORY`], which readers of directories use
//! as the position after the last name.
//!
//! **References.** Kernel documentation, `filesystems/ext4`, "Hash Tree Directories"; RFC 1320
//! (MD4), of which half-MD4 is a part; Wheeler and Needham, "TEA, a Tiny Encryption Algorithm".

use siphasher::sip::SipHasher24;

/// The hash value of the end of the directory; no name has it.
pub const END_OF_DIRECTORY: u32 = 0x7fff_ffff << 1;

/// A hash function, as `dx_root` and `s_def_hash_version` number them.
///
/// The numbers 3, 4 and 5 are the first three with unsigned bytes. They are never on disk: a flag
/// of the superblock has this information, see [`CharSign`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// 0: the original multiplicative hash.
    Legacy,
    /// 1: half of MD4.
    HalfMd4,
    /// 2: the Tiny Encryption Algorithm.
    Tea,
    /// 6: SipHash of the casefolded plain name, in encrypted and casefolded directories.
    SipHash,
}

impl HashAlgorithm {
    /// From the number on disk; `None` if no directory may have it.
    #[must_use]
    pub fn from_disk(hash_version: u8) -> Option<Self> {
        Some(match hash_version {
            0 => Self::Legacy,
            1 => Self::HalfMd4,
            2 => Self::Tea,
            6 => Self::SipHash,
            _ => return None,
        })
    }

    /// The number on disk.
    #[must_use]
    pub fn to_disk(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
            Self::SipHash => 6,
        }
    }
}

/// The sign of bytes from 0x80 on in the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CharSign {
    /// As negative numbers (`s_flags` has `SIGNED_HASH`).
    Signed,
    /// As positive numbers (`s_flags` has `UNSIGNED_HASH`).
    Unsigned,
}

/// The hash of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash {
    /// The hash that orders the tree; even.
    pub hash: u32,
    /// Further bits, for names whose hashes are equal.
    pub minor_hash: u32,
}

/// A hash function with all its parameters besides the name.
#[derive(Clone, Copy, Debug)]
pub enum NameHasher {
    /// The functions that need no key.
    Seeded {
        /// Which one.
        algorithm: SeededAlgorithm,
        /// The sign of bytes.
        chars: CharSign,
        /// `s_hash_seed`; all zeros stands for the function's own seed.
        seed: [u32; 4],
    },
    /// The function of encrypted and casefolded directories.
    Sip {
        /// The directory's key for hashing, derived from the master key.
        key: [u64; 2],
    },
}

/// A hash function that needs no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeededAlgorithm {
    /// See [`HashAlgorithm::Legacy`].
    Legacy,
    /// See [`HashAlgorithm::HalfMd4`].
    HalfMd4,
    /// See [`HashAlgorithm::Tea`].
    Tea,
}

impl NameHasher {
    /// The hasher for a directory's algorithm; `None` for [`HashAlgorithm::SipHash`], which needs
    /// a key.
    #[must_use]
    pub fn seeded(algorithm: HashAlgorithm, chars: CharSign, seed: [u32; 4]) -> Option<Self> {
        let algorithm = match algorithm {
            HashAlgorithm::Legacy => SeededAlgorithm::Legacy,
            HashAlgorithm::HalfMd4 => SeededAlgorithm::HalfMd4,
            HashAlgorithm::Tea => SeededAlgorithm::Tea,
            HashAlgorithm::SipHash => return None,
        };
        Some(Self::Seeded {
            algorithm,
            chars,
            seed,
        })
    }

    /// The hash of a name: in a casefolded directory, of the folded name.
    #[must_use]
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (hash, minor_hash) = match *self {
            Self::Seeded {
                algorithm: SeededAlgorithm::Legacy,
                chars,
                ..
            } => (legacy(name, chars), 0),
            Self::Seeded {
                algorithm: SeededAlgorithm::HalfMd4,
                chars,
                seed,
            } => half_md4(name, chars, start(seed)),
            Self::Seeded {
                algorithm: SeededAlgorithm::Tea,
                chars,
                seed,
            } => tea(name, chars, start(seed)),
            Self::Sip { key: [k0, k1] } => halves(SipHasher24::new_with_keys(k0, k1).hash(name)),
        };
        let even = hash & !1;
        let hash = if even == END_OF_DIRECTORY {
            END_OF_DIRECTORY - 2
        } else {
            even
        };
        NameHash { hash, minor_hash }
    }
}

/// The high and the low half.
fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

/// The initial state: the seed, or that of MD4 if there is none.
fn start(seed: [u32; 4]) -> [u32; 4] {
    if seed == [0; 4] {
        [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]
    } else {
        seed
    }
}

/// A byte as the 32-bit number that a `char` of C is converted to.
fn widen(byte: u8, chars: CharSign) -> u32 {
    match chars {
        CharSign::Signed => i32::from(byte.cast_signed()).cast_unsigned(),
        CharSign::Unsigned => byte.into(),
    }
}

fn legacy(name: &[u8], chars: CharSign) -> u32 {
    let mut last = 0x12a3_fe2d_u32;
    let mut before = 0x37ab_e8f9_u32;
    for &byte in name {
        let product = widen(byte, chars).wrapping_mul(7_152_373);
        let mut hash = before.wrapping_add(last ^ product);
        if hash & 0x8000_0000 != 0 {
            hash = hash.wrapping_sub(0x7fff_ffff);
        }
        (before, last) = (last, hash);
    }
    last << 1
}

fn half_md4(name: &[u8], chars: CharSign, mut state: [u32; 4]) -> (u32, u32) {
    for_chunks::<8>(name, chars, |words| half_md4_transform(&mut state, words));
    (state[1], state[2])
}

fn tea(name: &[u8], chars: CharSign, mut state: [u32; 4]) -> (u32, u32) {
    for_chunks::<4>(name, chars, |words| tea_transform(&mut state, words));
    (state[0], state[1])
}

/// Splits a name into chunks of `WORDS` words and calls `transform` for each.
///
/// Words are big-endian; a signed byte borrows from the bytes before it. After the end of the name
/// the rest is padding, made from the number of bytes that were left at the start of the chunk.
fn for_chunks<const WORDS: usize>(
    name: &[u8],
    chars: CharSign,
    mut transform: impl FnMut(&[u32; WORDS]),
) {
    let mut rest = name;
    while !rest.is_empty() {
        let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let pad = length | length << 8;
        let pad = pad | pad << 16;
        let (chunk, behind) = rest.split_at(rest.len().min(WORDS * 4));
        let mut words = [pad; WORDS];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks(4)) {
            *word = match bytes.first_chunk().filter(|bytes| bytes.is_ascii()) {
                // Nothing to borrow and nothing to pad.
                Some(&whole) => u32::from_be_bytes(whole),
                None => bytes.iter().fold(pad, |value, &byte| {
                    widen(byte, chars).wrapping_add(value << 8)
                }),
            };
        }
        transform(&words);
        rest = behind;
    }
}

fn tea_transform(state: &mut [u32; 4], &[a, b, c, d]: &[u32; 4]) {
    const DELTA: u32 = 0x9e37_79b9;
    let [mut x, mut y, ..] = *state;
    let mut sum = 0_u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        x = x.wrapping_add(tea_mix(y, sum, a, b));
        y = y.wrapping_add(tea_mix(x, sum, c, d));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

fn tea_mix(value: u32, sum: u32, left: u32, right: u32) -> u32 {
    (value << 4).wrapping_add(left) ^ value.wrapping_add(sum) ^ (value >> 5).wrapping_add(right)
}

fn half_md4_transform(state: &mut [u32; 4], words: &[u32; 8]) {
    let [a, b, c, d, e, f, g, h] = *words;
    let mut mixed = *state;
    let choose = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    half_md4_round(&mut mixed, [a, b, c, d, e, f, g, h], [3, 7, 11, 19], choose);
    let add = |word: u32| word.wrapping_add(0x5a82_7999);
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let order = [b, d, f, h, a, c, e, g].map(add);
    half_md4_round(&mut mixed, order, [3, 5, 9, 13], majority);
    let add = |word: u32| word.wrapping_add(0x6ed9_eba1);
    let order = [d, h, c, g, b, f, a, e].map(add);
    half_md4_round(&mut mixed, order, [3, 9, 11, 15], |x, y, z| x ^ y ^ z);
    for (word, value) in state.iter_mut().zip(mixed) {
        *word = word.wrapping_add(value);
    }
}

/// One round: each word is mixed into one of the four, in turn. Inlined so that the compiler
/// unrolls the loop.
#[inline]
fn half_md4_round(
    state: &mut [u32; 4],
    words: [u32; 8],
    shifts: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    for (step, word) in words.into_iter().enumerate() {
        let mixed = a.wrapping_add(mix(b, c, d)).wrapping_add(word);
        (a, b, c, d) = (d, mixed.rotate_left(shifts[step % 4]), b, c);
    }
    *state = [a, b, c, d];
}

#[cfg(test)]
mod tests;
