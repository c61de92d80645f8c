//! `ferrovirt images`: what `run` knows by name.

use anyhow::{Context, Result};
use clap::Args;

use super::{Catalog, CatalogArgs, Entry};
use crate::table;

#[derive(Args)]
pub struct ImagesArgs {
    /// Say everything about these; all are listed otherwise
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    catalog: CatalogArgs,
}

pub fn run(arguments: &ImagesArgs) -> Result<()> {
    let catalog = Catalog::load(&arguments.catalog)?;
    if arguments.names.is_empty() {
        let header = ["IMAGE", "ALSO", "USER", "MEMORY", "DISK", "ARCHITECTURES", "FROM"].map(str::to_owned);
        let rows = catalog.visible().into_iter().map(|(entry, origin)| row(entry, origin));
        table::print(&header, &rows.collect::<Vec<_>>());
        return Ok(());
    }
    for name in &arguments.names {
        let entry = catalog.find(name).with_context(|| unknown(&catalog, name))?;
        describe(&catalog, entry);
    }
    Ok(())
}

/// What to say of a name that the catalogue does not have.
pub fn unknown(catalog: &Catalog, name: &str) -> String {
    let guess = catalog.similar(name).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("there is no image {name:?} in the catalogue{guess} (`ferrovirt images` lists it)")
}

fn row(entry: &Entry, origin: &str) -> Vec<String> {
    // The short names; `x:latest` goes without saying.
    let short = entry.aliases.iter().filter(|alias| !alias.ends_with(":latest")).cloned().collect::<Vec<_>>();
    let or_default = |value: &Option<String>| value.clone().unwrap_or_default();
    vec![
        entry.name.clone(),
        short.join(", "),
        entry.user.clone(),
        or_default(&entry.memory),
        or_default(&entry.disk),
        entry.architectures.keys().cloned().collect::<Vec<_>>().join(", "),
        origin.to_owned(),
    ]
}

fn describe(catalog: &Catalog, entry: &Entry) {
    println!("{}  {}", entry.name, entry.title);
    println!("  log in as {}", entry.user);
    for (architecture, place) in &entry.architectures {
        let from = match (&place.url, &place.registry) {
            (Some(url), _) => catalog.mirrored(url),
            (None, Some(reference)) => format!("docker://{reference}"),
            (None, None) => String::new(),
        };
        println!("  {architecture}: {from}");
        match (&place.checksum, &place.checksums) {
            (Some(checksum), _) => println!("    checked: {checksum}"),
            (None, Some(url)) => println!("    checked: {}", catalog.mirrored(url)),
            (None, None) => {}
        }
    }
}
