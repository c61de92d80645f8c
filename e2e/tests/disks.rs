//! Disks that persist: claims of the local class, what a guest keeps on them, and images that fill them.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Host, Options,
    cluster::Cluster,
    host, manifest,
    outside::address,
    process::Process,
    relay::Relay,
    servers::{Registry, Web},
    suite,
    tools::{Background, Virtctl},
    wait,
};
use serde_json::{Value, json};

#[path = "disks/sources.rs"]
mod sources;

const CASES: &[Case] = &[
    ("claims_are_bound_and_reclaimed", claims_are_bound_and_reclaimed),
    ("data_outlives_the_vm_and_the_host", data_outlives_the_vm_and_the_host),
    ("a_guest_sees_every_kind_of_volume", a_guest_sees_every_kind_of_volume),
    ("an_image_is_transferred_once", an_image_is_transferred_once),
    ("bad_images_fail_with_their_reason", sources::bad_images_fail_with_their_reason),
    ("uploads_fill_a_volume", uploads_fill_a_volume),
    ("a_broken_upload_goes_on", a_broken_upload_goes_on),
    ("registries_fill_volumes_and_container_disks", sources::registries_fill_volumes_and_container_disks),
    ("logins_and_mirrors_are_used", logins_and_mirrors_are_used),
    ("clones_from_other_namespaces_need_a_right", sources::clones_from_other_namespaces_need_a_right),
    ("a_killed_import_goes_on", a_killed_import_goes_on),
    ("a_vm_from_a_template_keeps_its_disk", a_vm_from_a_template_keeps_its_disk),
    ("a_volume_that_waits_is_filled_for_its_vm", a_volume_that_waits_is_filled_for_its_vm),
];

fn main() -> ExitCode {
    let embedded_only = &[
        ("claims_are_bound_and_reclaimed", "a cluster's volumes are made by its own provisioner"),
        ("an_image_is_transferred_once", "there is no cache of images on a cluster"),
        ("a_broken_upload_goes_on", "it would kill the importer, too, and an upload to another importer begins anew"),
        ("logins_and_mirrors_are_used", "a cluster's nodes pull images by their own configuration"),
        ("registries_fill_volumes_and_container_disks", "a pod cannot reach the registry on this machine's loopback"),
    ];
    let registries = registries_file();
    if let Err(error) = fs::write(&registries, "{}") {
        eprintln!("cannot write {}: {error}", registries.display());
        return ExitCode::FAILURE;
    }
    // A cluster takes no arguments of a host's.
    let arguments = match Cluster::wanted() {
        Ok(true) => vec![],
        _ => vec!["--registries".into(), registries.to_string_lossy().into_owned()],
    };
    let code = suite(Options { embedded_only, arguments, ..Options::default() }, CASES);
    let _ = fs::remove_file(registries);
    code
}

/// What the host is told of registries. A case writes it while the host runs.
fn registries_file() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("ferrovirt-registries-{}.yaml", std::process::id()))
}

/// Lists a registry on this machine's loopback: a host pulls nothing from itself because an image's name says so.
fn allow(registry: &Registry) -> Result<()> {
    let listed = json!({ "registries": [{ "host": format!("127.0.0.1:{}", registry.port), "insecure": true }] });
    Ok(fs::write(registries_file(), listed.to_string())?)
}

fn logins_and_mirrors_are_used(host: &Host) -> Result<()> {
    sources::logins_and_mirrors_are_used(host, &registries_file())
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
    let metrics = host.kubectl(&["get", "--raw", "/metrics"])?;
    let line = "kubelet_volume_stats_capacity_bytes{namespace=\"default\",persistentvolumeclaim=\"plain\"} 67108864";
    ensure!(metrics.contains(line), "the metrics do not have {line}");
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

/// One guest with a disk of every kind that is made from something else. Its user comes from a config drive out of a secret.
fn a_guest_sees_every_kind_of_volume(host: &Host) -> Result<()> {
    host.kubectl(&["create", "configmap", "words", "--from-literal=word=from-a-configmap"])?;
    host.kubectl(&["create", "secret", "generic", "hidden", "--from-literal=word=from-a-secret"])?;
    host.kubectl(&["create", "configmap", "unattended", "--from-literal=autounattend.xml=from-sysprep"])?;
    let mut vm = manifest::vm("many", "Always");
    let spec = &mut vm["spec"]["template"]["spec"];
    let user_data = spec["volumes"][1]["cloudInitNoCloud"]["userData"].as_str().context("no user data")?;
    host.kubectl(&["create", "secret", "generic", "cloud", &format!("--from-literal=userdata={user_data}")])?;
    spec["volumes"][1] = json!({ "name": "cloudinit", "cloudInitConfigDrive": { "secretRef": { "name": "cloud" } } });
    let field = json!({ "path": "word", "fieldRef": { "fieldPath": "metadata.labels['kubevirt.io/vm']" } });
    let files = |what| format!("sudo mount -t iso9660 -o ro /dev/DISK /mnt && sudo {what}; sudo umount /mnt");
    let head =
        "sudo head -c 16 /dev/DISK; echo; echo overwritten | sudo dd of=/dev/DISK conv=notrunc,fsync 2>&1".to_owned();
    let size = "cat /sys/block/DISK/size".to_owned();
    let mut volumes = vec![
        ("words", json!({ "configMap": { "name": "words" } }), files("cat /mnt/word"), "from-a-configmap"),
        ("hidden", json!({ "secret": { "secretName": "hidden" } }), files("cat /mnt/word"), "from-a-secret"),
        ("facts", json!({ "downwardAPI": { "fields": [field] } }), files("cat /mnt/word"), "many"),
        (
            "account",
            json!({ "serviceAccount": { "serviceAccountName": "default" } }),
            files("cat /mnt/namespace"),
            "default",
        ),
        (
            "answers",
            json!({ "sysprep": { "configMap": { "name": "unattended" } } }),
            files("ls /mnt"),
            "autounattend.xml",
        ),
        ("scratch", json!({ "emptyDisk": { "capacity": "32Mi" } }), size.clone(), "65536"),
    ];
    let on_host = host.work_dir().join("hostdisk");
    if host.cluster().is_none() {
        let gates =
            json!({ "spec": { "configuration": { "developerConfiguration": { "featureGates": ["HostDisk"] } } } });
        let gates = gates.to_string();
        host.kubectl(&["patch", "kubevirt", "kubevirt", "-n", "kubevirt", "--type=merge", "-p", &gates])?;
        fs::create_dir_all(&on_host)?;
        std::os::unix::fs::chown(&on_host, Some(107), Some(107))?;
        let there = on_host.join("there.img");
        write_disk(&there, "from-the-host")?;
        host.apply(&claim("base", None, "Filesystem"))?;
        host.wait_for("pvc", "base", "bound", |claim| claim["status"]["phase"] == "Bound")?;
        write_disk(&disk_of(host, "base")?, "from-a-claim")?;
        let (made, base) = (on_host.join("made.img"), json!({ "claimName": "base" }));
        volumes.extend([
            ("there", json!({ "hostDisk": { "path": there, "type": "Disk" } }), head.clone(), "from-the-host"),
            (
                "made",
                json!({ "hostDisk": { "path": made, "type": "DiskOrCreate", "capacity": "16Mi" } }),
                size,
                "32768",
            ),
            ("base", json!({ "ephemeral": { "persistentVolumeClaim": base } }), head, "from-a-claim"),
        ]);
    }
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
    for (device, (name, _, command, expected)) in ('c'..).zip(&volumes) {
        let seen = console.shell(&command.replace("DISK", &format!("vd{device}")))?;
        ensure!(seen.contains(expected), "{name} shows {seen:?}");
    }
    console.leave()?;
    host.kubectl(&["delete", "vm", "many"])?;
    if host.cluster().is_none() {
        host.wait_gone("vmi", "many")?;
        // What is written to an ephemeral disk is forgotten, what is written to the host's stays.
        for (disk, expected) in [(disk_of(host, "base")?, "from-a-claim"), (on_host.join("there.img"), "overwritten")] {
            let found = fs::read(&disk)?;
            ensure!(found.starts_with(expected.as_bytes()), "{} begins with {:?}", disk.display(), &found[..16]);
        }
        ensure!(on_host.join("made.img").exists(), "no disk was made on the host");
        host.kubectl(&["delete", "pvc", "base"])?;
    }
    Ok(())
}

/// A disk of some MiB that begins with a word.
fn write_disk(path: &Path, word: &str) -> Result<()> {
    let mut content = vec![0; 8 << 20];
    content[..word.len()].copy_from_slice(word.as_bytes());
    fs::write(path, content)?;
    std::os::unix::fs::chown(path, Some(107), Some(107)).map_err(Into::into)
}

/// The demo guest's disk.
fn demo_disk() -> Result<std::path::PathBuf> {
    Ok(host::guest_archive()?.with_file_name("demo.qcow2"))
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

/// Ten machines, and two clones of such a disk, by an importer and by the storage; the web server sends the image once.
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
    host.kubectl(&["annotate", "sc", "local", "--overwrite", "cdi.kubevirt.io/clone-strategy=csi-clone"])?;
    host.apply(&volume("quick", json!({ "pvc": { "namespace": "default", "name": "first" } }), "120Mi"))?;
    succeeded(host, "quick")?;
    let claim = host.get("pvc", "quick")?;
    ensure!(claim["spec"]["dataSource"]["name"] == "first", "the storage did not make the clone: {}", claim["spec"]);
    check_disk(host, "quick", &demo_disk()?)?;
    host.kubectl(&["annotate", "sc", "local", "--overwrite", "cdi.kubevirt.io/clone-strategy=copy"])?;
    host.kubectl(&["delete", "dv", "first", "copy", "quick"])?;
    host.wait_gone("pvc", "first")
}

/// The machine with its root disk from a template of the same name.
fn with_template(mut vm: Value, name: &str, source: &Value) -> Value {
    let template = volume(name, source.clone(), "200Mi");
    vm["spec"]["dataVolumeTemplates"] = json!([{ "metadata": { "name": name }, "spec": template["spec"] }]);
    vm["spec"]["template"]["spec"]["volumes"][0] = json!({ "name": "root", "dataVolume": { "name": name } });
    vm
}

fn uploads_fill_a_volume(host: &Host) -> Result<()> {
    let image = demo_disk()?;
    let path = image.to_string_lossy().into_owned();
    let mut arguments = vec!["image-upload", "dv", "sent", "--size", "100Mi", "--image-path", &path];
    if host.cluster().is_some() {
        // An administrator says where uploads come in; here it is the Service itself, which the certificate does not name.
        let url = format!("https://{}", upload_proxy(host)?);
        let patch = json!({ "spec": { "uploadProxyURLOverride": url } }).to_string();
        host.kubectl(&["patch", "cdiconfig", "config", "--type=merge", "-p", &patch])?;
        let strict = host.try_ferrovirt(&arguments, "")?;
        ensure!(strict.code != Some(0) && strict.stderr.contains("certificate"), "it said: {strict}");
        arguments.extend(["--no-create", "--insecure"]);
    }
    let said = host.ferrovirt(&arguments)?;
    ensure!(said.contains("datavolume/sent is filled"), "image-upload said: {said}");
    check_disk(host, "sent", &image)?;
    let filled = host.get("pvc", "sent")?;
    let phase = &filled["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.phase"];
    ensure!(phase == "Succeeded", "virtctl looks for this: {phase}");
    let outcome = ["image-upload", "dv", "tiny", "--size", "10Mi", "--image-path", &path, "--insecure"];
    let outcome = host.try_ferrovirt(&outcome, "")?;
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
    if host.cluster().is_some() {
        let service = ["-n", "kubevirt", "get", "service", "cdi-uploadproxy", "-o", "jsonpath={.spec.clusterIP}:443"];
        return Ok(host.kubectl(&service)?.parse()?);
    }
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
    client.args([
        "image-upload",
        "dv",
        "mended",
        "--size",
        "100Mi",
        "--image-path",
        &path,
        "--uploadproxy-url",
        &proxy,
    ]);
    if host.cluster().is_some() {
        client.arg("--insecure");
    }
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
/// Nobody uses it: it waits. A VM that starts with it starts from the image, not from an empty disk.
fn a_volume_that_waits_is_filled_for_its_vm(host: &Host) -> Result<()> {
    let (_web, base) = serve_demo(host, "waits", None)?;
    let source = json!({ "http": { "url": format!("{base}/demo.qcow2") } });
    let mut vm = with_template(manifest::vm("first-user", "Halted"), "first-user", &source);
    vm["spec"]["dataVolumeTemplates"][0]["spec"]["storage"]["storageClassName"] = "local-wait".into();
    host.apply(&vm)?;
    let phase = |wanted: &'static str| move |volume: &Value| volume["status"]["phase"] == wanted;
    host.wait_for("dv", "first-user", "waiting for its first user", phase("WaitForFirstConsumer"))?;
    ensure!(host.object("pod", "importer-first-user")?.is_none(), "it is filled for nobody");
    host.ferrovirt(&["start", "first-user"])?;
    host.wait_for("dv", "first-user", "filled", phase("Succeeded"))?;
    let vmi = host.wait_running("first-user")?;
    let ready = vmi["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "DataVolumesReady");
    ensure!(ready.is_some_and(|ready| ready["status"] == "True"), "{}", vmi["status"]["conditions"]);
    let mut console = host.console("first-user")?;
    console.login("first-user")?;
    console.leave()?;
    host.kubectl(&["delete", "vm", "first-user"]).map(drop)
}

fn a_vm_from_a_template_keeps_its_disk(host: &Host) -> Result<()> {
    let (_web, base) = serve_demo(host, "template", None)?;
    let source = json!({ "http": { "url": format!("{base}/demo.qcow2") } });
    host.apply(&with_template(manifest::vm("kept-http", "Always"), "kept-http", &source))?;
    // A cluster's pods reach no registry on this machine's loopback.
    let names: &[&str] = match host.cluster() {
        Some(_) => &["kept-http"],
        None => {
            let registry = Registry::start(&host.work_dir().join("template-registry"))?;
            allow(&registry)?;
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
