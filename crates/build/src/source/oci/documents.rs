//! **Purpose.** The fields that are needed of the JSON documents of images.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::platform::Platform;
use super::wrong;
use crate::source::fault::Fault;

/// Annotations with the name of an image: the tag of the specification, and the full name that
/// containerd and Docker add.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const FULL_NAME: &str = "io.containerd.image.name";

/// A reference to a blob.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Descriptor {
    #[serde(default, rename = "mediaType")]
    pub(super) media_type: String,
    pub(super) digest: String,
    /// The length of the blob in bytes.
    pub(super) size: u64,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) platform: Option<Platform>,
}

impl Descriptor {
    pub(super) fn tag(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }

    /// Whether the image has this tag or full name.
    pub(super) fn has_name(&self, name: &str) -> bool {
        let full = self.annotations.get(FULL_NAME);
        self.tag() == Some(name) || full.is_some_and(|full| full == name)
    }
}

/// A list of images.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
}

impl Index {
    /// All images, without entries that only accompany an image, such as attestations.
    pub(super) fn images(&self) -> impl Iterator<Item = &Descriptor> {
        let is_image = |one: &&Descriptor| {
            one.platform
                .as_ref()
                .is_none_or(|platform| platform.os != "unknown")
        };
        self.manifests.iter().filter(is_image)
    }
}

/// The manifest of an image.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) layers: Vec<Descriptor>,
    pub(super) config: Option<Descriptor>,
}

/// The configuration of an image.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Config {
    #[serde(flatten)]
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct RootFs {
    /// Digests of the uncompressed layers.
    #[serde(default)]
    pub(super) diff_ids: Vec<String>,
}

/// An image in `manifest.json` of `docker save`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DockerImage {
    pub(super) config: String,
    pub(super) repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

impl DockerImage {
    pub(super) fn tags(&self) -> &[String] {
        self.repo_tags.as_deref().unwrap_or_default()
    }
}

pub(super) enum Document {
    Manifest(Manifest),
    Index(Index),
}

#[derive(Deserialize)]
struct Layout {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

/// Returns an error for an unsupported layout version.
pub(super) fn check_layout(bytes: &[u8]) -> Result<(), Fault> {
    let Layout { version } = parse("oci-layout", bytes)?;
    if version.starts_with("1.") {
        Ok(())
    } else {
        Err(wrong(format!(
            "the version of the layout is {version}, expected 1"
        )))
    }
}

/// Parses a document. `name` is for messages.
pub(super) fn parse<'a, T: Deserialize<'a>>(name: &str, bytes: &'a [u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|error| wrong(format!("{name}: {error}")))
}

/// Parses a manifest or an index, which are distinguished by their fields because the media type is
/// optional.
pub(super) fn parse_manifest_or_index(name: &str, bytes: &[u8]) -> Result<Document, Fault> {
    let value: serde_json::Value = parse(name, bytes)?;
    let in_document = |error: serde_json::Error| wrong(format!("{name}: {error}"));
    if value.get("manifests").is_some() {
        let index = serde_json::from_value(value).map_err(in_document)?;
        return Ok(Document::Index(index));
    }
    let manifest = serde_json::from_value(value).map_err(in_document)?;
    Ok(Document::Manifest(manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_and_indexes_are_distinguished() {
        let layer = r#"{"mediaType": "x", "digest": "sha256:0", "size": 3}"#;
        let manifest = format!(r#"{{"layers": [{layer}], "config": {layer}}}"#);
        let parsed = parse_manifest_or_index("m", manifest.as_bytes());
        assert!(matches!(parsed, Ok(Document::Manifest(m)) if m.layers[0].size == 3));
        let unknown = r#"{"digest": "d", "size": 1,
            "platform": {"os": "unknown", "architecture": "unknown"}}"#;
        let index = format!(r#"{{"manifests": [{layer}, {unknown}]}}"#);
        let parsed = parse_manifest_or_index("i", index.as_bytes());
        assert!(matches!(parsed, Ok(Document::Index(i)) if i.images().count() == 1));
        for bad in ["", "[]", "{}", r#"{"layers": [{"digest": "d"}]}"#] {
            assert!(
                parse_manifest_or_index("b", bad.as_bytes()).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn layouts_of_another_version_are_refused() {
        assert!(check_layout(br#"{"imageLayoutVersion": "1.0.0"}"#).is_ok());
        assert!(check_layout(br#"{"imageLayoutVersion": "2.0.0"}"#).is_err());
    }
}
