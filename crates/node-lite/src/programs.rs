//! Which program an image of ours is. An image is known by the digest of its program, because anybody can take a name.
//!
//! The programs are in one directory of root's, each under the name of its image and its digest: `ferrovirt-launcher-<sha256>`.
//! Those of earlier versions stay there as long as a pod may need them.

use std::path::{Path, PathBuf};

/// What an image of ours holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Runs one VM.
    Launcher,
    /// Everything but VMs; importers run from it.
    Tools,
}

/// An image of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image<'a> {
    pub kind: Kind,
    /// Of its program: 64 hexadecimal digits.
    pub sha256: &'a str,
}

/// Names of images. The launchers of all hypervisors are one program here, with the host's own drivers.
const NAMES: [(&str, Kind); 4] = [
    ("ferrovirt-launcher", Kind::Launcher),
    ("ferrovirt-launcher-lxc", Kind::Launcher),
    ("ferrovirt-launcher-cloud-hypervisor", Kind::Launcher),
    ("ferrovirt", Kind::Tools),
];

impl Kind {
    /// How the program's file in the directory begins.
    pub fn stem(self) -> &'static str {
        match self {
            Kind::Launcher => "ferrovirt-launcher",
            Kind::Tools => "ferrovirt",
        }
    }

    /// Where the program is inside.
    pub fn path_inside(self) -> &'static str {
        match self {
            Kind::Launcher => crate::rootfs::LAUNCHER_PATH,
            Kind::Tools => crate::rootfs::TOOLS_PATH,
        }
    }
}

impl<'a> Image<'a> {
    /// Reads `name@sha256:digest`; nothing else is an image of ours.
    pub fn parse(reference: &'a str) -> Option<Self> {
        let (name, sha256) = reference.split_once("@sha256:")?;
        let (_, kind) = NAMES.iter().find(|(known, _)| *known == name)?;
        is_sha256(sha256).then_some(Self { kind: *kind, sha256 })
    }

    /// The program's file, if this node has it.
    pub fn program(&self, directory: &Path) -> Option<PathBuf> {
        Some(directory.join(file_name(self.kind.stem(), self.sha256))).filter(|path| path.is_file())
    }
}

/// How a program's file is called.
pub fn file_name(stem: &str, sha256: &str) -> String {
    format!("{stem}-{sha256}")
}

pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn an_image_that_is_only_named_like_ours_is_not_ours() {
        for reference in [
            "ferrovirt-launcher",
            "ferrovirt-launcher:latest",
            "ferrovirt-launcher:0.1.0",
            "ferrovirt",
            "nginx",
            "",
            &format!("nginx@sha256:{DIGEST}"),
            &format!("ferrovirt-launcher-evil@sha256:{DIGEST}"),
            &format!("registry.example/ferrovirt-launcher@sha256:{DIGEST}"),
            &format!("ferrovirt-launcher:1@sha256:{DIGEST}"),
            &format!("ferrovirt-launcher@sha256:{}", DIGEST.to_uppercase()),
            &format!("ferrovirt-launcher@sha256:{DIGEST}0"),
            &format!("ferrovirt-launcher@sha512:{DIGEST}"),
            "ferrovirt-launcher@sha256:../../../../../../../../../../../../../../../../../bin/sh",
            "ferrovirt-launcher@sha256:",
        ] {
            assert_eq!(Image::parse(reference), None, "{reference}");
        }
        for (name, kind) in NAMES {
            let reference = format!("{name}@sha256:{DIGEST}");
            assert_eq!(Image::parse(&reference), Some(Image { kind, sha256: DIGEST }));
        }
    }

    #[test]
    fn an_unknown_digest_has_no_program() {
        let directory = tempfile::tempdir().unwrap();
        let reference = format!("ferrovirt-launcher-lxc@sha256:{DIGEST}");
        let image = Image::parse(&reference).unwrap();
        assert_eq!(image.program(directory.path()), None);
        let file = directory.path().join(format!("ferrovirt-launcher-{DIGEST}"));
        std::fs::write(&file, "").unwrap();
        assert_eq!(image.program(directory.path()), Some(file));
        let tools = format!("ferrovirt@sha256:{DIGEST}");
        assert_eq!(Image::parse(&tools).unwrap().program(directory.path()), None, "the launcher is not the tools");
    }
}
