//! From what is known of a VM to what is wrong with it. Pure.
//!
//! The walk goes from what the owner wants down to the machine: VM, volumes, pod, node, guest. The first thing that is
//! wrong on the way is the cause of what comes after it, so the walk ends there, except for what is only worth a remark.

use serde_json::Value;

use super::{imports, placing, volumes};
use crate::next::Flags;

/// Everything that was found, as the API tells it.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub name: String,
    pub namespace: String,
    pub vm: Option<Value>,
    pub vmi: Option<Value>,
    pub pods: Vec<Value>,
    pub claims: Vec<Value>,
    pub data_volumes: Vec<Value>,
    pub nodes: Vec<Value>,
    pub storage_classes: Vec<Value>,
    pub events: Vec<Value>,
    /// VMs of that name in other namespaces, if there is none here.
    pub elsewhere: Vec<Value>,
    /// What the printed commands end with.
    pub flags: Flags,
}

impl Facts {
    pub(super) fn ferrovirt(&self, command: impl AsRef<str>) -> String {
        self.flags.ferrovirt(command.as_ref())
    }

    pub(super) fn kubectl(&self, command: impl AsRef<str>) -> String {
        self.flags.kubectl(command.as_ref())
    }
}

/// The event of a node whose CNI plugin does not take a network back.
const NETWORK_NOT_RELEASED: &str = "NetworkNotReleased";

/// Whether waiting helps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outlook {
    /// It gets on, or is only worth a remark.
    #[default]
    Fine,
    /// It is tried again by itself, and may work the next time.
    Doubtful,
    /// Somebody has to change something.
    Stuck,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The object that it is about, such as `pvc/data`.
    pub about: String,
    pub message: String,
    pub next: Option<String>,
    pub outlook: Outlook,
}

impl Finding {
    pub(super) fn doubtful(self) -> Self {
        Self { outlook: Outlook::Doubtful, ..self }
    }

    pub(super) fn stuck(self) -> Self {
        Self { outlook: Outlook::Stuck, ..self }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub summary: String,
    /// True if the VM is as its owner wants it.
    pub well: bool,
    pub findings: Vec<Finding>,
}

impl Report {
    /// What keeps the VM from starting most, if something does.
    pub fn obstacle(&self) -> Option<&Finding> {
        let found = self.findings.iter().filter(|finding| finding.outlook > Outlook::Fine);
        // The first of the worst: what comes later on the way follows from it.
        found.rev().max_by_key(|finding| finding.outlook)
    }
}

pub(super) fn finding(about: impl Into<String>, message: impl Into<String>, next: impl Into<String>) -> Finding {
    let next: String = next.into();
    Finding {
        about: about.into(),
        message: message.into(),
        next: (!next.is_empty()).then_some(next),
        outlook: Outlook::Fine,
    }
}

pub fn explain(facts: &Facts) -> Report {
    let mut findings = vec![];
    let (summary, well) = match (&facts.vm, &facts.vmi) {
        (None, None) => absent(facts, &mut findings),
        (Some(vm), vmi) => machine(facts, vm, vmi.as_ref(), &mut findings),
        (None, Some(vmi)) => instance(facts, "vmi", vmi, &mut findings),
    };
    Report { summary, well, findings }
}

fn absent(facts: &Facts, findings: &mut Vec<Finding>) -> (String, bool) {
    for vm in &facts.elsewhere {
        let namespace = text(vm, "/metadata/namespace");
        findings.push(finding(
            format!("namespace/{namespace}"),
            format!("has a VM {}", facts.name),
            facts.ferrovirt(format!("why {} -n {namespace}", facts.name)),
        ));
    }
    if facts.elsewhere.is_empty() {
        findings.push(finding("cluster", "no VM has this name", facts.ferrovirt("get vms -A")));
    }
    (format!("There is no VM {} in the namespace {}.", facts.name, facts.namespace), false)
}

fn machine(facts: &Facts, vm: &Value, vmi: Option<&Value>, findings: &mut Vec<Finding>) -> (String, bool) {
    let name = &facts.name;
    let about = format!("vm/{name}");
    let printable = match text(vm, "/status/printableStatus") {
        "" => "without a status",
        status => status,
    };
    if !vm["metadata"]["deletionTimestamp"].is_null() {
        deleting(facts, vm, vmi, findings);
        return (format!("vm/{name} is being deleted."), false);
    }
    if vm["status"].is_null() || printable == "without a status" {
        findings.push(finding(
            about,
            "no controller has looked at it yet",
            "see whether virt-controller runs: `ferrovirt status` here, `kubectl -n kubevirt get pods` on a cluster",
        ));
        return (format!("vm/{name} was not noticed."), false);
    }
    let strategy = match (vm["spec"]["running"].as_bool(), text(vm, "/spec/runStrategy")) {
        (Some(true), _) => "Always",
        (Some(false), _) | (None, "") => "Halted",
        (None, strategy) => strategy,
    };
    let ran = vmi.is_some_and(|vmi| text(vmi, "/status/phase") == "Succeeded");
    let start = facts.ferrovirt(format!("start {name}"));
    if (vmi.is_none() || ran)
        && let Some((message, next)) = match strategy {
            "Halted" => Some(("its run strategy is Halted: it is meant to be off", start.clone())),
            "Manual" if ran => {
                Some(("the guest powered itself off; with the run strategy Manual it stays off", start.clone()))
            }
            "Manual" => Some(("its run strategy is Manual, and nobody has started it", start.clone())),
            "RerunOnFailure" if ran => Some((
                "the guest powered itself off; with RerunOnFailure only a failure starts it again",
                start.clone(),
            )),
            "Once" => Some((
                "its run strategy is Once: it has run, and does not run again",
                facts.kubectl(format!("patch vm {name} --type=merge -p '{{\"spec\":{{\"runStrategy\":\"Always\"}}}}'")),
            )),
            _ => None,
        }
    {
        let wanted = strategy == "Halted" || strategy == "Once";
        findings.push(finding(about, message, next));
        return (format!("vm/{name} is off."), wanted);
    }
    failure(facts, vm, &about, findings);
    back_off(facts, vm, &about, findings);
    let template = &vm["spec"]["template"]["spec"];
    if findings.iter().all(|f| f.about == about) {
        volumes::explain(facts, template, findings);
    }
    match vmi {
        Some(vmi) if !["Failed", "Succeeded"].contains(&text(vmi, "/status/phase")) => {
            let (summary, well) = instance(facts, "vm", vmi, findings);
            remarks(facts, vm, findings);
            return (summary, well);
        }
        Some(vmi) if findings.is_empty() => ended(facts, vmi, findings),
        _ => {}
    }
    if findings.is_empty() {
        warning_events(facts, &["VirtualMachine"], findings);
    }
    if findings.is_empty() {
        findings.push(finding(
            about,
            format!("is {printable}, and nothing says why"),
            facts.kubectl(format!("describe vm {name}")),
        ));
    }
    (format!("vm/{name} does not run: {printable}."), false)
}

fn deleting(facts: &Facts, vm: &Value, vmi: Option<&Value>, findings: &mut Vec<Finding>) {
    match vmi {
        Some(vmi) => {
            let grace = vmi["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
            let node = text(vmi, "/status/nodeName");
            findings.push(finding(
                format!("vmi/{}", facts.name),
                format!("the guest is being shut down; it has {grace} s for that"),
                "",
            ));
            tearing_down(facts, vmi, findings);
            node_well(facts, node, findings);
        }
        None => {
            let finalizers: Vec<&str> =
                vm["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            findings.push(finding(
                format!("vm/{}", facts.name),
                format!("waits for whoever holds the finalizers {}", finalizers.join(", ")),
                "see whether the controller that sets them runs",
            ));
        }
    }
}

/// What the controller could not do at all, such as a quota that is used up.
fn failure(facts: &Facts, vm: &Value, about: &str, findings: &mut Vec<Finding>) {
    for condition in conditions(vm, "Failure", "True") {
        let message = text(condition, "/message");
        let next = if message.contains("exceeded quota") {
            facts.kubectl("describe resourcequota") + ": raise the quota, or ask for less"
        } else if message.contains("forbidden") {
            "an administrator has to permit this; the message says what".to_owned()
        } else {
            "change what the message names, with `kubectl edit` or `ferrovirt apply`".to_owned()
        };
        findings.push(finding(about, message, next).stuck());
    }
}

/// What goes wrong while the pod is taken down: the guest has ended, and what it leaves behind is not gone yet. The node tells it of
/// the pod, which may be gone first, and of the instance.
fn tearing_down(facts: &Facts, vmi: &Value, findings: &mut Vec<Finding>) {
    let pod = launcher(facts, vmi).map(|pod| text(pod, "/metadata/name")).unwrap_or_default();
    let told = [("pod", "Pod", pod), ("vmi", "VirtualMachineInstance", facts.name.as_str())];
    let released = told.into_iter().find_map(|(short, kind, name)| {
        let of_kind = events(facts, kind, name).into_iter();
        Some((short, name, of_kind.rev().find(|event| event["reason"] == NETWORK_NOT_RELEASED)?))
    });
    if let Some((short, name, event)) = released {
        let next = "mend or install the network's plugin; the VM goes meanwhile, and the host clears up later";
        findings.push(finding(format!("{short}/{name}"), text(event, "/message"), next));
    }
}

fn back_off(facts: &Facts, vm: &Value, about: &str, findings: &mut Vec<Finding>) {
    let name = &facts.name;
    let failure = &vm["status"]["startFailure"];
    let Some(count) = failure["consecutiveFailCount"].as_i64().filter(|count| *count > 0) else { return };
    let retry = text(failure, "/retryAfterTimestamp");
    for condition in conditions(vm, "Synchronized", "False") {
        findings.push(finding(
            about,
            text(condition, "/message"),
            "mend what the message names; then it starts by itself",
        ));
    }
    let console = facts.ferrovirt(format!("console {name}"));
    let logs = facts.kubectl(format!("logs -l vm.kubevirt.io/name={name}"));
    let next = format!("the guest's last words: {console}, or the launcher's log: {logs}");
    let message = format!("failed to start {count} times in a row; the next try is at {retry}");
    findings.push(finding(about, message, next).stuck());
}

fn ended(facts: &Facts, vmi: &Value, findings: &mut Vec<Finding>) {
    let about = format!("vmi/{}", facts.name);
    let pod = launcher(facts, vmi);
    let said = pod.map(termination).unwrap_or_default();
    if text(vmi, "/status/phase") == "Failed" {
        let message = if said.is_empty() { "the guest or its launcher failed".to_owned() } else { said };
        let next = facts.kubectl(format!("logs -l vm.kubevirt.io/name={}", facts.name));
        findings.push(finding(about, message, next).doubtful());
    }
}

/// A VM with an instance, or an instance on its own.
fn instance(facts: &Facts, kind: &str, vmi: &Value, findings: &mut Vec<Finding>) -> (String, bool) {
    let name = &facts.name;
    let about = format!("vmi/{name}");
    let label = format!("{kind}/{name}");
    let phase = text(vmi, "/status/phase");
    if !vmi["metadata"]["deletionTimestamp"].is_null() {
        let grace = vmi["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
        findings.push(finding(&about, format!("the guest is being shut down; it has {grace} s for that"), ""));
        tearing_down(facts, vmi, findings);
        node_well(facts, text(vmi, "/status/nodeName"), findings);
        return (format!("{label} is stopping."), false);
    }
    match phase {
        "Running" => running(facts, &label, vmi, findings),
        "Succeeded" => {
            findings.push(finding(&about, "the guest powered itself off", ""));
            (format!("{label} is off."), false)
        }
        "Failed" => {
            ended(facts, vmi, findings);
            (format!("{label} failed."), false)
        }
        _ => {
            if kind == "vmi" {
                volumes::explain(facts, &vmi["spec"], findings);
            }
            starting(facts, vmi, findings);
            if findings.is_empty() {
                findings.push(finding(
                    &about,
                    format!("is {phase}; nothing is wrong so far"),
                    "wait a moment and ask again",
                ));
            }
            (format!("{label} does not run yet: {}.", if phase.is_empty() { "new" } else { phase }), false)
        }
    }
}

fn starting(facts: &Facts, vmi: &Value, findings: &mut Vec<Finding>) {
    for condition in conditions(vmi, "Synchronized", "False") {
        let next = "change what the message names";
        findings.push(finding(format!("vmi/{}", facts.name), text(condition, "/message"), next).stuck());
    }
    let Some(pod) = launcher(facts, vmi) else {
        if findings.is_empty() {
            warning_events(facts, &["VirtualMachineInstance"], findings);
        }
        if findings.is_empty() {
            findings.push(finding(
                format!("vmi/{}", facts.name),
                "has no launcher pod yet",
                "see whether virt-controller runs: `ferrovirt status` here, `kubectl -n kubevirt get pods` on a cluster",
            ));
        }
        return;
    };
    let about = format!("pod/{}", text(pod, "/metadata/name"));
    // The instance knows what the label stands for that the pod waits for.
    let mut known = conditions(vmi, "PodScheduled", "False");
    if let Some(condition) = known.find(|condition| text(condition, "/reason") == "HypervisorNotAvailable") {
        let command = facts.ferrovirt("hypervisors");
        let next = format!("mend that on a node, or choose another hypervisor: `{command}` shows what runs where");
        findings.push(finding(format!("vmi/{}", facts.name), text(condition, "/message"), next).stuck());
        return;
    }
    if let Some(condition) = conditions(pod, "PodScheduled", "False").next() {
        findings.push(placing::explain(facts, pod, &about, text(condition, "/message")));
        return;
    }
    if let Some(waiting) = waiting(pod) {
        let (reason, message) = (waiting.reason, waiting.message);
        let found = match waiting.pulls {
            true => {
                let judged = imports::judge(&message);
                let images = facts.ferrovirt("image list");
                let next = match judged.next {
                    Some(next) => next.to_owned(),
                    None => format!(
                        "check the image's name; embedded, `{images}` shows what is here and `ferrovirt image import FILE` adds one"
                    ),
                };
                Finding { outlook: judged.outlook, ..finding(&about, format!("{reason}: {message}"), next) }
            }
            false => finding(&about, format!("{reason}: {message}"), "make what the message names").stuck(),
        };
        findings.push(found);
        return;
    }
    let name = text(pod, "/metadata/name");
    let trouble = events(facts, "Pod", name).into_iter().rev().find(|event| event["type"] == "Warning");
    if let Some(event) = trouble {
        let (reason, message) = (text(event, "/reason"), text(event, "/message"));
        let next = match reason {
            "FailedMount" | "FailedAttachVolume" => "make the Secret, ConfigMap or claim that the message names",
            "FailedCreatePodSandBox" => {
                "the pod's network cannot be made: see the CNI configuration, and that the NetworkAttachmentDefinition exists"
            }
            _ => "",
        };
        findings.push(finding(&about, format!("{reason}: {message}"), next).doubtful());
        return;
    }
    node_well(facts, text(pod, "/spec/nodeName"), findings);
}

/// What a container waits for that will not come by itself.
pub(super) struct Waiting {
    pub reason: String,
    pub message: String,
    /// It is an image.
    pub pulls: bool,
}

pub(super) fn waiting(pod: &Value) -> Option<Waiting> {
    let statuses = ["initContainerStatuses", "containerStatuses"];
    let mut containers = statuses.iter().flat_map(|key| pod["status"][*key].as_array().into_iter().flatten());
    containers.find_map(|container| {
        let waiting = &container["state"]["waiting"];
        let (reason, message) = (text(waiting, "/reason"), text(waiting, "/message"));
        let pulls = match reason {
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => true,
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => false,
            _ => return None,
        };
        let message = match message.is_empty() && pulls {
            true => format!("cannot get the image {}", text(container, "/image")),
            false => message.to_owned(),
        };
        Some(Waiting { reason: reason.to_owned(), message, pulls })
    })
}

fn running(facts: &Facts, label: &str, vmi: &Value, findings: &mut Vec<Finding>) -> (String, bool) {
    let name = &facts.name;
    let about = format!("vmi/{name}");
    if let Some(paused) = conditions(vmi, "Paused", "True").next() {
        let (message, next) = match text(paused, "/reason") {
            "PausedIOError" => (
                "a disk reported an error, so the guest was stopped before it could lose data",
                format!("make room on the volume or mend it, then: {}", facts.ferrovirt(format!("unpause {name}"))),
            ),
            _ => ("somebody paused the guest", facts.ferrovirt(format!("unpause {name}"))),
        };
        findings.push(finding(&about, message, next));
        return (format!("{label} is paused."), false);
    }
    if !node_well(facts, text(vmi, "/status/nodeName"), findings) {
        return (format!("{label} may still run, but its node does not answer."), false);
    }
    for condition in conditions(vmi, "Synchronized", "False") {
        findings.push(finding(&about, text(condition, "/message"), "change what the message names"));
    }
    let ready = conditions(vmi, "Ready", "True").next().is_some();
    if !ready {
        let why = conditions(vmi, "Ready", "False").next().map(|c| text(c, "/message")).unwrap_or_default();
        let console = facts.ferrovirt(format!("console {name}"));
        let next = if vmi["spec"]["readinessProbe"].is_null() {
            format!("see what the guest does: {console}")
        } else {
            format!("the readiness probe fails: see that what it asks for runs in the guest, {console}")
        };
        findings.push(finding(&about, format!("runs, but is not ready: {why}"), next));
        return (format!("{label} runs, but is not ready."), false);
    }
    let well = findings.is_empty();
    if conditions(vmi, "SoftwareEmulation", "True").next().is_some() {
        findings.push(finding(
            &about,
            "is emulated in software, which is slow",
            "use a machine with hardware virtualization",
        ));
    }
    let without_address = vmi["status"]["interfaces"]
        .as_array()
        .is_some_and(|list| !list.is_empty() && list.iter().all(|interface| text(interface, "/ipAddress").is_empty()));
    if without_address {
        findings.push(finding(
            &about,
            "has no address yet",
            format!("see whether the guest asks for one: {}", facts.ferrovirt(format!("console {name}"))),
        ));
    }
    (format!("{label} runs."), well)
}

/// Remarks on a VM that runs.
fn remarks(facts: &Facts, vm: &Value, findings: &mut Vec<Finding>) {
    let name = text(vm, "/metadata/name");
    for _ in conditions(vm, "RestartRequired", "True") {
        findings.push(finding(
            format!("vm/{name}"),
            "was changed in a way that needs a restart",
            facts.ferrovirt(format!("restart {name}")),
        ));
    }
}

/// True if the node answers, or is not known.
fn node_well(facts: &Facts, name: &str, findings: &mut Vec<Finding>) -> bool {
    let Some(node) = facts.nodes.iter().find(|node| text(node, "/metadata/name") == name) else { return true };
    let condition = node["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Ready");
    if condition.is_none_or(|condition| condition["status"] == "True") {
        return true;
    }
    let message = condition.map(|condition| text(condition, "/message")).unwrap_or_default();
    findings.push(finding(
        format!("node/{name}"),
        format!("does not answer: {message}"),
        "if the machine is off for good, delete the node or taint it node.kubernetes.io/out-of-service; only then is the VM started elsewhere",
    ));
    false
}

fn warning_events(facts: &Facts, kinds: &[&str], findings: &mut Vec<Finding>) {
    for kind in kinds {
        if let Some(event) = events(facts, kind, &facts.name).into_iter().rev().find(|event| event["type"] == "Warning")
        {
            let message = text(event, "/message");
            let next = if message.contains("exceeded quota") {
                facts.kubectl("describe resourcequota") + ": raise the quota, or ask for less"
            } else {
                String::new()
            };
            let about = format!("{}/{}", if *kind == "VirtualMachine" { "vm" } else { "vmi" }, facts.name);
            findings.push(finding(about, format!("{}: {message}", text(event, "/reason")), next).doubtful());
        }
    }
}

/// Events of one object, oldest first.
fn events<'a>(facts: &'a Facts, kind: &str, name: &str) -> Vec<&'a Value> {
    let of = |event: &&Value| event["involvedObject"]["kind"] == kind && event["involvedObject"]["name"] == name;
    let mut found: Vec<&Value> = facts.events.iter().filter(of).collect();
    found.sort_by_key(|event| text(event, "/lastTimestamp").to_owned());
    found
}

/// The pod of this very instance; one that is going counts only if there is no other.
fn launcher<'a>(facts: &'a Facts, vmi: &Value) -> Option<&'a Value> {
    let uid = text(vmi, "/metadata/uid");
    let owned = |pod: &&Value| {
        let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        !uid.is_empty() && owners.into_iter().any(|owner| text(owner, "/uid") == uid)
    };
    let mut pods: Vec<&Value> = facts.pods.iter().filter(owned).collect();
    pods.sort_by_key(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
    pods.into_iter().next()
}

/// What the containers of a pod said at their end.
fn termination(pod: &Value) -> String {
    let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let words = statuses.filter_map(|status| {
        let ended = &status["state"]["terminated"];
        let message = text(ended, "/message").trim();
        (ended["exitCode"].as_i64().is_some_and(|code| code != 0))
            .then(|| if message.is_empty() { text(ended, "/reason").to_owned() } else { message.to_owned() })
    });
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("; ")
}

fn conditions<'a>(object: &'a Value, kind: &'static str, status: &'static str) -> impl Iterator<Item = &'a Value> {
    let all = object["status"]["conditions"].as_array().into_iter().flatten();
    all.filter(move |condition| condition["type"] == kind && condition["status"] == status)
}

pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
