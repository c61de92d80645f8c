//! The other target of the cases: a real Kubernetes on this machine (`scripts/kubernetes/up.sh`) with Ferrovirt installed
//! on it. `FERROVIRT_TARGET=kubernetes` chooses it; `make e2e-kubernetes` does the rest.
//!
//! What is "the host" embedded are here the cluster's daemons and Ferrovirt's pods: [`Cluster::kill`] kills them all, and
//! [`Cluster::up`] starts what is missing. Only etcd and the guests' pods are left alone.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    command,
    host::Host,
    manifest,
    process::{self, Process},
    wait::{self, Seen},
};

/// Everything that the test cluster writes; `scripts/kubernetes/lib.sh` says the same.
const STATE: &str = "/var/lib/ferrovirt-test-cluster";
/// With `ferrovirt-` before it the name of the cluster's cgroup, as an embedded host's hash is.
pub const INSTANCE: &str = "test-cluster";
/// The namespace of the installation.
const NAMESPACE: &str = "kubevirt";
/// What runs for good there, by the pods' labels.
const PARTS: &[&str] = &["virt-api", "virt-controller", "virt-handler"];
/// The kubelet first: it would start again what is killed after it.
const DAEMONS: &[&str] = &["kubelet", "containerd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// What cases may make, besides machines: in the namespace `default`, or namespaces.
const KINDS: &str = "configmaps,secrets,services,datavolumes,persistentvolumeclaims,pods,roles,rolebindings,resourcequotas,\
     network-attachment-definitions,namespaces";

pub struct Cluster {
    state: PathBuf,
    /// What was in the namespace `default` before the first case.
    before: Vec<String>,
}

impl Cluster {
    /// True if the environment asks for this target.
    pub fn wanted() -> Result<bool> {
        match env::var("FERROVIRT_TARGET").as_deref() {
            Err(_) | Ok("" | "embedded") => Ok(false),
            Ok("kubernetes") => Ok(true),
            Ok(other) => bail!("FERROVIRT_TARGET is {other:?}; it may be embedded or kubernetes"),
        }
    }

    pub fn new() -> Self {
        Self { state: STATE.into(), before: vec![] }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        env::var_os("KUBECONFIG").map_or_else(|| self.state.join("admin.kubeconfig"), PathBuf::from)
    }

    /// A certificate of the cluster's own authority makes the user.
    pub fn kubeconfig_of(&self, user: &str, work: &Path) -> Result<String> {
        let pki = self.state.join("pki");
        let [key, certificate] = ["key", "crt"].map(|end| work.join(format!("{user}.{end}")));
        let mut sign = Command::new("openssl");
        sign.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", &format!("/CN={user}")]);
        sign.args(["-addext", "extendedKeyUsage=clientAuth", "-CA"]).arg(pki.join("ca.crt"));
        sign.arg("-CAkey").arg(pki.join("ca.key")).arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        command::run(&mut sign, "")?.success()?;
        let config = fs::read_to_string(self.kubeconfig())?;
        let server = config.split_whitespace().find(|word| word.starts_with("https://"));
        let server = server.context("the kubeconfig names no server")?;
        let cluster = json!({ "server": server, "certificate-authority": pki.join("ca.crt") });
        let login = json!({ "client-certificate": certificate, "client-key": key });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": user, "user": login }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": user, "namespace": "default" } }],
        });
        Ok(config.to_string())
    }

    /// The kubelet's root directory on the first node, which is the machine itself.
    pub fn kubelet_root(&self) -> PathBuf {
        self.state.join("kubelet")
    }

    /// Notes what is there, so that [`Cluster::sweep`] removes only what cases made.
    pub fn begin(&mut self, host: &Host) -> Result<()> {
        ready(host)?;
        let machines = host.kubectl(&["get", "vms,vmis", "--all-namespaces", "-o", "name"])?;
        ensure!(machines.trim().is_empty(), "the cluster has machines already, and cases would meet them:\n{machines}");
        self.before = names(host)?;
        Ok(())
    }

    /// Starts the daemons that do not run, and waits until Ferrovirt answers.
    pub fn up(&self, host: &Host) -> Result<String> {
        let script = command::script("kubernetes/up.sh")?;
        let nodes = self.nodes()?.len().to_string();
        let said = command::run(Command::new(script).arg(nodes), "")?.success()?;
        ready(host)?;
        Ok(said)
    }

    /// `kill -9` of the cluster's daemons and of Ferrovirt's own processes.
    pub fn kill(&self) -> Result<()> {
        let mut victims = vec![];
        for name in DAEMONS {
            victims.extend(self.daemons(name)?);
        }
        victims.extend(components());
        for process in &victims {
            process.kill()?;
        }
        wait::until("the killed cluster to be gone", wait::SOON, || {
            let alive: Vec<&str> = victims.iter().filter(|p| p.alive()).map(Process::program).collect();
            Ok(if alive.is_empty() { Seen::Yes(()) } else { Seen::Not(alive.join(", ")) })
        })
    }

    /// A daemon of the cluster: one of each node, or the only one.
    pub fn daemons(&self, name: &str) -> Result<Vec<Process>> {
        let files = std::iter::once(self.state.clone()).chain(self.nodes()?).map(|d| d.join(format!("{name}.pid")));
        let mut found = vec![];
        for file in files.filter(|file| file.exists()) {
            let pid = fs::read_to_string(&file)?.trim().parse().with_context(|| file.display().to_string())?;
            found.extend(Process::read(pid).filter(|process| process.program() == name));
        }
        Ok(found)
    }

    /// Pulls a node's network cable. Not the first node's: it has none.
    pub fn cut_off(&self, node: &str) -> Result<()> {
        let cable = format!("k8tn{}", node.trim_start_matches("node"));
        command::run(Command::new("ip").args(["link", "set", &cable, "down"]), "")?.success().map(drop)
    }

    /// Ends everything that runs on a node, at once.
    pub fn power_off(&self, node: &str) -> Result<()> {
        let (cgroup, files) = (format!("ferrovirt-{INSTANCE}/{node}"), format!("{}/", self.state.join(node).display()));
        let holder: i32 = fs::read_to_string(self.state.join(node).join("testpod.pid"))?.trim().parse()?;
        wait::until(&format!("{node} to be off"), wait::SOON, || {
            let on: Vec<Process> = process::all()
                .into_iter()
                .filter(|p| {
                    p.pid == holder || p.cgroups().contains(&cgroup) || p.arguments.iter().any(|a| a.contains(&files))
                })
                .collect();
            for process in &on {
                process.kill()?;
            }
            let names: Vec<&str> = on.iter().map(Process::program).collect();
            Ok(if on.is_empty() { Seen::Yes(()) } else { Seen::Not(names.join(", ")) })
        })
    }

    /// Deletes what cases left in the namespace `default`. Machines must have left nothing else on the cluster.
    pub fn sweep(&self, host: &Host) -> Result<()> {
        host.kubectl(&["delete", "vms,vmis", "--all", "--timeout=180s"])?;
        let made: Vec<String> = names(host)?.into_iter().filter(|name| !self.before.contains(name)).collect();
        // Launchers go with their machines; one that stays is what this is to find.
        let own = made.iter().map(String::as_str).filter(|name| !name.starts_with("pod/virt-launcher-"));
        let arguments: Vec<&str> = ["delete", "--ignore-not-found", "--timeout=60s"].into_iter().chain(own).collect();
        if arguments.len() > 3 {
            host.kubectl(&arguments)?;
        }
        wait::until("machines to leave nothing behind", wait::BOOT, || {
            let pods = host.kubectl(&["get", "pods", "-A", "-l", "kubevirt.io=virt-launcher", "-o", "name"])?;
            let guests = host.processes().into_iter().filter(|process| process.program().starts_with("qemu-system"));
            let left: Vec<String> =
                pods.lines().map(str::to_owned).chain(guests.map(|g| g.arguments.join(" "))).collect();
            Ok(if left.is_empty() { Seen::Yes(()) } else { Seen::Not(left.join("\n")) })
        })
    }

    pub fn show_logs(&self, host: &Host) {
        for component in PARTS {
            let selector = format!("kubevirt.io={component}");
            let said = host.try_kubectl(&["-n", NAMESPACE, "logs", "-l", &selector, "--tail=30", "--prefix"], "");
            eprintln!(
                "--- end of {component}'s log\n{}",
                said.map_or_else(|e| e.to_string(), |o| o.stdout + &o.stderr)
            );
        }
        let shown = ["get", "events,pods,vms,vmis", "--all-namespaces"];
        eprintln!("{}", host.kubectl(&shown).unwrap_or_else(|error| error.to_string()));
    }

    /// The nodes' directories.
    fn nodes(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.state).context("there is no test cluster; run `make kubernetes-up`")?;
        let node = |path: &PathBuf| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("node"));
        Ok(entries.flatten().map(|entry| entry.path()).filter(|path| node(path) && path.is_dir()).collect())
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

/// The processes of virt-api, virt-controller and virt-handler.
pub fn components() -> Vec<Process> {
    let group = format!("ferrovirt-{INSTANCE}");
    process::all().into_iter().filter(|p| p.program() == "ferrovirt" && p.cgroups().contains(&group)).collect()
}

/// How often each kind was written since the API server started, from its own metrics. Leases are not counted: they are how
/// parts say that they live. Neither are questions that have the form of a write.
pub fn writes(host: &Host) -> Result<BTreeMap<String, u64>> {
    let text = host.kubectl(&["get", "--raw", "/metrics"])?;
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| -> Option<&str> {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0)
        };
        let [verb, resource, subresource, dry] =
            ["verb", "resource", "subresource", "dry_run"].map(|name| label(name).unwrap_or_default());
        let write = matches!(verb, "POST" | "PUT" | "PATCH" | "APPLY" | "DELETE" | "DELETECOLLECTION");
        let question = resource.ends_with("reviews") || subresource == "token" || !dry.is_empty();
        if write && !question && resource != "leases" {
            let count: u64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
            *found.entry(format!("{verb} {resource} {subresource}").trim().to_owned()).or_default() += count;
        }
    }
    ensure!(!found.is_empty(), "the API server counts no writes");
    Ok(found)
}

/// Waits until a machine would be taken and could be started: the API server answers, finds our webhooks and our part of the
/// API, and every one of our pods runs and is ready.
fn ready(host: &Host) -> Result<()> {
    let vm = manifest::plain_vm("would-be", "Halted").to_string();
    wait::until("Ferrovirt on the cluster", wait::BOOT, || {
        let asked = [
            host.try_kubectl(&["create", "--dry-run=server", "-f", "-"], &vm)?,
            host.try_kubectl(&["get", "--raw", "/apis/subresources.kubevirt.io/v1"], "")?,
        ];
        if let Some(refused) = asked.into_iter().find(|asked| !asked.succeeded()) {
            return Ok(Seen::Not(refused.stderr));
        }
        all_ready(host)
    })
}

/// A pod that was killed counts as ready until its kubelet has looked, and is no endpoint for a while after it is back. So
/// processes, pods and endpoints have to agree.
fn all_ready(host: &Host) -> Result<Seen<()>> {
    let asked = host.try_kubectl(&["-n", NAMESPACE, "get", "pods,endpointslices", "-o", "json"], "")?;
    if !asked.succeeded() {
        return Ok(Seen::Not(asked.stderr));
    }
    let list: Value = serde_json::from_str(&asked.stdout)?;
    let items = list["items"].as_array().context("a list without items")?;
    let part = |item: &Value| item["metadata"]["labels"]["kubevirt.io"].as_str().unwrap_or_default().to_owned();
    let pods: Vec<&Value> =
        items.iter().filter(|item| item["kind"] == "Pod" && PARTS.contains(&part(item).as_str())).collect();
    let servers = pods.iter().filter(|pod| part(pod) == "virt-api").count();
    let up = pods.iter().filter(|pod| pod["status"]["containerStatuses"][0]["ready"] == true).count();
    let of_servers = |item: &&Value| item["metadata"]["labels"]["kubernetes.io/service-name"] == "virt-api";
    let endpoints = items.iter().filter(of_servers).filter_map(|slice| slice["endpoints"].as_array()).flatten();
    let reached = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true).count();
    let (all, alive) = (pods.len(), components().len());
    let agree = servers > 0 && up == all && alive >= all && reached == servers;
    Ok(match agree {
        true => Seen::Yes(()),
        false => Seen::Not(format!(
            "{up} of {all} pods are ready, {alive} processes run, {reached} of {servers} servers are endpoints"
        )),
    })
}

fn names(host: &Host) -> Result<Vec<String>> {
    let text = host.kubectl(&["get", KINDS, "-o", "name"])?;
    Ok(text.lines().map(str::to_owned).collect())
}
