//! Keys and passwords that follow the files of the launcher's container into the guest.

use std::fs;
use std::io;
use std::path::Path;

use ferrovirt_machine::protocol::{GuestCall, Secret};
use ferrovirt_machine::spec::Credential;

use super::{Agent, Memory, answer};
use crate::domain::DomainError;

/// Puts what changed into the guest; `applied` is what it has. One failure does not keep the others back.
pub async fn apply<A: Agent>(
    agent: &A,
    memory: &Memory,
    credentials: &[Credential],
    applied: &mut Vec<GuestCall>,
) -> Result<(), DomainError> {
    let mut failure = None;
    for call in calls(credentials)? {
        if applied.contains(&call) {
            continue;
        }
        match answer(agent, memory, call.clone()).await {
            Ok(_) => {
                applied.retain(|before| target(before) != target(&call));
                applied.push(call);
            }
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(()), Err)
}

/// What the agent has to be asked for, from what the files hold now.
fn calls(credentials: &[Credential]) -> Result<Vec<GuestCall>, DomainError> {
    let mut keys: Vec<(String, Vec<String>)> = vec![];
    let mut calls = vec![];
    for credential in credentials {
        match credential {
            Credential::SshKeys { users, dir } => {
                let found = keys_in(dir)?;
                for user in users {
                    // Several secrets may name one user; the agent replaces all keys of a user at once.
                    match keys.iter_mut().find(|(known, _)| known == user) {
                        Some((_, known)) => known.extend(found.iter().cloned()),
                        None => keys.push((user.clone(), found.clone())),
                    }
                }
            }
            Credential::Passwords { dir } => {
                for (user, text) in files(dir)? {
                    let password = Secret(text.trim_end_matches(['\r', '\n']).to_owned());
                    calls.push(GuestCall::SetPassword { user, password });
                }
            }
        }
    }
    calls.extend(keys.into_iter().map(|(user, keys)| GuestCall::SetSshKeys { user, keys }));
    Ok(calls)
}

/// The public keys in the files of a directory, one a line.
pub fn keys_in(dir: &str) -> Result<Vec<String>, DomainError> {
    let mut keys = vec![];
    for (_, text) in files(dir)? {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        keys.extend(lines.map(str::to_owned));
    }
    Ok(keys)
}

/// Names that start with two dots are how a secret's volume is swapped as a whole.
fn files(dir: &str) -> Result<Vec<(String, String)>, DomainError> {
    let read = || -> io::Result<Vec<(String, String)>> {
        let mut found = vec![];
        for entry in fs::read_dir(Path::new(dir))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with("..") && entry.path().is_file() {
                found.push((name, fs::read_to_string(entry.path())?));
            }
        }
        found.sort();
        Ok(found)
    };
    read().map_err(|source| DomainError::Credentials { dir: dir.to_owned(), source })
}

fn target(call: &GuestCall) -> Option<(&'static str, &str)> {
    match call {
        GuestCall::SetPassword { user, .. } => Some(("password", user)),
        GuestCall::SetSshKeys { user, .. } => Some(("keys", user)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_keys_and_passwords() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("keys/a", "ssh-ed25519 AAAA one\n# comment\n\n");
        write("keys/..data", "ssh-ed25519 hidden");
        write("more/b", "ssh-ed25519 BBBB two");
        write("passwords/demo", "secret\n");
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        let users = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let made = calls(&[
            Credential::SshKeys { users: users(&["demo", "root"]), dir: path("keys") },
            Credential::SshKeys { users: users(&["demo"]), dir: path("more") },
            Credential::Passwords { dir: path("passwords") },
        ])
        .unwrap();
        let keys = |user: &str, keys: &[&str]| GuestCall::SetSshKeys {
            user: user.into(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        assert_eq!(
            made,
            [
                GuestCall::SetPassword { user: "demo".into(), password: Secret("secret".into()) },
                keys("demo", &["ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"]),
                keys("root", &["ssh-ed25519 AAAA one"]),
            ]
        );
        assert!(calls(&[Credential::Passwords { dir: path("none") }]).is_err());
    }
}
