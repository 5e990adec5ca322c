//! Measures the check of a small image in memory, of which the crash harness runs hundreds per
//! second.
//!
//! ```text
//! cargo run --release -p fourscore-lab --example check_small IMAGE [ROUNDS]
//! ```
#![forbid(unsafe_code)]

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fourscore_block::RamDevice;
use fourscore_check::{CheckOptions, check};
use fourscore_sync::Arc;

const DEFAULT_ROUNDS: u32 = 2000;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let image = arguments
        .next()
        .context("usage: check_small IMAGE [ROUNDS]")?;
    let rounds = arguments
        .next()
        .map_or(Ok(DEFAULT_ROUNDS), |text| text.parse())?;
    let device = Arc::new(RamDevice::from_bytes(&std::fs::read(&image)?));
    let options = CheckOptions::default();
    let mut fastest = f64::INFINITY;
    let begin = Instant::now();
    for _ in 0..rounds {
        let one = Instant::now();
        let report = check(Arc::clone(&device) as _, &options)?;
        fastest = fastest.min(one.elapsed().as_secs_f64());
        ensure!(report.is_clean(), "{image} is not clean");
    }
    let mean = begin.elapsed().as_secs_f64() / f64::from(rounds);
    println!(
        "{rounds} checks: {:.0} us, the fastest {:.0} us",
        mean * 1e6,
        fastest * 1e6
    );
    Ok(())
}
