//! `ferrovirt get`: VMs with what people ask for first, everything else as the server prints it, or the objects themselves.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, WatchEvent},
    discovery::Scope,
};
use serde_json::Value;

use crate::{
    client::{ClientArgs, dynamic, find_kind},
    each, machines, table,
};

#[derive(Args)]
pub struct GetArgs {
    /// What to list: vms, vmis, pods, nodes, events, …; then names, if not all. Or KIND/NAME
    #[arg(required = true, value_name = "KIND [NAME]|KIND/NAME")]
    words: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// All namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Label selector
    #[arg(short = 'l', long)]
    selector: Option<String>,
    /// How to print [default: a table]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// Go on and print what changes
    #[arg(short, long)]
    watch: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
    Yaml,
    Name,
    Wide,
}

/// What is asked for: a kind, and some of its objects or all.
struct Query<'a> {
    client: &'a Client,
    api: Api<DynamicObject>,
    resource: &'a ApiResource,
    names: &'a [String],
    arguments: &'a GetArgs,
    /// The one that the tables are about, unless they are about all.
    namespace: Option<String>,
    namespaced: bool,
}

pub async fn run(arguments: GetArgs) -> Result<()> {
    let kinds = kinds_and_names(&arguments.words)?;
    if arguments.watch && kinds.len() > 1 {
        bail!("--watch follows one kind; give one");
    }
    if arguments.all_namespaces && kinds.iter().any(|(_, names)| !names.is_empty()) {
        bail!("a name is one of a namespace: leave -A away, or the name");
    }
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let several = kinds.len() > 1;
    let mut first = true;
    each::of(kinds, async |(kind, names)| {
        let (resource, capabilities) = find_kind(&client, &kind).await?;
        let namespaced = capabilities.scope == Scope::Namespaced;
        let api: Api<DynamicObject> = match arguments.all_namespaces {
            true => Api::all_with(client.clone(), &resource),
            false => dynamic(&client, &resource, &capabilities.scope, &namespace),
        };
        if several && !std::mem::take(&mut first) && matches!(arguments.output, None | Some(Output::Wide)) {
            println!();
        }
        let query = Query {
            client: &client,
            api,
            resource: &resource,
            names: &names,
            arguments: &arguments,
            namespace: (namespaced && !arguments.all_namespaces).then(|| namespace.clone()),
            namespaced,
        };
        query.answer().await
    })
    .await
}

/// `vms`, `vm a b`, `vm/a pod/b`, `vms,pods`: kinds, each with the names that are meant, or none for all.
pub fn kinds_and_names(words: &[String]) -> Result<Vec<(String, Vec<String>)>> {
    let mut all: Vec<(String, Vec<String>)> = vec![];
    let pairs = words.iter().filter(|word| word.contains('/')).count();
    match words {
        [] => {}
        _ if pairs == words.len() => {
            for word in words {
                let (kind, name) = word.split_once('/').unwrap_or((word, ""));
                if kind.is_empty() || name.is_empty() || name.contains('/') {
                    bail!("{word:?} is no object: write KIND/NAME, such as vm/demo");
                }
                match all.iter_mut().find(|(known, _)| known == kind) {
                    Some((_, names)) => names.push(name.to_owned()),
                    None => all.push((kind.to_owned(), vec![name.to_owned()])),
                }
            }
        }
        [kind, names @ ..] if pairs == 0 => {
            let kinds: Vec<&str> = kind.split(',').filter(|kind| !kind.is_empty()).collect();
            if kinds.is_empty() || (kinds.len() > 1 && !names.is_empty()) {
                bail!("{kind:?}: names belong to one kind; write KIND/NAME for objects of several");
            }
            all.extend(kinds.into_iter().map(|kind| (kind.to_owned(), names.to_vec())));
        }
        _ => bail!("write KIND NAME… or KIND/NAME…, not both"),
    }
    Ok(all)
}

impl Query<'_> {
    async fn answer(&self) -> Result<()> {
        let wide = self.arguments.output == Some(Output::Wide);
        let table = wide || self.arguments.output.is_none();
        match machines::Kind::of(self.resource) {
            Some(kind) if table => {
                let scope = machines::Scope {
                    client: self.client,
                    kind,
                    namespace: self.namespace.as_deref(),
                    names: self.names,
                    selector: self.arguments.selector.as_deref(),
                    wide,
                };
                match self.arguments.watch {
                    true => scope.watch().await,
                    false => scope.print().await,
                }
            }
            _ if table => self.table(wide).await,
            _ => self.objects().await,
        }
    }

    /// The objects themselves, in a form for programs.
    async fn objects(&self) -> Result<()> {
        let output = self.arguments.output;
        if self.arguments.watch {
            return self
                .follow("application/json", "", |object| match is_named(&object["metadata"], self.names) {
                    true => self.print_object(object, output),
                    false => Ok(()),
                })
                .await;
        }
        if self.names.is_empty() {
            let list = self.api.list(&self.list_params()).await?;
            if output == Some(Output::Name) {
                return list.items.iter().try_for_each(|item| self.print_object(&serde_json::to_value(item)?, output));
            }
            return self.print_object(&serde_json::to_value(list)?, output);
        }
        each::of(self.names.to_vec(), async |name| {
            self.print_object(&serde_json::to_value(self.api.get(&name).await?)?, output)
        })
        .await
    }

    fn print_object(&self, object: &Value, output: Option<Output>) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match output {
            Some(Output::Name) => println!("{}/{name}", self.resource.kind.to_lowercase()),
            Some(Output::Yaml) => {
                // One document each.
                if self.names.len() > 1 || self.arguments.watch {
                    println!("---");
                }
                print!("{}", serde_saphyr::to_string(object)?);
            }
            _ => println!("{object:#}"),
        }
        Ok(())
    }

    /// The table that the server makes.
    async fn table(&self, wide: bool) -> Result<()> {
        let mut pages = vec![];
        // What is followed is listed first, so that nothing is missed in between.
        let found = if self.names.is_empty() || self.arguments.watch {
            pages.push(self.ask(&format!("{}{}", self.api.resource_url(), self.query(""))).await?);
            Ok(())
        } else {
            each::of(self.names.to_vec(), async |name| {
                pages.push(self.ask(&format!("{}/{name}", self.api.resource_url())).await?);
                Ok(())
            })
            .await
        };
        let mut columns = Columns::of(pages.first().unwrap_or(&Value::Null), wide, self.with_namespace());
        let rows: Vec<Vec<String>> = pages.iter().flat_map(|page| columns.rows(page, self.names)).collect();
        let mut lines = table::Lines::new(&columns.header);
        if !rows.is_empty() {
            lines.print_all(&rows);
        } else if !self.arguments.watch && found.is_ok() {
            eprintln!("{}", none(&self.resource.plural, self.namespace.as_deref()));
        }
        if !self.arguments.watch {
            return found;
        }
        let listed = pages.first().and_then(|page| page["metadata"]["resourceVersion"].as_str()).unwrap_or_default();
        self.follow(TABLE, listed, |page| {
            if columns.header.is_empty() {
                columns = Columns::of(page, wide, self.with_namespace());
                lines = table::Lines::new(&columns.header);
            }
            columns.rows(page, self.names).iter().for_each(|row| lines.print(row));
            Ok(())
        })
        .await
    }

    fn with_namespace(&self) -> bool {
        self.arguments.all_namespaces && self.namespaced
    }

    async fn ask(&self, url: &str) -> Result<Value> {
        Ok(self.client.request(http::Request::get(url).header("Accept", TABLE).body(vec![])?).await?)
    }

    fn list_params(&self) -> ListParams {
        let params = ListParams::default();
        match &self.arguments.selector {
            Some(selector) => params.labels(selector),
            None => params,
        }
    }

    /// The selection as a query, with more of it.
    fn query(&self, more: &str) -> String {
        let mut parts = vec![];
        if let Some(selector) = &self.arguments.selector {
            parts.push(format!("labelSelector={}", encode(selector)));
        }
        if let ([name], true) = (self.names, self.arguments.watch) {
            parts.push(format!("fieldSelector=metadata.name%3D{}", encode(name)));
        }
        if !more.is_empty() {
            parts.push(more.to_owned());
        }
        if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
    }

    /// Watches until the user has seen enough. Servers end watches after a while; it goes on where it was.
    async fn follow(&self, accept: &str, from: &str, mut show: impl FnMut(&Value) -> Result<()>) -> Result<()> {
        let mut version = from.to_owned();
        loop {
            let more = match version.is_empty() {
                true => "watch=true".to_owned(),
                false => format!("watch=true&resourceVersion={version}"),
            };
            let url = format!("{}{}", self.api.resource_url(), self.query(&more));
            let request = http::Request::get(url).header("Accept", accept).body(vec![])?;
            let mut events = self.client.request_events::<Value>(request).await?.boxed();
            while let Some(event) = events.try_next().await? {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                        if let Some(seen) = seen_version(&object) {
                            version = seen.to_owned();
                        }
                        show(&object)?;
                    }
                    // What it had seen is too old: everything is told again.
                    WatchEvent::Error(_) => version.clear(),
                    WatchEvent::Bookmark(_) => {}
                }
            }
        }
    }
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io, application/json";

fn is_named(metadata: &Value, names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| metadata["name"] == name.as_str())
}

fn seen_version(object: &Value) -> Option<&str> {
    let row = &object["rows"][0]["object"]["metadata"]["resourceVersion"];
    row.as_str().or(object["metadata"]["resourceVersion"].as_str()).filter(|version| !version.is_empty())
}

pub fn none(plural: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("No {plural} in namespace {namespace}."),
        None => format!("No {plural}."),
    }
}

pub fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

/// Which cells of a server's table are shown.
struct Columns {
    shown: Vec<usize>,
    header: Vec<String>,
    with_namespace: bool,
}

impl Columns {
    fn of(answer: &Value, wide: bool, with_namespace: bool) -> Self {
        let empty = vec![];
        let columns = answer["columnDefinitions"].as_array().unwrap_or(&empty);
        let visible = columns.iter().enumerate().filter(|(_, c)| wide || c["priority"].as_i64().unwrap_or(0) == 0);
        let (shown, mut header): (Vec<usize>, Vec<String>) =
            visible.map(|(i, c)| (i, c["name"].as_str().unwrap_or_default().to_uppercase())).unzip();
        if with_namespace && !header.is_empty() {
            header.insert(0, "NAMESPACE".into());
        }
        Self { shown, header, with_namespace }
    }

    fn rows(&self, answer: &Value, names: &[String]) -> Vec<Vec<String>> {
        let rows = answer["rows"].as_array().into_iter().flatten();
        // A server that sends no metadata was asked for one object by its name.
        let named = |row: &&Value| row["object"]["metadata"].is_null() || is_named(&row["object"]["metadata"], names);
        rows.filter(named)
            .map(|row| {
                let cells = self.shown.iter().map(|i| cell(&row["cells"][*i]));
                let namespace = self.with_namespace.then(|| cell(&row["object"]["metadata"]["namespace"]));
                namespace.into_iter().chain(cells).collect()
            })
            .collect()
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_named_in_several_ways() {
        let shown = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(Into::into).collect();
            kinds_and_names(&words).map(|all| {
                let one = |(kind, names): &(String, Vec<String>)| format!("{kind}[{}]", names.join(" "));
                all.iter().map(one).collect::<Vec<_>>().join(" ")
            })
        };
        for (line, expected) in [
            ("vms", "vms[]"),
            ("vm a", "vm[a]"),
            ("vm a b", "vm[a b]"),
            ("vm/a", "vm[a]"),
            ("vm/a pod/b vm/c", "vm[a c] pod[b]"),
            ("vms,pods", "vms[] pods[]"),
            ("virtualmachines.kubevirt.io/a", "virtualmachines.kubevirt.io[a]"),
            ("", ""),
        ] {
            assert_eq!(shown(line).unwrap(), expected, "{line}");
        }
        for bad in ["vm a vm/b", "vm/a b", "vm/", "/a", "vm/a/b", "vms,pods a", ","] {
            assert!(shown(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tables_are_the_servers() {
        let answer = json!({
            "columnDefinitions": [{ "name": "Name" }, { "name": "Age" }, { "name": "IP", "priority": 1 }],
            "rows": [{ "cells": ["a", "5m", "10.0.0.1"], "object": { "metadata": { "namespace": "n" } } }],
        });
        let shown = |wide, with_namespace| {
            let columns = Columns::of(&answer, wide, with_namespace);
            (columns.header.join(" "), columns.rows(&answer, &[]).remove(0).join(" "))
        };
        assert_eq!(shown(false, false), ("NAME AGE".into(), "a 5m".into()));
        assert_eq!(shown(true, true), ("NAMESPACE NAME AGE IP".into(), "n a 5m 10.0.0.1".into()));
        assert!(Columns::of(&Value::Null, true, true).header.is_empty());
        let named = json!({ "rows": [{ "cells": [], "object": { "metadata": { "name": "a" } } }] });
        let rows = |name: &str| Columns::of(&answer, false, false).rows(&named, &[name.to_owned()]).len();
        assert_eq!((rows("a"), rows("b")), (1, 0));
    }
}
