//! **Purpose.** Platforms of images, written as in container tools: `OS/ARCHITECTURE[/VARIANT]`.
//!
//! **Model.** Names are those of Go; other common names of architectures are accepted. The default
//! variant of an architecture is equal to no variant.
//!
//! **References.** The OCI image specification 1.1: image-index.md, "Platform Variants".

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// The platform of an image.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Platform {
    pub(super) os: String,
    architecture: String,
    #[serde(default)]
    variant: String,
}

/// An invalid platform.
#[derive(Debug, thiserror::Error)]
#[error("a platform is OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, as in linux/arm64")]
pub struct PlatformError;

impl FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let mut parts = text.split('/').map(str::to_ascii_lowercase);
        let (Some(os), Some(architecture), variant, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(PlatformError);
        };
        if os.is_empty() || architecture.is_empty() || variant.as_deref() == Some("") {
            return Err(PlatformError);
        }
        Ok(Self {
            os,
            architecture: canonical_architecture(&architecture).to_owned(),
            variant: variant.unwrap_or_default(),
        })
    }
}

/// Go's name of an architecture.
fn canonical_architecture(name: &str) -> &str {
    match name {
        "x86_64" | "x86-64" => "amd64",
        "aarch64" => "arm64",
        "x86" | "i386" | "i686" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

impl Platform {
    /// The platform of this machine.
    pub(super) fn of_host() -> Self {
        Self {
            os: "linux".to_owned(),
            architecture: canonical_architecture(std::env::consts::ARCH).to_owned(),
            variant: String::new(),
        }
    }

    /// The variant, or an empty string if it is the default of the architecture.
    fn variant(&self) -> &str {
        match (self.architecture.as_str(), self.variant.as_str()) {
            ("amd64", "v1") | ("arm64", "v8") | ("arm", "v7") => "",
            (_, variant) => variant,
        }
    }

    /// Whether operating system and architecture are the same.
    pub(super) fn is_same_architecture(&self, other: &Self) -> bool {
        let names = |one: &Self| {
            (
                one.os.clone(),
                canonical_architecture(&one.architecture).to_owned(),
            )
        };
        names(self) == names(other)
    }

    /// Whether an image for `self` satisfies a request for `wanted`: if that has no variant, any
    /// variant does.
    pub(super) fn is_for(&self, wanted: &Self) -> bool {
        self.is_same_architecture(wanted) && (wanted.variant.is_empty() || self.is_exactly(wanted))
    }

    /// Whether the variants are the same too.
    pub(super) fn is_exactly(&self, wanted: &Self) -> bool {
        self.is_same_architecture(wanted) && self.variant() == wanted.variant()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match self.variant.as_str() {
            "" => Ok(()),
            variant => write!(f, "/{variant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_compared_with_their_variants() {
        let parsed = |text: &str| text.parse::<Platform>().expect(text);
        assert!(parsed("linux/arm64/v8").is_exactly(&parsed("linux/aarch64")));
        assert!(parsed("linux/arm/v6").is_for(&parsed("linux/arm")));
        assert!(!parsed("linux/arm/v6").is_exactly(&parsed("linux/arm")));
        assert!(!parsed("linux/arm/v6").is_for(&parsed("linux/arm/v7")));
        assert!(!parsed("windows/amd64").is_for(&parsed("linux/amd64")));
        assert_eq!(parsed("Linux/x86_64").to_string(), "linux/amd64");
        assert_eq!(parsed("linux/arm/v6").to_string(), "linux/arm/v6");
        for wrong in ["", "linux", "/amd64", "linux/", "linux/arm/", "a/b/c/d"] {
            assert!(wrong.parse::<Platform>().is_err(), "{wrong}");
        }
    }
}
