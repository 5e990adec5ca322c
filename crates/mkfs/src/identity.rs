//! **Purpose.** UUID, hash seed and time of a new file system.

use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::error::{FormatError, FormatResult};
use crate::options::Options;

/// UUID, hash seed and time of a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) uuid: Uuid,
    pub(crate) hash_seed: Uuid,
    pub(crate) time_seconds: u64,
}

impl Identity {
    /// What the options give, else random UUIDs and the current time.
    pub(crate) fn of(options: &Options) -> FormatResult<Self> {
        let time_seconds = match options.time_seconds {
            Some(seconds) => seconds,
            None => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                now.map_or(0, |since| since.as_secs())
            }
        };
        // Superblocks count seconds in 40 bits.
        if time_seconds >> 40 != 0 {
            let why = format!("{time_seconds} seconds are past the year 36000");
            return Err(FormatError::option("the time", why));
        }
        Ok(Self {
            uuid: options.uuid.map_or_else(random_uuid, Ok)?,
            hash_seed: match options.hash_seed {
                Some(seed) if !seed.is_nil() => seed,
                _ => random_uuid()?,
            },
            time_seconds,
        })
    }
}

fn random_uuid() -> FormatResult<Uuid> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}
