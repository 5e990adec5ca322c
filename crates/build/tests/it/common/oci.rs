//! OCI layouts for tests.

use std::fs;
use std::path::PathBuf;

use fourscore_build::source::{OciImage, Source, Transport};
use fourscore_testkit::scratch;
use sha2::{Digest as _, Sha256};

use super::{read_source, tool};

/// A layout that is built blob by blob.
pub(crate) struct Layout {
    pub(crate) folder: tempfile::TempDir,
}

#[derive(Clone)]
pub(crate) struct Blob {
    digest: String,
    size: usize,
}

impl Layout {
    pub(crate) fn new() -> Self {
        let folder = scratch::folder().expect("a folder");
        fs::create_dir_all(folder.path().join("blobs/sha256")).expect("disk space");
        let version = r#"{"imageLayoutVersion": "1.0.0"}"#;
        fs::write(folder.path().join("oci-layout"), version).expect("disk space");
        Self { folder }
    }

    pub(crate) fn path(&self, blob: &Blob) -> PathBuf {
        let hex = blob.digest.strip_prefix("sha256:").expect("a digest");
        self.folder.path().join("blobs/sha256").join(hex)
    }

    pub(crate) fn blob(&self, bytes: &[u8]) -> Blob {
        let hex: String = Sha256::digest(bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let blob = Blob {
            digest: format!("sha256:{hex}"),
            size: bytes.len(),
        };
        fs::write(self.path(&blob), bytes).expect("disk space");
        blob
    }

    pub(crate) fn manifest(&self, layers: &[(&str, Blob)]) -> Blob {
        let config = self.blob(b"{}");
        let config = descriptor("application/vnd.oci.image.config.v1+json", &config, "");
        let layers: Vec<String> = layers
            .iter()
            .map(|(kind, blob)| descriptor(kind, blob, ""))
            .collect();
        let layers = layers.join(",");
        let text = format!(r#"{{"schemaVersion": 2, "config": {config}, "layers": [{layers}]}}"#);
        self.blob(text.as_bytes())
    }

    pub(crate) fn index(&self, descriptors: &[String]) {
        fs::write(self.folder.path().join("index.json"), index(descriptors)).expect("disk space");
    }

    /// A layout with one image of these layers, which are uncompressed archives.
    pub(crate) fn of_layers(layers: &[&[u8]]) -> Self {
        let layout = Self::new();
        let layers: Vec<_> = layers
            .iter()
            .map(|bytes| (TAR, layout.blob(bytes)))
            .collect();
        let manifest = layout.manifest(&layers);
        layout.index(&[descriptor(MANIFEST, &manifest, "")]);
        layout
    }

    /// Packs the layout as a tar archive.
    pub(crate) fn archive(&self) -> PathBuf {
        let archive = self.folder.path().with_extension("tar");
        let name = archive.to_str().expect("a plain name");
        tool("tar", &["-cf", name, "."], self.folder.path()).expect("an archive");
        archive
    }

    pub(crate) fn source(&self, tag: Option<&str>) -> Source {
        Source::Oci(OciImage {
            transport: Transport::Layout,
            path: self.folder.path().to_owned(),
            tag: tag.map(str::to_owned),
        })
    }

    pub(crate) fn error_of(&self, tag: Option<&str>) -> String {
        match read_source(&self.source(tag), &[]) {
            Ok(_) => "none".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

pub(crate) const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const TAR_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
pub(crate) const TAR_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

pub(crate) fn descriptor(kind: &str, blob: &Blob, more: &str) -> String {
    let Blob { digest, size } = blob;
    format!(r#"{{"mediaType": "{kind}", "digest": "{digest}", "size": {size}{more}}}"#)
}

pub(crate) fn index(descriptors: &[String]) -> String {
    let all = descriptors.join(",");
    format!(r#"{{"schemaVersion": 2, "manifests": [{all}]}}"#)
}
