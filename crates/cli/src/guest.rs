//! Commands on a running guest: pause, unpause, reset, soft-reboot, and what its agent says.

use anyhow::Result;
use clap::{Args, ValueEnum};
use ferrovirt_api::v1::PauseOptions;
use serde_json::Value;

use crate::{
    client::ClientArgs,
    each, persona, power, socket, table,
    target::{self, Kind, Named},
};

#[derive(Args)]
pub struct PauseArgs {
    /// The VMs, optionally with the word `vm` or `vmi` before them
    #[arg(required = true, num_args = 1.., value_name = "NAME")]
    words: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Only say what would happen
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    dry_run: bool,
}

#[derive(Args)]
pub struct GuestArgs {
    /// The VMs, optionally with the word `vm` or `vmi` before them
    #[arg(required = true, num_args = 1.., value_name = "NAME")]
    words: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args)]
pub struct InfoArgs {
    /// The VM, optionally with the word `vm` or `vmi` before it
    #[arg(required = true, num_args = 1..=2, value_name = "NAME")]
    words: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// How to print it [default: a table; json as virtctl]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Json,
    Yaml,
    Table,
}

pub async fn pause(verb: &str, arguments: PauseArgs) -> Result<()> {
    let options = PauseOptions { dry_run: power::dry_run(arguments.dry_run) };
    if arguments.dry_run && persona::is_virtctl() {
        println!("Dry Run execution");
    }
    let guest = GuestArgs { words: arguments.words, client: arguments.client };
    put(verb, verb, guest, serde_json::to_vec(&options)?, arguments.dry_run).await
}

pub async fn ask(verb: &str, arguments: GuestArgs) -> Result<()> {
    let subresource = if verb == "soft-reboot" { "softreboot" } else { verb };
    put(verb, subresource, arguments, vec![], false).await
}

async fn put(verb: &str, subresource: &str, arguments: GuestArgs, options: Vec<u8>, dry_run: bool) -> Result<()> {
    let all = target::several(&arguments.words)?;
    let client = arguments.client.connect().await?;
    let default = arguments.client.namespace(&client);
    each::of(all, async |named| {
        let namespace = named.namespace.as_deref().unwrap_or(default);
        // An instance has the name of its VM.
        let path = socket::path(namespace, Kind::Instance.resource(), &named.name, subresource);
        client.request_text(http::Request::put(path).body(options.clone())?).await?;
        said(verb, &named, dry_run);
        Ok(())
    })
    .await
}

fn said(verb: &str, named: &Named, dry_run: bool) {
    let name = &named.name;
    if persona::is_virtctl() {
        println!("VMI {name} was scheduled to {verb}");
        return;
    }
    let kind = named.kind.short();
    println!(
        "{kind}/{name} {}",
        match verb {
            _ if dry_run => "would be accepted (dry run)",
            "pause" => "is paused",
            "unpause" => "goes on",
            "reset" => "was reset",
            _ => "was asked to reboot",
        }
    );
}

pub async fn info(subresource: &str, arguments: InfoArgs) -> Result<()> {
    let named = target::words(&arguments.words)?;
    let client = arguments.client.connect().await?;
    let namespace = named.namespace.clone().unwrap_or_else(|| arguments.client.namespace(&client).to_owned());
    let path = socket::path(&namespace, Kind::Instance.resource(), &named.name, subresource);
    let request = http::Request::get(path).header("Accept", "application/json").body(vec![])?;
    let answer: Value = client.request(request).await?;
    let default = if persona::is_virtctl() { Output::Json } else { Output::Table };
    match arguments.output.unwrap_or(default) {
        // Upstream indents by two.
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(&answer)?),
        Output::Table => print(subresource, &answer),
    }
    Ok(())
}

fn print(subresource: &str, answer: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let header = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    match subresource {
        "userlist" => {
            let rows = items.iter().map(|user| {
                let time = user["loginTime"].as_f64().and_then(since);
                vec![text(&user["userName"]), text(&user["domain"]), time.unwrap_or_default()]
            });
            table::print(&header(&["USER", "DOMAIN", "SINCE"]), &rows.collect::<Vec<_>>());
        }
        "filesystemlist" => {
            let rows = items.iter().map(|fs| {
                let bytes = |key: &str| fs[key].as_u64().map(size).unwrap_or_default();
                vec![
                    text(&fs["mountPoint"]),
                    text(&fs["diskName"]),
                    text(&fs["fileSystemType"]),
                    bytes("usedBytes"),
                    bytes("totalBytes"),
                ]
            });
            table::print(&header(&["MOUNT POINT", "DISK", "TYPE", "USED", "SIZE"]), &rows.collect::<Vec<_>>());
        }
        _ => {
            let os = &answer["os"];
            for (label, value) in [
                ("system", &os["prettyName"]),
                ("kernel", &os["kernelRelease"]),
                ("machine", &os["machine"]),
                ("host name", &answer["hostname"]),
                ("time zone", &answer["timezone"]),
                ("guest agent", &answer["guestAgentVersion"]),
                ("file systems", &answer["fsFreezeStatus"]),
            ] {
                if let Some(value) = value.as_str().filter(|value| !value.is_empty()) {
                    println!("{label:<13} {value}");
                }
            }
        }
    }
}

fn since(seconds: f64) -> Option<String> {
    // The agent counts seconds since 1970 with a fraction that nobody wants to see.
    #[allow(clippy::cast_possible_truncation)]
    let time = jiff::Timestamp::from_second(seconds as i64).ok()?;
    Some(time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut whole = bytes;
    let mut tenths = 0;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        tenths = whole % 1024 * 10 / 1024;
        whole /= 1024;
        unit += 1;
    }
    let name = UNITS.get(unit).unwrap_or(&"B");
    match unit {
        0 => format!("{whole} {name}"),
        _ => format!("{whole}.{tenths} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
            (1 << 52, "4096.0 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
