//! Pod networks through CNI plugins: the distribution's, with a real configuration list, as a kubelet's runtime does.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

/// A pod's sandbox as plugins are told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment<'a> {
    pub pod_uid: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub netns: &'a Path,
}

/// `cni.json`: the list that was used, so that DEL matches ADD after the configuration has changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    pub conflist: Value,
    pub result: Value,
    /// Secondary networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Secondary>,
    /// What earlier attempts to attach the pod left behind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<Undone>,
}

/// One plugin's part of an attachment that it did not release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Undone {
    pub interface: String,
    /// With the result of the attachment, as the plugin gets it.
    pub config: Value,
    pub why: String,
}

/// One more interface of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Secondary {
    pub interface: String,
    pub conflist: Value,
    pub result: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugins {
    pub dirs: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum CniError {
    #[error("no CNI plugin {name:?} in {dirs} (install the package containernetworking-plugins)")]
    Missing { name: String, dirs: String },
    #[error("cannot run the CNI plugin {name}")]
    Run { name: String, source: io::Error },
    #[error("the CNI plugin {name} failed to {command}: {message}")]
    Failed { name: String, command: &'static str, message: String },
    #[error("the CNI plugin {name} answered with something that is not JSON")]
    Answer { name: String, source: serde_json::Error },
    #[error("the CNI plugin {name} did not {command} within {seconds} s")]
    Slow { name: String, command: &'static str, seconds: u64 },
    #[error("{0:?} is not the name of a CNI plugin")]
    Name(String),
    #[error("the CNI configuration has no plugins")]
    Empty,
}

/// Interface name inside every pod, as everywhere in Kubernetes.
pub(crate) const IFNAME: &str = "eth0";

/// How long one plugin may take, and how long all may that release a pod.
const ADD_TIME: Duration = Duration::from_secs(120);
const DELETE_TIME: Duration = Duration::from_secs(20);
const RELEASE_TIME: Duration = Duration::from_secs(60);

pub fn bridge_name(instance: &str) -> String {
    format!("fv{instance}")
}

/// The generated list. Its name carries the instance, so two data directories do not share addresses or rules. Each pod has
/// a cable of its own to this machine, which routes between them; see the network module.
pub fn conflist(instance: &str, subnets: &[String], ipam_dir: &Path) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
    let everything = |subnet: &String| if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" };
    let routes: Vec<Value> = subnets.iter().map(|subnet| json!({ "dst": everything(subnet) })).collect();
    json!({
        "cniVersion": "1.0.0",
        "name": bridge_name(instance),
        "plugins": [
            {
                "type": "ptp",
                // Translation is one rule for all pods; see the masquerade module.
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": ipam_dir,
                    "ranges": ranges,
                    "routes": routes,
                },
            },
        ],
    })
}

impl Plugins {
    /// Attaches a pod: loopback, the pod network, then the secondary ones. Takes what is wanted, returns what it became.
    pub async fn add(&self, mut wanted: Attached, pod: &Attachment<'_>) -> Result<Attached, CniError> {
        self.run("ADD", "lo", &loopback(), pod).await?;
        wanted.result = self.add_one(&wanted.conflist, IFNAME, pod).await?;
        for secondary in &mut wanted.more {
            secondary.result = self.add_one(&secondary.conflist, &secondary.interface, pod).await?;
        }
        Ok(wanted)
    }

    /// Each plugin of the list gets the result of the one before.
    async fn add_one(&self, conflist: &Value, interface: &str, pod: &Attachment<'_>) -> Result<Value, CniError> {
        let mut previous: Option<Value> = None;
        for config in configs(conflist)? {
            let config = with_previous(config, previous.as_ref());
            previous = Some(self.run("ADD", interface, &config, pod).await?);
        }
        Ok(previous.unwrap_or_default())
    }

    /// Detaches a pod, in reverse order, and returns what could not be released: a plugin that fails, hangs or is gone keeps
    /// no other one from its turn. DEL is idempotent by the CNI specification.
    pub async fn delete(&self, attached: &Attached, pod: &Attachment<'_>) -> Vec<Undone> {
        self.release(attached.parts(), pod).await
    }

    /// Tries again what was not released.
    pub async fn release(&self, parts: Vec<Undone>, pod: &Attachment<'_>) -> Vec<Undone> {
        let until = Instant::now() + RELEASE_TIME;
        let mut undone = vec![];
        for part in parts {
            if Instant::now() > until {
                undone.push(part);
                continue;
            }
            if let Err(error) = self.run("DEL", &part.interface, &part.config, pod).await {
                undone.push(Undone { why: ferrovirt_api::chain(&error), ..part });
            }
        }
        undone
    }

    async fn run(
        &self,
        command: &'static str,
        ifname: &str,
        config: &Value,
        pod: &Attachment<'_>,
    ) -> Result<Value, CniError> {
        let name = config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        // The name comes from a user's object and becomes part of a path.
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(CniError::Name(name));
        }
        let path = std::env::join_paths(&self.dirs).unwrap_or_default();
        let program = self.dirs.iter().map(|dir| dir.join(&name)).find(|file| file.is_file());
        let program = program
            .ok_or_else(|| CniError::Missing { name: name.clone(), dirs: path.to_string_lossy().into_owned() })?;
        let fail = |source| CniError::Run { name: name.clone(), source };
        let mut child = tokio::process::Command::new(program)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", pod.pod_uid)
            .env("CNI_NETNS", pod.netns)
            .env("CNI_IFNAME", ifname)
            .env("CNI_PATH", &path)
            .env(
                "CNI_ARGS",
                format!(
                    "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_UID={}",
                    pod.namespace, pod.name, pod.pod_uid
                ),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(fail)?;
        let said = async {
            if let Some(mut stdin) = child.stdin.take() {
                // A plugin that fails early may not read; its own answer says more than a broken pipe.
                let _ = stdin.write_all(config.to_string().as_bytes()).await;
            }
            child.wait_with_output().await
        };
        let time = if command == "ADD" { ADD_TIME } else { DELETE_TIME };
        let slow = |_| CniError::Slow { name: name.clone(), command, seconds: time.as_secs() };
        let output = tokio::time::timeout(time, said).await.map_err(slow)?.map_err(fail)?;
        if !output.status.success() {
            return Err(CniError::Failed {
                message: error_message(&output.stdout, &output.stderr),
                name: name.clone(),
                command,
            });
        }
        if output.stdout.iter().all(u8::is_ascii_whitespace) {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&output.stdout).map_err(|source| CniError::Answer { name: name.clone(), source })
    }
}

impl Attached {
    /// Addresses of the pod, the primary first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let ips = self.result.get("ips").and_then(Value::as_array);
        ips.into_iter()
            .flatten()
            .filter_map(|ip| ip.get("address")?.as_str()?.split('/').next()?.parse().ok())
            .collect()
    }

    /// All there is to release, the last one first.
    fn parts(&self) -> Vec<Undone> {
        let secondary = self.more.iter().rev().map(|one| (one.interface.as_str(), &one.conflist, &one.result));
        let mut parts = vec![];
        for (interface, conflist, result) in secondary.chain([(IFNAME, &self.conflist, &self.result)]) {
            // A list without plugins attached nothing.
            for config in configs(conflist).unwrap_or_default().into_iter().rev() {
                let config = with_previous(config, Some(result).filter(|result| !result.is_null()));
                parts.push(Undone { interface: interface.to_owned(), config, why: String::new() });
            }
        }
        // What an attachment since has made anew is released with that one.
        let again = |old: &&Undone| !parts.iter().any(|part| part.is_same(old));
        let older: Vec<_> = self.undone.iter().filter(again).cloned().collect();
        parts.extend(older);
        parts
    }
}

impl Undone {
    /// The network and the plugin that it is about.
    pub fn name(&self) -> String {
        let text = |key: &str| self.config.get(key).and_then(Value::as_str).unwrap_or_default();
        format!("{} (CNI plugin {}) on {}", text("name"), text("type"), self.interface)
    }

    fn is_same(&self, other: &Self) -> bool {
        let key = |of: &Self, key: &str| of.config.get(key).cloned();
        self.interface == other.interface && ["name", "type"].iter().all(|name| key(self, name) == key(other, name))
    }
}

fn loopback() -> Value {
    json!({ "cniVersion": "1.0.0", "name": "lo", "type": "loopback" })
}

/// The single-plugin configurations of a list, each with the list's version and name.
fn configs(conflist: &Value) -> Result<Vec<Value>, CniError> {
    let plugins = conflist.get("plugins").and_then(Value::as_array).filter(|plugins| !plugins.is_empty());
    let mut out = Vec::new();
    for plugin in plugins.ok_or(CniError::Empty)? {
        let mut plugin = plugin.clone();
        if let Value::Object(fields) = &mut plugin {
            for key in ["cniVersion", "name"] {
                fields.insert(key.to_owned(), conflist.get(key).cloned().unwrap_or_default());
            }
        }
        out.push(plugin);
    }
    Ok(out)
}

fn with_previous(mut config: Value, previous: Option<&Value>) -> Value {
    if let (Value::Object(fields), Some(previous)) = (&mut config, previous) {
        fields.insert("prevResult".to_owned(), previous.clone());
    }
    config
}

/// Plugins print a JSON error on standard output; what else they say is on standard error.
fn error_message(stdout: &[u8], stderr: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(stdout).ok();
    let text = |key| parsed.as_ref().and_then(|value| value.get(key)).and_then(Value::as_str).filter(|t| !t.is_empty());
    match (text("msg"), text("details")) {
        (Some(message), Some(details)) => format!("{message}: {details}"),
        (Some(message), None) => message.to_owned(),
        _ => String::from_utf8_lossy(if stderr.is_empty() { stdout } else { stderr }).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_list_is_split_and_chained() {
        let list = conflist("0a1b2c", &["10.42.7.0/24".into(), "fd00::/64".into()], Path::new("/data/cni/ipam"));
        let configs = configs(&list).unwrap();
        assert_eq!(configs.len(), 1);
        assert_eq!(configs[0]["name"], "fv0a1b2c");
        assert_eq!(configs[0]["cniVersion"], "1.0.0");
        assert_eq!(configs[0]["ipam"]["ranges"][0][0]["subnet"], "10.42.7.0/24");
        assert_eq!(configs[0]["ipam"]["ranges"][1][0]["subnet"], "fd00::/64");
        assert_eq!(configs[0]["ipam"]["dataDir"], "/data/cni/ipam");
        assert_eq!(configs[0]["ipam"]["routes"], json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]));
        assert_eq!(with_previous(configs[0].clone(), Some(&json!({"ips": []})))["prevResult"], json!({"ips": []}));
        assert!(bridge_name("0a1b2c").len() <= 15);
        assert!(matches!(super::configs(&json!({"plugins": []})), Err(CniError::Empty)));
    }

    #[test]
    fn addresses_and_errors_are_read() {
        let attached = Attached {
            conflist: Value::Null,
            more: vec![],
            undone: vec![],
            result: json!({"ips": [{"address": "10.42.7.2/24"}, {"address": "fd00::2/64"}, {"address": "x"}]}),
        };
        let shown: Vec<String> = attached.addresses().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.42.7.2", "fd00::2"]);
        let cases: [(&[u8], &[u8], &str); 3] = [
            (br#"{"code":7,"msg":"no range","details":"all used"}"#, b"", "no range: all used"),
            (br#"{"code":7,"msg":"no range"}"#, b"noise", "no range"),
            (b"", b"panic\n", "panic"),
        ];
        for (stdout, stderr, expected) in cases {
            assert_eq!(error_message(stdout, stderr), expected);
        }
    }

    fn plugin(dir: &Path, name: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[tokio::test]
    async fn a_plugin_that_is_gone_or_fails_keeps_no_other_from_releasing() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        plugin(dir.path(), "good", &format!("echo \"$CNI_COMMAND $CNI_IFNAME $(cat)\" >> {}", log.display()));
        plugin(dir.path(), "bad", r#"echo '{"code":11,"msg":"try again"}'; exit 1"#);
        let plugins = Plugins { dirs: vec![dir.path().to_owned()] };
        let list = |name: &str, types: &[&str]| {
            let plugins: Vec<_> = types.iter().map(|kind| json!({ "type": kind })).collect();
            json!({ "cniVersion": "1.0.0", "name": name, "plugins": plugins })
        };
        let second =
            |interface: &str, conflist| Secondary { interface: interface.into(), conflist, result: Value::Null };
        let attached = Attached {
            conflist: list("pods", &["good"]),
            result: json!({ "ips": [] }),
            more: vec![
                second("net1", list("chained", &["good", "bad"])),
                second("net2", list("gone", &["missing"])),
                second("net3", list("empty", &[])),
                second("net4", list("escape", &["../good"])),
            ],
            undone: vec![],
        };
        let pod = Attachment { pod_uid: "u", namespace: "n", name: "p", netns: Path::new("") };
        let undone = plugins.delete(&attached, &pod).await;
        let named: Vec<String> = undone.iter().map(Undone::name).collect();
        let expected = [
            "escape (CNI plugin ../good) on net4",
            "gone (CNI plugin missing) on net2",
            "chained (CNI plugin bad) on net1",
        ];
        assert_eq!(named, expected);
        assert!(undone[2].why.contains("try again") && undone[1].why.contains("no CNI plugin"), "{undone:?}");
        let said = std::fs::read_to_string(&log).unwrap();
        let heads: Vec<_> = said.lines().map(|line| line.split(" {").next().unwrap()).collect();
        assert_eq!(heads, ["DEL net1", "DEL eth0"]);
        assert!(said.lines().last().unwrap().contains(r#""prevResult":{"ips":[]}"#), "{said}");

        // What an attachment since has made anew is not released twice.
        let again = Attached { undone: undone.clone(), ..attached.clone() };
        assert_eq!(again.parts().len(), attached.parts().len());
        let moved = Attached { more: vec![], undone: undone.clone(), ..attached };
        assert_eq!(moved.parts().len(), 1 + undone.len());
        plugin(dir.path(), "missing", "cat > /dev/null");
        plugin(dir.path(), "bad", "cat > /dev/null");
        let left = plugins.release(undone, &pod).await;
        assert_eq!(left.iter().map(Undone::name).collect::<Vec<_>>(), ["escape (CNI plugin ../good) on net4"]);
    }
}
