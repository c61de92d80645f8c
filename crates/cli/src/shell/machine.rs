//! What objects say of a machine that somebody wants to log in to. Others wrote them: what goes into a command line is checked.

use serde_json::Value;

use super::{HOST_KEY, USER};
use crate::target::Kind;

/// A configuration is small; what is larger is not looked at.
const LARGEST: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub kind: Kind,
    pub name: String,
    pub namespace: String,
    /// Of the VM, or of the instance if there is no VM.
    pub uid: String,
    /// Of the instance.
    pub instance: String,
    /// Who logs in.
    pub user: Option<String>,
    /// The host key that the guest was given.
    pub host_key: Option<String>,
    /// Seconds.
    pub running_for: Option<i64>,
}

impl Machine {
    /// From a VM, if there is one, and its instance.
    pub fn of(vm: Option<&Value>, instance: &Value, now: jiff::Timestamp) -> Self {
        let owner = vm.unwrap_or(instance);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = vm.map_or(&instance["spec"], |vm| &vm["spec"]["template"]["spec"]);
        let metadata = &owner["metadata"];
        let user = metadata["annotations"][USER].as_str().map(str::to_owned).or_else(|| user(spec));
        let host_key = metadata["annotations"][HOST_KEY].as_str().map(str::to_owned);
        Self {
            kind: if vm.is_some() { Kind::Machine } else { Kind::Instance },
            name: text(&metadata["name"]),
            namespace: text(&metadata["namespace"]),
            uid: text(&metadata["uid"]),
            instance: text(&instance["metadata"]["uid"]),
            user: user.filter(|user| is_user(user)),
            host_key: host_key.filter(|key| is_host_key(key)),
            running_for: running_since(instance).map(|since| now.as_second() - since.as_second()),
        }
    }

    /// For people.
    pub fn title(&self) -> String {
        match self.kind {
            Kind::Machine => format!("virtualmachine/{}", self.name),
            Kind::Instance => format!("virtualmachineinstance/{}", self.name),
        }
    }

    /// What ssh calls it.
    pub fn host(&self) -> String {
        format!("{}.{}", self.name, self.namespace)
    }
}

fn running_since(instance: &Value) -> Option<jiff::Timestamp> {
    let times = instance["status"]["phaseTransitionTimestamps"].as_array()?;
    let running = times.iter().find(|time| time["phase"] == "Running")?;
    running["phaseTransitionTimestamp"].as_str()?.parse().ok()
}

/// Who logs in, by what the guest is told: by its agent, or by cloud-init.
fn user(spec: &Value) -> Option<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let agent = list(&spec["accessCredentials"]).into_iter().find_map(|credential| {
        let method = &credential["sshPublicKey"]["propagationMethod"]["qemuGuestAgent"];
        method["users"][0].as_str().map(str::to_owned)
    });
    agent.or_else(|| {
        list(&spec["volumes"]).into_iter().find_map(|volume| {
            let data =
                ["cloudInitNoCloud", "cloudInitConfigDrive"].iter().find_map(|kind| volume[*kind]["userData"].as_str());
            configured(data?)
        })
    })
}

/// The user that a cloud-config makes or names.
fn configured(data: &str) -> Option<String> {
    if !data.starts_with("#cloud-config") || data.len() > LARGEST {
        return None;
    }
    let config: Value = serde_saphyr::from_str(data).ok()?;
    let named = |value: &Value| value.as_str().or(value["name"].as_str()).map(str::to_owned);
    let users = config["users"].as_array().cloned().unwrap_or_default();
    named(&config["user"]).or_else(|| users.iter().filter_map(named).find(|name| name != "default"))
}

/// Whether it can be a user's name, and nothing else.
pub fn is_user(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    begins && text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// Whether it can be the name of an object.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let edges = text.starts_with(plain) && text.ends_with(plain);
    edges && text.len() <= 253 && text.chars().all(|c| plain(c) || c == '-' || c == '.')
}

fn is_host_key(text: &str) -> bool {
    let Some(blob) = text.strip_prefix("ssh-ed25519 ") else { return false };
    blob.len() <= 128 && !blob.is_empty() && blob.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vm(annotations: Value, spec: Value) -> Value {
        json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "vm-1", "annotations": annotations },
            "spec": { "template": { "spec": spec } },
        })
    }

    fn data(text: &str) -> Value {
        json!({ "volumes": [{ "name": "x" }, { "cloudInitNoCloud": { "userData": text } }] })
    }

    #[test]
    fn the_user_is_who_the_guest_knows() {
        let agent = json!({ "accessCredentials": [{ "sshPublicKey": {
            "propagationMethod": { "qemuGuestAgent": { "users": ["agent", "b"] } },
        } }] });
        for (annotations, spec, expected) in [
            (json!({ USER: "debian" }), data("#cloud-config\nuser: other\n"), Some("debian")),
            (json!({}), agent, Some("agent")),
            (json!({}), data("#cloud-config\nuser: demo\npassword: x\n"), Some("demo")),
            (json!({}), data("#cloud-config\nuser: { name: demo }\n"), Some("demo")),
            (json!({}), data("#cloud-config\nusers:\n- default\n- name: ann\n"), Some("ann")),
            (json!({}), data("#cloud-config\nusers: [default]\n"), None),
            (json!({}), data("#!/bin/sh\nuser: demo"), None),
            (json!({}), data("#cloud-config\n\t["), None),
            (json!({}), json!({}), None),
            // Nothing that ssh or a shell could take for something else.
            (json!({ USER: "-oProxyCommand=evil" }), json!({}), None),
            (json!({ USER: "a;b" }), json!({}), None),
            (json!({}), data("#cloud-config\nuser: 'a b'\n"), None),
        ] {
            let vm = vm(annotations, spec);
            let instance = json!({ "metadata": { "uid": "i-1" } });
            let machine = Machine::of(Some(&vm), &instance, jiff::Timestamp::UNIX_EPOCH);
            assert_eq!(machine.user.as_deref(), expected, "{vm}");
            assert_eq!((machine.uid.as_str(), machine.instance.as_str()), ("vm-1", "i-1"));
            assert_eq!(machine.host(), "web.shop");
        }
    }

    #[test]
    fn a_host_key_is_one_line_of_one_kind() {
        for (text, expected) in [
            ("ssh-ed25519 AAAAC3Nza/+=", true),
            ("ssh-ed25519 ", false),
            ("ssh-rsa AAAA", false),
            ("ssh-ed25519 AAAA\n* ssh-ed25519 EVIL", false),
            ("@cert-authority * ssh-ed25519 AAAA", false),
        ] {
            let vm = vm(json!({ HOST_KEY: text }), json!({}));
            let machine = Machine::of(Some(&vm), &json!({}), jiff::Timestamp::UNIX_EPOCH);
            assert_eq!(machine.host_key.is_some(), expected, "{text}");
        }
    }

    #[test]
    fn an_instance_without_a_vm_stands_for_itself() {
        let instance = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "i-1" },
            "spec": data("#cloud-config\nuser: demo\n"),
            "status": { "phaseTransitionTimestamps": [
                { "phase": "Pending", "phaseTransitionTimestamp": "1970-01-01T00:00:00Z" },
                { "phase": "Running", "phaseTransitionTimestamp": "1970-01-01T00:01:00Z" },
            ] },
        });
        let machine = Machine::of(None, &instance, jiff::Timestamp::from_second(90).unwrap());
        assert_eq!(
            (machine.uid.as_str(), machine.instance.as_str(), machine.user.as_deref()),
            ("i-1", "i-1", Some("demo"))
        );
        assert_eq!((machine.running_for, machine.title().as_str()), (Some(30), "virtualmachineinstance/web"));
    }

    #[test]
    fn names_are_those_of_objects() {
        for good in ["a", "web-1", "a.b"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a b", "a;b", "a/b", "$(x)", "a\n"] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
