//! What a cloud-init data disk says, read from its files. Pure apart from reading them.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::users::DEFAULT_USER;

#[derive(Debug, Default, PartialEq)]
pub struct Data {
    pub source: String,
    pub instance_id: String,
    pub hostname: Option<String>,
    pub user_data: UserData,
    pub network: Option<Value>,
}

#[derive(Debug, Default, PartialEq)]
pub enum UserData {
    #[default]
    None,
    Config(Box<Config>),
    Script(String),
    /// Its first line, to show.
    Unknown(String),
}

#[derive(Debug, Default, PartialEq)]
pub struct Config {
    pub hostname: Option<String>,
    pub users: Vec<User>,
    pub files: Vec<WriteFile>,
    pub boot_commands: Vec<String>,
    pub run_commands: Vec<String>,
    pub ssh_passwords: Option<bool>,
    /// The ssh server's own private key.
    pub host_key: Option<String>,
    /// Keys that this guest does not act on.
    pub ignored: Vec<String>,
}

#[derive(Debug, Default, PartialEq)]
pub struct User {
    pub name: String,
    pub uid: Option<u32>,
    pub gecos: Option<String>,
    pub shell: Option<String>,
    pub groups: Vec<String>,
    pub password: Option<String>,
    pub ssh_keys: Vec<String>,
}

#[derive(Debug, Default, PartialEq)]
pub struct WriteFile {
    pub path: String,
    pub content: String,
    pub encoding: String,
    pub permissions: Option<u32>,
    pub owner: Option<String>,
    pub append: bool,
}

/// Reads the data set in a directory, of either layout.
pub fn read(dir: &Path) -> Result<Data> {
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let drive = dir.join("openstack/latest");
    let (source, meta, user, network) = if drive.is_dir() {
        ("ConfigDrive", text("openstack/latest/meta_data.json"), text("openstack/latest/user_data"), None)
    } else {
        ("NoCloud", text("meta-data"), text("user-data"), text("network-config"))
    };
    let meta = match meta {
        Some(text) => yaml(&text).context("the meta-data is not YAML")?,
        None => Value::Null,
    };
    let field = |names: &[&str]| names.iter().find_map(|n| scalar(&meta[*n]));
    let mut user_data = parse_user_data(user.as_deref().unwrap_or_default())?;
    let keys = meta_keys(&meta);
    if let UserData::Config(config) = &mut user_data
        && !keys.is_empty()
    {
        config.default_user().ssh_keys.extend(keys);
    }
    Ok(Data {
        source: source.into(),
        instance_id: field(&["instance-id", "instance_id", "uuid"]).unwrap_or_else(|| "nocloud".into()),
        hostname: field(&["local-hostname", "local_hostname", "hostname"]),
        user_data,
        network: network
            .filter(|t| !t.trim().is_empty())
            .map(|t| yaml(&t))
            .transpose()
            .context("the network-config is not YAML")?,
    })
}

pub fn parse_user_data(text: &str) -> Result<UserData> {
    let first = text.lines().next().unwrap_or_default().trim_end();
    if text.trim().is_empty() {
        return Ok(UserData::None);
    }
    if first.starts_with("#!") {
        return Ok(UserData::Script(text.to_string()));
    }
    if first != "#cloud-config" {
        return Ok(UserData::Unknown(first.to_string()));
    }
    let value = yaml(text).context("the user-data is not YAML")?;
    Ok(UserData::Config(Box::new(config(&value))))
}

impl Config {
    fn default_user(&mut self) -> &mut User {
        let name = DEFAULT_USER.to_string();
        self.user(&name)
    }

    fn user(&mut self, name: &str) -> &mut User {
        let at = self.users.iter().position(|u| u.name == name).unwrap_or_else(|| {
            let groups = if name == DEFAULT_USER { vec!["sudo".to_string()] } else { vec![] };
            self.users.push(User { name: name.to_string(), groups, ..User::default() });
            self.users.len() - 1
        });
        &mut self.users[at]
    }
}

fn config(value: &Value) -> Config {
    let mut c = Config::default();
    // `user:` renames the default user; its settings are those of the top level.
    let default = scalar(&value["user"]).or_else(|| scalar(&value["user"]["name"])).unwrap_or(DEFAULT_USER.into());
    for entry in list(&value["users"]) {
        match entry {
            Value::String(name) if name == "default" => {
                c.user(&default);
            }
            Value::String(name) => {
                c.user(name);
            }
            entry => user(&mut c, entry),
        }
    }
    if let Some(password) = scalar(&value["password"]) {
        c.user(&default).password = Some(password);
    }
    let keys = strings(&value["ssh_authorized_keys"]);
    if !keys.is_empty() {
        c.user(&default).ssh_keys.extend(keys);
    }
    if default != DEFAULT_USER && c.users.iter().any(|u| u.name == default) {
        c.user(&default).groups.push("sudo".into());
    }
    passwords(&mut c, &value["chpasswd"]);

    let short = |name: String| name.split('.').next().unwrap_or_default().to_string();
    c.hostname = scalar(&value["hostname"]).or_else(|| scalar(&value["fqdn"])).map(short);
    c.files = list(&value["write_files"]).iter().filter_map(write_file).collect();
    c.boot_commands = list(&value["bootcmd"]).iter().map(command).collect();
    c.run_commands = list(&value["runcmd"]).iter().map(command).collect();
    c.ssh_passwords = flag(&value["ssh_pwauth"]);
    c.host_key = scalar(&value["ssh_keys"]["ed25519_private"]);
    const KNOWN: &[&str] = &[
        "user",
        "users",
        "password",
        "ssh_authorized_keys",
        "chpasswd",
        "hostname",
        "fqdn",
        "write_files",
        "bootcmd",
        "runcmd",
        "ssh_pwauth",
        "ssh_keys",
        "ssh_deletekeys",
        "ssh_genkeytypes",
        "preserve_hostname",
        "manage_etc_hosts",
        "prefer_fqdn_over_hostname",
    ];
    if let Some(map) = value.as_object() {
        c.ignored = map.keys().filter(|k| !KNOWN.contains(&k.as_str())).cloned().collect();
    }
    c
}

fn user(c: &mut Config, entry: &Value) {
    let Some(name) = scalar(&entry["name"]) else {
        return;
    };
    let u = c.user(&name);
    u.uid = scalar(&entry["uid"]).and_then(|t| t.parse().ok());
    u.gecos = scalar(&entry["gecos"]);
    u.shell = scalar(&entry["shell"]);
    let groups = match &entry["groups"] {
        Value::String(text) => text.split(',').map(|g| g.trim().to_string()).collect(),
        other => strings(other),
    };
    u.groups.extend(groups.into_iter().filter(|g| !g.is_empty()));
    if !matches!(&entry["sudo"], Value::Null | Value::Bool(false)) && !u.groups.iter().any(|g| g == "sudo") {
        u.groups.push("sudo".into());
    }
    u.ssh_keys.extend(strings(&entry["ssh_authorized_keys"]));
    u.password = ["hashed_passwd", "passwd", "plain_text_passwd"].iter().find_map(|k| scalar(&entry[*k]));
    // A password set here is locked unless the entry says otherwise.
    if flag(&entry["lock_passwd"]).unwrap_or(true) {
        u.password = None;
    }
}

fn passwords(c: &mut Config, value: &Value) {
    let text = scalar(&value["list"]).unwrap_or_default();
    let lines: Vec<String> = text.lines().map(String::from).chain(strings(&value["list"])).collect();
    for (name, password) in lines.iter().filter_map(|l| l.trim().split_once(':')) {
        c.user(name).password = Some(password.to_string());
    }
    for entry in list(&value["users"]) {
        if let (Some(name), Some(password)) = (scalar(&entry["name"]), scalar(&entry["password"])) {
            c.user(&name).password = Some(password);
        }
    }
}

fn write_file(entry: &Value) -> Option<WriteFile> {
    Some(WriteFile {
        path: scalar(&entry["path"])?,
        content: scalar(&entry["content"]).unwrap_or_default(),
        encoding: scalar(&entry["encoding"]).unwrap_or_default(),
        permissions: match &entry["permissions"] {
            Value::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()),
            other => scalar(other).and_then(|t| u32::from_str_radix(t.trim_start_matches("0o"), 8).ok()),
        },
        owner: scalar(&entry["owner"]),
        append: flag(&entry["append"]).unwrap_or(false),
    })
}

/// A command as a line of shell: a string is one already, a list is an argument vector.
fn command(value: &Value) -> String {
    match value {
        Value::Array(_) => {
            let quote = |a: String| format!("'{}'", a.replace('\'', r"'\''"));
            strings(value).into_iter().map(quote).collect::<Vec<_>>().join(" ")
        }
        other => scalar(other).unwrap_or_default(),
    }
}

/// `public-keys` of the meta-data: a list, or a map of names to keys (or to objects with keys).
fn meta_keys(meta: &Value) -> Vec<String> {
    let value = if meta["public-keys"].is_null() { &meta["public_keys"] } else { &meta["public-keys"] };
    match value {
        Value::Object(map) => map.values().filter_map(|v| scalar(v).or_else(|| scalar(&v["openssh-key"]))).collect(),
        other => strings(other),
    }
}

fn yaml(text: &str) -> Result<Value> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    // cloud-init reads YAML 1.1, where 0644 is octal.
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| anyhow::anyhow!("{e}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn strings(value: &Value) -> Vec<String> {
    list(value).iter().filter_map(scalar).collect()
}

pub fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        Value::Bool(b) => Some(b.to_string()),
        _ => None,
    }
}

/// YAML 1.1 booleans too: cloud-init's documentation is full of `yes` and `no`.
pub fn flag(value: &Value) -> Option<bool> {
    match scalar(value)?.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Config {
        match parse_user_data(&format!("#cloud-config\n{text}")).unwrap() {
            UserData::Config(c) => *c,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn default_user() {
        let c = parse(
            "hostname: demo.example.org\npassword: 1234\nchpasswd: { expire: False }\nssh_pwauth: yes\nssh_authorized_keys: [k1]\n",
        );
        let demo = User {
            name: "demo".into(),
            groups: vec!["sudo".into()],
            password: Some("1234".into()),
            ssh_keys: vec!["k1".into()],
            ..User::default()
        };
        assert_eq!((c.hostname.as_deref(), c.ssh_passwords, c.users), (Some("demo"), Some(true), vec![demo]));
    }

    #[test]
    fn users_and_passwords() {
        let c = parse(
            "users:\n- default\n- name: ann\n  sudo: ALL=(ALL) NOPASSWD:ALL\n  groups: a, b\n  plain_text_passwd: x\n  lock_passwd: false\n- name: bob\n  passwd: $6$h\n\
             chpasswd:\n  list: |\n    demo:one\n    root:two\n  users:\n  - {name: bob, password: three, type: text}\n",
        );
        let seen: Vec<_> =
            c.users.iter().map(|u| (u.name.as_str(), u.password.as_deref(), u.groups.join(","))).collect();
        assert_eq!(
            seen,
            [
                ("demo", Some("one"), "sudo".to_string()),
                ("ann", Some("x"), "a,b,sudo".into()),
                ("bob", Some("three"), "".into()),
                ("root", Some("two"), "".into())
            ]
        );
    }

    #[test]
    fn files_commands_and_the_rest() {
        let c = parse(
            "write_files:\n- {path: /a, content: x, permissions: '0755', owner: 'demo:demo', append: true}\n- {path: /b, permissions: 0600}\n\
             runcmd:\n- echo \"a b\"\n- [echo, it's, 1]\nbootcmd: [true]\npackages: [nginx]\nssh_keys: {ed25519_private: k, ed25519_public: p}\n",
        );
        assert_eq!(c.host_key.as_deref(), Some("k"));
        let modes: Vec<_> = c.files.iter().map(|f| (f.path.as_str(), f.permissions, f.append)).collect();
        assert_eq!(modes, [("/a", Some(0o755), true), ("/b", Some(0o600), false)]);
        assert_eq!(c.run_commands, ["echo \"a b\"", r"'echo' 'it'\''s' '1'"]);
        assert_eq!(c.boot_commands, ["true"]);
        assert_eq!(c.ignored, ["packages"]);
    }

    #[test]
    fn other_kinds() {
        assert_eq!(parse_user_data(" \n").unwrap(), UserData::None);
        assert_eq!(parse_user_data("#!/bin/sh\nx").unwrap(), UserData::Script("#!/bin/sh\nx".into()));
        assert_eq!(
            parse_user_data("Content-Type: multipart/mixed").unwrap(),
            UserData::Unknown("Content-Type: multipart/mixed".into())
        );
        assert!(parse_user_data("#cloud-config\n\ta: [").is_err());
        assert_eq!(parse_user_data("#cloud-config\n").unwrap(), UserData::Config(Box::default()));
    }

    #[test]
    fn both_layouts() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("meta-data"), "instance-id: i-1\nlocal-hostname: h\npublic-keys: {'0': k0}\n")
            .unwrap();
        std::fs::write(dir.path().join("user-data"), "#cloud-config\n{}\n").unwrap();
        let data = read(dir.path()).unwrap();
        assert_eq!(
            (data.source.as_str(), data.instance_id.as_str(), data.hostname.as_deref()),
            ("NoCloud", "i-1", Some("h"))
        );
        let UserData::Config(config) = data.user_data else { panic!() };
        assert_eq!(config.users[0].ssh_keys, ["k0"]);
        let drive = dir.path().join("openstack/latest");
        std::fs::create_dir_all(&drive).unwrap();
        std::fs::write(drive.join("meta_data.json"), r#"{"uuid": "u", "hostname": "c"}"#).unwrap();
        let data = read(dir.path()).unwrap();
        assert_eq!(
            (data.source.as_str(), data.instance_id.as_str(), data.hostname.as_deref()),
            ("ConfigDrive", "u", Some("c"))
        );
    }

    #[test]
    fn the_example_lets_people_log_in() {
        let vm = yaml(include_str!("../../examples/demo.yaml")).unwrap();
        let volume = &vm["spec"]["template"]["spec"]["volumes"][1];
        let text = volume["cloudInitNoCloud"]["userData"].as_str().unwrap();
        let UserData::Config(config) = parse_user_data(text).unwrap() else { panic!("{text}") };
        assert_eq!(config.hostname.as_deref(), Some("demo"));
        let users: Vec<_> = config.users.iter().map(|u| (u.name.as_str(), u.password.as_deref())).collect();
        assert_eq!(users, [("demo", Some("ferrovirt"))]);
        assert_eq!(config.ignored, [""; 0]);
    }
}
