//! Under which name the program was called. As `virtctl` or `kubectl-virt` it says what upstream's program says, because
//! scripts read it, and it does not wait.

use std::{ffi::OsString, path::Path, sync::OnceLock};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persona {
    Ferrovirt,
    Virtctl,
}

static CURRENT: OnceLock<Persona> = OnceLock::new();

pub fn of(program: Option<&OsString>) -> Persona {
    let name = program.and_then(|path| Path::new(path).file_name()).and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        "virtctl" => Persona::Virtctl,
        name if name.ends_with("-virt") || name.ends_with("-virtctl") => Persona::Virtctl,
        _ => Persona::Ferrovirt,
    }
}

pub fn set(persona: Persona) {
    let _ = CURRENT.set(persona);
}

pub fn is_virtctl() -> bool {
    CURRENT.get() == Some(&Persona::Virtctl)
}

/// Of a flag that is given twice upstream's program takes the last one.
pub fn lenient(command: clap::Command) -> clap::Command {
    command.args_override_self(is_virtctl())
}

/// Flags that may stand before the command, with the value that follows each.
const EARLY: &[&str] = &["--kubeconfig", "--context", "--namespace", "-n", "--data-dir"];

/// Whether one of these words is that flag, in either of its forms.
fn gives(words: &[OsString], flag: &str) -> bool {
    let forms: &[&str] = if ["-n", "--namespace"].contains(&flag) { &["-n", "--namespace"] } else { &[flag] };
    words.iter().map(|word| word.to_string_lossy()).any(|word| {
        forms.iter().any(|form| {
            let value = word.strip_prefix(form);
            value.is_some_and(|value| value.is_empty() || value.starts_with('=') || !form.starts_with("--"))
        })
    })
}

/// Moves flags from before the command to its end, where the command takes them. Those that come again after the command are
/// left out: the last one counts.
pub fn reorder(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut words = arguments.into_iter();
    let mut out: Vec<OsString> = words.next().into_iter().collect();
    let mut early: Vec<Vec<OsString>> = vec![];
    let mut rest: Vec<OsString> = vec![];
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if EARLY.contains(&&*text) {
            drop(text);
            early.push([word].into_iter().chain(words.next()).collect());
        } else if EARLY.iter().any(|flag| text.starts_with(&format!("{flag}="))) {
            drop(text);
            early.push(vec![word]);
        } else {
            drop(text);
            rest.push(word);
            rest.extend(words.by_ref());
        }
    }
    let end = rest.iter().position(|word| word == "--").unwrap_or(rest.len());
    let tail = rest.split_off(end);
    early.retain(|words| {
        let flag = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        !gives(&rest, flag.split('=').next().unwrap_or_default())
    });
    out.extend(rest);
    out.extend(early.into_iter().flatten());
    out.extend(tail);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_makes_the_program() {
        for (name, persona) in [
            ("/usr/local/bin/ferrovirt", Persona::Ferrovirt),
            ("virtctl", Persona::Virtctl),
            ("/x/kubectl-virt", Persona::Virtctl),
            ("./oc-virt", Persona::Virtctl),
        ] {
            assert_eq!(of(Some(&name.into())), persona, "{name}");
        }
    }

    #[test]
    fn of_a_flag_that_is_given_twice_the_last_one_counts() {
        let command =
            || clap::Command::new("x").subcommand(clap::Command::new("y").arg(clap::arg!(-n --namespace <N>)));
        let words = ["x", "y", "-n", "a", "--namespace", "b"];
        assert!(command().try_get_matches_from(words).is_err(), "it is an error of ours");
        let matches = command().args_override_self(true).try_get_matches_from(words).unwrap();
        let (_, matches) = matches.subcommand().unwrap();
        assert_eq!(matches.get_one::<String>("namespace").map(String::as_str), Some("b"));
    }

    #[test]
    fn flags_may_come_first() {
        let check = |line: &str, expected: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let out: Vec<String> = reorder(words).iter().map(|word| word.to_string_lossy().into_owned()).collect();
            assert_eq!(out.join(" "), expected);
        };
        check("virtctl -n a start b", "virtctl start b -n a");
        check(
            "virtctl --kubeconfig=k --context c create vm --name x",
            "virtctl create vm --name x --kubeconfig=k --context c",
        );
        check("virtctl -n a ssh b -- ls -n", "virtctl ssh b -n a -- ls -n");
        check("virtctl start b", "virtctl start b");
        // The last one counts.
        check("virtctl -n a ssh --namespace b x", "virtctl ssh --namespace b x");
        check("virtctl --namespace=a ssh x -nb", "virtctl ssh x -nb");
        check("virtctl -n a ssh x -- -n b", "virtctl ssh x -n a -- -n b");
        check("virtctl -n a start --name b", "virtctl start --name b -n a");
    }
}
