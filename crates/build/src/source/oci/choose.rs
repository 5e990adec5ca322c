//! **Purpose.** Selects one image and returns its layers.
//!
//! **Model.** An index lists images by name or platform, and may refer to further indexes. If it
//! lists several images, the one for the requested platform is used, or else the one for this
//! machine, as `podman` and `skopeo` do. If it lists a single image, that one is used for any
//! platform, unless a platform was requested.

use super::documents::{
    self, Config, Descriptor, DockerImage, Document, Index, Manifest, parse,
    parse_manifest_or_index,
};
use super::layer::{Expected, LayerSource, check_media_type};
use super::platform::Platform;
use super::store::Store;
use super::wrong;
use crate::source::fault::Fault;

/// Largest depth of nested indexes.
const INDEX_DEPTH_MAX: u32 = 8;

/// The criteria to select an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) tag: Option<&'a str>,
    pub(super) platform: Option<&'a Platform>,
    /// The syntax that names an image on the command line, for messages.
    pub(super) form: &'static str,
}

impl Choice<'_> {
    /// The layers of the image, lowest first.
    pub(super) fn layers(self, store: &Store) -> Result<Vec<LayerSource>, Fault> {
        match store {
            Store::Layout(_) => self.of_layout(store),
            Store::Archive(catalog) if catalog.has("oci-layout") && catalog.has("index.json") => {
                self.of_layout(store)
            }
            Store::Archive(_) => self.of_docker(store),
            Store::Flat(_) => {
                let name = "manifest.json";
                let bytes = store.document(name)?;
                let document = parse_manifest_or_index(name, &bytes)?;
                self.of_document(store, document)
            }
        }
    }

    fn of_layout(self, store: &Store) -> Result<Vec<LayerSource>, Fault> {
        documents::check_layout(&store.document("oci-layout")?)?;
        let name = "index.json";
        let index: Index = parse(name, &store.document(name)?)?;
        let chosen = self.named(&index)?;
        let bytes = store.checked_document(chosen)?;
        let document = parse_manifest_or_index(&chosen.digest, &bytes)?;
        self.of_document(store, document)
    }

    /// Follows indexes to a manifest.
    fn of_document(self, store: &Store, mut document: Document) -> Result<Vec<LayerSource>, Fault> {
        for _ in 0..INDEX_DEPTH_MAX {
            let index = match document {
                Document::Manifest(manifest) => return self.of_manifest(store, &manifest),
                Document::Index(index) => index,
            };
            let chosen = self.of_platform(&index)?;
            let bytes = store.checked_document(chosen)?;
            document = parse_manifest_or_index(&chosen.digest, &bytes)?;
        }
        Err(wrong("indexes are nested too deeply"))
    }

    fn of_manifest(self, store: &Store, manifest: &Manifest) -> Result<Vec<LayerSource>, Fault> {
        if let (Some(_), Some(config)) = (self.platform, &manifest.config) {
            let config = store.checked_document(config)?;
            self.check_platform(&parse("the configuration", &config)?)?;
        }
        let found = manifest.layers.iter().enumerate().map(|(nr, descriptor)| {
            let digest = &descriptor.digest;
            check_media_type(&descriptor.media_type)?;
            let blob = store.blob(digest);
            let named = |fault| wrong(format!("layer {} ({digest}): {fault}", nr + 1));
            Ok(LayerSource {
                blob: blob.map_err(named)?,
                expected: Expected::Blob(descriptor.clone()),
            })
        });
        found.collect()
    }

    /// Returns an error if the image is not for the requested platform.
    fn check_platform(self, config: &Config) -> Result<(), Fault> {
        match (self.platform, &config.platform) {
            (Some(wanted), Some(found)) if !found.is_for(wanted) => {
                Err(wrong(format!("the image is for {found}, not for {wanted}")))
            }
            _ => Ok(()),
        }
    }

    /// The entry of the outermost index with the given tag, or the only one.
    fn named(self, index: &Index) -> Result<&Descriptor, Fault> {
        let Some(tag) = self.tag else {
            return self.of_platform(index);
        };
        let found = index.manifests.iter().find(|one| one.has_name(tag));
        found.ok_or_else(|| {
            let known = index.manifests.iter().filter_map(Descriptor::tag);
            wrong(format!(
                "there is no image '{tag}', only: {}",
                joined(known)
            ))
        })
    }

    /// The only image, or the only one for the platform.
    fn of_platform<'i>(self, index: &'i Index) -> Result<&'i Descriptor, Fault> {
        let images: Vec<&Descriptor> = index.images().collect();
        let host = Platform::of_host();
        let wanted = self.platform.unwrap_or(&host);
        if let ([only], None) = (&images[..], self.platform) {
            return Ok(only);
        }
        let matching = |fits: &dyn Fn(&Platform) -> bool| -> Vec<&'i Descriptor> {
            let of = |one: &&Descriptor| one.platform.as_ref().is_none_or(fits);
            images.iter().copied().filter(of).collect()
        };
        let mut fitting = matching(&|platform| platform.is_exactly(wanted));
        if fitting.is_empty() {
            fitting = matching(&|platform| platform.is_for(wanted));
        }
        match fitting[..] {
            [only] => Ok(only),
            [] => {
                let known = images.iter().filter_map(|one| one.platform.as_ref());
                let known = joined(known.map(ToString::to_string));
                Err(wrong(format!(
                    "there is no image for {wanted}, only for: {known} (choose with --platform)"
                )))
            }
            _ => {
                let known: Vec<&str> = fitting.iter().filter_map(|one| one.tag()).collect();
                if known.is_empty() {
                    let known = fitting.iter().filter_map(|one| one.platform.as_ref());
                    let known = joined(known.map(ToString::to_string));
                    return Err(wrong(format!(
                        "there are several images for {wanted}: {known} (choose with --platform)"
                    )));
                }
                Err(self.ambiguous(known))
            }
        }
    }

    fn ambiguous<'n>(self, known: impl IntoIterator<Item = &'n str>) -> Fault {
        let (form, known) = (self.form, joined(known));
        wrong(format!(
            "there are several images, name one as in {form}: {known}"
        ))
    }

    /// The layers of an image in an archive of `docker save`.
    fn of_docker(self, store: &Store) -> Result<Vec<LayerSource>, Fault> {
        let name = "manifest.json";
        let images: Vec<DockerImage> = parse(name, &store.document(name)?)?;
        let tags = || images.iter().flat_map(DockerImage::tags);
        let image = match (&images[..], self.tag) {
            ([], _) => return Err(wrong(format!("{name} lists no image"))),
            ([only], None) => only,
            (_, None) => return Err(self.ambiguous(tags().map(String::as_str))),
            (all, Some(tag)) => {
                let latest = format!("{tag}:latest");
                let matches = |own: &String| own == tag || *own == latest;
                let found = all.iter().find(|image| image.tags().iter().any(matches));
                found.ok_or_else(|| {
                    let known = joined(tags());
                    wrong(format!("there is no image '{tag}', only: {known}"))
                })?
            }
        };
        let config: Config = parse(&image.config, &store.document(&image.config)?)?;
        self.check_platform(&config)?;
        let digests = config.rootfs.diff_ids;
        if digests.len() != image.layers.len() {
            let (layers, digests) = (image.layers.len(), digests.len());
            return Err(wrong(format!(
                "{name} has {layers} layers, but its configuration has {digests}"
            )));
        }
        let layers = image.layers.iter().zip(digests);
        let found = layers.map(|(layer, digest)| {
            let blob = store.named(layer);
            let blob = blob.map_err(|error| wrong(format!("{layer}: {error}")));
            Ok(LayerSource {
                blob: blob?,
                expected: Expected::Decompressed(digest),
            })
        });
        found.collect()
    }
}

fn joined<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<T> = words.into_iter().collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    words.join(", ")
}
