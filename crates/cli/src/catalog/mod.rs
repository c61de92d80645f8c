//! Images by name: `debian:12` instead of an address, a checksum and a user to remember.
//!
//! The catalogue is data: ours in `data/images.yaml`, an administrator's in `/etc/ferrovirt/images.d`, a user's own, and a file that is named
//! on the command line. What comes later counts. docs/images.md describes the format.

mod checksums;
mod list;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ferrovirt_disks::image::Checksum;
use serde::Deserialize;

pub use checksums::find as find_checksum;
pub use list::{ImagesArgs, run, unknown};

const OURS: &str = include_str!("../../data/images.yaml");
const SYSTEM: &str = "/etc/ferrovirt/images.d";
/// A catalogue is written by hand.
const LARGEST: u64 = 1 << 20;

#[derive(Args, Clone, Default)]
pub struct CatalogArgs {
    /// Also read images and mirrors from this file
    #[arg(long, env = "FERROVIRT_CATALOG", hide_env_values = true)]
    pub catalog: Option<PathBuf>,
}

/// One file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Document {
    images: Vec<Entry>,
    mirrors: Vec<Mirror>,
}

#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    /// `NAME` or `NAME:VERSION`.
    pub name: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    #[serde(default)]
    pub title: String,
    /// Who logs in.
    pub user: String,
    pub memory: Option<String>,
    pub disk: Option<String>,
    /// Whether its cloud-init takes the ssh host key that it is given.
    #[serde(default = "yes")]
    pub host_key: bool,
    pub architectures: BTreeMap<String, Place>,
}

fn yes() -> bool {
    true
}

/// Where an image is.
#[derive(Debug, Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Place {
    pub url: Option<String>,
    pub registry: Option<String>,
    /// `sha256:…` or `sha512:…`
    pub checksum: Option<String>,
    /// Address of a file with the checksum.
    pub checksums: Option<String>,
}

/// Addresses that begin with `from` begin with `to` instead.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mirror {
    from: String,
    to: String,
}

#[derive(Debug, Default)]
pub struct Catalog {
    /// Those that count more come last.
    entries: Vec<(Entry, String)>,
    mirrors: Vec<Mirror>,
}

impl Catalog {
    pub fn load(arguments: &CatalogArgs) -> Result<Self> {
        let mut catalog = Self::built_in()?;
        let home = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")));
        let directories = [Some(PathBuf::from(SYSTEM)), home.map(|home| home.join("ferrovirt/images.d"))];
        for file in directories.iter().flatten().flat_map(|directory| files(directory)) {
            catalog.read(&file)?;
        }
        if let Some(file) = &arguments.catalog {
            catalog.read(file)?;
        }
        Ok(catalog)
    }

    pub fn built_in() -> Result<Self> {
        let mut catalog = Self::default();
        catalog.add(OURS, "built in")?;
        Ok(catalog)
    }

    pub fn read(&mut self, file: &Path) -> Result<()> {
        let unreadable = || format!("cannot read the catalogue {}", file.display());
        let metadata = fs::metadata(file).with_context(unreadable)?;
        // Whoever writes it chooses what our VMs boot.
        let own = rustix::process::geteuid().as_raw();
        ensure!(
            [0, own].contains(&metadata.uid()) && metadata.mode() & 0o002 == 0,
            "the catalogue {} can be written by others; `chown` and `chmod o-w` it",
            file.display()
        );
        ensure!(metadata.len() <= LARGEST, "the catalogue {} is larger than {LARGEST} bytes", file.display());
        let text = fs::read_to_string(file).with_context(unreadable)?;
        self.add(&text, &file.display().to_string())
    }

    fn add(&mut self, text: &str, origin: &str) -> Result<()> {
        let document: Document = serde_saphyr::from_str(text)
            .map_err(|error| anyhow::anyhow!("{error}"))
            .with_context(|| format!("the catalogue {origin} cannot be understood"))?;
        for entry in &document.images {
            entry.check().with_context(|| format!("the catalogue {origin}: image {:?}", entry.name))?;
        }
        for mirror in &document.mirrors {
            let whole = [&mirror.from, &mirror.to].iter().all(|part| part.ends_with('/') && part.contains("://"));
            ensure!(
                whole,
                "the catalogue {origin}: mirror {:?}: from and to are addresses that end with /",
                mirror.from
            );
        }
        self.entries.extend(document.images.into_iter().map(|entry| (entry, origin.to_owned())));
        self.mirrors.extend(document.mirrors);
        Ok(())
    }

    /// The image of that name.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        let name = name.to_lowercase();
        let known = |entry: &Entry| entry.name == name || entry.aliases.contains(&name);
        self.entries.iter().rev().map(|(entry, _)| entry).find(|entry| known(entry))
    }

    /// What may have been meant.
    pub fn similar(&self, name: &str) -> Option<&str> {
        let name = name.to_lowercase();
        let family = name.split(':').next().unwrap_or_default();
        let names = self.entries.iter().flat_map(|(entry, _)| [&entry.name].into_iter().chain(&entry.aliases));
        let near = names.map(|known| (distance(&name, known), known.as_str()));
        let near = near.filter(|(distance, known)| *distance <= 2 || known.split(':').next() == Some(family));
        near.min().map(|(_, known)| known)
    }

    /// Those that a name leads to, sorted, with the file that each is from.
    fn visible(&self) -> Vec<&(Entry, String)> {
        let mut visible: BTreeMap<&str, &(Entry, String)> = BTreeMap::new();
        for pair in &self.entries {
            visible.insert(&pair.0.name, pair);
        }
        visible.into_values().collect()
    }

    /// Where a mirror has it. The longest beginning counts.
    pub fn mirrored(&self, url: &str) -> String {
        let fitting = self.mirrors.iter().rev().filter(|mirror| url.starts_with(&mirror.from));
        match fitting.max_by_key(|mirror| mirror.from.len()) {
            Some(mirror) => format!("{}{}", mirror.to, url.strip_prefix(&mirror.from).unwrap_or_default()),
            None => url.to_owned(),
        }
    }
}

impl Entry {
    fn check(&self) -> Result<()> {
        for name in [&self.name].into_iter().chain(&self.aliases) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:".contains(c);
            let good = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain);
            ensure!(
                good && name.matches(':').count() <= 1,
                "{name:?} is not a name such as debian:12 (small letters, digits, `-`, `.`, `_`)"
            );
        }
        ensure!(crate::shell::is_user(&self.user), "user: {:?} is not the name of a user", self.user);
        ensure!(!self.architectures.is_empty(), "architectures: there are none; give amd64, arm64 or s390x");
        for (architecture, place) in &self.architectures {
            place.check().with_context(|| format!("architectures.{architecture}"))?;
        }
        Ok(())
    }

    pub fn place(&self, architecture: &str) -> Result<&Place> {
        let known = || self.architectures.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let place = self.architectures.get(architecture);
        place.with_context(|| format!("the image {} is not there for {architecture}, only for {}", self.name, known()))
    }
}

impl Place {
    fn check(&self) -> Result<()> {
        match (&self.url, &self.registry) {
            (Some(_), None) | (None, Some(_)) => {}
            _ => bail!("give url or registry, and not both"),
        }
        for address in [&self.url, &self.checksums].into_iter().flatten() {
            ensure!(
                address.starts_with("https://") || address.starts_with("http://"),
                "{address:?} is not an address that begins with https:// or http://"
            );
        }
        if let Some(checksum) = &self.checksum {
            checksum.parse::<Checksum>()?;
        }
        if self.registry.is_some() && (self.checksum.is_some() || self.checksums.is_some()) {
            bail!("an image in a registry has no checksum; name its digest: registry: host/name@sha256:…");
        }
        Ok(())
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "yaml" || end == "yml")).collect();
    files.sort();
    files
}

/// How many letters have to change.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, above) in b.chars().zip(row.iter_mut().skip(1)) {
            let cost = (diagonal + usize::from(x != y)).min(left + 1).min(*above + 1);
            diagonal = std::mem::replace(above, cost);
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Catalog {
        Catalog::built_in().unwrap()
    }

    #[test]
    fn the_built_in_catalogue_is_whole() {
        let catalog = ours();
        let mut names = std::collections::BTreeSet::new();
        for (entry, _) in &catalog.entries {
            for name in [&entry.name].into_iter().chain(&entry.aliases) {
                assert!(names.insert(name.clone()), "{name} is there twice");
                assert_eq!(catalog.find(name).unwrap().name, entry.name);
            }
            assert!(entry.architectures.contains_key("amd64"), "{}", entry.name);
            for quantity in [&entry.memory, &entry.disk].into_iter().flatten() {
                quantity.parse::<ferrovirt_api::Quantity>().unwrap();
            }
            for place in entry.architectures.values().filter(|place| place.url.is_some()) {
                let addresses = [place.url.as_deref().unwrap(), place.checksums.as_deref().unwrap()];
                assert!(addresses.iter().all(|address| address.starts_with("https://")), "{}", entry.name);
            }
        }
        for family in ["demo", "debian", "ubuntu", "fedora", "centos-stream", "rocky", "opensuse", "alpine", "cirros"] {
            assert!(catalog.find(family).is_some(), "{family}");
        }
        assert_eq!(catalog.find("Debian:12").unwrap().user, "debian");
    }

    #[test]
    fn files_add_replace_and_lead_elsewhere() {
        let mut catalog = ours();
        let own = "images:\n- name: debian:12\n  aliases: [ours]\n  user: admin\n  architectures:\n    amd64: { url: 'http://h/d.img', checksum: 'sha256:SUM' }\n\
                   mirrors:\n- { from: 'https://', to: 'http://m/all/' }\n- { from: 'https://cloud.debian.org/images/', to: 'http://m/debian/' }\n";
        catalog.add(&own.replace("SUM", &"0".repeat(64)), "own").unwrap();
        assert_eq!(catalog.find("debian:12").unwrap().user, "admin");
        assert_eq!(catalog.find("ours").unwrap().user, "admin");
        assert_eq!(catalog.find("debian:13").unwrap().user, "debian");
        for (url, expected) in [
            ("https://cloud.debian.org/images/a.img", "http://m/debian/a.img"),
            ("https://cloud.debian.org.example/a", "http://m/all/cloud.debian.org.example/a"),
            ("http://h/d.img", "http://h/d.img"),
        ] {
            assert_eq!(catalog.mirrored(url), expected);
        }
        assert_eq!(catalog.visible().iter().filter(|(entry, _)| entry.name == "debian:12").count(), 1);
        assert!(catalog.find("debian:12").unwrap().place("s390x").unwrap_err().to_string().contains("only for amd64"));
    }

    #[test]
    fn mistakes_are_named() {
        let place = "architectures: { amd64: { url: 'https://h/i' } }";
        for (text, expected) in [
            ("images:\n- { name: a }", "user"),
            ("images:\n- { name: A b, user: me, PLACE }", "is not a name"),
            ("images:\n- { name: a, user: '-oProxyCommand=x', PLACE }", "not the name of a user"),
            ("images:\n- { name: a, user: me, architectures: { amd64: { } } }", "give url or registry"),
            ("images:\n- { name: a, user: me, architectures: { amd64: { url: 'file:///etc' } } }", "https://"),
            (
                "images:\n- { name: a, user: me, architectures: { amd64: { url: 'https://h/i', checksum: md5 } } }",
                "sha256",
            ),
            ("images:\n- { name: a, user: me, typo: 1, PLACE }", "typo"),
            ("mirrors: [{ from: 'https://h', to: 'http://m/' }]", "end with /"),
        ] {
            let error = Catalog::default().add(&text.replace("PLACE", place), "own").unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(expected) && error.contains("own"), "{text}: {error}");
        }
    }

    #[test]
    fn others_do_not_choose_what_boots() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.yaml");
        fs::write(&file, "images: []").unwrap();
        Catalog::default().read(&file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(Catalog::default().read(&file).unwrap_err().to_string().contains("written by others"));
    }

    #[test]
    fn what_was_meant_is_guessed() {
        let catalog = ours();
        for (name, expected) in [
            ("debain", Some("debian")),
            ("debian:11", Some("debian:12")),
            ("ubunut:24.04", Some("ubuntu:24.04")),
            ("something-else-entirely", None),
        ] {
            assert_eq!(catalog.similar(name), expected, "{name}");
        }
        assert_eq!((distance("", "abc"), distance("kitten", "sitting")), (3, 3));
    }
}
