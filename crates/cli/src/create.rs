//! `ferrovirt create vm`: a manifest from flags. The flags and what they make are upstream's.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::{
    amounts,
    info::{self, Format},
};

#[derive(Subcommand)]
pub enum CreateCommand {
    /// Print the manifest of a VM; pipe it into `ferrovirt apply -f -`
    Vm(Box<VmArgs>),
}

#[derive(Args)]
pub struct VmArgs {
    /// Name of the VM [default: a random one]
    #[arg(long)]
    name: Option<String>,
    /// Namespace in the manifest [default: none, the one it is applied to]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Always, Halted, Manual, RerunOnFailure or Once
    #[arg(long, default_value = "Always")]
    run_strategy: String,
    /// Seconds that the guest gets to end by itself
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(i64).range(0..), allow_negative_numbers = true)]
    termination_grace_period: i64,
    /// Memory of the guest [default: 512Mi, unless an instance type says it]
    #[arg(long, value_parser = amounts::memory, allow_hyphen_values = true)]
    memory: Option<String>,
    /// Instance type: NAME of a cluster's, or virtualmachineinstancetype/NAME
    #[arg(long)]
    instancetype: Option<String>,
    /// Preference: NAME of a cluster's, or virtualmachinepreference/NAME
    #[arg(long)]
    preference: Option<String>,
    /// Take the instance type from the annotations of the first boot disk, where there is one
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    infer_instancetype: Option<bool>,
    /// Take the instance type from this volume
    #[arg(long)]
    infer_instancetype_from: Option<String>,
    /// Take the preference from the annotations of the first boot disk, where there is one
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    infer_preference: Option<bool>,
    /// Take the preference from this volume
    #[arg(long)]
    infer_preference_from: Option<String>,
    /// A disk from an image: src:IMAGE[,name:N][,bootorder:N]
    #[arg(long)]
    volume_containerdisk: Vec<String>,
    /// A disk that exists: src:CLAIM[,name:N][,bootorder:N]
    #[arg(long)]
    volume_pvc: Vec<String>,
    /// A new disk: type:blank|http|registry|s3|gcs|pvc|snapshot|ds,… with size:S, url:U or src:[NAMESPACE/]NAME
    #[arg(long)]
    volume_import: Vec<String>,
    /// An empty new disk: size:S[,name:N]
    #[arg(long, hide = true)]
    volume_blank: Vec<String>,
    /// A copy of a claim: src:[NAMESPACE/]NAME
    #[arg(long, hide = true)]
    volume_clone_pvc: Vec<String>,
    /// A copy of a data source: src:[NAMESPACE/]NAME
    #[arg(long, hide = true)]
    volume_datasource: Vec<String>,
    /// Answers for a Windows installation: src:NAME[,type:configMap|secret]
    #[arg(long)]
    volume_sysprep: Option<String>,
    /// User that cloud-init makes
    #[arg(long)]
    user: Option<String>,
    /// File with that user's password
    #[arg(long)]
    password_file: Option<String>,
    /// Public ssh key of that user; may be given several times
    #[arg(long, value_delimiter = ',')]
    ssh_key: Vec<String>,
    /// Let the guest agent manage ssh keys (a setting of SELinux)
    #[arg(long)]
    ga_manage_ssh: bool,
    /// Credentials from a secret: type:ssh|password,src:SECRET[,method:ga|nocloud|configdrive][,user:U]
    #[arg(long)]
    access_cred: Vec<String>,
    /// nocloud, configdrive or none
    #[arg(long, default_value = "nocloud")]
    cloud_init: String,
    /// User data of cloud-init, in base64
    #[arg(long)]
    cloud_init_user_data: Option<String>,
    /// Network data of cloud-init, in base64
    #[arg(long)]
    cloud_init_network_data: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Format,
}

pub fn run(command: CreateCommand) -> Result<()> {
    let CreateCommand::Vm(arguments) = command;
    let mut nonce = [0u8; 8];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    let mut random = u64::from_le_bytes(nonce);
    let mut suffix = move || {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let letter = |shift: u32| {
            let index = usize::try_from((random >> shift) % LETTERS.len() as u64).unwrap_or(0);
            char::from(LETTERS.get(index).copied().unwrap_or(b'b'))
        };
        [16, 24, 32, 40, 48].map(letter).iter().collect::<String>()
    };
    let password = match &arguments.password_file {
        Some(file) => Some(fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?.trim().to_owned()),
        None => None,
    };
    info::print(&build(&arguments, password.as_deref(), &mut suffix)?, arguments.output)
}

/// A volume on its way into the manifest.
struct Volume {
    value: Value,
    name: String,
    boot_order: Option<u64>,
    /// Disks whose content may carry the annotations that an instance type is inferred from.
    inferable: bool,
}

fn build(arguments: &VmArgs, password: Option<&str>, suffix: &mut dyn FnMut() -> String) -> Result<Value> {
    let name = arguments.name.clone().unwrap_or_else(|| format!("vm-{}", suffix()));
    let strategies = ["Always", "Halted", "Manual", "RerunOnFailure", "Once", "WaitAsReceiver"];
    if !strategies.contains(&arguments.run_strategy.as_str()) {
        bail!("invalid RunStrategy \"{}\", supported values are: {}", arguments.run_strategy, strategies.join(", "));
    }
    let mut volumes: Vec<Volume> = vec![];
    let mut templates: Vec<Value> = vec![];
    for (index, text) in arguments.volume_containerdisk.iter().enumerate() {
        let params = Params::parse("--volume-containerdisk", text, &["name", "src", "bootorder"])?;
        let volume = params.name().unwrap_or_else(|| format!("{name}-containerdisk-{index}"));
        let value = json!({ "name": volume, "containerDisk": { "image": params.required("src")? } });
        volumes.push(Volume { value, name: volume, boot_order: params.boot_order()?, inferable: false });
    }
    for text in &arguments.volume_pvc {
        let params = Params::parse("--volume-pvc", text, &["name", "src", "bootorder"])?;
        let claim = params.required("src")?;
        let volume = params.name().unwrap_or_else(|| claim.to_owned());
        let value = json!({ "name": volume, "persistentVolumeClaim": { "claimName": claim } });
        volumes.push(Volume { value, name: volume, boot_order: params.boot_order()?, inferable: true });
    }
    let older = [
        ("ds", "--volume-datasource", &arguments.volume_datasource),
        ("pvc", "--volume-clone-pvc", &arguments.volume_clone_pvc),
        ("blank", "--volume-blank", &arguments.volume_blank),
    ];
    for (kind, flag, texts) in older {
        for text in texts {
            import(&format!("type:{kind},{text}"), flag, suffix, &mut volumes, &mut templates)?;
        }
    }
    for text in &arguments.volume_import {
        import(text, "--volume-import", suffix, &mut volumes, &mut templates)?;
    }
    let mut orders = BTreeMap::new();
    for volume in &volumes {
        if let Some(order) = volume.boot_order
            && let Some(other) = orders.insert(order, &volume.name)
        {
            bail!("{other} and {} have the same bootorder {order}", volume.name);
        }
    }
    if let Some(text) = &arguments.volume_sysprep {
        let params = Params::parse("--volume-sysprep", text, &["src", "type"])?;
        let source = params.required("src")?;
        let sysprep = match params.get("type").unwrap_or("configMap").to_lowercase().as_str() {
            "configmap" => json!({ "configMap": { "name": source } }),
            "secret" => json!({ "secret": { "name": source } }),
            other => bail!("--volume-sysprep: type {other:?} is neither configMap nor secret"),
        };
        let value = json!({ "name": "sysprepdisk", "sysprep": sysprep });
        volumes.push(Volume { value, name: "sysprepdisk".into(), boot_order: None, inferable: false });
    }
    let credentials = credentials(arguments)?;
    let manage_ssh = arguments.ga_manage_ssh
        || credentials.iter().any(|c| !c["sshPublicKey"]["propagationMethod"]["qemuGuestAgent"].is_null());
    if let Some(value) = cloud_init(arguments, password, manage_ssh)? {
        volumes.push(Volume { value, name: "cloudinitdisk".into(), boot_order: None, inferable: false });
    }

    let mut spec = Map::new();
    if !templates.is_empty() {
        spec.insert("dataVolumeTemplates".into(), templates.into());
    }
    let boot = volumes.iter().filter(|v| v.boot_order.is_some()).min_by_key(|v| v.boot_order);
    let boot = boot.or(volumes.first()).filter(|volume| volume.inferable).map(|volume| volume.name.clone());
    let mut matcher =
        |key: &str, chosen: &Option<String>, from: &Option<String>, infer: Option<bool>| -> Result<bool> {
            let kind = if key == "instancetype" { "virtualmachineinstancetype" } else { "virtualmachinepreference" };
            let value = match (chosen, from) {
                (Some(_), Some(_)) => bail!("--{key} and --infer-{key}-from exclude each other"),
                (Some(_), None) if infer == Some(true) => bail!("--{key} and --infer-{key} exclude each other"),
                (Some(text), None) => match text.split_once('/') {
                    Some((given, name)) => json!({ "kind": given, "name": name }),
                    None => json!({ "name": text }),
                },
                (None, Some(volume)) => json!({ "inferFromVolume": volume }),
                (None, None) => match (&boot, infer) {
                    (Some(volume), None) => {
                        json!({ "inferFromVolume": volume, "inferFromVolumeFailurePolicy": "Ignore" })
                    }
                    (Some(volume), Some(true)) => json!({ "inferFromVolume": volume }),
                    (None, Some(true)) => bail!("there is no boot disk to infer the {kind} from"),
                    _ => return Ok(false),
                },
            };
            spec.insert(key.into(), value);
            Ok(true)
        };
    // Upstream does not infer a type that a given amount of memory would contradict.
    let infer_type = arguments.infer_instancetype.or(arguments.memory.is_some().then_some(false));
    let typed = matcher("instancetype", &arguments.instancetype, &arguments.infer_instancetype_from, infer_type)?;
    matcher("preference", &arguments.preference, &arguments.infer_preference_from, arguments.infer_preference)?;
    if arguments.instancetype.is_some() && arguments.memory.is_some() {
        bail!("--instancetype and --memory exclude each other: the type says how much there is");
    }

    let disks: Vec<Value> = volumes
        .iter()
        .filter_map(|volume| volume.boot_order.map(|order| json!({ "name": volume.name, "bootOrder": order })))
        .collect();
    let mut domain = json!({ "devices": {}, "resources": {} });
    if !disks.is_empty() {
        domain["devices"]["disks"] = disks.into();
    }
    if arguments.instancetype.is_none() && arguments.infer_instancetype_from.is_none() {
        let _ = typed;
        domain["memory"] = json!({ "guest": arguments.memory.as_deref().unwrap_or("512Mi") });
    }
    let mut template = json!({
        "domain": domain,
        "terminationGracePeriodSeconds": arguments.termination_grace_period,
    });
    if !credentials.is_empty() {
        template["accessCredentials"] = credentials.into();
    }
    if !volumes.is_empty() {
        template["volumes"] = volumes.into_iter().map(|volume| volume.value).collect();
    }
    spec.insert("runStrategy".into(), arguments.run_strategy.clone().into());
    spec.insert("template".into(), json!({ "metadata": {}, "spec": template }));
    let mut metadata = json!({ "name": name });
    if let Some(namespace) = &arguments.namespace {
        metadata["namespace"] = json!(namespace);
    }
    Ok(json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": spec }))
}

fn import(
    text: &str,
    flag: &str,
    suffix: &mut dyn FnMut() -> String,
    volumes: &mut Vec<Volume>,
    templates: &mut Vec<Value>,
) -> Result<()> {
    let known =
        ["type", "name", "size", "bootorder", "src", "url", "secretref", "certconfigmap", "pullmethod", "namespace"];
    let params = Params::parse(flag, text, &known)?;
    let kind = params.required("type")?;
    let name = params.name().unwrap_or_else(|| format!("imported-volume-{}", suffix()));
    let with_url = |extra: &[(&str, &str)]| -> Result<Value> {
        let mut source = json!({ "url": params.required("url")? });
        for (param, field) in extra {
            if let Some(value) = params.get(param) {
                source[*field] = json!(value);
            }
        }
        Ok(source)
    };
    let object = || -> Result<Value> {
        let source = params.required("src")?;
        Ok(match source.split_once('/') {
            Some((namespace, name)) => json!({ "namespace": namespace, "name": name }),
            None => json!({ "name": source }),
        })
    };
    let secret = [("secretref", "secretRef"), ("certconfigmap", "certConfigMap")];
    let source = match kind {
        "blank" => json!({ "source": { "blank": {} } }),
        "http" => json!({ "source": { "http": with_url(&secret)? } }),
        "s3" => json!({ "source": { "s3": with_url(&secret)? } }),
        "gcs" => json!({ "source": { "gcs": with_url(&[("secretref", "secretRef")])? } }),
        "registry" => {
            let [a, b] = secret;
            json!({ "source": { "registry": with_url(&[a, b, ("pullmethod", "pullMethod")])? } })
        }
        "pvc" => json!({ "source": { "pvc": object()? } }),
        "snapshot" => json!({ "source": { "snapshot": object()? } }),
        "ds" => {
            let mut reference = object()?;
            reference["kind"] = json!("DataSource");
            json!({ "sourceRef": reference })
        }
        other => {
            bail!("{flag}: unknown type {other:?}; there are blank, http, registry, s3, gcs, pvc, snapshot and ds")
        }
    };
    let mut spec = source;
    let copies = ["pvc", "snapshot", "ds"].contains(&kind);
    match params.get("size") {
        Some(size) => {
            let size = amounts::disk(size).map_err(|why| anyhow::anyhow!("{flag}: size: {why}"))?;
            spec["storage"] = json!({ "resources": { "requests": { "storage": size } } });
        }
        None if copies => spec["storage"] = json!({}),
        None => bail!("{flag}: a {kind} volume needs a size, such as size:10Gi"),
    }
    templates.push(json!({ "metadata": { "name": name }, "spec": spec }));
    let value = json!({ "name": name, "dataVolume": { "name": name } });
    volumes.push(Volume { value, name, boot_order: params.boot_order()?, inferable: copies });
    Ok(())
}

fn credentials(arguments: &VmArgs) -> Result<Vec<Value>> {
    arguments
        .access_cred
        .iter()
        .map(|text| {
            let params = Params::parse("--access-cred", text, &["type", "src", "method", "user"])?;
            let source = json!({ "secret": { "secretName": params.required("src")? } });
            let user = params.get("user").or(arguments.user.as_deref());
            let kind = params.get("type").unwrap_or("ssh");
            let method = match (kind, params.get("method").unwrap_or("ga")) {
                ("ssh", "ga") => match user {
                    Some(user) => json!({ "qemuGuestAgent": { "users": [user] } }),
                    None => bail!("--access-cred: whose keys? Add user:NAME, or --user"),
                },
                ("password", "ga") => json!({ "qemuGuestAgent": {} }),
                ("ssh", "nocloud") => json!({ "noCloud": {} }),
                ("ssh", "configdrive") => json!({ "configDrive": {} }),
                (_, other) => {
                    bail!("--access-cred: method {other:?} does not fit; there are ga, nocloud and configdrive")
                }
            };
            match kind {
                "ssh" => Ok(json!({ "sshPublicKey": { "source": source, "propagationMethod": method } })),
                "password" => Ok(json!({ "userPassword": { "source": source, "propagationMethod": method } })),
                other => bail!("--access-cred: type {other:?} is neither ssh nor password"),
            }
        })
        .collect()
}

fn cloud_init(arguments: &VmArgs, password: Option<&str>, manage_ssh: bool) -> Result<Option<Value>> {
    let kind = match arguments.cloud_init.to_lowercase().as_str() {
        "nocloud" => "cloudInitNoCloud",
        "configdrive" => "cloudInitConfigDrive",
        "none" => return Ok(None),
        other => bail!("--cloud-init: {other:?} is neither nocloud, configdrive nor none"),
    };
    let generated = arguments.user.is_some() || password.is_some() || !arguments.ssh_key.is_empty() || manage_ssh;
    let mut source = Map::new();
    match &arguments.cloud_init_user_data {
        Some(_) if arguments.user.is_some() || password.is_some() || !arguments.ssh_key.is_empty() => {
            bail!("--cloud-init-user-data and the flags that make user data exclude each other");
        }
        Some(data) => {
            BASE64.decode(data).context("--cloud-init-user-data is not base64")?;
            source.insert("userDataBase64".into(), json!(data));
        }
        None if generated => {
            source.insert("userData".into(), json!(user_data(arguments, password, manage_ssh)));
        }
        None => {}
    }
    if let Some(data) = &arguments.cloud_init_network_data {
        BASE64.decode(data).context("--cloud-init-network-data is not base64")?;
        source.insert("networkDataBase64".into(), json!(data));
    }
    Ok((!source.is_empty()).then(|| json!({ "name": "cloudinitdisk", kind: source })))
}

fn user_data(arguments: &VmArgs, password: Option<&str>, manage_ssh: bool) -> String {
    let mut lines = vec!["#cloud-config".to_owned()];
    lines.extend(arguments.user.as_ref().map(|user| format!("user: {user}")));
    if let Some(password) = password {
        lines.push(format!("password: {password}"));
        lines.push("chpasswd: { expire: False }".into());
    }
    if !arguments.ssh_key.is_empty() {
        lines.push("ssh_authorized_keys:".into());
        lines.extend(arguments.ssh_key.iter().map(|key| format!("  - {key}")));
    }
    if manage_ssh {
        lines.push("runcmd:".into());
        lines.push("  - [ setsebool, -P, 'virt_qemu_ga_manage_ssh', 'on' ]".into());
    }
    lines.join("\n")
}

/// `key:value,key:value`
struct Params<'a> {
    flag: &'a str,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Params<'a> {
    fn parse(flag: &'a str, text: &'a str, known: &[&str]) -> Result<Self> {
        let mut values = BTreeMap::new();
        // A value on its own is the source, as in `--volume-pvc=my-claim`.
        if !text.contains(':') && !text.contains(',') && known.contains(&"src") {
            values.insert("src", text);
            return Ok(Self { flag, values });
        }
        for part in text.split(',') {
            let Some((key, value)) = part.split_once(':') else {
                bail!("{flag}: {part:?} is not of the form key:value");
            };
            if !known.contains(&key) {
                bail!("{flag}: unknown param {key:?}; there are {}", known.join(", "));
            }
            values.insert(key, value);
        }
        Ok(Self { flag, values })
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).copied().filter(|value| !value.is_empty())
    }

    fn required(&self, key: &str) -> Result<&'a str> {
        self.get(key).with_context(|| format!("{}: {key} must be specified", self.flag))
    }

    fn name(&self) -> Option<String> {
        self.get("name").map(Into::into)
    }

    fn boot_order(&self) -> Result<Option<u64>> {
        match self.get("bootorder").map(str::parse::<u64>) {
            None => Ok(None),
            Some(Ok(0)) => bail!("{}: bootorder must be greater than 0", self.flag),
            Some(Ok(order)) => Ok(Some(order)),
            Some(Err(_)) => bail!("{}: bootorder is not a number", self.flag),
        }
    }
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
