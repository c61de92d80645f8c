//! One task for each pod on this node. It alone starts, watches and ends the pod.
//!
//! ```text
//!             object wanted            object deleting or gone
//! NotStarted  start it                 forget it, delete the object
//! Running     watch it                 SIGTERM, SIGKILL after the grace period
//! Ended       report it, release       report it, forget it, delete the object
//! ```

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostIP, ObjectReference, Pod, PodIP, PodSpec};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Config;
use crate::cni::Undone;
use crate::cpus;
use crate::events::{Events, Severity};
use crate::host_path::{self, HostPaths};
use crate::images::Wanted;
use crate::logs::{LogOptions, read_log};
use crate::makers::{Makers, Trust};
use crate::networks;
use crate::podspec::{self, Resolved, SpecError};
use crate::policy::{self, Policies, Unguarded};
use crate::probes::{Probes, Target};
use crate::programs::Image;
use crate::pull_secrets;
use crate::records::{self, ExitRecord, PodRecord};
use crate::resources;
use crate::sandbox::{Ended, Found, Running, SandboxError, Sandboxes};
use crate::status::{self, Observed, Surroundings};
use crate::volumes::{VolumeError, Volumes};

const COMPONENT: &str = "kubelet";
/// The reason of the event about a network that a plugin did not release.
const NETWORK_NOT_RELEASED: &str = "NetworkNotReleased";
const DEFAULT_GRACE: u64 = 30;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// What every worker shares.
pub(crate) struct Context {
    pub client: kube::Client,
    pub config: Config,
    pub sandboxes: Sandboxes,
    pub events: Events,
    pub makers: Makers,
    pub policies: Policies,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    /// Not in the API any more, perhaps by force. That proves nothing about the process.
    Gone,
    Deleting,
    /// Succeeded or Failed.
    Terminal,
    Wanted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    NotStarted,
    Running,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Start,
    Watch,
    Terminate,
    Report,
    /// Report, clean up, delete the object.
    Finish,
    Forget,
    Rest,
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Network(#[from] networks::NetworkError),
    #[error(transparent)]
    Unguarded(#[from] Unguarded),
    #[error("the API refused a request")]
    Api(#[from] kube::Error),
}

enum Local {
    NotStarted,
    Running(Running),
    Ended(Ended),
}

struct Worker {
    context: Arc<Context>,
    uid: String,
    object: watch::Receiver<Option<Arc<Pod>>>,
    /// From the first look at the running container to its end.
    probes: Option<Probes>,
}

/// Works until the pod is gone from the API and from the machine.
pub(crate) async fn run(context: Arc<Context>, uid: String, object: watch::Receiver<Option<Arc<Pod>>>) {
    let mut worker = Worker { context, uid, object, probes: None };
    let mut local = None;
    let mut delay = FIRST_RETRY;
    loop {
        match worker.advance(&mut local).await {
            Ok(Flow::Done) => return,
            Ok(Flow::Again) => delay = FIRST_RETRY,
            Ok(Flow::Wait) => {
                delay = FIRST_RETRY;
                if worker.object.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                worker.complain(&error).await;
                // What was believed may be what is wrong.
                local = None;
                let mut wait = delay;
                if matches!(error, WorkError::Volume(VolumeError::Image { .. })) {
                    // As kubelets do: first that the pull failed, then that the next one is waited for.
                    wait = delay / 2;
                    if !worker.pause(wait).await {
                        return;
                    }
                    worker.say_waiting("ImagePullBackOff", ferrovirt_api::chain(&error)).await;
                }
                if !worker.pause(wait).await {
                    return;
                }
                delay = (delay * 2).min(LAST_RETRY);
            }
        }
    }
}

enum Flow {
    Again,
    Wait,
    Done,
}

impl Worker {
    async fn advance(&mut self, slot: &mut Option<Local>) -> Result<Flow, WorkError> {
        let pod = self.object.borrow_and_update().clone();
        let local = match slot.take() {
            Some(local) => local,
            None => match self.context.sandboxes.find(&self.uid).await? {
                Found::NotStarted => Local::NotStarted,
                Found::Running(running) => Local::Running(running),
                Found::Exited(ended) => Local::Ended(ended),
            },
        };
        let life = match &local {
            Local::NotStarted => Life::NotStarted,
            Local::Running(_) => Life::Running,
            Local::Ended(_) => Life::Ended,
        };
        let (flow, local) = match (next(object(pod.as_deref()), life), pod, local) {
            (Step::Start, Some(pod), local) => match self.lost(&pod) {
                Some(ended) => (Flow::Again, Local::Ended(ended)),
                None => {
                    drop(local);
                    (Flow::Again, Local::Running(self.start(&pod).await?))
                }
            },
            (Step::Watch, Some(pod), Local::Running(running)) => self.watch(&pod, running).await?,
            (Step::Terminate, pod, Local::Running(running)) => {
                (Flow::Again, Local::Ended(self.terminate(pod.as_deref(), running).await?))
            }
            (Step::Report, Some(pod), Local::Ended(ended)) => {
                self.report_end(&pod, &ended).await?;
                let undone = self.context.sandboxes.release(&self.uid).await?;
                self.tell_undone(Some(&pod), &undone);
                self.context.policies.forget(&self.uid);
                (Flow::Wait, Local::Ended(ended))
            }
            (Step::Finish, Some(pod), local) => {
                if let Local::Ended(ended) = &local {
                    self.report_end(&pod, ended).await?;
                }
                let undone = self.context.sandboxes.remove(&self.uid).await?;
                self.tell_undone(Some(&pod), &undone);
                self.context.policies.forget(&self.uid);
                self.delete_object(&pod).await?;
                // A finalizer of somebody else may keep the object; there is nothing left to do for it here.
                (Flow::Wait, Local::NotStarted)
            }
            (Step::Forget, _, _) => {
                let undone = self.context.sandboxes.remove(&self.uid).await?;
                self.tell_undone(None, &undone);
                self.context.policies.forget(&self.uid);
                return Ok(Flow::Done);
            }
            (_, _, local) => (Flow::Wait, local),
        };
        *slot = Some(local);
        Ok(flow)
    }

    /// The API says it ran, and nothing here remembers it. Starting it now could make a second instance.
    fn lost(&self, pod: &Pod) -> Option<Ended> {
        let status = pod.status.as_ref()?;
        (status.phase.as_deref() == Some("Running")).then(|| Ended {
            started_at: None,
            exit: ExitRecord::unknown(
                "ContainerStatusUnknown",
                "the node has no record of the pod's process",
                Timestamp::now(),
            ),
        })
    }

    async fn start(&self, pod: &Arc<Pod>) -> Result<Running, WorkError> {
        let Context { config, sandboxes, client, events, makers, policies } = &*self.context;
        let trust = makers.trust(pod).map_err(SpecError::from)?;
        let container = podspec::container(pod, trust)?;
        let image = container.image.as_deref().unwrap_or_default();
        let program = Image::parse(image).and_then(|image| image.program(&config.program_dir));
        let program = program.ok_or_else(|| SpecError::ForeignImage(image.to_owned()))?;
        let spec = pod.spec.clone().unwrap_or_default();
        let identity = podspec::identity(&spec, container)?;
        let record = PodRecord {
            uid: self.uid.clone(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            container: container.name.clone(),
            grace_seconds: grace(pod),
            netns: sandboxes.netns(&self.uid),
        };
        // Images first: a pod that waits for one should hold nothing else.
        self.bring_images(pod, &spec).await?;
        let dir = sandboxes.create_dir(&record)?;
        let cgroup_procs = sandboxes.create_cgroup(&self.uid, &resources::limits(&spec), cpus::wanted(&spec))?;
        let secondary = networks::wanted(client, pod).await?;
        let pod_ips = sandboxes.attach_network(&record, secondary).await?;
        // Before anything of the pod runs: policies have no gap at the beginning.
        policies.admit(&self.uid, policy::PodFacts { addresses: pod_ips.clone(), ..policy::facts(pod) }).await?;

        let mut addressed = Pod::clone(pod);
        let known = addressed.status.get_or_insert_default();
        known.host_ip = Some(config.node_ip.to_string());
        known.host_ips = Some(vec![HostIP { ip: config.node_ip.to_string() }]);
        known.pod_ip = pod_ips.first().map(ToString::to_string);
        known.pod_ips = Some(pod_ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect());
        let host_paths = HostPaths { trust, data_dir: &config.data_dir, shared: &config.shared_dirs };
        let volumes = Volumes { client, images: &*config.images, dir: &dir, pod: &addressed, identity, host_paths };
        let sources = volumes.prepare().await?;
        volumes.sub_paths(&sources)?;
        let env = volumes.environment(container.env.as_deref().unwrap_or_default(), &container.name).await?;
        let image_mounts: Vec<_> = config
            .image_mounts
            .iter()
            .filter_map(|(host, inside)| Some((host_path::real_path(host).ok()?, inside.clone())))
            .collect();
        let plan = podspec::plan(
            pod,
            trust,
            &Resolved {
                program: &program,
                staging: &dir.staging(),
                netns: &record.netns,
                cgroup_procs,
                pod_ips: &pod_ips,
                resolv_conf: &host_resolv_conf(),
                cluster_dns: config.cluster_dns().into(),
                image_mounts: &image_mounts,
                image_env: &config.image_env,
                env,
                volumes: &sources,
            },
        )?;
        let running = sandboxes.start(&plan).await?;
        let message = format!("Started container {}", container.name);
        events.publish(COMPONENT, pod, Severity::Normal, "Started", &message);
        Ok(running)
    }

    async fn bring_images(&self, pod: &Pod, spec: &PodSpec) -> Result<(), WorkError> {
        let volumes: Vec<_> = spec.volumes.iter().flatten().filter(|volume| volume.image.is_some()).collect();
        if volumes.is_empty() {
            return Ok(());
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let docker_configs = pull_secrets::read(&self.context.client, namespace, spec).await?;
        for volume in volumes {
            let image = volume.image.clone().unwrap_or_default();
            let wanted = Wanted {
                reference: image.reference.unwrap_or_default(),
                policy: image.pull_policy.unwrap_or_else(|| "IfNotPresent".to_owned()),
                docker_configs: docker_configs.clone(),
            };
            let found = self.context.config.images.provide(&wanted).await;
            found.map_err(|source| VolumeError::Image { volume: volume.name.clone(), source })?;
        }
        Ok(())
    }

    /// Reports a running pod until it ends or its object changes.
    async fn watch(&mut self, pod: &Arc<Pod>, running: Running) -> Result<(Flow, Local), WorkError> {
        let health = self.probes(pod, &running)?.health();
        if let Some(why) = health.dead {
            self.probes = None;
            tracing::warn!(uid = self.uid, why, "ending the pod");
            return Ok((Flow::Again, Local::Ended(self.end(pod, running, &why).await?)));
        }
        let started_at = running.state.started_at;
        self.report(pod, &Observed::Running { started_at, ready: health.ready }).await?;
        if let Some(spec) = &pod.spec
            && let Some(container) = spec.containers.first()
            && let Ok(identity) = podspec::identity(spec, container)
        {
            let dir = self.context.sandboxes.dir(&self.uid);
            let Context { client, config, .. } = &*self.context;
            // Nothing is mounted any more.
            let host_paths = HostPaths { trust: Trust::Tenant, data_dir: &config.data_dir, shared: &[] };
            Volumes { client, images: &*config.images, dir: &dir, pod, identity, host_paths }.refresh()?;
        }
        let probes = self.probes.as_mut();
        let probed = async {
            match probes {
                Some(probes) => probes.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = running.wait() => Ok((Flow::Again, Local::Ended(ended?))),
            () = probed => Ok((Flow::Again, Local::Running(running))),
            changed = self.object.changed() => match changed {
                Ok(()) => Ok((Flow::Again, Local::Running(running))),
                Err(_) => Ok((Flow::Done, Local::Running(running))),
            },
        }
    }

    fn probes(&mut self, pod: &Arc<Pod>, running: &Running) -> Result<&mut Probes, WorkError> {
        let probes = match self.probes.take() {
            Some(probes) => probes,
            None => {
                let Context { config, sandboxes, events, .. } = &*self.context;
                let target = Target {
                    program: config.self_exe.clone(),
                    directory: sandboxes.dir(&self.uid).root().to_owned(),
                    address: sandboxes.addresses(&self.uid)?.first().copied(),
                };
                Probes::start(pod, &target, running.state.started_at, events)
            }
        };
        Ok(self.probes.insert(probes))
    }

    /// Ends a container whose liveness probe failed, with its grace period.
    async fn end(&self, pod: &Arc<Pod>, running: Running, why: &str) -> Result<Ended, WorkError> {
        self.context.events.publish(COMPONENT, pod, Severity::Normal, "Killing", why);
        running.terminate()?;
        match tokio::time::timeout(Duration::from_secs(grace(pod)), running.wait()).await {
            Ok(ended) => Ok(ended?),
            Err(_) => {
                running.kill()?;
                Ok(running.wait().await?)
            }
        }
    }

    async fn terminate(&mut self, pod: Option<&Pod>, running: Running) -> Result<Ended, WorkError> {
        let record: Option<PodRecord> =
            records::read(&self.context.sandboxes.dir(&self.uid).pod()).map_err(SandboxError::from)?;
        let own = Duration::from_secs(record.as_ref().map_or(DEFAULT_GRACE, |record| record.grace_seconds));
        if let Some(pod) = pod {
            let name = record.map(|record| record.container).unwrap_or_default();
            let message = format!("Stopping container {name}");
            self.context.events.publish(COMPONENT, pod, Severity::Normal, "Killing", &message);
        }
        tracing::info!(uid = self.uid, "ending the pod");
        running.terminate()?;
        let begun = Instant::now();
        let mut kill_at = pod.and_then(deadline).unwrap_or_else(|| later(begun, own));
        loop {
            tokio::select! {
                ended = running.wait() => return Ok(ended?),
                () = tokio::time::sleep_until(kill_at) => {
                    tracing::warn!(uid = self.uid, "the pod did not end in time and is killed");
                    running.kill()?;
                    return Ok(running.wait().await?);
                }
                changed = self.object.changed(), if self.object.has_changed().is_ok() => {
                    // A second, hastier deletion moves the time; one by force leaves the time that was given.
                    let sooner = self.object.borrow_and_update().as_deref().and_then(deadline);
                    if let (Ok(()), Some(sooner)) = (changed, sooner) {
                        kill_at = kill_at.min(sooner);
                    }
                }
            }
        }
    }

    async fn report_end(&self, pod: &Arc<Pod>, ended: &Ended) -> Result<(), WorkError> {
        let mut exit = ended.exit.clone();
        if exit.exit_code != 0 && exit.message.is_none() {
            exit.message = self.last_words(pod);
        }
        let observed = Observed::Ended { started_at: ended.started_at, exit };
        self.report(pod, &observed).await
    }

    /// The end of the log, for a container that wants it as its message (`FallbackToLogsOnError`).
    fn last_words(&self, pod: &Pod) -> Option<String> {
        const LINES: usize = 80;
        const BYTES: usize = 2048;
        let container = pod.spec.as_ref()?.containers.first()?;
        if container.termination_message_policy.as_deref() != Some("FallbackToLogsOnError") {
            return None;
        }
        let options = LogOptions { tail_lines: Some(LINES), ..LogOptions::default() };
        let log = read_log(&self.context.config.data_dir, &self.uid, &container.name, &options).ok()?;
        let tail = log.get(log.len().saturating_sub(BYTES)..)?;
        Some(String::from_utf8_lossy(tail).into_owned())
    }

    /// Writes the status if it differs from what the API has.
    async fn report(&self, pod: &Arc<Pod>, observed: &Observed) -> Result<(), WorkError> {
        let around = Surroundings {
            node_ip: self.context.config.node_ip,
            pod_ips: self.context.sandboxes.addresses(&self.uid)?,
            now: Timestamp::now(),
        };
        let api = self.api(pod);
        let name = pod.metadata.name.clone().unwrap_or_default();
        let mut current = Pod::clone(pod);
        loop {
            let status = status::compute(&current, observed, &around);
            if current.status.as_ref() == Some(&status) {
                return Ok(());
            }
            current.status = Some(status);
            match api.replace_status(&name, &PostParams::default(), &current).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(answer)) if answer.code == 404 => return Ok(()),
                Err(kube::Error::Api(answer)) if answer.code == 409 => {}
                Err(error) => return Err(error.into()),
            }
            match api.get_opt(&name).await? {
                Some(newer) if newer.metadata.uid.as_deref() == Some(&self.uid) => current = newer,
                _ => return Ok(()),
            }
        }
    }

    /// Says which networks were not released, on the pod and on what it was made for: the pod is about to vanish.
    fn tell_undone(&self, pod: Option<&Pod>, undone: &[Undone]) {
        for part in undone {
            let message = format!(
                "the network {} was not released: {}. The pod ends all the same; releasing it is tried again for a day",
                part.name(),
                part.why
            );
            tracing::warn!(uid = self.uid, message, "a network was not released");
            let Some(pod) = pod else { continue };
            let events = &self.context.events;
            events.publish(COMPONENT, pod, Severity::Warning, NETWORK_NOT_RELEASED, &message);
            if let Some(owner) = owner(pod) {
                events.publish_about(COMPONENT, owner, Severity::Warning, NETWORK_NOT_RELEASED, &message);
            }
        }
    }

    async fn delete_object(&self, pod: &Pod) -> Result<(), WorkError> {
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), resource_version: None }),
            ..Default::default()
        };
        match self.api(pod).delete(pod.metadata.name.as_deref().unwrap_or_default(), &parameters).await {
            Ok(_) => Ok(()),
            // Gone, or another pod has the name now.
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits before another attempt. Reports of our own change the object too, so only a change of what is wanted
    /// cuts the wait short. False when nobody is interested any more.
    async fn pause(&mut self, delay: Duration) -> bool {
        let until = Instant::now() + delay;
        let before = object(self.object.borrow_and_update().as_deref());
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return true,
                changed = self.object.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    if object(self.object.borrow_and_update().as_deref()) != before {
                        return true;
                    }
                }
            }
        }
    }

    /// Tells the user why the pod does not get on.
    async fn complain(&self, error: &WorkError) {
        let text = ferrovirt_api::chain(error);
        tracing::warn!(uid = self.uid, error = text, "the pod does not get on");
        let Some(pod) = self.object.borrow().clone() else {
            return;
        };
        if object(Some(&pod)) != Object::Wanted {
            return;
        }
        let (event, waiting) = match error {
            WorkError::Spec(SpecError::NotAllowed(_)) => ("Failed", "NotAllowed"),
            WorkError::Spec(SpecError::ForeignImage(_)) => ("Failed", "UnsupportedImage"),
            WorkError::Spec(_) => ("Failed", "CreateContainerConfigError"),
            WorkError::Volume(VolumeError::Image { .. }) => ("Failed", "ErrImagePull"),
            WorkError::Volume(_) => ("FailedMount", "ContainerCreating"),
            WorkError::Sandbox(_) | WorkError::Network(_) | WorkError::Unguarded(_) => {
                ("FailedCreatePodSandBox", "ContainerCreating")
            }
            WorkError::Api(_) => return,
        };
        self.context.events.publish(COMPONENT, &pod, Severity::Warning, event, &text);
        self.say_waiting(waiting, text).await;
    }

    /// Nothing is said about a pod that may run: only one that never started waits.
    async fn say_waiting(&self, reason: &str, message: String) {
        let pod = self.object.borrow().clone().filter(|pod| object(Some(pod)) == Object::Wanted);
        let Some(pod) = pod else { return };
        if matches!(self.context.sandboxes.find(&self.uid).await, Ok(Found::NotStarted)) {
            let observed = Observed::Waiting { reason: reason.to_owned(), message: Some(message) };
            if let Err(error) = self.report(&pod, &observed).await {
                tracing::debug!(uid = self.uid, %error, "cannot report why the pod waits");
            }
        }
    }

    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.context.client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"))
    }
}

/// The object that the pod was made for.
fn owner(pod: &Pod) -> Option<ObjectReference> {
    let owner = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        namespace: pod.metadata.namespace.clone(),
        name: Some(owner.name.clone()),
        uid: Some(owner.uid.clone()),
        ..Default::default()
    })
}

fn object(pod: Option<&Pod>) -> Object {
    let Some(pod) = pod else { return Object::Gone };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match (pod.metadata.deletion_timestamp.is_some(), phase) {
        (true, _) => Object::Deleting,
        (false, Some("Succeeded" | "Failed")) => Object::Terminal,
        (false, _) => Object::Wanted,
    }
}

fn next(object: Object, life: Life) -> Step {
    match (object, life) {
        (Object::Gone | Object::Deleting | Object::Terminal, Life::Running) => Step::Terminate,
        (Object::Gone, Life::NotStarted | Life::Ended) => Step::Forget,
        (Object::Deleting, Life::NotStarted | Life::Ended) => Step::Finish,
        (Object::Terminal, Life::NotStarted) => Step::Rest,
        (Object::Terminal | Object::Wanted, Life::Ended) => Step::Report,
        (Object::Wanted, Life::NotStarted) => Step::Start,
        (Object::Wanted, Life::Running) => Step::Watch,
    }
}

fn grace(pod: &Pod) -> u64 {
    let seconds = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(DEFAULT_GRACE)
}

/// The deletion timestamp is the moment at which the grace period ends. A moment to react is always left.
fn deadline(pod: &Pod) -> Option<Instant> {
    let at = pod.metadata.deletion_timestamp.as_ref()?.0;
    let left = at.duration_since(Timestamp::now());
    let left = Duration::try_from(left).unwrap_or_default();
    Some(later(Instant::now(), left.max(Duration::from_secs(1))))
}

/// Grace periods are what users write: any number.
fn later(now: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    now + by.min(FAR)
}

/// A stub resolver on the host's loopback cannot be reached from a pod; systemd keeps the real list beside it.
fn host_resolv_conf() -> String {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    if text.contains("nameserver 127.0.0.53") {
        return fs::read_to_string("/run/systemd/resolve/resolv.conf").unwrap_or(text);
    }
    text
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    #[test]
    fn no_state_starts_a_second_process_or_forgets_a_living_one() {
        for object in [Object::Gone, Object::Deleting, Object::Terminal, Object::Wanted] {
            for life in [Life::NotStarted, Life::Running, Life::Ended] {
                let step = next(object, life);
                if step == Step::Start {
                    assert_eq!((object, life), (Object::Wanted, Life::NotStarted));
                }
                if life == Life::Running {
                    assert!(matches!(step, Step::Watch | Step::Terminate), "{object:?}: {step:?}");
                }
            }
        }
        assert_eq!(next(Object::Deleting, Life::Ended), Step::Finish);
        assert_eq!(next(Object::Gone, Life::Ended), Step::Forget);
        assert_eq!(next(Object::Terminal, Life::NotStarted), Step::Rest);
    }

    #[test]
    fn no_grace_period_is_too_long() {
        let now = Instant::now();
        for seconds in [0, 30, i64::MAX as u64, u64::MAX] {
            assert!(later(now, Duration::from_secs(seconds)) >= now, "{seconds}");
        }
        for (seconds, expected) in [(Some(i64::MAX), i64::MAX as u64), (Some(-1), DEFAULT_GRACE), (None, DEFAULT_GRACE)]
        {
            let spec = PodSpec { termination_grace_period_seconds: seconds, ..Default::default() };
            assert_eq!(grace(&Pod { spec: Some(spec), ..Default::default() }), expected);
        }
        let last = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::MAX);
        let metadata = ObjectMeta { deletion_timestamp: Some(last), ..Default::default() };
        assert!(deadline(&Pod { metadata, ..Default::default() }).is_some_and(|at| at > now));
    }
}
