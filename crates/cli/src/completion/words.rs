//! What a half-typed command line may go on with. Pure: what needs a cluster is asked for by name.

use std::{any::TypeId, path::PathBuf};

use clap::{Arg, ArgAction, Command};

use crate::client::ClientArgs;

/// What the last word may be, and where names are to be looked for.
pub struct Answer {
    pub wanted: Wanted,
    pub client: ClientArgs,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Words, each with a remark.
    Words(Vec<(String, String)>),
    Names(Names),
    Files,
}

/// Names of objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub kind: String,
    /// What stands before the name in the same word, such as `vm/` or `user@`.
    pub prefix: String,
    /// The beginning of the name.
    pub begun: String,
    /// Names that the command has already.
    pub taken: Vec<String>,
}

/// Kinds that people type all day.
const KINDS: &[&str] = &[
    "vms",
    "vmis",
    "pods",
    "nodes",
    "events",
    "datavolumes",
    "persistentvolumeclaims",
    "services",
    "secrets",
    "configmaps",
    "namespaces",
    "storageclasses",
    "virtualmachineinstancereplicasets",
    "network-attachment-definitions",
];

/// Commands whose words are names of VMs.
const OF_MACHINES: &[&str] = &[
    "start",
    "stop",
    "restart",
    "pause",
    "unpause",
    "reset",
    "soft-reboot",
    "console",
    "vnc",
    "screenshot",
    "ssh",
    "scp",
    "shell",
    "exec",
    "guestosinfo",
    "userlist",
    "fslist",
    "why",
    "add-ssh-key",
    "remove-ssh-key",
    "set-password",
];

/// Flags that may stand before the command.
const EARLY: &[(&str, &str)] = &[
    ("--kubeconfig", "kubeconfig"),
    ("--context", "context"),
    ("--namespace", "namespace"),
    ("-n", "namespace"),
    ("--data-dir", "data_dir"),
];

/// What was typed, as far as it is complete.
struct Typed<'a> {
    command: &'a Command,
    /// Names of the commands on the way.
    path: Vec<&'a str>,
    positionals: Vec<&'a str>,
    /// The flag whose value comes next.
    open: Option<&'a Arg>,
    early: Option<&'static str>,
    /// Nothing but words after `--`.
    literal: bool,
    client: ClientArgs,
}

pub fn complete(root: &Command, words: &[String]) -> Answer {
    let (current, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut typed = Typed {
        command: root,
        path: vec![],
        positionals: vec![],
        open: None,
        early: None,
        literal: false,
        client: ClientArgs::default(),
    };
    before.iter().skip(1).for_each(|word| typed.take(word));
    let wanted = typed.next(current);
    Answer { wanted, client: typed.client }
}

impl<'a> Typed<'a> {
    fn take(&mut self, word: &'a str) {
        if let Some(id) = self.early.take() {
            return self.remember(id, word);
        }
        if let Some(argument) = self.open.take() {
            return self.remember(argument.get_id().as_str(), word);
        }
        if self.literal {
            return self.positionals.push(word);
        }
        match word.split_once('=') {
            _ if word == "--" => self.literal = true,
            Some((flag, value)) if flag.starts_with('-') => {
                if let Some(argument) = flag_of(self.command, flag) {
                    self.remember(argument.get_id().as_str(), value);
                }
            }
            _ if word.starts_with('-') && word.len() > 1 => match flag_of(self.command, word) {
                Some(argument) => self.open = takes_next_word(argument).then_some(argument),
                None => self.early = EARLY.iter().find(|(flag, _)| *flag == word).map(|(_, id)| *id),
            },
            _ => match self.command.find_subcommand(word).filter(|_| self.positionals.is_empty()) {
                Some(command) => {
                    self.command = command;
                    self.path.push(command.get_name());
                }
                None => self.positionals.push(word),
            },
        }
    }

    fn remember(&mut self, id: &str, value: &str) {
        match id {
            "namespace" => self.client.namespace = Some(value.to_owned()),
            "kubeconfig" => self.client.kubeconfig = Some(value.into()),
            "data_dir" => self.client.data_dir = Some(value.into()),
            "context" => self.client.context = Some(value.to_owned()),
            _ => {}
        }
    }

    fn next(&self, current: &str) -> Wanted {
        if self.early == Some("namespace") {
            return names("namespaces", "", current, &[]);
        }
        if self.early.is_some() {
            return Wanted::Files;
        }
        if let Some(argument) = self.open {
            return value(argument, "", current);
        }
        if current.starts_with('-') && !self.literal {
            return match current
                .split_once('=')
                .and_then(|(flag, begun)| Some((flag_of(self.command, flag)?, flag, begun)))
            {
                Some((argument, flag, begun)) => value(argument, &format!("{flag}="), begun),
                None => flags(self.command, current),
            };
        }
        if self.command.has_subcommands() && self.positionals.is_empty() {
            let commands = self.command.get_subcommands().filter(|command| !command.is_hide_set());
            let words = commands.map(|c| (c.get_name().to_owned(), remark(c.get_about())));
            let words: Vec<_> = words.filter(|(name, _)| name.starts_with(current)).collect();
            // `vnc` has a command and takes a name; names are what people look for.
            let named = self.command.get_positionals().next().is_some();
            if !named || !(words.is_empty() || current.is_empty()) {
                return Wanted::Words(words);
            }
        }
        self.positional(current)
    }

    fn positional(&self, current: &str) -> Wanted {
        let command = self.path.last().copied().unwrap_or_default();
        let begun = current.rfind(['/', '@']).map_or(0, |position| position + 1);
        let (prefix, begun) = current.split_at_checked(begun).unwrap_or(("", current));
        let taken = &self.positionals;
        match (command, taken.as_slice()) {
            ("get" | "delete", []) if prefix.is_empty() => {
                let kinds = KINDS.iter().filter(|kind| kind.starts_with(begun));
                Wanted::Words(kinds.map(|kind| ((*kind).to_owned(), String::new())).collect())
            }
            ("get" | "delete", _) if prefix.ends_with('/') => names(prefix.trim_end_matches('/'), prefix, begun, taken),
            ("get" | "delete", [kind, rest @ ..]) => names(kind, prefix, begun, rest),
            ("expose", []) => kinds_of_machines(begun),
            ("expose", [kind]) => names(kind, prefix, begun, &[]),
            ("image-upload", []) => {
                let kinds = [("dv", "a DataVolume"), ("pvc", "a claim")];
                Wanted::Words(kinds.iter().map(|(kind, about)| ((*kind).to_owned(), (*about).to_owned())).collect())
            }
            ("image-upload", [kind]) => names(kind, prefix, begun, &[]),
            ("port-forward", []) => names("vms", prefix, begun, &[]),
            ("port-forward", _) => Wanted::Words(vec![]),
            // After the name comes a command of the guest.
            ("exec", [_, ..]) => Wanted::Words(vec![]),
            (name, taken) if OF_MACHINES.contains(&name) => {
                let kind = if prefix.starts_with("vmi/") || taken.first() == Some(&"vmi") { "vmis" } else { "vms" };
                names(kind, prefix, begun, taken)
            }
            _ => {
                let argument =
                    self.command.get_positionals().nth(taken.len()).or(self.command.get_positionals().last());
                argument.map_or(Wanted::Words(vec![]), |argument| value(argument, "", current))
            }
        }
    }
}

fn kinds_of_machines(begun: &str) -> Wanted {
    let kinds = [("vm", "a VM"), ("vmi", "an instance"), ("vmirs", "a replica set")];
    let fits = kinds.iter().filter(|(kind, _)| kind.starts_with(begun));
    Wanted::Words(fits.map(|(kind, about)| ((*kind).to_owned(), (*about).to_owned())).collect())
}

fn names(kind: &str, prefix: &str, begun: &str, taken: &[&str]) -> Wanted {
    let taken = taken.iter().map(|word| word.rsplit('/').next().unwrap_or(word).to_owned()).collect();
    Wanted::Names(Names { kind: kind.to_owned(), prefix: prefix.to_owned(), begun: begun.to_owned(), taken })
}

/// The values of an argument that begin like this.
fn value(argument: &Arg, prefix: &str, begun: &str) -> Wanted {
    if argument.get_id() == "namespace" {
        return names("namespaces", prefix, begun, &[]);
    }
    let possible = argument.get_possible_values();
    if !possible.is_empty() {
        let shown = possible.iter().filter(|value| !value.is_hide_set() && value.get_name().starts_with(begun));
        return Wanted::Words(shown.map(|v| (format!("{prefix}{}", v.get_name()), remark(v.get_help()))).collect());
    }
    let is_path = argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    match is_path || argument.get_id() == "file" {
        true => Wanted::Files,
        false => Wanted::Words(vec![]),
    }
}

fn flags(command: &Command, begun: &str) -> Wanted {
    let visible = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let mut words: Vec<(String, String)> = visible
        .filter_map(|argument| Some((format!("--{}", argument.get_long()?), remark(argument.get_help()))))
        .filter(|(flag, _)| flag.starts_with(begun))
        .collect();
    if "--help".starts_with(begun) && !words.iter().any(|(flag, _)| flag == "--help") {
        words.push(("--help".into(), "Print help".into()));
    }
    Wanted::Words(words)
}

fn remark(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(|text| text.to_string().lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
}

fn flag_of<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| match word.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => word
            .strip_prefix('-')
            .is_some_and(|short| argument.get_short().is_some_and(|letter| short.chars().eq([letter]))),
    })
}

/// False for switches, and for those whose value follows a `=`.
fn takes_next_word(argument: &Arg) -> bool {
    let takes = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    takes && !argument.is_require_equals_set()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Words with a comma, `kind[prefix|begun]`, or `files`.
    fn shown(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(Into::into).collect();
        let answer = complete(&crate::Cli::command(), &words);
        match answer.wanted {
            Wanted::Words(words) => words.into_iter().map(|(word, _)| word).collect::<Vec<_>>().join(","),
            Wanted::Names(names) => format!("{}[{}|{}]", names.kind, names.prefix, names.begun),
            Wanted::Files => "files".into(),
        }
    }

    #[test]
    fn words_go_on_with_what_fits() {
        for (line, expected) in [
            ("ferrovirt sta", "status,start"),
            ("ferrovirt start ", "vms[|]"),
            ("ferrovirt start de", "vms[|de]"),
            ("ferrovirt start vm/de", "vms[vm/|de]"),
            ("ferrovirt start a b", "vms[|b]"),
            ("ferrovirt why vmi/", "vmis[vmi/|]"),
            ("ferrovirt ssh demo@de", "vms[demo@|de]"),
            ("ferrovirt get no", "nodes"),
            ("ferrovirt get vms d", "vms[|d]"),
            ("ferrovirt get vm/d", "vm[vm/|d]"),
            ("ferrovirt delete pods x y", "pods[|y]"),
            ("ferrovirt get vms -n ", "namespaces[|]"),
            ("ferrovirt get vms --namespace=k", "namespaces[--namespace=|k]"),
            ("ferrovirt get vms -o y", "yaml"),
            ("ferrovirt get vms --output ", "json,yaml,name,wide"),
            ("ferrovirt -n ", "namespaces[|]"),
            ("ferrovirt -n x sto", "stop"),
            ("ferrovirt stop --gr", "--grace-period"),
            ("ferrovirt stop --force d", "vms[|d]"),
            ("ferrovirt apply -f ", "files"),
            ("ferrovirt status --data-dir ", "files"),
            ("ferrovirt expose ", "vm,vmi,vmirs"),
            ("ferrovirt expose vm d", "vm[|d]"),
            ("ferrovirt completion f", "fish"),
            ("ferrovirt create ", "vm"),
            ("ferrovirt vnc ", "vms[|]"),
            ("ferrovirt vnc scr", "screenshot"),
        ] {
            assert_eq!(shown(line), expected, "{line}");
        }
    }

    #[test]
    fn names_are_looked_for_where_the_command_will() {
        let words: Vec<String> =
            "ferrovirt start -n shop --data-dir=/d --kubeconfig k ".split(' ').map(Into::into).collect();
        let client = complete(&crate::Cli::command(), &words).client;
        assert_eq!(client.namespace.as_deref(), Some("shop"));
        assert_eq!(client.data_dir, Some("/d".into()));
        assert_eq!(client.kubeconfig, Some("k".into()));
    }

    #[test]
    fn names_that_are_there_are_not_offered_again() {
        let words: Vec<String> = "ferrovirt stop a vm/b ".split(' ').map(Into::into).collect();
        match complete(&crate::Cli::command(), &words).wanted {
            Wanted::Names(names) => assert_eq!(names.taken, ["a", "b"]),
            other => panic!("{other:?}"),
        }
    }
}
