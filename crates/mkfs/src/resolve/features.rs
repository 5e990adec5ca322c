//! **Purpose.** Which features a file system gets, and whether they go together.

use fourscore_ondisk::BlockSize;
use fourscore_ondisk::features::{Compat, FeatureSet, Incompat, RoCompat};
use fourscore_ondisk::superblock::CreatorOs;

use super::wishes::Wishes;
use crate::error::{FormatError, FormatResult};
use crate::options::QuotaTypes;
use crate::text::edit_features;

impl Wishes<'_> {
    /// All features, and those of them that `-O` set.
    pub(super) fn features(&self) -> FormatResult<(FeatureSet, FeatureSet)> {
        let options = &self.options;
        let mut features = FeatureSet::default();
        if self.revision > 0 {
            let base = self
                .string("base_features")
                .unwrap_or("sparse_super,large_file,filetype,resize_inode,dir_index");
            edit_features(&mut features, base)?;
            for name in &self.types {
                if let Some(text) = self.profile.of_type(name, "features") {
                    edit_features(&mut features, text)?;
                }
            }
        }
        let hurd = options.creator_os == Some(CreatorOs::Hurd);
        let no_hurd = Incompat::FILETYPE | Incompat::EA_INODE | Incompat::CASEFOLD;
        let no_hurd_ro = RoCompat::HUGE_FILE | RoCompat::METADATA_CSUM;
        if hurd {
            features.incompat.remove(no_hurd | Incompat::CSUM_SEED);
            features.ro_compat.remove(no_hurd_ro);
        }
        let text = options.features.as_deref();
        let text = text.or_else(|| self.string("default_features"));
        let asked = edit_features(&mut features, text.unwrap_or_default())?;
        if hurd && (asked.incompat.intersects(no_hurd) || asked.ro_compat.intersects(no_hurd_ro)) {
            let why =
                "filetype, huge_file, metadata_csum, ea_inode and casefold are not for the Hurd";
            return Err(FormatError::option("-O", why));
        }
        let sized = options.journal.size_mib.is_some_and(|mib| mib > 0);
        if options.with_journal || sized || options.external_journal.is_some() {
            features.compat.insert(Compat::HAS_JOURNAL);
        }
        if self.revision == 0 && features != FeatureSet::default() {
            return Err(FormatError::option("-r", "revision 0 has no features"));
        }
        Ok((features, asked))
    }

    /// Settles the width of block numbers: more than 2^32 blocks need `64bit`, and exclude a resize
    /// inode.
    pub(super) fn settle_width(
        &self,
        features: &mut FeatureSet,
        blocks: u64,
        block_size: BlockSize,
    ) -> FormatResult<()> {
        if blocks > u64::from(u32::MAX) {
            if self.chosen(None, "auto_64-bit_support", false) {
                features.incompat.insert(Incompat::BIT64);
            }
            if !features.incompat.contains(Incompat::BIT64) {
                let why = format!(
                    "{blocks} blocks of {} bytes need the feature 64bit",
                    block_size.bytes()
                );
                return Err(FormatError::option("-O", why));
            }
            features.compat.remove(Compat::RESIZE_INODE);
        }
        if blocks >= 1 << 48 {
            let why = format!("{blocks} blocks are more than extents can reach (2^48)");
            return Err(FormatError::option("size", why));
        }
        Ok(())
    }

    /// Adds the features of extended options. Returns which quota files are made.
    pub(super) fn extended_features(
        &self,
        features: &mut FeatureSet,
        asked: FeatureSet,
    ) -> FormatResult<QuotaTypes> {
        let options = &self.options;
        let mut quota = options.quota_types.unwrap_or_default();
        if quota.project {
            features.ro_compat.insert(RoCompat::PROJECT);
        }
        quota.project |= features.ro_compat.contains(RoCompat::PROJECT);
        if options.encoding.is_some() || self.string("encoding").is_some() {
            features.incompat.insert(Incompat::CASEFOLD);
        } else if options.encoding_strict && !features.incompat.contains(Incompat::CASEFOLD) {
            let why = "needs an encoding (-E encoding=utf8)";
            return Err(FormatError::option("-E encoding_flags", why));
        }
        if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            features.ro_compat.remove(RoCompat::GDT_CSUM);
        } else if !asked.incompat.contains(Incompat::CSUM_SEED) {
            // It came from the profile: the user only removed metadata_csum.
            features.incompat.remove(Incompat::CSUM_SEED);
        }
        if !features.compat.contains(Compat::HAS_JOURNAL)
            && !asked.compat.contains(Compat::ORPHAN_FILE)
        {
            features.compat.remove(Compat::ORPHAN_FILE);
        }
        Ok(quota)
    }

    /// Checks which features need or exclude each other.
    pub(super) fn check_together(
        &self,
        features: FeatureSet,
        asked: FeatureSet,
    ) -> FormatResult<()> {
        let FeatureSet {
            compat,
            incompat,
            ro_compat,
        } = features;
        let extents = incompat.contains(Incompat::EXTENTS);
        let contradictions = [
            (
                incompat.contains(Incompat::BIT64) && !extents,
                "64bit needs extent",
            ),
            (
                ro_compat.contains(RoCompat::BIGALLOC) && !extents,
                "bigalloc needs extent",
            ),
            (
                incompat.contains(Incompat::META_BG) && compat.contains(Compat::RESIZE_INODE),
                "meta_bg and resize_inode exclude each other",
            ),
            (
                compat.contains(Compat::RESIZE_INODE)
                    && !ro_compat.contains(RoCompat::SPARSE_SUPER),
                "resize_inode needs sparse_super",
            ),
            (
                incompat.contains(Incompat::CSUM_SEED)
                    && !ro_compat.contains(RoCompat::METADATA_CSUM),
                "metadata_csum_seed needs metadata_csum",
            ),
            (
                asked.compat.contains(Compat::ORPHAN_FILE) && !compat.contains(Compat::HAS_JOURNAL),
                "orphan_file needs has_journal",
            ),
        ];
        if let Some((_, why)) = contradictions.into_iter().find(|&(broken, _)| broken) {
            return Err(FormatError::option("-O", why));
        }
        Ok(())
    }
}
