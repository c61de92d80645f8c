//! Disks that persist: claims of the local class, what a guest keeps on them, and images that fill them.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Host, Options, host,
    liar::Liar,
    manifest,
    process::Process,
    relay::Relay,
    servers::{Registry, Web},
    suite,
    tools::{Background, Virtctl},
    wait,
};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("claims_are_bound_and_reclaimed", claims_are_bound_and_reclaimed),
    ("data_outlives_the_vm_and_the_host", data_outlives_the_vm_and_the_host),
    ("a_guest_sees_every_kind_of_volume", a_guest_sees_every_kind_of_volume),
    ("an_image_is_transferred_once", an_image_is_transferred_once),
    ("bad_images_fail_with_their_reason", bad_images_fail_with_their_reason),
    ("uploads_fill_a_volume", uploads_fill_a_volume),
    ("a_broken_upload_goes_on", a_broken_upload_goes_on),
    ("registries_fill_volumes_and_container_disks", registries_fill_volumes_and_container_disks),
    ("a_killed_import_goes_on", a_killed_import_goes_on),
    ("a_vm_from_a_template_keeps_its_disk", a_vm_from_a_template_keeps_its_disk),
];

fn main() -> ExitCode {
    let embedded_only = &[
        ("claims_are_bound_and_reclaimed", "a cluster's volumes are made by its own provisioner"),
        ("an_image_is_transferred_once", "there is no cache of images on a cluster"),
        ("uploads_fill_a_volume", "uploads are not there yet on a cluster"),
        ("a_broken_upload_goes_on", "uploads are not there yet on a cluster"),
        ("registries_fill_volumes_and_container_disks", "a pod cannot reach the registry on this machine's loopback"),
    ];
    suite(Options { embedded_only, ..Options::default() }, CASES)
}

fn claim(name: &str, class: Option<&str>, mode: &str) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": mode, "resources": { "requests": { "storage": "64Mi" } },
        },
    });
    if let Some(class) = class {
        claim["spec"]["storageClassName"] = class.into();
    }
    claim
}

fn claims_are_bound_and_reclaimed(host: &Host) -> Result<()> {
    host.apply(&claim("plain", None, "Filesystem"))?;
    host.apply(&claim("waits", Some("local-wait"), "Filesystem"))?;
    let bound = host.wait_for("pvc", "plain", "bound", |claim| claim["status"]["phase"] == "Bound")?;
    ensure!(bound["spec"]["storageClassName"] == "local", "class: {}", bound["spec"]);
    ensure!(bound["status"]["capacity"]["storage"] == "64Mi", "status: {}", bound["status"]);
    let name = bound["spec"]["volumeName"].as_str().context("no volume")?.to_owned();
    let volume = host.wait_for("pv", &name, "bound", |volume| volume["status"]["phase"] == "Bound")?;
    let path = volume["spec"]["local"]["path"].as_str().context("no path")?.to_owned();
    ensure!(Path::new(&path).is_dir(), "{path} is no directory");
    let waiting = host.get("pvc", "waits")?;
    ensure!(waiting["status"]["phase"] == "Pending", "it did not wait: {}", waiting["status"]);
    host.kubectl(&["delete", "pvc", "plain", "waits"])?;
    host.wait_gone("pv", &name)?;
    ensure!(!Path::new(&path).exists(), "{path} was left behind");
    Ok(())
}

/// Two disks, one in each volume mode. What the guest writes is there after a stop, and after everything restarted.
fn data_outlives_the_vm_and_the_host(host: &Host) -> Result<()> {
    host.apply(&claim("keep", None, "Filesystem"))?;
    host.apply(&claim("keep-block", Some("local-wait"), "Block"))?;
    let mut vm = manifest::vm("keeper", "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    for (name, serial) in [("keep", "KEEPFILE"), ("keep-block", "KEEPBLOCK")] {
        let disk = json!({ "name": name, "disk": { "bus": "virtio" }, "serial": serial });
        spec["domain"]["devices"]["disks"].as_array_mut().context("disks")?.push(disk);
        let volume = json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
        spec["volumes"].as_array_mut().context("volumes")?.push(volume);
    }
    host.apply(&vm)?;
    host.wait_running("keeper")?;
    let mut console = host.console("keeper")?;
    console.login("keeper")?;
    for (device, name) in [("vdc", "file"), ("vdd", "block")] {
        let size = console.shell(&format!("cat /sys/block/{device}/size"))?;
        ensure!(size == "131072", "{device} has {size} sectors, not 64 MiB");
        let made = console.shell(&format!(
            "sudo /sbin/mke2fs /dev/{device} >/dev/null 2>&1; sudo mkdir -p /mnt/{name}; sudo mount /dev/{device} /mnt/{name} && echo kept-{name} | sudo tee /mnt/{name}/note; sudo umount /mnt/{name}"
        ))?;
        ensure!(made.contains(&format!("kept-{name}")), "{device}: {made:?}");
    }
    console.leave()?;
    host.ferrovirt(&["stop", "keeper"])?;
    host.wait_gone("vmi", "keeper")?;
    host.restart()?;
    host.ferrovirt(&["start", "keeper"])?;
    host.wait_running("keeper")?;
    let mut console = host.console("keeper")?;
    console.login("keeper")?;
    for (device, name) in [("vdc", "file"), ("vdd", "block")] {
        let read = console.shell(&format!(
            "sudo mkdir -p /mnt/{name}; sudo mount -o ro /dev/{device} /mnt/{name}; cat /mnt/{name}/note"
        ))?;
        ensure!(read.contains(&format!("kept-{name}")), "{device} lost its file: {read:?}");
    }
    console.leave()?;
    host.kubectl(&["delete", "vm", "keeper"])?;
    host.kubectl(&["delete", "pvc", "keep", "keep-block"])?;
    Ok(())
}

/// One guest with a disk of every kind that is made from something else.
fn a_guest_sees_every_kind_of_volume(host: &Host) -> Result<()> {
    host.kubectl(&["create", "configmap", "words", "--from-literal=word=from-a-configmap"])?;
    host.kubectl(&["create", "secret", "generic", "hidden", "--from-literal=word=from-a-secret"])?;
    host.kubectl(&["create", "configmap", "unattended", "--from-literal=autounattend.xml=from-sysprep"])?;
    let mut vm = manifest::vm("many", "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    let field = json!({ "path": "word", "fieldRef": { "fieldPath": "metadata.labels['kubevirt.io/vm']" } });
    let volumes = [
        ("words", json!({ "configMap": { "name": "words" } }), "cat /mnt/word", "from-a-configmap"),
        ("hidden", json!({ "secret": { "secretName": "hidden" } }), "cat /mnt/word", "from-a-secret"),
        ("facts", json!({ "downwardAPI": { "fields": [field] } }), "cat /mnt/word", "many"),
        ("account", json!({ "serviceAccount": { "serviceAccountName": "default" } }), "cat /mnt/namespace", "default"),
        ("answers", json!({ "sysprep": { "configMap": { "name": "unattended" } } }), "ls /mnt", "autounattend.xml"),
    ];
    for (name, source, _, _) in &volumes {
        let disk = json!({ "name": name, "disk": { "bus": "virtio" } });
        spec["domain"]["devices"]["disks"].as_array_mut().context("disks")?.push(disk);
        let mut volume = source.clone();
        volume["name"] = (*name).into();
        spec["volumes"].as_array_mut().context("volumes")?.push(volume);
    }
    host.apply(&vm)?;
    host.wait_running("many")?;
    let mut console = host.console("many")?;
    console.login("many")?;
    for (device, (name, _, command, expected)) in ["vdc", "vdd", "vde", "vdf", "vdg"].into_iter().zip(&volumes) {
        let mounted = console
            .shell(&format!("sudo mount -t iso9660 -o ro /dev/{device} /mnt && sudo {command}; sudo umount /mnt"))?;
        ensure!(mounted.contains(expected), "{name} shows {mounted:?}");
    }
    console.leave()?;
    host.kubectl(&["delete", "vm", "many"]).map(drop)
}

/// The demo guest's disk.
fn demo_disk() -> Result<std::path::PathBuf> {
    Ok(host::guest_archive()?.with_file_name("demo.qcow2"))
}

/// How pods reach a server on this machine.
fn address(host: &Host) -> Result<String> {
    let nodes: Value = serde_json::from_str(&host.kubectl(&["get", "nodes", "-o", "json"])?)?;
    let addresses = nodes["items"][0]["status"]["addresses"].as_array().context("no addresses")?.clone();
    let internal = addresses.iter().find(|address| address["type"] == "InternalIP").context("no address")?;
    Ok(internal["address"].as_str().context("no address")?.to_owned())
}

fn volume(name: &str, source: Value, size: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "source": source, "storage": { "resources": { "requests": { "storage": size } } } },
    })
}

fn succeeded(host: &Host, name: &str) -> Result<Value> {
    host.wait_for("dv", name, "filled", |volume| volume["status"]["phase"] == "Succeeded")
}

/// The file behind a claim.
fn disk_of(host: &Host, claim: &str) -> Result<std::path::PathBuf> {
    let claim = host.get("pvc", claim)?;
    let volume = host.get("pv", claim["spec"]["volumeName"].as_str().context("not bound")?)?;
    Ok(Path::new(volume["spec"]["local"]["path"].as_str().context("no path")?).join("disk.img"))
}

/// The disk must hold what qemu-img makes of the image, and nothing after it.
fn check_disk(host: &Host, claim: &str, image: &Path) -> Result<()> {
    let raw = host.work_dir().join("expected.raw");
    if !raw.exists() {
        let done =
            std::process::Command::new("qemu-img").args(["convert", "-O", "raw"]).arg(image).arg(&raw).status()?;
        ensure!(done.success(), "qemu-img failed");
    }
    let (expected, found) = (fs::read(&raw)?, fs::read(disk_of(host, claim)?)?);
    ensure!(found.len() >= expected.len(), "{claim} is too small");
    ensure!(found[..expected.len()] == expected[..], "{claim} differs from the image");
    ensure!(found[expected.len()..].iter().all(|byte| *byte == 0), "{claim} has something after the image");
    Ok(())
}

fn serve_demo(host: &Host, name: &str, limit: Option<&str>) -> Result<(Web, String)> {
    let directory = host.work_dir().join(name);
    fs::create_dir_all(directory.join("www"))?;
    fs::copy(demo_disk()?, directory.join("www/demo.qcow2"))?;
    let web = Web::start(&directory, limit)?;
    let base = format!("http://{}:{}", address(host)?, web.port);
    Ok((web, base))
}

/// Ten machines, and a clone of one of their disks; the web server sends the image once.
fn an_image_is_transferred_once(host: &Host) -> Result<()> {
    let (web, base) = serve_demo(host, "once", None)?;
    let source = json!({ "http": { "url": format!("{base}/demo.qcow2") } });
    let names: Vec<String> = (0..10).map(|number| format!("same{number}")).collect();
    for name in &names {
        host.apply(&with_template(manifest::plain_vm(name, "Always"), name, &source))?;
    }
    for name in &names {
        host.wait_running(name)?;
        let volume = succeeded(host, name)?;
        ensure!(volume["status"]["progress"] == "100.0%", "status: {}", volume["status"]);
    }
    let (sent, size) = (web.sent("/demo.qcow2")?, fs::metadata(demo_disk()?)?.len());
    ensure!(sent < size + size / 4, "{sent} bytes were sent for an image of {size}");
    for name in &names {
        host.kubectl(&["delete", "vm", name, "--wait=false"])?;
    }
    for name in &names {
        host.wait_gone("pvc", name)?;
    }
    host.apply(&volume("first", source, "100Mi"))?;
    succeeded(host, "first")?;
    check_disk(host, "first", &demo_disk()?)?;
    host.apply(&volume("copy", json!({ "pvc": { "namespace": "default", "name": "first" } }), "100Mi"))?;
    succeeded(host, "copy")?;
    check_disk(host, "copy", &demo_disk()?)?;
    host.kubectl(&["delete", "dv", "first", "copy"])?;
    host.wait_gone("pvc", "first")
}

/// The machine with its root disk from a template of the same name.
fn with_template(mut vm: Value, name: &str, source: &Value) -> Value {
    let template = volume(name, source.clone(), "200Mi");
    vm["spec"]["dataVolumeTemplates"] = json!([{ "metadata": { "name": name }, "spec": template["spec"] }]);
    vm["spec"]["template"]["spec"]["volumes"][0] = json!({ "name": "root", "dataVolume": { "name": name } });
    vm
}

fn bad_images_fail_with_their_reason(host: &Host) -> Result<()> {
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
    // One says twice what it has, one half of it. A raw disk does not tell by itself where it ends.
    let address = address(host)?;
    let raw: Vec<u8> = (0..8_u32 << 20).map(|place| (place * 31 % 251) as u8).collect();
    let liars = [Liar::start(raw.clone(), 2 * raw.len())?, Liar::start(demo.clone(), demo.len() / 2)?];
    let [more, less] = liars.each_ref().map(|liar| format!("http://{address}:{}/image", liar.port));
    let cases = [
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
    drop(web);
    let names = cases.iter().map(|(name, ..)| *name);
    host.kubectl(&["delete", "dv"].into_iter().chain(names).collect::<Vec<_>>()).map(drop)
}

fn uploads_fill_a_volume(host: &Host) -> Result<()> {
    let image = demo_disk()?;
    let path = image.to_string_lossy().into_owned();
    let said = host.ferrovirt(&["image-upload", "dv", "sent", "--size", "100Mi", "--image-path", &path])?;
    ensure!(said.contains("datavolume/sent is filled"), "image-upload said: {said}");
    check_disk(host, "sent", &image)?;
    let filled = host.get("pvc", "sent")?;
    let phase = &filled["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.phase"];
    ensure!(phase == "Succeeded", "virtctl looks for this: {phase}");
    let outcome = host.try_ferrovirt(&["image-upload", "dv", "tiny", "--size", "10Mi", "--image-path", &path], "")?;
    ensure!(outcome.code != Some(0) && outcome.stderr.contains("ask for a larger disk"), "it said: {}", outcome.stderr);
    host.kubectl(&["delete", "dv", "sent", "tiny"])?;
    // Claims without a DataVolume: one that virtctl makes, one of ours, and one that was there before.
    host.apply(&claim("there", None, "Filesystem"))?;
    let virtctl = Virtctl::stock()?;
    let arguments = |name, size| vec!["image-upload", "pvc", name, "--size", size, "--image-path", &path, "--insecure"];
    virtctl.say(host, &arguments("bare", "100Mi"))?;
    let said = host.ferrovirt(&arguments("bare-ours", "100Mi"))?;
    ensure!(said.contains("persistentvolumeclaim/bare-ours is filled"), "image-upload said: {said}");
    let small = host.work_dir().join("small.img");
    fs::write(&small, vec![7_u8; 1 << 20])?;
    let small = small.to_string_lossy().into_owned();
    virtctl.say(host, &["image-upload", "pvc", "there", "--no-create", "--image-path", &small, "--insecure"])?;
    for name in ["bare", "bare-ours"] {
        check_disk(host, name, &image)?;
    }
    ensure!(fs::read(disk_of(host, "there")?)?.starts_with(&[7; 1 << 20]), "the claim that was there is not filled");
    let again = host.try_ferrovirt(&arguments("bare-ours", "100Mi"), "")?;
    ensure!(again.stderr.contains("exists and is filled"), "it said: {}", again.stderr);
    host.kubectl(&["delete", "pvc", "bare", "bare-ours", "there"])?;
    // One that still waits goes, too, and takes its importer along.
    let mut waiting = claim("never", None, "Filesystem");
    waiting["metadata"]["annotations"] = json!({ "cdi.kubevirt.io/storage.upload.target": "" });
    host.apply(&waiting)?;
    let ready = |claim: &Value| claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.ready"] == "true";
    host.wait_for("pvc", "never", "ready for an upload", ready)?;
    host.kubectl(&["delete", "pvc", "never"])?;
    host.wait_gone("pod", "importer-never")
}

/// Where uploads go at the moment.
fn upload_proxy(host: &Host) -> Result<std::net::SocketAddr> {
    let config = host.get("cdiconfig", "config")?;
    let url = config["status"]["uploadProxyURL"].as_str().context("no address for uploads")?;
    Ok(url.trim_start_matches("https://").parse()?)
}

/// The connection breaks in the middle and the host is killed meanwhile; the upload goes on, and does not begin anew.
fn a_broken_upload_goes_on(host: &Host) -> Result<()> {
    let image = demo_disk()?;
    let size = fs::metadata(&image)?.len();
    let relay = Relay::start(upload_proxy(host)?, size / 2)?;
    let (path, proxy) = (image.to_string_lossy().into_owned(), format!("https://127.0.0.1:{}", relay.port));
    let mut client = host.command("ferrovirt");
    client.args(["image-upload", "dv", "mended", "--size", "100Mi", "--image-path", &path, "--uploadproxy-url", &proxy]);
    let client = Background::start(client)?;
    relay.wait_held()?;
    host.kill_up()?;
    host.up()?;
    relay.release(upload_proxy(host)?);
    client.line_with("datavolume/mended is filled")?;
    check_disk(host, "mended", &image)?;
    // The client sent what was on the way when it broke once more, and little else.
    ensure!(relay.passed() < size + size / 4, "{} bytes were sent for an image of {size}", relay.passed());
    host.kubectl(&["delete", "dv", "mended"]).map(drop)
}

fn registries_fill_volumes_and_container_disks(host: &Host) -> Result<()> {
    let registry = Registry::start(&host.work_dir().join("registry"))?;
    let reference = registry.push(&host::guest_archive()?, "demo/guest", &host.work_dir().join("push"))?;
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

/// The importer, the web server and the host end in the middle; the disk is right all the same.
fn a_killed_import_goes_on(host: &Host) -> Result<()> {
    let (web, base) = serve_demo(host, "slow", Some("4m"))?;
    let port = web.port;
    host.apply(&volume("resumed", json!({ "http": { "url": format!("{base}/demo.qcow2") } }), "100Mi"))?;
    let percent = |volume: &Value| {
        let text = volume["status"]["progress"].as_str().unwrap_or_default().trim_end_matches('%').to_owned();
        text.parse::<f64>().unwrap_or(0.0)
    };
    host.wait_for("dv", "resumed", "under way", |volume| percent(volume) > 10.0)?;
    let importer = importer(host, "resumed")?;
    importer.kill()?;
    host.wait_for("dv", "resumed", "begun again", |volume| volume["status"]["restartCount"] == 1)?;
    host.wait_for("dv", "resumed", "going on", |volume| percent(volume) > 30.0)?;
    drop(web);
    host.kill_up()?;
    let web = Web::start_on(&host.work_dir().join("slow"), port, None)?;
    host.up()?;
    succeeded(host, "resumed")?;
    check_disk(host, "resumed", &demo_disk()?)?;
    let (sent, size) = (web.sent("/demo.qcow2")?, fs::metadata(demo_disk()?)?.len());
    // Up to a second of each connection is transferred again, not all of it.
    ensure!(sent < 2 * size, "{sent} bytes were sent for an image of {size}");
    host.kubectl(&["delete", "dv", "resumed"]).map(drop)
}

fn importer(host: &Host, volume: &str) -> Result<Process> {
    let pod = host.get("pod", &format!("importer-{volume}"))?;
    let uid = pod["metadata"]["uid"].as_str().context("the importer's pod has no uid")?.to_owned();
    wait::until("an importer", wait::SOON, || {
        // Importers of earlier cases may still be ending.
        let found = host.processes().into_iter().find(|process| {
            process.arguments.get(1).is_some_and(|word| word == "importer") && process.cgroups().contains(&uid)
        });
        Ok(found.map_or_else(|| wait::Seen::Not("none".into()), wait::Seen::Yes))
    })
}

/// A disk from a web server, one from a registry and one that stock virtctl brought: what the guests write stays.
fn a_vm_from_a_template_keeps_its_disk(host: &Host) -> Result<()> {
    let (_web, base) = serve_demo(host, "template", None)?;
    let source = json!({ "http": { "url": format!("{base}/demo.qcow2") } });
    host.apply(&with_template(manifest::vm("kept-http", "Always"), "kept-http", &source))?;
    // A cluster's pods reach no registry on this machine's loopback, and it takes no uploads yet.
    let names: &[&str] = match host.cluster() {
        Some(_) => &["kept-http"],
        None => {
            let registry = Registry::start(&host.work_dir().join("template-registry"))?;
            let archive = host::guest_archive()?;
            let reference = registry.push(&archive, "demo/kept", &host.work_dir().join("template-push"))?;
            let path = demo_disk()?.to_string_lossy().into_owned();
            let upload = ["image-upload", "dv", "kept-upload", "--size", "200Mi", "--image-path", &path, "--insecure"];
            Virtctl::stock()?.say(host, &upload)?;
            let source = json!({ "registry": { "url": format!("docker://{reference}") } });
            host.apply(&with_template(manifest::vm("kept-registry", "Always"), "kept-registry", &source))?;
            let mut vm = manifest::vm("kept-upload", "Always");
            vm["spec"]["template"]["spec"]["volumes"][0] =
                json!({ "name": "root", "dataVolume": { "name": "kept-upload" } });
            host.apply(&vm)?;
            succeeded(host, "kept-registry")?;
            &["kept-http", "kept-registry", "kept-upload"]
        }
    };
    for &name in names {
        host.wait_running(name)?;
        let mut console = host.console(name)?;
        console.login(name)?;
        console.shell(&format!("echo {name} is here > /home/demo/note; sync"))?;
        console.line("exit")?;
        console.leave()?;
        host.ferrovirt(&["stop", name])?;
    }
    for &name in names {
        host.wait_gone("vmi", name)?;
    }
    host.restart()?;
    for &name in names {
        host.ferrovirt(&["start", name])?;
    }
    for &name in names {
        host.wait_running(name)?;
        let mut console = host.console(name)?;
        console.login(name)?;
        let note = console.shell("cat /home/demo/note")?;
        ensure!(note == format!("{name} is here"), "{name}: the note says {note:?}");
        console.leave()?;
        host.kubectl(&["delete", "vm", name])?;
    }
    // Volumes of templates go with their VM, others stay.
    host.wait_gone("pvc", "kept-http")?;
    if names.len() > 1 {
        host.wait_gone("pvc", "kept-registry")?;
        host.get("pvc", "kept-upload")?;
        host.kubectl(&["delete", "dv", "kept-upload"])?;
    }
    Ok(())
}
