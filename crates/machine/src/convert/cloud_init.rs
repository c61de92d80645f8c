//! Cloud-init volumes: which files they hold and where each comes from.

use ferrovirt_api::{names, v1};
use serde_json::{Map, Value};

use super::{Conversion, credentials};
use crate::spec::{Content, FileContent, Preparation};

/// What the two sources have in common.
struct Source<'a> {
    user_data: &'a str,
    user_data_base64: &'a str,
    has_user_secret: bool,
    network_data: &'a str,
    network_data_base64: &'a str,
    has_network_secret: bool,
}

/// Plans the volume and returns its path.
pub(super) fn prepare(c: &mut Conversion<'_>, field: &str, volume: &v1::Volume) -> String {
    let namespace = c.vmi.metadata.namespace.as_deref().unwrap_or_default();
    let name = c.vmi.metadata.name.as_deref().unwrap_or_default();
    let directory = format!("{}/{namespace}/{name}", c.ctx.layout.cloud_init);
    let (file, label) = match volume.cloud_init_no_cloud {
        Some(_) => ("noCloud.iso", "cidata"),
        None => ("configdrive.iso", "config-2"),
    };
    let path = format!("{directory}/{file}");
    let files = data(c, field, volume);
    c.prepare(Preparation::CloudInit { path: path.clone(), label: label.into(), files });
    path
}

/// The files of the volume.
pub(super) fn data(c: &mut Conversion<'_>, field: &str, volume: &v1::Volume) -> Vec<FileContent> {
    if let Some(source) = &volume.cloud_init_no_cloud {
        let source = Source {
            user_data: &source.user_data,
            user_data_base64: &source.user_data_base64,
            has_user_secret: source.secret_ref.is_some(),
            network_data: &source.network_data,
            network_data_base64: &source.network_data_base64,
            has_network_secret: source.network_data_secret_ref.is_some(),
        };
        let data = [("user-data", user_data(&source)), ("network-config", network_data(&source))];
        let keys = credentials::cloud_init_keys(c, false);
        let metadata = ("meta-data", with_keys(no_cloud_metadata(c), "public-keys", keys));
        return files(c, &format!("{field}.cloudInitNoCloud"), &volume.name, &source, data, metadata);
    }
    let Some(source) = &volume.cloud_init_config_drive else {
        return Vec::new();
    };
    let source = Source {
        user_data: &source.user_data,
        user_data_base64: &source.user_data_base64,
        has_user_secret: source.secret_ref.is_some(),
        network_data: &source.network_data,
        network_data_base64: &source.network_data_base64,
        has_network_secret: source.network_data_secret_ref.is_some(),
    };
    let data = [
        ("openstack/latest/user_data", user_data(&source)),
        ("openstack/latest/network_data.json", network_data(&source)),
    ];
    let keys = credentials::cloud_init_keys(c, true);
    let metadata = ("openstack/latest/meta_data.json", with_keys(config_drive_metadata(c), "public_keys", keys));
    files(c, &format!("{field}.cloudInitConfigDrive"), &volume.name, &source, data, metadata)
}

/// The name by which the guest knows itself: one DNS label.
pub fn hostname(vmi: &v1::VirtualMachineInstance) -> String {
    let wanted = if vmi.spec.hostname.is_empty() {
        vmi.metadata.name.as_deref().unwrap_or_default()
    } else {
        &vmi.spec.hostname
    };
    let label: String = wanted.split('.').next().unwrap_or_default().chars().take(63).collect();
    label.trim_end_matches('-').into()
}

fn files(
    c: &mut Conversion<'_>,
    field: &str,
    volume: &str,
    source: &Source<'_>,
    data: [(&str, Option<Content>); 2],
    metadata: (&str, Content),
) -> Vec<FileContent> {
    let secrets = format!("{}/secret/{volume}", c.ctx.layout.private);
    let secret = |names: [&str; 2]| Content::FirstOf(names.map(|name| format!("{secrets}/{name}")).into());
    let [(user_name, user), (network_name, network)] = data;
    let user = if source.has_user_secret { Some(secret(["userdata", "userData"])) } else { user };
    let network = if source.has_network_secret { Some(secret(["networkdata", "networkData"])) } else { network };
    if user.is_none() && network.is_none() {
        c.refuse(field, "needs userData, userDataBase64, secretRef or one of their networkData kin");
    }
    let mut files = Vec::new();
    // A client that finds no user data does not take the volume for a data source.
    files.push(FileContent { name: user_name.into(), content: user.unwrap_or_default() });
    files.push(FileContent { name: metadata.0.into(), content: metadata.1 });
    files.extend(network.map(|content| FileContent { name: network_name.into(), content }));
    files
}

fn with_keys(metadata: Value, field: &str, dirs: Vec<String>) -> Content {
    match dirs.is_empty() {
        true => Content::Text(metadata.to_string()),
        false => Content::WithKeys { json: metadata.to_string(), field: field.into(), dirs },
    }
}

fn user_data(source: &Source<'_>) -> Option<Content> {
    inline(source.user_data, source.user_data_base64)
}

fn network_data(source: &Source<'_>) -> Option<Content> {
    inline(source.network_data, source.network_data_base64)
}

fn inline(text: &str, base64: &str) -> Option<Content> {
    match (text, base64) {
        ("", "") => None,
        ("", base64) => Some(Content::Base64(base64.into())),
        (text, _) => Some(Content::Text(text.into())),
    }
}

fn no_cloud_metadata(c: &Conversion<'_>) -> Value {
    let mut metadata = Map::new();
    if let Some(instance_type) = instance_type(c.vmi) {
        metadata.insert("instance-type".into(), instance_type.into());
    }
    metadata.insert("instance-id".into(), firmware_uuid(c.vmi).into());
    metadata.insert("local-hostname".into(), hostname(c.vmi).into());
    metadata.into()
}

fn config_drive_metadata(c: &Conversion<'_>) -> Value {
    let metadata = &c.vmi.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let mut out = Map::new();
    if let Some(instance_type) = instance_type(c.vmi) {
        out.insert("instance_type".into(), instance_type.into());
    }
    out.insert("instance_id".into(), format!("{name}.{namespace}").into());
    out.insert("hostname".into(), hostname(c.vmi).into());
    out.insert("uuid".into(), firmware_uuid(c.vmi).into());
    out.into()
}

/// Stays the same over restarts of a VirtualMachine, so that cloud-init takes its first boot for its only one.
fn firmware_uuid(vmi: &v1::VirtualMachineInstance) -> String {
    let uuid = vmi.spec.domain.firmware.as_ref().map(|firmware| firmware.uuid.clone()).unwrap_or_default();
    if uuid.is_empty() { vmi.metadata.uid.clone().unwrap_or_default() } else { uuid }
}

fn instance_type(vmi: &v1::VirtualMachineInstance) -> Option<String> {
    let annotations = vmi.metadata.annotations.as_ref()?;
    let named = annotations.get(names::CLUSTER_INSTANCETYPE_ANNOTATION).filter(|name| !name.is_empty());
    named.or_else(|| annotations.get(names::INSTANCETYPE_ANNOTATION)).filter(|name| !name.is_empty()).cloned()
}
