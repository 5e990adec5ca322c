//! **Purpose.** The lines that mke2fs prints about a file system that it makes, or would make
//! (`-n`).

use std::fmt;

use fourscore_ondisk::features::RoCompat;
use fourscore_ondisk::superblock::CreatorOs;

use crate::layout::Layout;
use crate::options::Owner;

/// Columns of a line of block numbers.
const LINE_WIDTH: usize = 72;

/// A layout in the words of mke2fs.
#[derive(Debug)]
pub struct Report<'a> {
    layout: &'a Layout,
    verbose: bool,
}

impl Layout {
    /// The lines mke2fs prints without `-q`.
    #[must_use]
    pub fn report(&self) -> Report<'_> {
        Report {
            layout: self,
            verbose: false,
        }
    }

    /// The lines mke2fs prints with `-v`.
    #[must_use]
    pub fn verbose_report(&self) -> Report<'_> {
        Report {
            layout: self,
            verbose: true,
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sb = self.layout.superblock();
        let geometry = sb.geometry();
        if self.verbose {
            self.details(f)?;
        } else {
            writeln!(
                f,
                "Creating filesystem with {} {}k blocks and {} inodes",
                geometry.blocks(),
                geometry.block_size().bytes() >> 10,
                geometry.inodes()
            )?;
        }
        if geometry.groups() == 1 {
            return writeln!(f);
        }
        if !sb.uuid().is_nil() {
            writeln!(f, "Filesystem UUID: {}", sb.uuid())?;
        }
        write!(f, "Superblock backups stored on blocks: ")?;
        let mut left = 0;
        for (index, block) in self.layout.backups().enumerate() {
            let text = block.to_string();
            if index > 0 {
                write!(f, ", ")?;
            }
            let needed = text.len() + 2;
            if needed > left {
                write!(f, "\n\t")?;
                left = LINE_WIDTH;
            }
            left -= needed;
            f.write_str(&text)?;
        }
        writeln!(f, "\n")
    }
}

impl Report<'_> {
    fn details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sb = self.layout.superblock();
        let (geometry, raw) = (sb.geometry(), sb.raw());
        let unused = self.layout.unused_blocks();
        if unused.0 > 0 {
            writeln!(f, "warning: {unused} blocks unused.\n")?;
        }
        writeln!(
            f,
            "Filesystem label={}",
            String::from_utf8_lossy(sb.volume_name())
        )?;
        let os = match sb.creator_os() {
            CreatorOs::Linux => "Linux",
            CreatorOs::Hurd => "GNU/Hurd",
            CreatorOs::Masix => "Masix",
            CreatorOs::FreeBsd => "FreeBSD",
            CreatorOs::Lites => "Lites",
            CreatorOs::Unknown(_) => "(unknown os)",
        };
        writeln!(f, "OS type: {os}")?;
        let size = geometry.block_size().bytes();
        writeln!(f, "Block size={size} (log={})", raw.s_log_block_size)?;
        let bigalloc = sb.features().ro_compat.contains(RoCompat::BIGALLOC);
        let (unit, units) = match bigalloc {
            true => ("Cluster", "clusters"),
            false => ("Fragment", "fragments"),
        };
        let size = geometry.cluster_size_bytes();
        writeln!(f, "{unit} size={size} (log={})", raw.s_log_cluster_size)?;
        let (stride, width) = (sb.raid_stride_blocks(), sb.raid_stripe_width_blocks());
        writeln!(f, "Stride={stride} blocks, Stripe width={width} blocks")?;
        let blocks = geometry.blocks();
        writeln!(f, "{} inodes, {blocks} blocks", geometry.inodes())?;
        let reserved = sb.reserved_blocks();
        #[expect(clippy::cast_precision_loss, reason = "a percentage with two digits")]
        let percent = 100.0 * reserved.0 as f64 / blocks.0 as f64;
        writeln!(
            f,
            "{reserved} blocks ({percent:.2}%) reserved for the super user"
        )?;
        writeln!(f, "First data block={}", geometry.first_data_block())?;
        let Owner { uid, gid } = self.layout.root_owner();
        if (uid, gid) != (0, 0) {
            writeln!(f, "Root directory owner={uid}:{gid}")?;
        }
        let reserve = u64::from(sb.reserved_gdt_blocks());
        if reserve > 0 {
            let table = (reserve + u64::from(geometry.desc_blocks()))
                * u64::from(geometry.descs_per_block());
            let most = table * u64::from(geometry.blocks_per_group());
            writeln!(f, "Maximum filesystem blocks={most}")?;
        }
        let plural = if geometry.groups() == 1 { "" } else { "s" };
        writeln!(f, "{} block group{plural}", geometry.groups())?;
        writeln!(
            f,
            "{} blocks per group, {} {units} per group",
            geometry.blocks_per_group(),
            geometry.clusters_per_group()
        )?;
        writeln!(f, "{} inodes per group", geometry.inodes_per_group())
    }
}
