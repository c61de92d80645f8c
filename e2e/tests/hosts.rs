//! Hosts themselves: starting twice, side by side, without root, for other users, and without emulation.

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Host, Options, command, manifest, suite,
    wait::{self, Seen},
};
use serde_json::{Value, json};

const CASES: &[Case] = &[
    ("status_says_how_to_connect", status_says_how_to_connect),
    ("what_a_host_says_can_be_piped", what_a_host_says_can_be_piped),
    ("second_up_is_harmless", second_up_is_harmless),
    ("up_needs_root", up_needs_root),
    ("other_users_get_their_own_credentials", other_users_get_their_own_credentials),
    ("installations_refuse_a_host", installations_refuse_a_host),
    ("logs_are_json_when_asked", logs_are_json_when_asked),
    ("certificates_are_renewed_while_it_runs", certificates_are_renewed_while_it_runs),
    ("a_backup_brings_everything_back", a_backup_brings_everything_back),
    ("what_an_earlier_version_stored_is_taken_over", what_an_earlier_version_stored_is_taken_over),
    ("a_full_disk_stops_writes_and_nothing_else", a_full_disk_stops_writes_and_nothing_else),
    ("two_hosts_side_by_side", two_hosts_side_by_side),
    ("down_and_up_start_the_same_vms", down_and_up_start_the_same_vms),
    ("no_emulation_refuses_with_the_reason", no_emulation_refuses_with_the_reason),
];

/// `nobody`, on every Linux.
const NOBODY: &str = "65534";

fn main() -> ExitCode {
    suite(Options::default(), CASES)
}

fn status_says_how_to_connect(host: &Host) -> Result<()> {
    let status = host.ferrovirt(&["status"])?;
    let (up, address) = (host.up_process()?, host.address()?);
    for part in [format!("pid {}", up.pid), address.to_string(), host.kubeconfig().display().to_string()] {
        ensure!(status.contains(&part), "no {part:?} in: {status}");
    }
    let mode = fs::metadata(host.kubeconfig())?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "the kubeconfig has the mode {mode:o}");
    let nowhere = host.try_ferrovirt(&["status", "--data-dir", "/tmp/fv-nowhere"], "")?.failure()?;
    ensure!(nowhere.contains("/tmp/fv-nowhere"), "no host there, but it says: {nowhere}");
    Ok(())
}

/// A reader that has seen enough is no failure.
fn what_a_host_says_can_be_piped(host: &Host) -> Result<()> {
    let said = host.ferrovirt(&["image", "list"])?;
    ensure!(said.contains(manifest::IMAGE), "image list says: {said}");
    let metrics = host.kubectl(&["get", "--raw", "/metrics"])?;
    for certificate in ["ca", "serving", "admin"] {
        let line = format!("ferrovirt_certificate_expiration_timestamp_seconds{{certificate=\"{certificate}\"}} ");
        ensure!(metrics.contains(&line), "no metric says when the certificate {certificate} expires");
    }
    let file = host.work_dir().join("printed.json");
    fs::write(&file, manifest::vm("printed", "Always").to_string())?;
    let domain = format!("domain-xml -f {}", file.display());
    let said = host.ferrovirt(&domain.split(' ').collect::<Vec<_>>())?;
    ensure!(said.starts_with("<domain ") && said.contains("<name>default_printed</name>"), "domain-xml says: {said}");
    let program = host.command("ferrovirt").get_program().to_string_lossy().into_owned();
    wait::until("the node to be there", wait::SOON, || {
        let nodes = host.kubectl(&["get", "nodes", "-o", "name"])?;
        Ok(if nodes.contains("node/") { Seen::Yes(()) } else { Seen::Not("none".into()) })
    })?;
    let words = ["get nodes", "get nodes -o yaml", "status", "hypervisors", "version", "completion bash", &domain];
    for arguments in words {
        let line = format!("set -o pipefail; {program} {arguments} | true");
        let outcome = command::run(host.command("bash").args(["-c", &line]), "")?;
        ensure!(outcome.succeeded() && outcome.stderr.is_empty(), "{arguments} | true: {outcome}");
    }
    Ok(())
}

fn second_up_is_harmless(host: &Host) -> Result<()> {
    host.kubectl(&["create", "configmap", "before-second-up"])?;
    let before = host.up_process()?;
    let data_dir = host.data_dir();
    let arguments = ["up", "--listen", "127.0.0.1:0", "--data-dir", &*data_dir.to_string_lossy()];
    let said = host.try_ferrovirt(&arguments, "")?.failure()?;
    ensure!(said.contains("already running") && said.contains(&before.pid.to_string()), "the second `up` says: {said}");
    // With --detach the wish is already fulfilled.
    let said = host.up()?;
    ensure!(said.contains("already up"), "the second `up --detach` says: {said}");
    ensure!(host.up_process()? == before, "another host runs");
    host.kubectl(&["get", "configmap", "before-second-up"])?;
    Ok(())
}

fn up_needs_root(host: &Host) -> Result<()> {
    let directory = host.work_dir().join("nobody");
    // The program may lie where nobody else can reach it.
    let program = tempfile::Builder::new().prefix("fv-nobody-").tempdir_in("/tmp")?;
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755))?;
    let copy = program.path().join("ferrovirt");
    fs::copy(host.command("ferrovirt").get_program(), &copy)?;
    let (copy, directory) = (copy.to_string_lossy(), directory.to_string_lossy());
    let mut command = host.command("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).args([
        &*copy,
        "up",
        "--data-dir",
        &*directory,
    ]);
    let said = command::run(&mut command, "")?.failure()?;
    ensure!(said.contains("needs root"), "without root it says: {said}");
    ensure!(!fs::exists(&*directory)?, "something was made without root");
    // Where a host runs, who is not root is told what is missing, not that there is nothing.
    for arguments in [&["status"][..], &["get", "vms"], &["kubeconfig", "--user", "eve"]] {
        let mut command = host.command("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(&*copy).args(arguments);
        command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").env("FERROVIRT_DATA_DIR", host.data_dir());
        let said = command::run(&mut command, "")?.failure()?;
        ensure!(said.contains("root is needed"), "{arguments:?} without root says: {said}");
    }
    Ok(())
}

fn other_users_get_their_own_credentials(host: &Host) -> Result<()> {
    let bob = host.work_dir().join("bob.kubeconfig");
    let made =
        host.try_ferrovirt(&["kubeconfig", "--user", "bob", "--group", "readers", "-o", &bob.to_string_lossy()], "")?;
    ensure!(made.stderr.contains("bob has no rights yet"), "kubeconfig says: {made}");
    ensure!(
        made.stderr.contains("create rolebinding bob-edit --clusterrole=edit --user=bob"),
        "kubeconfig says: {made}"
    );
    // Under a name that is in no certificate, the certificate's own is asked for.
    let port = host.address()?.port();
    let named = host.work_dir().join("named.kubeconfig");
    let server = format!("localhost.localdomain:{port}");
    host.ferrovirt(&["kubeconfig", "--user", "bob", "--server", &server, "-o", &named.to_string_lossy()])?;
    let text = fs::read_to_string(&named)?;
    ensure!(text.contains("\"tls-server-name\": \"kubernetes\""), "the certificate's name is not in {text}");
    let as_bob = |arguments: &[&str]| command::run(host.command("kubectl").env("KUBECONFIG", &bob).args(arguments), "");
    ensure!(as_bob(&["get", "--raw", "/version"])?.success()?.contains("gitVersion"), "bob does not reach /version");
    let said = as_bob(&["get", "vms"])?.failure()?;
    ensure!(said.contains("Forbidden") && said.contains("\"bob\""), "bob lists VMs: {said}");
    host.kubectl(&["create", "clusterrole", "vm-reader", "--verb=get,list", "--resource=virtualmachines.kubevirt.io"])?;
    host.kubectl(&["create", "clusterrolebinding", "readers", "--clusterrole=vm-reader", "--group=readers"])?;
    as_bob(&["get", "vms"])?.success()?;
    let again =
        host.try_ferrovirt(&["kubeconfig", "--user", "bob", "--group", "readers", "-o", &bob.to_string_lossy()], "")?;
    ensure!(again.stderr.contains("bob has the role vm-reader everywhere"), "kubeconfig says: {again}");
    let said = as_bob(&["delete", "vm", "any"])?.failure()?;
    ensure!(said.contains("Forbidden"), "a reader deletes VMs: {said}");
    // What was lost is taken back while the host runs, and bob can be given another one.
    let said = host.ferrovirt(&["kubeconfig", "--revoke", "bob"])?;
    ensure!(said.contains("from now on"), "the running host was not told: {said}");
    let said = as_bob(&["get", "vms"])?.failure()?;
    ensure!(said.contains("Unauthorized") || said.contains("logged in"), "a revoked certificate: {said}");
    host.ferrovirt(&["kubeconfig", "--user", "bob", "--group", "readers", "-o", &bob.to_string_lossy()])?;
    as_bob(&["get", "vms"])?.success()?;
    Ok(())
}

/// A host is Ferrovirt already: installing it again would replace what runs, uninstalling would take it away.
fn installations_refuse_a_host(host: &Host) -> Result<()> {
    let before = host.kubectl(&["get", "crds,clusterroles,apiservices", "-o", "name"])?;
    for arguments in
        [&["install"][..], &["install", "--no-wait"], &["upgrade"], &["uninstall"], &["uninstall", "--all"]]
    {
        let config = host.kubeconfig();
        let mut command = host.command("ferrovirt");
        command.args(arguments).arg("--kubeconfig").arg(config);
        let said = command::run(&mut command, "")?.failure()?;
        ensure!(
            said.contains("embedded Ferrovirt host") && said.contains("--kubeconfig"),
            "{arguments:?} says: {said}"
        );
    }
    let after = host.kubectl(&["get", "crds,clusterroles,apiservices", "-o", "name"])?;
    ensure!(before == after, "a refused installation changed something");
    Ok(())
}

fn logs_are_json_when_asked(_: &Host) -> Result<()> {
    let arguments = vec!["--log-format".into(), "json".into()];
    let host = Host::start_with(Options { arguments, no_image: true, ..Options::default() })?;
    host.down()?;
    let log = fs::read_to_string(host.data_dir().join("ferrovirt.log"))?;
    ensure!(!log.is_empty(), "nothing was logged");
    for line in log.lines() {
        let entry: serde_json::Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        ensure!(entry["level"].is_string() && entry["timestamp"].is_string(), "a line without level or time: {line}");
    }
    Ok(())
}

fn certificates_are_renewed_while_it_runs(_: &Host) -> Result<()> {
    let arguments = vec!["--certificate-lifetime".into(), "45s".into()];
    let host = Host::start_with(Options { arguments, no_image: true, ..Options::default() })?;
    let (up, first) = (host.up_process()?, fs::read_to_string(host.kubeconfig())?);
    // A copy of the first credentials: they end, and with them what they were good for.
    let old = host.work_dir().join("old.kubeconfig");
    fs::write(&old, first)?;
    let with_old = || command::run(host.command("kubectl").env("KUBECONFIG", &old).args(["get", "namespaces"]), "");
    with_old()?.success()?;
    wait::until("the first credentials to end", wait::BOOT, || {
        let answer = with_old()?;
        Ok(match answer.succeeded() {
            true => Seen::Not("they are still good".into()),
            false => Seen::Yes(()),
        })
    })?;
    // Without a renewal nobody would trust the host by now.
    host.kubectl(&["get", "namespaces"])?;
    ensure!(host.up_process()? == up, "the host was restarted");
    host.down().map(drop)
}

fn a_backup_brings_everything_back(_: &Host) -> Result<()> {
    let host = Host::start_with(Options { no_image: true, ..Options::default() })?;
    let backup = host.work_dir().join("backup").display().to_string();
    host.kubectl(&["create", "configmap", "kept"])?;
    ensure!(host.ferrovirt(&["fsck"])?.contains("is whole"), "a running host is not whole");
    ensure!(host.ferrovirt(&["backup", &backup])?.contains("objects"), "the backup says nothing");
    let said = host.try_ferrovirt(&["backup", &backup], "")?.failure()?;
    ensure!(said.contains("is not empty"), "a second backup to the same place says: {said}");
    host.kubectl(&["create", "configmap", "later"])?;
    let said = host.try_ferrovirt(&["restore", &backup, "--replace"], "")?.failure()?;
    ensure!(said.contains("ferrovirt down"), "restoring under a running host says: {said}");
    host.down()?;
    let said = host.try_ferrovirt(&["restore", &backup], "")?.failure()?;
    ensure!(said.contains("--replace"), "restoring over objects says: {said}");

    // Damage in the middle is found, named and not started from.
    let store = host.data_dir().join("store");
    let mut names: Vec<_> = fs::read_dir(&store)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    names.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-")));
    names.sort();
    let log = names.first().context("the store has no log")?;
    let mut bytes = fs::read(log)?;
    let middle = bytes.len().min(40_000) / 2;
    bytes[middle..middle + 64].fill(0xa5);
    fs::write(log, bytes)?;
    let said = host.try_ferrovirt(&["fsck"], "")?.failure()?;
    ensure!(said.contains("is damaged at byte"), "fsck of a damaged store says: {said}");
    let said = format!("{:#}", host.up().err().context("a host starts from a damaged store")?);
    ensure!(said.contains("is damaged at byte"), "starting from a damaged store says: {said}");

    ensure!(host.ferrovirt(&["restore", &backup, "--replace"])?.contains("store.old"), "nothing was put aside");
    host.up()?;
    host.kubectl(&["get", "configmap", "kept"])?;
    let said = host.try_kubectl(&["get", "configmap", "later"], "")?.failure()?;
    ensure!(said.contains("NotFound"), "an object from after the backup: {said}");
    host.kubectl(&["create", "configmap", "after"])?;
    host.down()
}

/// The stores of crates/cli/testdata: their node reports, and their VM, which ran then, runs again.
fn what_an_earlier_version_stored_is_taken_over(_: &Host) -> Result<()> {
    let directory = Path::new("../crates/cli/testdata");
    let stores = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let stores: Vec<_> = stores.iter().filter(|path| path.to_string_lossy().ends_with(".tar.gz")).collect();
    ensure!(!stores.is_empty(), "there are no stores in {}", directory.display());
    for store in stores {
        let arguments = vec!["--node-name".into(), "fixture".into()];
        let host = Host::prepare(Options { arguments, ..Options::default() })?;
        fs::create_dir_all(host.data_dir())?;
        let (store, data) = (store.display().to_string(), host.data_dir().display().to_string());
        command::output("tar", &["-xzf", &store, "-C", &data])?;
        // Times of the API can be compared as texts.
        let began = command::output("date", &["-u", "+%Y-%m-%dT%H:%M:%S"])?.trim().to_owned();
        let since = |at: &Value| at.as_str().is_some_and(|at| at >= began.as_str());
        host.up()?;
        host.ferrovirt(&["image", "import", &ferrovirt_e2e::host::guest_archive()?.to_string_lossy()])?;
        let get = |what: &[&str]| -> Result<Value> {
            Ok(serde_json::from_str(&host.kubectl(&[&["get", "-o", "json", "-n", "shop"], what].concat())?)?)
        };
        wait::until("the node to report", wait::BOOT, || {
            let node = get(&["node", "fixture"])?;
            let (labels, annotations) = (&node["metadata"]["labels"], &node["metadata"]["annotations"]);
            let reports = since(&annotations["kubevirt.io/heartbeat"]);
            let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            let ready = conditions.filter(|c| c["type"] == "Ready").any(|c| c["status"] == "True");
            let takes = labels["kubevirt.io/schedulable"] == "true";
            Ok(if reports && ready && takes { Seen::Yes(()) } else { Seen::Not(node.to_string()) })
        })?;
        wait::until("the VM to run again", 2 * wait::BOOT, || {
            let (vm, vmi) = (get(&["vm", "web"])?, get(&["vmi"])?);
            let new = since(&vmi["items"][0]["metadata"]["creationTimestamp"]);
            let runs = vm["status"]["printableStatus"] == "Running";
            Ok(if new && runs { Seen::Yes(()) } else { Seen::Not(vm["status"].to_string()) })
        })?;
        host.down()?;
    }
    Ok(())
}

/// A file system in memory that is gone with this value, whatever happens.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Result<Self> {
        fs::create_dir_all(&at)?;
        command::output("mount", &["-t", "tmpfs", "-o", "size=8m", "ferrovirt-e2e", &at.display().to_string()])?;
        Ok(Self(at))
    }

    /// Takes all the space that is left.
    fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("ballast");
        let mut file = fs::File::create(&path)?;
        loop {
            match file.write_all(&[0; 4096]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(path),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = command::output("umount", &["--lazy", &self.0.display().to_string()]);
    }
}

fn a_full_disk_stops_writes_and_nothing_else(_: &Host) -> Result<()> {
    let host = Host::prepare(Options { no_image: true, ..Options::default() })?;
    let disk = SmallDisk::mount(host.data_dir().join("store"))?;
    host.up()?;
    host.kubectl(&["create", "configmap", "before"])?;
    let pid = host.up_process()?.pid;
    let ballast = disk.fill()?;
    // What was reserved before may still take a few writes.
    let large = |name: &str| {
        let meta = json!({ "name": name });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": { "a": "x".repeat(900_000) } })
            .to_string()
    };
    let refused = (0..12).find_map(|i| {
        let outcome = host.try_kubectl(&["create", "-f", "-"], &large(&format!("large-{i}")));
        outcome.map(|o| if o.succeeded() { None } else { Some(o) }).transpose()
    });
    let said = refused.context("a full disk takes ten megabytes")??.failure()?;
    ensure!(said.contains("the store cannot write") && said.contains("No space left"), "a full disk says: {said}");
    host.kubectl(&["get", "configmap", "before"])?;
    let events = host.kubectl(&["get", "--raw", "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1"])?;
    ensure!(events.contains("\"before\""), "a watch on a full disk says: {events}");
    let said = host.try_kubectl(&["create", "-f", "-"], &large("again"))?.failure()?;
    ensure!(said.contains("No space left"), "a second write says: {said}");

    fs::remove_file(ballast)?;
    host.kubectl(&["create", "configmap", "after"])?;
    ensure!(host.up_process()?.pid == pid, "another process runs");
    host.kill_up()?;
    host.up()?;
    host.kubectl(&["get", "configmap", "before", "after"])?;
    let said = host.try_kubectl(&["get", "configmap", "again"], "")?.failure()?;
    ensure!(said.contains("NotFound"), "a write that failed is there: {said}");
    // The mount is ours, and a host that is down leaves none behind.
    drop(disk);
    host.down()
}

fn two_hosts_side_by_side(host: &Host) -> Result<()> {
    let other = Host::start()?;
    ensure!(host.instance() != other.instance(), "two hosts have one name");
    for host in [host, &other] {
        host.apply(&manifest::plain_vm("twin", "Always"))?;
    }
    let (one, two) = (host.wait_running("twin")?, other.wait_running("twin")?);
    ensure!(one["metadata"]["uid"] != two["metadata"]["uid"], "two VMs have one uid");
    let address = |vmi: &serde_json::Value| vmi["status"]["interfaces"][0]["ipAddress"].as_str().map(str::to_owned);
    ensure!(
        address(&one).is_some() && address(&one) != address(&two),
        "addresses: {:?}, {:?}",
        address(&one),
        address(&two)
    );
    let qemu = host.qemu("twin")?;
    ensure!(other.qemu("twin")? != qemu, "the hosts' processes cannot be told apart");
    other.down()?;
    ensure!(qemu.alive(), "the end of one host ended the other's VM");
    host.wait_running("twin")?;
    Ok(())
}

fn down_and_up_start_the_same_vms(host: &Host) -> Result<()> {
    let before = host.wait_running("twin")?;
    host.apply(&manifest::plain_vm("rests", "Halted"))?;
    host.down()?;
    host.up()?;
    let after = host.wait_for("vmi", "twin", "to be a new one that runs", |vmi| {
        vmi["metadata"]["uid"] != before["metadata"]["uid"] && vmi["status"]["phase"] == "Running"
    })?;
    let firmware = "/spec/domain/firmware/uuid";
    ensure!(
        after.pointer(firmware).is_some() && after.pointer(firmware) == before.pointer(firmware),
        "another machine came back"
    );
    host.wait_status("rests", "Stopped")?;
    host.ferrovirt(&["delete", "vm", "twin", "rests"])?;
    Ok(())
}

fn no_emulation_refuses_with_the_reason(_: &Host) -> Result<()> {
    let host = Host::start_with(Options { arguments: vec!["--no-emulation".into()], ..Options::default() })?;
    let status = host.ferrovirt(&["status"])?;
    host.apply(&manifest::plain_vm("hard", "Always"))?;
    if status.contains("hardware") {
        // This machine has what it takes, so there is nothing to refuse.
        host.wait_running("hard")?;
        return host.down();
    }
    host.wait_status("hard", "ErrorUnschedulable")?;
    let vmi = host.get("vmi", "hard")?;
    let conditions = vmi["status"]["conditions"].as_array().context("no conditions on the VMI")?;
    let reason = |text: &str| text.contains("kvm");
    let told = conditions.iter().any(|condition| condition["message"].as_str().is_some_and(reason));
    ensure!(told, "the VMI does not say why: {conditions:#?}");
    ensure!(host.qemu("hard").is_err(), "a QEMU runs all the same");
    host.down()
}
