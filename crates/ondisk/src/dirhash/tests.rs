//! **Purpose.** Tests of the hashes, with debugfs as the oracle.

use std::io::Write as _;

use proptest::prelude::*;

use super::*;
use crate::oracle::debugfs;

const SEED: [u32; 4] = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];
const SEED_UUID: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";
const ALGORITHMS: [SeededAlgorithm; 3] = [
    SeededAlgorithm::Legacy,
    SeededAlgorithm::HalfMd4,
    SeededAlgorithm::Tea,
];

/// The number of the function in e2fsprogs.
fn number(algorithm: SeededAlgorithm, chars: CharSign) -> u32 {
    let number = match algorithm {
        SeededAlgorithm::Legacy => 0,
        SeededAlgorithm::HalfMd4 => 1,
        SeededAlgorithm::Tea => 2,
    };
    number + if chars == CharSign::Unsigned { 3 } else { 0 }
}

/// Names of all lengths, with bytes from both halves of the range, the same in each run.
fn names() -> Vec<Vec<u8>> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    };
    (1..=255_usize)
        .flat_map(|length| [length, length % 40 + 1])
        .map(|length| {
            // No bytes with a meaning in the command language of debugfs.
            let byte = |byte: u8| if byte >= 0x80 { byte } else { b'a' + byte % 26 };
            (0..length).map(|_| byte(random())).collect()
        })
        .collect()
}

#[test]
fn agrees_with_debugfs() {
    for chars in [CharSign::Signed, CharSign::Unsigned] {
        for algorithm in ALGORITHMS {
            for (seed, option) in [([0; 4], String::new()), (SEED, format!("-s {SEED_UUID} "))] {
                let names = names();
                let hasher = NameHasher::Seeded {
                    algorithm,
                    chars,
                    seed,
                };
                let mut requests = Vec::new();
                for name in &names {
                    write!(requests, "dx_hash -h {} {option}", number(algorithm, chars)).unwrap();
                    requests.extend(name);
                    requests.push(b'\n');
                }
                let Some(output) = debugfs(&requests) else {
                    return;
                };
                let hashes: Vec<_> = output
                    .split(|&byte| byte == b'\n')
                    .filter(|line| line.starts_with(b"Hash of "))
                    .collect();
                assert_eq!(hashes.len(), names.len());
                for (name, line) in names.iter().zip(hashes) {
                    let NameHash { hash, minor_hash } = hasher.hash(name);
                    let mut expected = [b"Hash of ", name.as_slice()].concat();
                    write!(expected, " is {hash:#x} (minor {minor_hash:#x})").unwrap();
                    let shown = String::from_utf8_lossy(line);
                    assert!(
                        line == expected,
                        "{algorithm:?} {chars:?} {hasher:?}: {shown}"
                    );
                }
            }
        }
    }
}

#[test]
fn known_hashes() {
    let of = |algorithm, chars, name: &[u8]| {
        let NameHash { hash, minor_hash } = NameHasher::Seeded {
            algorithm,
            chars,
            seed: [0; 4],
        }
        .hash(name);
        (hash, minor_hash)
    };
    let (signed, unsigned) = (CharSign::Signed, CharSign::Unsigned);
    let name = "hé".as_bytes();
    assert_eq!(of(SeededAlgorithm::Legacy, signed, name), (0xe717_7860, 0));
    assert_eq!(
        of(SeededAlgorithm::HalfMd4, signed, name),
        (0x4eff_ee6a, 0x146c_b2ad)
    );
    assert_eq!(
        of(SeededAlgorithm::Tea, signed, name),
        (0x07b5_9952, 0x5cb2_08ee)
    );
    assert_eq!(
        of(SeededAlgorithm::Legacy, unsigned, name),
        (0xcd93_7c64, 0)
    );
    assert_eq!(
        of(SeededAlgorithm::HalfMd4, unsigned, name),
        (0x7f71_16d0, 0xdaab_4f3a)
    );
    assert_eq!(
        of(SeededAlgorithm::Tea, unsigned, name),
        (0x9b3e_b2ec, 0xac70_e2c0)
    );
}

#[test]
fn siphash_returns_the_high_half_first() {
    // The vector of 15 bytes from the paper of SipHash: 0xa129ca6149be45e5.
    let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    let name: Vec<u8> = (0..15).collect();
    let expected = NameHash {
        hash: 0xa129_ca60,
        minor_hash: 0x49be_45e5,
    };
    assert_eq!(NameHasher::Sip { key }.hash(&name), expected);
}

#[test]
fn numbers_on_disk() {
    assert_eq!(HashAlgorithm::from_disk(1), Some(HashAlgorithm::HalfMd4));
    assert_eq!(HashAlgorithm::from_disk(6), Some(HashAlgorithm::SipHash));
    for unknown in [3, 4, 5, 7, 255] {
        assert_eq!(HashAlgorithm::from_disk(unknown), None);
    }
    assert!(NameHasher::seeded(HashAlgorithm::SipHash, CharSign::Signed, SEED).is_none());
}

proptest! {
    #[test]
    fn a_hash_is_even_and_not_the_end(
        name in proptest::collection::vec(any::<u8>(), 0..300),
        seed: [u32; 4],
    ) {
        for algorithm in ALGORITHMS {
            for chars in [CharSign::Signed, CharSign::Unsigned] {
                let hash = NameHasher::Seeded { algorithm, chars, seed }.hash(&name).hash;
                prop_assert_eq!(hash & 1, 0);
                prop_assert_ne!(hash, END_OF_DIRECTORY);
            }
        }
    }
}
