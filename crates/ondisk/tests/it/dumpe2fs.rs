//! **Purpose.** Tests that images of mke2fs are accepted with every checksum, and are interpreted
//! as by dumpe2fs and debugfs.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use fourscore_ondisk::checksum::ChecksumSeed;
use fourscore_ondisk::group::{self, GroupFlags};
use fourscore_ondisk::inode::{self, FileType};
use fourscore_ondisk::mmp::{MmpBlock, MmpSequence};
use fourscore_ondisk::orphan;
use fourscore_ondisk::superblock::{
    JournalDevice, JournalPlace, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES, SuperblockRejected,
};
use fourscore_ondisk::{
    GroupDesc, GroupNr, GroupOffset, Inode, InodeNr, PhysBlock, RawSuperblock, Superblock,
    Timestamp,
};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{Image, MiB, require};

/// Size in MiB and the arguments of mke2fs.
const CONFIGS: &[(u64, &[&str])] = &[
    (8, &["-t", "ext2", "-b", "1024"]),
    (40, &["-t", "ext2", "-b", "1024", "-r", "0", "-O", "none"]),
    (
        40,
        &[
            "-t",
            "ext2",
            "-b",
            "4096",
            "-O",
            "^sparse_super,^resize_inode",
        ],
    ),
    (64, &["-t", "ext3", "-b", "1024", "-I", "128"]),
    (64, &["-t", "ext3", "-b", "2048"]),
    (64, &["-t", "ext4"]),
    (64, &["-t", "ext4", "-b", "1024"]),
    (64, &["-t", "ext4", "-b", "2048", "-I", "512"]),
    (
        300,
        &["-t", "ext4", "-b", "4096", "-I", "4096", "-i", "65536"],
    ),
    (600, &["-t", "ext4", "-b", "4096", "-g", "8192"]),
    (64, &["-t", "ext4", "-b", "8192"]),
    (64, &["-t", "ext4", "-b", "16384"]),
    (128, &["-t", "ext4", "-b", "65536", "-I", "1024"]),
    (64, &["-t", "ext4", "-O", "^metadata_csum"]),
    (
        64,
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    ),
    (
        64,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^metadata_csum,uninit_bg,^64bit",
        ],
    ),
    (64, &["-t", "ext4", "-O", "^metadata_csum,^uninit_bg"]),
    (64, &["-t", "ext4", "-b", "1024", "-O", "^64bit"]),
    (64, &["-t", "ext4", "-b", "1024", "-O", "^64bit,^flex_bg"]),
    (
        64,
        &["-t", "ext4", "-b", "1024", "-O", "^flex_bg,^resize_inode"],
    ),
    (
        600,
        &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"],
    ),
    (
        600,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "meta_bg,^resize_inode,^64bit,^flex_bg",
        ],
    ),
    (
        600,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "meta_bg,^resize_inode,^sparse_super",
        ],
    ),
    (
        200,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "sparse_super2,^resize_inode",
        ],
    ),
    (
        200,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "sparse_super2",
            "-E",
            "num_backup_sb=1",
        ],
    ),
    (
        200,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^sparse_super,^resize_inode",
        ],
    ),
    (256, &["-t", "ext4", "-O", "bigalloc", "-C", "65536"]),
    (
        256,
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "16384"],
    ),
    (
        600,
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "bigalloc,meta_bg,^resize_inode",
            "-C",
            "2048",
        ],
    ),
    (64, &["-t", "ext4", "-O", "metadata_csum_seed"]),
    (64, &["-t", "ext4", "-O", "orphan_file"]),
    (64, &["-t", "ext4", "-O", "quota,project"]),
    (64, &["-t", "ext4", "-O", "mmp"]),
    (
        64,
        &[
            "-t",
            "ext4",
            "-O",
            "casefold",
            "-E",
            "encoding_flags=strict",
        ],
    ),
    (64, &["-t", "ext4", "-O", "encrypt,verity,stable_inodes"]),
    (
        64,
        &[
            "-t",
            "ext4",
            "-O",
            "fast_commit,inline_data,ea_inode,large_dir",
        ],
    ),
    (
        64,
        &[
            "-t",
            "ext4",
            "-O",
            "^has_journal",
            "-E",
            "stride=4,stripe_width=16",
        ],
    ),
    (
        64,
        &[
            "-t",
            "ext4",
            "-L",
            "sixteen bytes ok",
            "-M",
            "/some/where",
            "-e",
            "panic",
        ],
    ),
    (64, &["-t", "ext4", "-G", "4", "-b", "1024", "-N", "512"]),
    (64, &["-t", "ext4", "-E", "desc_size=128"]),
    (
        1 << 24,
        &[
            "-t",
            "ext4",
            "-E",
            "lazy_itable_init=1",
            "-N",
            "1000000",
            "-O",
            "^has_journal",
        ],
    ),
];

fn read_at(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn read_block(file: &File, sb: &Superblock, block: PhysBlock) -> Vec<u8> {
    let size = sb.geometry().block_size();
    read_at(file, size.offset(block), size.bytes())
}

fn superblock(file: &File) -> Superblock {
    let bytes = read_at(file, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES);
    Superblock::try_from(RawSuperblock::from_bytes(&bytes).unwrap()).unwrap()
}

fn dumpe2fs(option: &str, image: &Image) -> String {
    tools::stdout_of(
        tools::command("dumpe2fs")
            .unwrap()
            .arg(option)
            .arg(image.path()),
    )
    .unwrap()
}

/// `key: value` lines.
fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(k, v)| (k, v.trim()))
        .collect()
}

/// The values of fourscore, by the names of dumpe2fs.
fn our_fields(sb: &Superblock) -> Vec<(&'static str, String)> {
    let geometry = sb.geometry();
    let features: Vec<_> = sb
        .features()
        .iter()
        .map(|feature| feature.to_string())
        .collect();
    let mut ours = vec![
        ("Filesystem UUID", sb.uuid().to_string()),
        (
            "Filesystem features",
            if features.is_empty() {
                "(none)".into()
            } else {
                features.join(" ")
            },
        ),
        ("Inode count", geometry.inodes().to_string()),
        ("Block count", geometry.blocks().to_string()),
        ("Reserved block count", sb.reserved_blocks().to_string()),
        ("Free blocks", sb.free_blocks().to_string()),
        ("Free inodes", sb.free_inodes().to_string()),
        ("First block", geometry.first_data_block().to_string()),
        ("Block size", geometry.block_size().bytes().to_string()),
        ("Blocks per group", geometry.blocks_per_group().to_string()),
        ("Inodes per group", geometry.inodes_per_group().to_string()),
        (
            "Inode blocks per group",
            geometry.inode_table_blocks().to_string(),
        ),
        ("Mount count", sb.mount_count().to_string()),
        ("Maximum mount count", sb.max_mount_count().to_string()),
    ];
    let nonzero: [(&str, u64); 9] = [
        ("Overhead clusters", sb.overhead_clusters().into()),
        ("Reserved GDT blocks", sb.reserved_gdt_blocks().into()),
        ("RAID stride", sb.raid_stride_blocks().into()),
        ("RAID stripe width", sb.raid_stripe_width_blocks().into()),
        ("Required extra isize", sb.min_extra_isize_bytes().into()),
        ("Desired extra isize", sb.want_extra_isize_bytes().into()),
        (
            "Orphan file inode",
            sb.orphan_file_inode().map_or(0, |inode| inode.0.into()),
        ),
        (
            "MMP block number",
            sb.mmp_block().map_or(0, |block| block.0),
        ),
        (
            "User quota inode",
            sb.quota_inodes().user.map_or(0, |inode| inode.0.into()),
        ),
    ];
    for (name, number) in nonzero {
        if number != 0 {
            ours.push((name, number.to_string()));
        }
    }
    if sb.revision().0 > 0 {
        ours.push(("First inode", sb.first_inode().to_string()));
        ours.push(("Inode size", geometry.inode_size_bytes().to_string()));
    }
    ours.extend(our_optional_fields(sb));
    ours
}

/// The lines that dumpe2fs prints only for some file systems.
fn our_optional_fields(sb: &Superblock) -> Vec<(&'static str, String)> {
    let geometry = sb.geometry();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut ours = Vec::new();
    if geometry.desc_size_bytes() > 32 {
        ours.push((
            "Group descriptor size",
            geometry.desc_size_bytes().to_string(),
        ));
    }
    if geometry.blocks_per_cluster_log() > 0 {
        ours.push(("Cluster size", geometry.cluster_size_bytes().to_string()));
        ours.push((
            "Clusters per group",
            geometry.clusters_per_group().to_string(),
        ));
    }
    if sb.groups_per_flex() > 1 {
        ours.push(("Flex block group size", sb.groups_per_flex().to_string()));
    }
    if !sb.volume_name().is_empty() {
        ours.push(("Filesystem volume name", text(sb.volume_name())));
    }
    if !sb.last_mounted().is_empty() {
        ours.push(("Last mounted on", text(sb.last_mounted())));
    }
    if let Some(JournalPlace::Inode(inode)) = sb.journal() {
        ours.push(("Journal inode", inode.to_string()));
    }
    if sb.has_metadata_csum() {
        ours.push(("Checksum", format!("0x{:08x}", sb.raw().checksum())));
    }
    ours
}

fn check_header(sb: &Superblock, header: &str) {
    let theirs = fields(header);
    for (name, ours) in our_fields(sb) {
        assert_eq!(theirs.get(name), Some(&ours.as_str()), "{name}");
    }
}

/// A number, or `None` for dumpe2fs's -1.
fn block_number(text: &str) -> Option<PhysBlock> {
    text.parse().ok().map(PhysBlock)
}

/// `group:block:super:gdt:bbitmap:ibitmap:itable` of `dumpe2fs -g` for each group, then every
/// checksum and count there is.
fn check_groups(file: &File, sb: &Superblock, listing: &str) {
    let geometry = sb.geometry();
    let rows: Vec<Vec<&str>> = listing
        .lines()
        .map(|line| line.split(':').collect())
        .filter(|row: &Vec<&str>| row[0].parse::<u32>().is_ok())
        .collect();
    assert_eq!(rows.len(), geometry.groups() as usize);
    let (mut free_clusters, mut free_inodes) = (0, 0);
    for (row, number) in rows.iter().zip(0..) {
        let group = GroupNr(number);
        let first = geometry.group_first_block(group);
        assert_eq!(block_number(row[1]), Some(first));
        assert_eq!(
            block_number(row[2]).is_some(),
            geometry.has_super(group),
            "{group}"
        );

        let place = geometry.desc_place(group).unwrap();
        let block = read_block(file, sb, place.block);
        let bytes = &block[place.offset_bytes..];
        let desc = GroupDesc::parse(bytes, group, sb).unwrap();
        desc.check_counts(group, sb).unwrap();
        let ours = [desc.block_bitmap(), desc.inode_bitmap(), desc.inode_table()];
        assert_eq!(
            ours.map(Some),
            [row[4], row[5], row[6]].map(block_number),
            "{group}"
        );
        free_clusters += u64::from(desc.free_clusters());
        free_inodes += desc.free_inodes();

        check_descriptor_blocks(sb, group, row[3]);
        check_bitmaps(file, sb, &desc);
        check_sealing(bytes, group, sb);
    }
    assert_eq!(
        free_clusters << geometry.blocks_per_cluster_log(),
        sb.free_blocks().0
    );
    assert_eq!(free_inodes, sb.free_inodes());
}

/// `gdt` of dumpe2fs is `first-last` if the descriptors follow a superblock, one block for those of
/// a meta group, and -1 if there are none. Reserved blocks follow only the first kind.
fn check_descriptor_blocks(sb: &Superblock, group: GroupNr, gdt: &str) {
    let geometry = sb.geometry();
    let (last, reserved) = match gdt.split_once('-') {
        Some(("", _)) => (None, 0),
        Some((_, last)) => (block_number(last), sb.reserved_gdt_blocks()),
        None => (block_number(gdt), 0),
    };
    let first = geometry.group_first_block(group).0;
    let end = last.map_or(first + u64::from(geometry.has_super(group)), |block| {
        block.0 + 1
    });
    let expected = end - first + u64::from(reserved);
    assert_eq!(
        u64::from(geometry.base_meta_blocks(group)),
        expected,
        "{group}: {gdt}"
    );
}

fn check_bitmaps(file: &File, sb: &Superblock, desc: &GroupDesc) {
    let uninit = desc.flags();
    if !uninit.contains(GroupFlags::BLOCK_UNINIT) {
        let mut bitmap = read_block(file, sb, desc.block_bitmap());
        desc.verify_block_bitmap(&bitmap, sb).unwrap();
        bitmap[0] ^= 1;
        assert_eq!(
            desc.verify_block_bitmap(&bitmap, sb).is_err(),
            sb.has_metadata_csum()
        );
    }
    if !uninit.contains(GroupFlags::INODE_UNINIT) {
        let mut bitmap = read_block(file, sb, desc.inode_bitmap());
        desc.verify_inode_bitmap(&bitmap, sb).unwrap();
        bitmap[0] ^= 1;
        assert_eq!(
            desc.verify_inode_bitmap(&bitmap, sb).is_err(),
            sb.has_metadata_csum()
        );
    }
}

/// Sealing unchanged bytes changes nothing; sealing damaged checksums repairs them.
fn check_sealing(bytes: &[u8], group: GroupNr, sb: &Superblock) {
    let size = sb.geometry().desc_size_bytes();
    let mut copy = bytes[..size].to_vec();
    group::seal(&mut copy, group, sb).unwrap();
    assert_eq!(copy, bytes[..size]);
}

/// Checks that each inode in use is valid, that sealing it changes nothing, and that debugfs prints
/// the same for the root.
fn check_inodes(file: &File, sb: &Superblock, image: &Image) {
    let geometry = sb.geometry();
    let place = geometry.desc_place(GroupNr(0)).unwrap();
    let block = read_block(file, sb, place.block);
    let desc = GroupDesc::parse(&block[place.offset_bytes..], GroupNr(0), sb).unwrap();
    let bitmap = read_block(file, sb, desc.inode_bitmap());
    let mut root = None;
    for index in
        (0..geometry.inodes_per_group()).filter(|&i| bitmap[i as usize / 8] >> (i % 8) & 1 == 1)
    {
        let number = InodeNr(index + 1);
        let place = geometry.inode_place(desc.inode_table(), GroupOffset(index));
        let block = read_block(file, sb, place.block);
        let bytes = &block[place.offset_bytes..][..geometry.inode_size_bytes()];
        if bytes.iter().all(|&byte| byte == 0) {
            continue;
        }
        let inode = Inode::parse(bytes, number, sb).unwrap_or_else(|e| panic!("{number}: {e}"));
        let mut copy = bytes.to_vec();
        inode::seal(&mut copy, number, sb).unwrap();
        assert_eq!(copy, bytes, "inode {number}");
        if sb.has_metadata_csum() {
            copy[0] ^= 1;
            assert!(Inode::parse(&copy, number, sb).is_err());
        }
        if number == InodeNr::ROOT {
            root = Some(inode);
        }
    }
    let root = root.expect("the root is in use");
    assert_eq!(root.file_type(), Some(FileType::Directory));
    let output = debugfs(image, "stat <2>");
    assert_inode_is(&root, &output);
}

fn debugfs(image: &Image, command: &str) -> String {
    tools::stdout_of(
        tools::command("debugfs")
            .unwrap()
            .args(["-R", command])
            .arg(image.path()),
    )
    .unwrap()
}

/// The word after `key` in the output of debugfs's `stat`.
fn word<'a>(stat: &'a str, key: &str) -> &'a str {
    let (_, rest) = stat
        .split_once(key)
        .unwrap_or_else(|| panic!("{key} in {stat}"));
    rest.split_whitespace().next().unwrap()
}

fn assert_inode_is(inode: &Inode, stat: &str) {
    let permissions = u16::from_str_radix(word(stat, "Mode:"), 8).unwrap();
    assert_eq!(inode.mode().permissions(), permissions);
    assert_eq!(inode.size_bytes().to_string(), word(stat, "Size:"));
    assert_eq!(inode.links_count().to_string(), word(stat, "Links:"));
    assert_eq!(inode.sectors().to_string(), word(stat, "Blockcount:"));
    assert_eq!(inode.uid().to_string(), word(stat, "User:"));
    assert_eq!(inode.gid().to_string(), word(stat, "Group:"));
    assert_eq!(inode.generation().0.to_string(), word(stat, "Generation:"));
    assert_eq!(format!("{:#x}", inode.flags().bits()), word(stat, "Flags:"));
    let acl = inode.file_acl().map_or(0, |block| block.0);
    assert_eq!(acl.to_string(), word(stat, "File ACL:"));
    for (key, time) in [
        ("ctime:", inode.ctime()),
        ("atime:", inode.atime()),
        ("mtime:", inode.mtime()),
    ] {
        assert_eq!(time_words(time, inode), word(stat, key), "{key}");
    }
    if let Some(crtime) = inode.crtime() {
        assert_eq!(time_words(crtime, inode), word(stat, "crtime:"));
    }
}

/// A time as debugfs prints it: the 32-bit field and, if the inode has it, the extra field.
fn time_words(time: Timestamp, inode: &Inode) -> String {
    if inode.raw_tail().is_empty() || inode.extra_isize_bytes() == 0 {
        return format!("0x{:08x}", time.to_inode_word());
    }
    let (low, extra) = time.to_inode_words();
    format!("0x{low:08x}:{extra:08x}")
}

#[test]
fn every_configuration_is_read_as_by_dumpe2fs() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("dumpe2fs"),
        Need::Program("debugfs")
    );
    for (size, arguments) in CONFIGS {
        eprintln!("{size} MiB {arguments:?}");
        let image = Image::builder(MiB(*size))
            .arguments(arguments.iter().copied())
            .make()
            .unwrap();
        let file = File::open(image.path()).unwrap();
        let sb = superblock(&file);
        check_header(&sb, &dumpe2fs("-h", &image));
        check_groups(&file, &sb, &dumpe2fs("-g", &image));
        check_inodes(&file, &sb, &image);
        check_overhead(&sb);
        check_orphan_file(&file, &sb);
        if let Some(block) = sb.mmp_block() {
            let mmp = MmpBlock::parse(&read_block(&file, &sb, block), &sb).unwrap();
            assert_eq!(mmp.sequence(), MmpSequence::Clean);
        }
    }
}

fn read_inode(file: &File, sb: &Superblock, number: InodeNr) -> Inode {
    let geometry = sb.geometry();
    let (group, index) = geometry.inode_group(number).unwrap();
    let place = geometry.desc_place(group).unwrap();
    let block = read_block(file, sb, place.block);
    let desc = GroupDesc::parse(&block[place.offset_bytes..], group, sb).unwrap();
    let place = geometry.inode_place(desc.inode_table(), index);
    let block = read_block(file, sb, place.block);
    Inode::parse(&block[place.offset_bytes..], number, sb).unwrap()
}

/// mke2fs puts the orphan file into one extent, the first of the root in `i_block`.
fn check_orphan_file(file: &File, sb: &Superblock) {
    let Some(number) = sb.orphan_file_inode() else {
        return;
    };
    let inode = read_inode(file, sb, number);
    let i_block = inode.i_block();
    let start = u32::from_le_bytes(i_block[20..24].try_into().unwrap());
    let blocks = inode.size_bytes() >> sb.geometry().block_size().bits();
    assert!(blocks > 0);
    for place in (u64::from(start)..u64::from(start) + blocks).map(PhysBlock) {
        let block = read_block(file, sb, place);
        let orphans = orphan::parse(&block, place, inode.checksum_seed(), sb).unwrap();
        assert_eq!(orphans.count(), 0);
        let mut copy = block.clone();
        orphan::seal(&mut copy, place, inode.checksum_seed(), sb).unwrap();
        assert_eq!(copy, block);
    }
}

/// mke2fs also counts the journal and the orphan file, and rounds to clusters; so this compares
/// only images without either.
fn check_overhead(sb: &Superblock) {
    let plain = sb.journal().is_none() && sb.geometry().blocks_per_cluster_log() == 0;
    if plain && sb.overhead_clusters() != 0 && sb.orphan_file_inode().is_none() {
        assert_eq!(
            sb.geometry().overhead_blocks().0,
            u64::from(sb.overhead_clusters())
        );
    }
}

#[test]
fn an_external_journal_is_not_a_file_system() {
    require!(Need::Program("mke2fs"));
    for (block_size, start) in [("1024", 2), ("4096", 1)] {
        let image = Image::builder(MiB(8))
            .arguments(["-O", "journal_dev", "-b", block_size])
            .make()
            .unwrap();
        let file = File::open(image.path()).unwrap();
        let bytes = read_at(&file, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES);
        let raw = RawSuperblock::from_bytes(&bytes).unwrap();
        let rejected = Superblock::try_from(raw).map(|_| ());
        assert_eq!(rejected, Err(SuperblockRejected::JournalDevice));
        let device = JournalDevice::try_from(raw).unwrap();
        assert_eq!(device.journal_start, PhysBlock(start));
        let journal = read_at(&file, device.block_size.offset(device.journal_start), 4);
        assert_eq!(
            journal,
            [0xc0, 0x3b, 0x39, 0x98],
            "the magic number of jbd2"
        );
    }
}

#[test]
fn a_stored_seed_keeps_its_value_when_the_uuid_changes() {
    require!(Need::Program("mke2fs"), Need::Program("tune2fs"));
    let image = Image::builder(MiB(16))
        .arguments(["-t", "ext4", "-O", "metadata_csum_seed"])
        .make()
        .unwrap();
    let before = superblock(&File::open(image.path()).unwrap());
    assert_eq!(
        before.checksum_seed(),
        ChecksumSeed::from_uuid(before.uuid().as_bytes())
    );
    tools::stdout_of(
        tools::command("tune2fs")
            .unwrap()
            .args(["-U", "random"])
            .arg(image.path()),
    )
    .unwrap();
    let file = File::open(image.path()).unwrap();
    let after = superblock(&file);
    assert_ne!(before.uuid(), after.uuid());
    assert_eq!(before.checksum_seed(), after.checksum_seed());
    check_inodes(&file, &after, &image);
}
