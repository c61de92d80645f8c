//! `ferrovirt completion SHELL`: a script that completes commands, flags and the names of objects.
//!
//! bash, zsh and fish ask this program for every word (the hidden command `__complete`), so what they offer is what is there.
//! The other shells get what the parser's generator makes, which knows no objects.

mod words;

use std::{ffi::OsString, time::Duration};

use anyhow::Result;
use clap::{Args, CommandFactory};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    discovery::Scope,
};

use crate::{
    client::{ClientArgs, find_kind},
    output, persona,
};
use words::{Names, Wanted};

/// How long somebody who pressed a key waits for names.
const PATIENCE: Duration = Duration::from_secs(2);
/// What a shell can show.
const MOST: u32 = 500;

#[derive(Args)]
pub struct CompletionArgs {
    /// The shell
    shell: clap_complete::Shell,
}

pub fn script<C: CommandFactory>(arguments: &CompletionArgs) {
    let name = if persona::is_virtctl() { "virtctl" } else { "ferrovirt" };
    let script = match arguments.shell {
        clap_complete::Shell::Bash => include_str!("bash.bash").replace("ferrovirt", name).into_bytes(),
        clap_complete::Shell::Zsh => include_str!("zsh.zsh").replace("ferrovirt", name).into_bytes(),
        clap_complete::Shell::Fish => include_str!("fish.fish").replace("ferrovirt", name).into_bytes(),
        other => {
            let mut script = vec![];
            clap_complete::generate(other, &mut C::command(), name, &mut script);
            script
        }
    };
    output::bytes(&script);
}

#[derive(Args)]
pub struct CompleteArgs {
    /// The words so far, from the program's name on; the last one is the one to complete
    #[arg(last = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Prints what the last word may be, one a line, each with a remark behind a tab. `:files` means that it is a file.
pub async fn complete<C: CommandFactory>(arguments: CompleteArgs) -> Result<()> {
    let words: Vec<String> = arguments.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let answer = words::complete(&C::command(), &words);
    match answer.wanted {
        Wanted::Words(words) => {
            for (word, remark) in words {
                println!("{word}\t{remark}");
            }
        }
        Wanted::Files => println!(":files"),
        Wanted::Names(names) => {
            // Without a cluster there are no names, and nobody to tell about it.
            let found = tokio::time::timeout(PATIENCE, find(&answer.client, &names.kind)).await;
            for name in found.ok().and_then(Result::ok).unwrap_or_default() {
                if let Some(line) = offered(&names, &name) {
                    println!("{line}");
                }
            }
        }
    }
    Ok(())
}

/// What was typed and what is added to it.
fn offered(names: &Names, name: &str) -> Option<String> {
    let fits = name.starts_with(&names.begun) && !names.taken.iter().any(|taken| taken == name);
    fits.then(|| format!("{}{name}\t{}", names.prefix, names.kind))
}

async fn find(arguments: &ClientArgs, kind: &str) -> Result<Vec<String>> {
    let client: Client = arguments.connect().await?;
    let (resource, capabilities) = find_kind(&client, kind).await?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), arguments.namespace(&client), &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let list = api.list_metadata(&ListParams::default().limit(MOST)).await?;
    Ok(list.items.into_iter().filter_map(|object| object.metadata.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_what_was_typed() {
        let names =
            Names { kind: "vms".into(), prefix: "vm/".into(), begun: "de".into(), taken: vec!["debian".into()] };
        assert_eq!(offered(&names, "demo").as_deref(), Some("vm/demo\tvms"));
        assert_eq!(offered(&names, "web"), None);
        assert_eq!(offered(&names, "debian"), None, "it is there already");
    }

    #[test]
    fn every_shell_has_a_script() {
        for script in [include_str!("bash.bash"), include_str!("zsh.zsh"), include_str!("fish.fish")] {
            assert!(script.contains("__complete"), "{script}");
        }
    }
}
