//! Where images come from, and what goes wrong on the way.

use std::fs;

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Host, host,
    liar::Liar,
    manifest,
    servers::{self, PASSWORD, Registry, USER},
    wait,
};
use serde_json::{Value, json};

use super::{address, check_disk, demo_disk, disk_of, serve_demo, succeeded, volume};

pub fn bad_images_fail_with_their_reason(host: &Host) -> Result<()> {
    servers::certificate(&host.work_dir().join("bad"), &address(host)?)?;
    let (web, base) = serve_demo(host, "bad", None)?;
    let www = host.work_dir().join("bad/www");
    let demo = fs::read(demo_disk()?)?;
    fs::write(www.join("short.qcow2"), &demo[..demo.len() / 2])?;
    let backed = ["create", "-q", "-f", "qcow2", "-u", "-b", "/etc/shadow", "-F", "raw", "backed.qcow2", "1M"];
    ensure!(
        std::process::Command::new("qemu-img").args(backed).current_dir(&www).status()?.success(),
        "qemu-img failed"
    );
    let bomb = "truncate -s 300M zero && gzip -1 zero && mv zero.gz bomb.gz";
    ensure!(std::process::Command::new("sh").args(["-c", bomb]).current_dir(&www).status()?.success(), "gzip failed");
    fs::write(www.join("disk.bz2"), b"BZh91AY&SY and so on")?;
    fs::write(www.join("login.html"), b"<!DOCTYPE html><title>Who are you?</title>")?;
    // One says twice what it has, one half of it. A raw disk does not tell by itself where it ends.
    let address = address(host)?;
    let raw: Vec<u8> = (0..8_u32 << 20).map(|place| (place * 31 % 251) as u8).collect();
    let liars = [
        Liar::start(raw.clone(), 2 * raw.len())?,
        Liar::start(demo.clone(), demo.len() / 2)?,
        Liar::start(demo.clone(), 2 * demo.len())?,
    ];
    let [more, less, much_more] = liars.each_ref().map(|liar| format!("http://{address}:{}/image", liar.port));
    let secure = format!("https://{address}:{}/demo.qcow2", web.secure_port);
    let cases = [
        ("promises-more-mapped", much_more.as_str(), "100Mi", "", "ImageTruncated"),
        ("unknown-format", "disk.bz2", "100Mi", "", "UnsupportedImage"),
        ("page", "login.html", "100Mi", "", "UnsupportedImage"),
        ("not-for-you", "login/demo.qcow2", "100Mi", "", "SourceRefused"),
        ("untrusted", secure.as_str(), "100Mi", "", "SourceRefused"),
        ("promises-more", more.as_str(), "100Mi", "", "ImageTruncated"),
        ("promises-less", less.as_str(), "100Mi", "", "ImageTruncated"),
        ("too-large", "demo.qcow2", "10Mi", "", "ImageTooLarge"),
        ("too-short", "short.qcow2", "100Mi", "", "ImageTruncated"),
        ("backed", "backed.qcow2", "100Mi", "", "BackingFile"),
        ("bomb", "bomb.gz", "100Mi", "", "ImageTooLarge"),
        ("missing", "nothing", "100Mi", "", "SourceRefused"),
        (
            "checksum",
            "demo.qcow2",
            "100Mi",
            "sha256:0000000000000000000000000000000000000000000000000000000000000000",
            "ChecksumMismatch",
        ),
    ];
    for (name, file, size, checksum, _) in cases {
        let mut http = json!({ "url": if file.contains(':') { file.to_owned() } else { format!("{base}/{file}") } });
        if !checksum.is_empty() {
            http["checksum"] = checksum.into();
        }
        host.apply(&volume(name, json!({ "http": http }), size))?;
    }
    for (name, _, _, _, reason) in cases {
        let volume = host.wait_for("dv", name, "failed", |volume| volume["status"]["phase"] == "Failed")?;
        let conditions = volume["status"]["conditions"].as_array().context("no conditions")?;
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready").context("no condition Ready")?;
        ensure!(ready["reason"] == reason, "{name}: {ready}");
        let message = ready["message"].as_str().unwrap_or_default();
        ensure!(message.len() > 10, "{name} does not say why: {ready}");
        ensure!(!disk_of(host, name)?.exists(), "{name} left a part of the image");
    }
    // A server that is away, or out of order, is waited for, and its trouble is told.
    let nobody = format!("http://{address}:1/demo.qcow2");
    let waiting = [("out-of-order", format!("{base}/broken/demo.qcow2"), "500"), ("nobody", nobody, "cannot connect")];
    for (name, url, _) in &waiting {
        host.apply(&volume(name, json!({ "http": { "url": url } }), "100Mi"))?;
    }
    for (name, _, part) in &waiting {
        let tells = |volume: &Value| {
            let conditions = volume["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                condition["type"] == "Running"
                    && condition["reason"] == "Error"
                    && condition["message"].as_str().is_some_and(|message| message.contains(part))
            })
        };
        host.wait_for("dv", name, "waiting for its server", tells)?;
        ensure!(!disk_of(host, name)?.exists(), "{name} has a disk");
        host.kubectl(&["delete", "dv", name])?;
        host.wait_gone("pod", &format!("importer-{name}"))?;
    }
    drop(web);
    let names = cases.iter().map(|(name, ..)| *name);
    host.kubectl(&["delete", "dv"].into_iter().chain(names).collect::<Vec<_>>()).map(drop)
}

pub fn registries_fill_volumes_and_container_disks(host: &Host) -> Result<()> {
    let registry = Registry::start(&host.work_dir().join("registry"))?;
    let reference = registry.push(&host::guest_archive()?, "demo/guest", &host.work_dir().join("push"))?;
    // Whoever names an image does not decide that the host asks its own loopback.
    fs::write(super::registries_file(), "{}")?;
    host.apply(&volume("unlisted", json!({ "registry": { "url": format!("docker://{reference}") } }), "100Mi"))?;
    let told = |volume: &Value| volume["status"]["conditions"].to_string().contains("belongs to this host");
    host.wait_for("dv", "unlisted", "not pulled from the host itself", told)?;
    host.kubectl(&["delete", "dv", "unlisted"])?;
    super::allow(&registry)?;
    host.apply(&volume("pulled", json!({ "registry": { "url": format!("docker://{reference}") } }), "100Mi"))?;
    succeeded(host, "pulled")?;
    check_disk(host, "pulled", &demo_disk()?)?;
    // The same image, now as a containerDisk, with the registry gone: the node has it.
    drop(registry);
    let mut vm = manifest::plain_vm("from-registry", "Always");
    vm["spec"]["template"]["spec"]["volumes"][0]["containerDisk"]["image"] = reference.into();
    host.apply(&vm)?;
    host.wait_running("from-registry")?;
    host.kubectl(&["delete", "vm", "from-registry"])?;
    host.kubectl(&["delete", "dv", "pulled"]).map(drop)
}

/// A web server and a registry that want a login, a certificate that only a ConfigMap vouches for, and a mirror.
/// `registries` is the file that the host was told of.
pub fn logins_and_mirrors_are_used(host: &Host, registries: &std::path::Path) -> Result<()> {
    let address = address(host)?;
    let pem = servers::certificate(&host.work_dir().join("locked"), &address)?;
    let (web, base) = serve_demo(host, "locked", None)?;
    let (user, password) = (format!("accessKeyId={USER}"), format!("secretKey={PASSWORD}"));
    host.kubectl(&["create", "secret", "generic", "login", "--from-literal", &user, "--from-literal", &password])?;
    host.kubectl(&["create", "configmap", "authority", "--from-literal", &format!("ca.pem={pem}")])?;
    let url = format!("{base}/login/demo.qcow2");
    host.apply(&volume("with-login", json!({ "http": { "url": url, "secretRef": "login" } }), "100Mi"))?;
    let url = format!("https://{address}:{}/demo.qcow2", web.secure_port);
    host.apply(&volume("with-authority", json!({ "http": { "url": url, "certConfigMap": "authority" } }), "100Mi"))?;

    let registry = Registry::start_with_login(&host.work_dir().join("locked-registry"))?;
    super::allow(&registry)?;
    let work = host.work_dir().join("locked-push");
    let reference = registry.push(&host::guest_archive()?, "demo/locked", &work)?;
    let url = format!("docker://{reference}");
    host.apply(&volume("without-login", json!({ "registry": { "url": url } }), "100Mi"))?;
    let told =
        |volume: &Value| volume["status"]["conditions"].to_string().contains("check the name and the pull secret");
    host.wait_for("dv", "without-login", "refused by the registry", told)?;
    host.kubectl(&["delete", "dv", "without-login"])?;
    host.apply(&volume("with-pull-login", json!({ "registry": { "url": url, "secretRef": "login" } }), "100Mi"))?;
    for name in ["with-login", "with-authority", "with-pull-login"] {
        succeeded(host, name)?;
        check_disk(host, name, &demo_disk()?)?;
    }

    // The same content under a name that nobody can reach but by the mirror, and as a containerDisk.
    registry.push(&host::guest_archive()?, "demo/mirrored", &work)?;
    let mirrors = json!({ "registries": [
        { "host": "registry.invalid", "mirrors": [format!("http://127.0.0.1:{}", registry.port)] },
    ] });
    fs::write(registries, mirrors.to_string())?;
    let server = "--docker-server=registry.invalid";
    let (user, password) = (format!("--docker-username={USER}"), format!("--docker-password={PASSWORD}"));
    host.kubectl(&["create", "secret", "docker-registry", "pull", server, &user, &password])?;
    let mut vm = manifest::plain_vm("mirrored", "Always");
    let root = &mut vm["spec"]["template"]["spec"]["volumes"][0]["containerDisk"];
    root["image"] = "registry.invalid/demo/mirrored:latest".into();
    root["imagePullSecret"] = "pull".into();
    host.apply(&vm)?;
    host.wait_running("mirrored").context("a containerDisk by way of a mirror, with a login")?;
    host.kubectl(&["delete", "vm", "mirrored"])?;
    host.kubectl(&["delete", "secret", "login", "pull"])?;
    host.kubectl(&["delete", "dv", "with-login", "with-authority", "with-pull-login"]).map(drop)
}

/// A clone reads a disk, so it needs a right where the disk is.
pub fn clones_from_other_namespaces_need_a_right(host: &Host) -> Result<()> {
    let (_web, base) = serve_demo(host, "golden", None)?;
    host.kubectl(&["create", "namespace", "images"])?;
    let mut golden = volume("golden", json!({ "http": { "url": format!("{base}/demo.qcow2") } }), "100Mi");
    golden["metadata"]["namespace"] = "images".into();
    host.apply(&golden)?;
    host.kubectl(&["wait", "-n", "images", "--for=jsonpath={.status.phase}=Succeeded", "dv/golden", "--timeout=120s"])?;
    host.kubectl(&["create", "rolebinding", "cloner", "--clusterrole=admin", "--user=cloner"])?;
    let config = host.work_dir().join("cloner");
    fs::write(&config, host.kubeconfig_of("cloner")?)?;
    let config = config.to_string_lossy().into_owned();
    let wanted = volume("cloned", json!({ "pvc": { "namespace": "images", "name": "golden" } }), "100Mi").to_string();
    let create = ["--kubeconfig", &config, "create", "-f", "-"];
    let said = host.try_kubectl(&create, &wanted)?.failure()?;
    ensure!(said.contains("datavolumes/source"), "it said: {said}");
    host.kubectl(&["create", "role", "-n", "images", "readers", "--verb=create", "--resource=datavolumes/source"])?;
    host.kubectl(&["create", "rolebinding", "-n", "images", "cloner", "--role=readers", "--user=cloner"])?;
    host.try_kubectl(&create, &wanted)?.success()?;
    succeeded(host, "cloned")?;
    check_disk(host, "cloned", &demo_disk()?)?;
    let pods = || host.kubectl(&["get", "pods", "-n", "images", "-o", "name"]);
    wait::until("the pod that showed the disk to be gone", wait::SOON, || {
        let pods = pods()?;
        Ok(if pods.is_empty() { wait::Seen::Yes(()) } else { wait::Seen::Not(pods) })
    })?;
    let change = r#"{"spec":{"source":{"pvc":{"name":"other"}}}}"#;
    let said = host.try_kubectl(&["patch", "dv", "cloned", "--type=merge", "-p", change], "")?.failure()?;
    ensure!(said.contains("cannot be changed"), "it said: {said}");
    host.kubectl(&["delete", "dv", "cloned"])?;
    host.kubectl(&["delete", "rolebinding", "cloner"])?;
    host.kubectl(&["delete", "namespace", "images"]).map(drop)
}
