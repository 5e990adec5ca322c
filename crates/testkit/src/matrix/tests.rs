//! Every configuration is made, filled, checked, and mounted where that is said to be possible.

use std::collections::BTreeSet;

use anyhow::ensure;

use super::*;
use crate::require;
use crate::tools::Need;

#[test]
fn names_are_unique_and_the_matrix_is_wide() {
    let configs = table::all();
    let names: BTreeSet<&str> = configs.iter().map(|config| config.name).collect();
    assert_eq!(names.len(), configs.len());
    assert!(configs.len() >= 44, "{}", configs.len());
    let block_sizes: BTreeSet<u32> = configs.iter().map(|c| c.block_size_bytes).collect();
    assert_eq!(
        block_sizes.into_iter().collect::<Vec<_>>(),
        [1, 2, 4, 8, 16, 32, 64].map(|k| k << 10)
    );
}

#[test]
fn every_configuration_can_be_made() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("tune2fs"),
        Need::Program("dumpe2fs")
    );
    assert_all(|config| {
        let image = config.base(None)?;
        let header = oracle::dumpe2fs_header(image.path())?;
        let found = (header["Block size"].parse()?, header["Inode size"].parse()?);
        ensure!(
            found == (config.block_size_bytes, config.inode_size_bytes),
            "{found:?}"
        );
        Ok(())
    });
}

#[test]
fn every_configuration_is_populated_and_the_kernel_does_with_it_what_is_said() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("setfacl"),
        Need::KernelMount
    );
    assert_all(|config| {
        let populated = config.populated()?;
        let mounted = |access| KernelMount::new(populated.image.path(), access, "");
        match config.kernel() {
            Kernel::Writes => mounted(Access::ReadWrite)?.unmount(),
            Kernel::Reads => {
                mounted(Access::ReadOnly)?.unmount()?;
                ensure!(mounted(Access::ReadWrite).is_err(), "mounted read-write");
                Ok(())
            }
            Kernel::Refuses => Ok(()),
        }
    });
}
