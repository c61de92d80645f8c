//! `ferrovirt run IMAGE`: a VM from an image, in one line.

use std::{
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use ferrovirt_api::cdi::DataVolume;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    client::{ClientArgs, dynamic, find_kind},
    console::{self, ConsoleArgs},
    upload::{self, Kind, NewVolume, Target},
    wait,
};

#[derive(Args)]
pub struct RunArgs {
    /// An image in a registry (quay.io/containerdisks/debian:12), its URL, or a file
    image: String,
    /// Name of the VM [default: from the image]
    #[arg(long)]
    name: Option<String>,
    /// Memory of the guest
    #[arg(long, default_value = "1Gi")]
    memory: String,
    /// CPUs of the guest
    #[arg(long, default_value_t = 1)]
    cpus: u32,
    /// Size of the disk
    #[arg(long, default_value = "10Gi")]
    disk_size: String,
    /// Forget all writes when the VM stops; needs an image in a registry
    #[arg(long)]
    ephemeral: bool,
    /// User that cloud-init makes in the guest
    #[arg(long, default_value = "ferrovirt")]
    user: String,
    /// Public key for that user [default: ~/.ssh/id_ed25519.pub or id_rsa.pub]
    #[arg(long)]
    ssh_key: Option<PathBuf>,
    /// Do not connect to the console
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// What the argument means.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Image {
    Registry(String),
    Url(String),
    File(PathBuf),
}

impl Image {
    fn parse(text: &str) -> Self {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Self::Url(text.to_owned());
        }
        if let Some(reference) = text.strip_prefix("docker://").or_else(|| text.strip_prefix("oci://")) {
            return Self::Registry(reference.to_owned());
        }
        match Path::new(text).is_file() || text.starts_with(['.', '/']) {
            true => Self::File(text.into()),
            false => Self::Registry(text.to_owned()),
        }
    }

    /// The last part of the name, as far as it can name an object.
    fn short_name(&self) -> String {
        let text = match self {
            Self::Registry(text) => text.split('@').next().unwrap_or_default().to_owned(),
            Self::Url(url) => url.split('?').next().unwrap_or_default().to_owned(),
            Self::File(path) => path.display().to_string(),
        };
        let last = text.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_lowercase();
        let last = last.split([':', '.']).next().unwrap_or_default();
        let name: String = last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
        match name.trim_matches('-') {
            "" => "vm".to_owned(),
            name => name.to_owned(),
        }
    }
}

pub async fn run(arguments: RunArgs) -> Result<()> {
    let image = Image::parse(&arguments.image);
    if arguments.ephemeral && !matches!(image, Image::Registry(_)) {
        bail!("--ephemeral needs an image in a registry; a VM from {} keeps its disk", arguments.image);
    }
    let client = arguments.client.connect().await?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let (resource, capabilities) = find_kind(&client, "virtualmachines").await?;
    let vms = dynamic(&client, &resource, &capabilities.scope, &namespace);
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => {
            let wanted = image.short_name();
            match vms.get_opt(&wanted).await? {
                None => wanted,
                Some(_) => format!("{wanted}-{}", password(5)?),
            }
        }
    };
    let key = ssh_key(arguments.ssh_key.as_deref())?;
    let password = password(12)?;
    if let Image::File(path) = &image {
        if !path.is_file() {
            bail!("there is no file {}", path.display());
        }
        let volume =
            NewVolume { size: &arguments.disk_size, storage_class: None, volume_mode: None, access_mode: None };
        let target =
            Target { kind: Kind::DataVolume, name: name.clone(), namespace: namespace.clone(), client: client.clone() };
        target.create(&volume).await?;
        upload::send(target, &arguments.client, path, upload::Proxy::default()).await?;
    }
    let vm = manifest(&arguments, &image, &name, &namespace, key.as_deref(), &password);
    let request = http::Request::post(format!("{}?fieldManager=ferrovirt", vms.resource_url()))
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(&vm)?)?;
    let vm: Value = client.request(request).await.with_context(|| format!("virtualmachine/{name} was refused"))?;
    if matches!(image, Image::File(_)) {
        adopt(&client, &namespace, &name, &vm).await?;
    }
    println!("virtualmachine/{name} created; log in as {} with the password {password}", arguments.user);
    wait::until_ready(&vms, &name, &format!("virtualmachine/{name}")).await?;
    if arguments.detach || !std::io::stdin().is_terminal() {
        println!("virtualmachine/{name} is running; its console: ferrovirt console {name}");
        return Ok(());
    }
    console::run(ConsoleArgs { name, client: arguments.client, scrollback: None, timeout: None }).await
}

/// The disk that was uploaded for a VM goes with it, as those of its templates do.
async fn adopt(client: &Client, namespace: &str, name: &str, vm: &Value) -> Result<()> {
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": vm["metadata"]["uid"],
    });
    let patch = json!({ "metadata": { "ownerReferences": [owner] } });
    let volumes = Api::<DataVolume>::namespaced(client.clone(), namespace);
    let patched = volumes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.with_context(|| format!("cannot give datavolume/{name} to the VM"))?;
    Ok(())
}

fn manifest(
    arguments: &RunArgs,
    image: &Image,
    name: &str,
    namespace: &str,
    key: Option<&str>,
    password: &str,
) -> Value {
    let storage = json!({ "resources": { "requests": { "storage": arguments.disk_size } } });
    let template =
        |source: Value| json!([{ "metadata": { "name": name }, "spec": { "source": source, "storage": storage } }]);
    let (root, templates) = match image {
        Image::Registry(reference) if arguments.ephemeral => (json!({ "containerDisk": { "image": reference } }), None),
        Image::Registry(reference) => {
            let source = json!({ "registry": { "url": format!("docker://{reference}") } });
            (json!({ "dataVolume": { "name": name } }), Some(template(source)))
        }
        Image::Url(url) => {
            (json!({ "dataVolume": { "name": name } }), Some(template(json!({ "http": { "url": url } }))))
        }
        Image::File(_) => (json!({ "dataVolume": { "name": name } }), None),
    };
    let mut root = root;
    root["name"] = "root".into();
    let mut spec = json!({
        "runStrategy": "Always",
        "template": {
            "metadata": { "labels": { "kubevirt.io/vm": name } },
            "spec": {
                "domain": {
                    "cpu": { "cores": arguments.cpus },
                    "memory": { "guest": arguments.memory },
                    "devices": {
                        "disks": [
                            { "name": "root", "disk": { "bus": "virtio" }, "bootOrder": 1 },
                            { "name": "cloudinit", "disk": { "bus": "virtio" } },
                        ],
                        "interfaces": [{ "name": "default", "masquerade": {}, "model": "virtio" }],
                        "rng": {},
                    },
                },
                "networks": [{ "name": "default", "pod": {} }],
                "volumes": [root, {
                    "name": "cloudinit",
                    "cloudInitNoCloud": { "userData": user_data(name, &arguments.user, key, password) },
                }],
            },
        },
    });
    if let Some(templates) = templates {
        spec["dataVolumeTemplates"] = templates;
    }
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    })
}

fn user_data(name: &str, user: &str, key: Option<&str>, password: &str) -> String {
    let quoted = |text: &str| json!(text).to_string();
    let mut text = format!(
        "#cloud-config\nhostname: {}\nuser: {}\npassword: {}\nchpasswd: {{ expire: false }}\nssh_pwauth: false\n",
        quoted(name),
        quoted(user),
        quoted(password),
    );
    if let Some(key) = key {
        text.push_str(&format!("ssh_authorized_keys:\n  - {}\n", quoted(key.trim())));
    }
    text
}

fn ssh_key(path: Option<&Path>) -> Result<Option<String>> {
    if let Some(path) = path {
        return fs::read_to_string(path).map(Some).with_context(|| format!("cannot read {}", path.display()));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let keys = ["id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub"].map(|name| home.join(".ssh").join(name));
    Ok(keys.iter().find_map(|path| fs::read_to_string(path).ok()))
}

/// Letters and digits that are not mistaken for each other.
fn password(length: usize) -> Result<String> {
    const ALPHABET: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
    let mut bytes = vec![0; length];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_told_apart_and_named() {
        for (text, image, name) in [
            ("quay.io/containerdisks/debian:12", Image::Registry("quay.io/containerdisks/debian:12".into()), "debian"),
            ("docker://r:5000/x/y@sha256:1", Image::Registry("r:5000/x/y@sha256:1".into()), "y"),
            ("http://h/a/Disk_1.qcow2.xz?x=1", Image::Url("http://h/a/Disk_1.qcow2.xz?x=1".into()), "disk-1"),
            ("./my.img", Image::File("./my.img".into()), "my"),
            ("/", Image::File("/".into()), "vm"),
        ] {
            assert_eq!(Image::parse(text), image);
            assert_eq!(Image::parse(text).short_name(), name, "{text}");
        }
    }

    #[test]
    fn what_a_key_says_stays_one_value() {
        let data = user_data("vm", "me", Some("ssh-ed25519 AAAA \"x\"\n"), "pw");
        assert!(data.contains("\n  - \"ssh-ed25519 AAAA \\\"x\\\"\"\n"), "{data}");
    }
}
