//! Next steps that can be typed as they are printed: with the namespace and the host that this command was told.
//!
//! What the environment says (`KUBECONFIG`, `FERROVIRT_DATA_DIR`) is there for the next command, too, and is not repeated.

use std::{path::Path, sync::OnceLock};

use clap::{ArgMatches, CommandFactory as _, parser::ValueSource};

/// The words that every printed command ends with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    namespace: Option<String>,
    data_dir: Option<String>,
    kubeconfig: Option<String>,
    context: Option<String>,
}

static CURRENT: OnceLock<Flags> = OnceLock::new();

/// Remembers what was typed.
pub fn remember(matches: &ArgMatches) {
    let _ = CURRENT.set(Flags::of(matches));
}

/// What was typed.
pub fn flags() -> Flags {
    CURRENT.get().cloned().unwrap_or_default()
}

/// `ferrovirt COMMAND`, for the same cluster and namespace as this command's.
pub fn ferrovirt(command: &str) -> String {
    flags().ferrovirt(command)
}

impl Flags {
    pub fn of(matches: &ArgMatches) -> Self {
        // Commands have commands; the last one has the flags.
        let mut last = matches;
        while let Some((_, inner)) = last.subcommand() {
            last = inner;
        }
        let typed = |id: &str| -> Option<String> {
            last.try_contains_id(id).ok().filter(|given| *given)?;
            (last.value_source(id) == Some(ValueSource::CommandLine)).then_some(())?;
            Some(last.get_raw(id)?.next()?.to_string_lossy().into_owned())
        };
        Self {
            namespace: typed("namespace"),
            data_dir: typed("data_dir"),
            kubeconfig: typed("kubeconfig"),
            context: typed("context"),
        }
    }

    /// The same, for an object that was found in this namespace.
    pub fn in_namespace(mut self, namespace: Option<&str>) -> Self {
        if let Some(namespace) = namespace {
            self.namespace = Some(namespace.to_owned());
        }
        self
    }

    pub fn ferrovirt(&self, command: &str) -> String {
        let mut text = format!("ferrovirt {command}");
        let flags = [
            ("-n", "namespace", &self.namespace),
            ("--data-dir", "data_dir", &self.data_dir),
            ("--kubeconfig", "kubeconfig", &self.kubeconfig),
            ("--context", "context", &self.context),
        ];
        // Those that are about a host of this machine know no namespaces.
        let flags = flags.map(|(flag, id, value)| (flag, value.as_deref().filter(|_| takes(command, id))));
        append(&mut text, flags);
        text
    }

    /// kubectl knows no data directories, but the kubeconfig in each.
    pub fn kubectl(&self, command: &str) -> String {
        let mut text = format!("kubectl {command}");
        let own = self.data_dir.as_ref().map(|directory| Path::new(directory).join("kubeconfig").display().to_string());
        let kubeconfig = self.kubeconfig.clone().or(own);
        let flags = [
            ("-n", self.namespace.as_deref()),
            ("--kubeconfig", kubeconfig.as_deref()),
            ("--context", self.context.as_deref()),
        ];
        append(&mut text, flags);
        text
    }
}

/// Whether a command has this flag.
fn takes(command: &str, id: &str) -> bool {
    let mut known = crate::Cli::command();
    for word in command.split(' ') {
        match known.find_subcommand(word) {
            Some(inner) => known = inner.clone(),
            None => break,
        }
    }
    known.get_arguments().any(|argument| argument.get_id() == id)
}

fn append<const N: usize>(text: &mut String, flags: [(&str, Option<&str>); N]) {
    for (flag, value) in flags {
        // A command that names its own keeps it, and one for all namespaces has none.
        let own = text.split(' ').any(|word| word == flag || (flag == "-n" && word == "-A"));
        if let (Some(value), false) = (value, own) {
            *text += &format!(" {flag} {}", quoted(value));
        }
    }
}

/// As a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags_of(line: &str) -> Flags {
        Flags::of(&crate::Cli::command().get_matches_from(line.split(' ')))
    }

    #[test]
    fn what_was_typed_is_typed_again() {
        let rows = [
            ("ferrovirt why a", "ferrovirt start a", "kubectl get pods"),
            ("ferrovirt why a -n b", "ferrovirt start a -n b", "kubectl get pods -n b"),
            (
                "ferrovirt why a --data-dir /d",
                "ferrovirt start a --data-dir /d",
                "kubectl get pods --kubeconfig /d/kubeconfig",
            ),
            ("ferrovirt create vm --name x -n b", "ferrovirt start a -n b", "kubectl get pods -n b"),
            (
                "ferrovirt get vms -n b --kubeconfig k --context c",
                "ferrovirt start a -n b --kubeconfig k --context c",
                "kubectl get pods -n b --kubeconfig k --context c",
            ),
            (
                "ferrovirt status --data-dir /d",
                "ferrovirt start a --data-dir /d",
                "kubectl get pods --kubeconfig /d/kubeconfig",
            ),
        ];
        for (line, ferrovirt, kubectl) in rows {
            let flags = flags_of(line);
            assert_eq!(flags.ferrovirt("start a"), ferrovirt, "{line}");
            assert_eq!(flags.kubectl("get pods"), kubectl, "{line}");
        }
    }

    #[test]
    fn a_command_with_a_namespace_of_its_own_keeps_it() {
        let flags = flags_of("ferrovirt why a -n b --data-dir /d");
        assert_eq!(flags.ferrovirt("why a -n other"), "ferrovirt why a -n other --data-dir /d");
        assert_eq!(flags.ferrovirt("get vms -A"), "ferrovirt get vms -A --data-dir /d");
        assert_eq!(flags.clone().in_namespace(Some("c")).ferrovirt("why a"), "ferrovirt why a -n c --data-dir /d");
        assert_eq!(flags.ferrovirt("status"), "ferrovirt status --data-dir /d");
        assert_eq!(flags.in_namespace(None).ferrovirt("why a"), "ferrovirt why a -n b --data-dir /d");
    }

    #[test]
    fn words_survive_a_shell() {
        for (word, expected) in [("a", "a"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("", "''"), ("/x-1.y", "/x-1.y")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
