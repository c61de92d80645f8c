//! `ferrovirt run IMAGE`: a VM from an image, in one line.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use ferrovirt_api::cdi::DataVolume;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    amounts,
    catalog::{Catalog, CatalogArgs},
    client::{ClientArgs, dynamic, find_kind},
    console::{self, ConsoleArgs},
    next, shell,
    source::{self, Image, Source},
    target,
    upload::{self, Kind, NewVolume, Target},
    wait,
};

/// Annotation of a VM: what it was made from.
const IMAGE: &str = "ferrovirt.io/image";

#[derive(Args)]
pub struct RunArgs {
    /// A name of the catalogue (debian:12; `ferrovirt images` lists it), an image in a registry (quay.io/containerdisks/debian:12), its URL,
    /// or a file (./disk.qcow2)
    image: String,
    /// Name of the VM [default: from the image]
    #[arg(long)]
    name: Option<String>,
    /// Memory of the guest [default: the catalogue's, else 1Gi]
    #[arg(long, value_parser = amounts::memory, allow_hyphen_values = true)]
    memory: Option<String>,
    /// CPUs of the guest
    #[arg(long, default_value_t = 1, value_parser = amounts::cpus(), allow_negative_numbers = true)]
    cpus: u32,
    /// Size of the disk [default: the catalogue's, else 10Gi]
    #[arg(long, value_parser = amounts::disk, allow_hyphen_values = true)]
    disk_size: Option<String>,
    /// Architecture of the guest, such as arm64 [default: that of the nodes]
    #[arg(long)]
    arch: Option<String>,
    /// Forget all writes when the VM stops; needs an image in a registry
    #[arg(long)]
    ephemeral: bool,
    /// User that cloud-init makes in the guest [default: the catalogue's, else ferrovirt]
    #[arg(long)]
    user: Option<String>,
    /// One more public key for that user [default: ~/.ssh/id_ed25519.pub or id_rsa.pub]; ferrovirt's own is always there
    #[arg(long)]
    ssh_key: Option<PathBuf>,
    /// What the image is to have, as sha256:… or sha512:… [default: what the catalogue says]
    #[arg(long)]
    checksum: Option<String>,
    /// Take an image of the catalogue unchecked
    #[arg(long, conflicts_with = "checksum")]
    no_checksum: bool,
    /// Do not wait for the VM, and do not connect to its console
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    catalog: CatalogArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// What is to be made.
struct Wish<'a> {
    name: &'a str,
    namespace: &'a str,
    source: &'a Source,
    ephemeral: bool,
    cpus: u32,
    memory: &'a str,
    disk: &'a str,
    architecture: Option<&'a str>,
    annotations: BTreeMap<&'static str, String>,
    /// The source of the cloud-init volume.
    cloud_init: Value,
}

pub async fn run(arguments: RunArgs) -> Result<()> {
    let catalog = Catalog::load(&arguments.catalog)?;
    let image = Image::parse(&arguments.image, &catalog)?;
    let config = arguments.client.config().await?;
    let server = config.cluster_url.clone();
    let client = Client::try_from(config)?;
    let namespace = arguments.client.namespace(&client).to_owned();
    let architecture = match (&arguments.arch, image.entry()) {
        (Some(given), _) => Some(given.clone()),
        (None, Some(_)) => Some(node_architecture(&client).await),
        (None, None) => None,
    };
    let (checksum, check) = (arguments.checksum.as_deref(), !arguments.no_checksum);
    let source = image.source(&catalog, architecture.as_deref().unwrap_or_default(), checksum, check, &server).await?;
    if arguments.ephemeral && !matches!(source, Source::Registry(_)) {
        bail!("--ephemeral needs an image in a registry; a VM from {} keeps its disk", arguments.image);
    }
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
    let entry = image.entry();
    let or_default = |given: &Option<String>, listed: Option<&String>, default: &str| {
        given.clone().or_else(|| listed.cloned()).unwrap_or_else(|| default.to_owned())
    };
    let user = or_default(&arguments.user, entry.map(|entry| &entry.user), "ferrovirt");
    let memory = or_default(&arguments.memory, entry.and_then(|entry| entry.memory.as_ref()), "1Gi");
    let disk = or_default(&arguments.disk_size, entry.and_then(|entry| entry.disk.as_ref()), "10Gi");
    let keys = ssh_keys(arguments.ssh_key.as_deref())?;
    let password = password(12)?;
    let own_volume = match &source {
        Source::File(path) => {
            send(&arguments, &client, &namespace, &name, &disk, path).await?;
            true
        }
        Source::Here { url, checksum } => {
            eprintln!(
                "fetching {url} from here: it is this machine's own address, which a pod of the cluster does not reach"
            );
            let file = source::download(url, checksum.as_deref()).await?;
            send(&arguments, &client, &namespace, &name, &disk, &file.path).await?;
            true
        }
        Source::Http { url, checksum: Some(checksum) } => {
            make_checked(&client, &namespace, &name, &disk, url, checksum).await?;
            true
        }
        Source::Registry(_) | Source::Http { checksum: None, .. } => false,
    };
    // An image that is not known may make host keys of its own, whatever it is told.
    let host_key = entry.filter(|entry| entry.host_key).map(|_| shell::Key::generate()).transpose()?;
    let login = Login { name: &name, user: &user, keys: &keys, password: &password, host_key: host_key.as_ref() };
    let secret = login.keep(&client, &namespace).await?;
    let mut annotations = BTreeMap::from([(shell::USER, user.clone())]);
    if let (Some(key), Some(_)) = (&host_key, &secret) {
        annotations.insert(shell::HOST_KEY, key.public());
    }
    if let Some(entry) = entry {
        annotations.insert(IMAGE, entry.name.clone());
    }
    let cloud_init = match &secret {
        Some(secret) => json!({ "secretRef": { "name": secret } }),
        None => json!({ "userData": Login { host_key: None, ..login }.user_data()? }),
    };
    let wish = Wish {
        name: &name,
        namespace: &namespace,
        source: &source,
        ephemeral: arguments.ephemeral,
        cpus: arguments.cpus,
        memory: &memory,
        disk: &disk,
        architecture: architecture.as_deref(),
        annotations,
        cloud_init,
    };
    let request = http::Request::post(format!("{}?fieldManager=ferrovirt", vms.resource_url()))
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(&wish.manifest())?)?;
    let vm: Value = match client.request(request).await {
        Ok(vm) => vm,
        Err(error) => {
            if let Some(secret) = &secret {
                let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
                let _ = secrets.delete(secret, &DeleteParams::default()).await;
            }
            // An upload stays: the same command goes on with it.
            if matches!(source, Source::Http { checksum: Some(_), .. }) {
                let volumes = Api::<DataVolume>::namespaced(client.clone(), &namespace);
                let _ = volumes.delete(&name, &DeleteParams::default()).await;
            }
            return Err(error).with_context(|| format!("virtualmachine/{name} was refused"));
        }
    };
    if own_volume {
        adopt::<DataVolume>(&client, &namespace, &name, &vm).await?;
    }
    if let Some(secret) = &secret {
        adopt::<Secret>(&client, &namespace, secret, &vm).await?;
    }
    remember(&server.to_string(), &vm, wish.annotations.get(shell::HOST_KEY));
    let shell = next::ferrovirt(&format!("shell {name}"));
    println!("virtualmachine/{name} created; log in as {user} with the password {password}, or: {shell}");
    if arguments.detach {
        let why = next::ferrovirt(&format!("why {name}"));
        println!("virtualmachine/{name} is starting; how it gets on: {why}");
        return Ok(());
    }
    wait::until_ready(&vms, &name, &format!("virtualmachine/{name}")).await.map_err(|error| keep(error, &name))?;
    if !std::io::stdin().is_terminal() {
        println!("virtualmachine/{name} is running; its console: {}", next::ferrovirt(&format!("console {name}")));
        return Ok(());
    }
    let (scrollback, timeout) = (None, None);
    console::run(ConsoleArgs { name, client: arguments.client, scrollback, timeout, log: false, follow: false }).await
}

/// What did not start is there all the same, and so is what to do about that.
fn keep(error: anyhow::Error, name: &str) -> anyhow::Error {
    let delete = next::ferrovirt(&format!("delete vm {name}"));
    match error.downcast::<wait::InVain>() {
        Ok(wait::InVain { message, next }) => {
            let mend = next.map(|next| format!("{next}\n  ")).unwrap_or_default();
            let next = Some(format!("{mend}the VM is kept; to remove it: {delete}"));
            wait::InVain { message, next }.into()
        }
        Err(error) => error,
    }
}

async fn send(
    arguments: &RunArgs,
    client: &Client,
    namespace: &str,
    name: &str,
    disk: &str,
    path: &Path,
) -> Result<()> {
    let volume = NewVolume { size: disk, storage_class: None, volume_mode: None, access_mode: None };
    let (name, namespace, client) = (name.to_owned(), namespace.to_owned(), client.clone());
    let target = Target { kind: Kind::DataVolume, name, namespace, client };
    target.create(&volume).await?;
    upload::send(target, &arguments.client, path, upload::Proxy::default()).await
}

/// Makes the disk of an image that is to be checked. It is no template of the VM: upstream's templates do not know checksums, and what a
/// kind does not know is dropped without a word.
async fn make_checked(
    client: &Client,
    namespace: &str,
    name: &str,
    disk: &str,
    url: &str,
    checksum: &str,
) -> Result<()> {
    let volume: DataVolume = serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "source": { "http": { "url": url, "checksum": checksum } },
            "storage": { "resources": { "requests": { "storage": disk } } },
        },
    }))?;
    let volumes = Api::<DataVolume>::namespaced(client.clone(), namespace);
    let made = volumes.create(&PostParams::default(), &volume).await;
    let made = made.with_context(|| format!("datavolume/{name} was refused"))?;
    let kept = made.spec.source.and_then(|source| source.http).is_some_and(|http| http.checksum == checksum);
    if !kept {
        let _ = volumes.delete(name, &DeleteParams::default()).await;
        bail!(
            "the cluster's DataVolumes have no checksum, so nobody would check the image: update its CDI, or take the image unchecked with --no-checksum"
        );
    }
    Ok(())
}

/// What was made for a VM goes with it, as the disks of its templates do.
async fn adopt<K>(client: &Client, namespace: &str, name: &str, vm: &Value) -> Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "name": vm["metadata"]["name"], "uid": vm["metadata"]["uid"],
    });
    let patch = json!({ "metadata": { "ownerReferences": [owner] } });
    let objects = Api::<K>::namespaced(client.clone(), namespace);
    let patched = objects.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.with_context(|| format!("cannot give {}/{name} to the VM", K::kind(&()).to_lowercase()))?;
    Ok(())
}

/// A VM that we made ourselves is no surprise at the first login.
fn remember(server: &str, vm: &Value, host_key: Option<&String>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &vm["metadata"];
    let machine = shell::Machine {
        kind: target::Kind::Machine,
        name: text(&metadata["name"]),
        namespace: text(&metadata["namespace"]),
        uid: text(&metadata["uid"]),
        instance: text(&metadata["uid"]),
        user: None,
        host_key: host_key.cloned(),
        running_for: None,
    };
    let kept = shell::Home::open().and_then(|home| home.trust(server, &machine, false));
    if let Err(error) = kept {
        eprintln!("note: {error:#}");
    }
}

/// That of all nodes, or of this machine where the nodes cannot be seen or differ.
async fn node_architecture(client: &Client) -> String {
    let nodes: Option<Value> = match http::Request::get("/api/v1/nodes?limit=500").body(vec![]) {
        Ok(request) => client.request(request).await.ok(),
        Err(_) => None,
    };
    let nodes = nodes.and_then(|nodes| nodes["items"].as_array().cloned()).unwrap_or_default();
    let seen: BTreeSet<&str> =
        nodes.iter().filter_map(|node| node["status"]["nodeInfo"]["architecture"].as_str()).collect();
    let own = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    match (seen.first(), seen.len()) {
        (Some(one), 1) => (*one).to_owned(),
        _ => own.to_owned(),
    }
}

impl Wish<'_> {
    fn manifest(&self) -> Value {
        let name = self.name;
        let storage = json!({ "resources": { "requests": { "storage": self.disk } } });
        let template =
            |source: Value| json!([{ "metadata": { "name": name }, "spec": { "source": source, "storage": storage } }]);
        let volume = json!({ "dataVolume": { "name": name } });
        let (mut root, templates) = match self.source {
            Source::Registry(reference) if self.ephemeral => (json!({ "containerDisk": { "image": reference } }), None),
            Source::Registry(reference) => {
                (volume, Some(template(json!({ "registry": { "url": format!("docker://{reference}") } }))))
            }
            Source::Http { url, checksum: None } => (volume, Some(template(json!({ "http": { "url": url } })))),
            Source::Http { checksum: Some(_), .. } | Source::File(_) | Source::Here { .. } => (volume, None),
        };
        root["name"] = "root".into();
        let mut machine = json!({
            "domain": {
                "cpu": { "cores": self.cpus },
                "memory": { "guest": self.memory },
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
            "volumes": [root, { "name": "cloudinit", "cloudInitNoCloud": self.cloud_init }],
        });
        if let Some(architecture) = self.architecture {
            machine["architecture"] = architecture.into();
        }
        let mut spec = json!({
            "runStrategy": "Always",
            "template": { "metadata": { "labels": { "kubevirt.io/vm": name } }, "spec": machine },
        });
        if let Some(templates) = templates {
            spec["dataVolumeTemplates"] = templates;
        }
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": { "name": name, "namespace": self.namespace, "annotations": self.annotations },
            "spec": spec,
        })
    }
}

/// What the guest is told of who may log in.
#[derive(Clone, Copy)]
struct Login<'a> {
    name: &'a str,
    user: &'a str,
    keys: &'a [String],
    password: &'a str,
    host_key: Option<&'a shell::Key>,
}

impl Login<'_> {
    /// Keeps it in a Secret: a password and a host key are not for everyone who may look at VMs. None if the user may not make one.
    async fn keep(&self, client: &Client, namespace: &str) -> Result<Option<String>> {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": { "generateName": format!("{}-cloudinit-", self.name) },
            "stringData": { "userdata": self.user_data()? },
        }))?;
        let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(made) => Ok(Some(made.name_any())),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                eprintln!(
                    "note: you may not make secrets here, so whoever may see the VM sees its first password, too"
                );
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("cannot keep the login of {} in a secret", self.name)),
        }
    }

    fn user_data(&self) -> Result<String> {
        let quoted = |text: &str| json!(text).to_string();
        let mut text = format!(
            "#cloud-config\nhostname: {}\nuser: {}\npassword: {}\nchpasswd: {{ expire: false }}\nssh_pwauth: false\n",
            quoted(self.name),
            quoted(self.user),
            quoted(self.password),
        );
        if !self.keys.is_empty() {
            text.push_str("ssh_authorized_keys:\n");
            self.keys.iter().for_each(|key| text.push_str(&format!("  - {}\n", quoted(key.trim()))));
        }
        if let Some(key) = self.host_key {
            text.push_str(&format!(
                "ssh_deletekeys: true\nssh_keys:\n  ed25519_private: {}\n  ed25519_public: {}\n",
                quoted(&key.private(self.name)?),
                quoted(&key.public()),
            ));
        }
        Ok(text)
    }
}

/// Who may log in: our own key for `ferrovirt shell`, and the user's.
fn ssh_keys(path: Option<&Path>) -> Result<Vec<String>> {
    let own = shell::public_key();
    if let Err(error) = &own {
        eprintln!("note: {error:#}; `ferrovirt shell` will need another key");
    }
    let users = match path {
        Some(path) => Some(fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?),
        None => {
            let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
            let keys = ["id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub"].map(|name| home.join(".ssh").join(name));
            keys.iter().find_map(|path| fs::read_to_string(path).ok())
        }
    };
    Ok(own.ok().into_iter().chain(users).collect())
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
    fn what_a_key_says_stays_one_value() {
        let keys = ["ssh-ed25519 AAAA \"x\"\n".to_owned()];
        let login = Login { name: "vm", user: "me", keys: &keys, password: "pw", host_key: None };
        let data = login.user_data().unwrap();
        assert!(data.contains("\n  - \"ssh-ed25519 AAAA \\\"x\\\"\"\n"), "{data}");
    }

    #[test]
    fn a_guest_gets_the_host_key_that_its_vm_promises() {
        let key = shell::Key::generate().unwrap();
        let login = Login { name: "vm", user: "me", keys: &[], password: "pw", host_key: Some(&key) };
        let data: Value = serde_saphyr::from_str(&login.user_data().unwrap()).unwrap();
        let private = data["ssh_keys"]["ed25519_private"].as_str().unwrap();
        assert!(shell::Key::parse(private).unwrap() == key);
        assert_eq!(data["ssh_keys"]["ed25519_public"], key.public());
    }

    #[test]
    fn the_source_of_the_disk_follows_from_the_image() {
        let manifest = |source: Source, ephemeral: bool| {
            let cloud_init = json!({ "secretRef": { "name": "s" } });
            let (annotations, architecture) = (BTreeMap::from([(shell::USER, "debian".to_owned())]), Some("amd64"));
            let (name, namespace, source, cpus, memory, disk) = ("vm", "n", &source, 1, "1Gi", "2Gi");
            Wish { name, namespace, source, ephemeral, cpus, memory, disk, architecture, annotations, cloud_init }
                .manifest()
        };
        let spec = |vm: &Value| vm["spec"]["dataVolumeTemplates"][0]["spec"]["source"].clone();
        let sum = Some("sha256:00".to_owned());
        let unchecked = manifest(Source::Http { url: "https://h/i".into(), checksum: None }, false);
        assert_eq!(spec(&unchecked), json!({ "http": { "url": "https://h/i" } }));
        assert_eq!(unchecked["metadata"]["annotations"][shell::USER], "debian");
        assert_eq!(unchecked["spec"]["template"]["spec"]["architecture"], "amd64");
        // A template would lose the checksum.
        let checked = manifest(Source::Http { url: "https://h/i".into(), checksum: sum.clone() }, false);
        assert_eq!(spec(&checked), Value::Null);
        let registry = manifest(Source::Registry("r/i".into()), false);
        assert_eq!(spec(&registry), json!({ "registry": { "url": "docker://r/i" } }));
        let root = |vm: &Value| vm["spec"]["template"]["spec"]["volumes"][0].clone();
        let ephemeral = manifest(Source::Registry("r/i".into()), true);
        assert_eq!(root(&ephemeral), json!({ "name": "root", "containerDisk": { "image": "r/i" } }));
        assert_eq!(root(&checked)["dataVolume"]["name"], "vm");
        let here = manifest(Source::Here { url: "http://127.0.0.1/i".into(), checksum: sum }, false);
        assert_eq!((spec(&here), root(&here)["dataVolume"]["name"].clone()), (Value::Null, json!("vm")));
        assert!(!here.to_string().contains("127.0.0.1"));
    }
}
