//! One instance, from its launcher's first breath to the proof of its last.
//!
//! ```text
//!            connect               sync                    stopped            gone
//!  Seeking ----------> Attached ----------> mirrored … ------------> Ended ---------> released
//!     |                                                                ^
//!     +---- the pod is over (its directory is gone, or the kubelet says so)
//! ```
//!
//! Everything is level-based: a restarted agent connects to the launcher again, syncs the same machine (which changes
//! nothing) and goes on mirroring.

use std::{sync::Arc, time::Duration};

use ferrovirt_api::{
    Folded, chain, names,
    v1::{VirtualMachineInstance, values::virtual_machine_instance_phase as phase},
};
use ferrovirt_machine::{
    convert::{Context as ConvertContext, FieldError, machine_spec},
    hypervisor::Guest,
    protocol::{MachinePhase, MachineState, Request},
    spec::{Acceleration, Arch, IdRange, MachineSpec},
};
use ferrovirt_plan::{conditions, pod::console_log};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    Context, architecture, bare, boot, claims, cpus, disks,
    host::Kvm,
    hypervisors,
    launcher::{Launcher, LauncherError},
    network::{self, Attached},
    pods::{self, PodEnd},
    status::{self, End, Given, START_FAILED},
};

/// Between two looks for a launcher that is about to come up, and how many of these there are.
const RETRY_SOON: Duration = Duration::from_millis(20);
const SOON: u32 = 100;
const RETRY_LATER: Duration = Duration::from_millis(500);
const DEFAULT_GRACE_SECONDS: i64 = 30;

type Object = watch::Receiver<Folded<VirtualMachineInstance>>;

/// True if nothing is left to do for an instance, ever: its finalizer was taken away.
pub(crate) fn is_settled(vmi: &VirtualMachineInstance) -> bool {
    !vmi.finalizers().iter().any(|f| f == names::VIRTUAL_MACHINE_INSTANCE_FINALIZER)
}

/// Cares for an instance until it is settled or its object vanishes.
///
/// Steps that end soon are boxed: this waits as long as the instance lives, and would hold room for all of them.
pub(crate) async fn care(context: Arc<Context>, mut object: Object, mut draining: watch::Receiver<bool>) {
    let name = object.borrow().name_any();
    let mut attempt = 0u32;
    loop {
        let vmi = match newest(&mut object) {
            Ok(vmi) => vmi,
            Err(error) => {
                tracing::error!(vmi = name, error = %chain(&error), "cannot care for the instance");
                return;
            }
        };
        if is_settled(&vmi) {
            return;
        }
        if is_final(&vmi) && vmi.metadata.deletion_timestamp.is_none() {
            drop(vmi);
            if *draining.borrow_and_update() {
                return;
            }
            // It ended. All that can still come is its deletion.
            tokio::select! {
                changed = object.changed() => if changed.is_err() { return },
                _ = draining.changed() => {}
            }
            continue;
        }
        // The kubelet's word costs a request, so it is not asked while a launcher is about to come up.
        let ask = attempt >= SOON || attempt.is_multiple_of(25) || vmi.metadata.deletion_timestamp.is_some();
        let found = Box::pin(seek(&context, &vmi, ask)).await;
        // There will be newer versions of it.
        drop(vmi);
        let outcome = match found {
            Found::Launcher(launcher) => attached(&context, &launcher, &mut object, &mut draining).await,
            Found::Over(end) => Ok(Some(end)),
            // What did not come up before the host goes down ends with its pod.
            Found::Nothing if *draining.borrow() => return,
            Found::Nothing => Ok(None),
        };
        let outcome = match outcome {
            // Here the processes are known to have ended: `attached` and `seek` say so only then.
            Ok(Some(end)) => {
                let drained = *draining.borrow();
                Box::pin(conclude(&context, &object, &end, drained)).await
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(vmi = name, error = %chain(&error), "cannot care for the instance; trying again")
            }
        }
        tokio::select! {
            () = tokio::time::sleep(if attempt < SOON { RETRY_SOON } else { RETRY_LATER }) => {}
            changed = object.changed() => if changed.is_err() { return },
        }
        attempt = attempt.saturating_add(1);
    }
}

/// The instance as it is now. Whoever waits for long lets it go first.
fn newest(object: &mut Object) -> Result<Box<VirtualMachineInstance>, Failure> {
    object.borrow_and_update().unfold().map(Box::new).map_err(Failure::Unfold)
}

/// Records the end of an instance whose processes have ended, and releases it.
async fn conclude(context: &Context, object: &Object, end: &End, drained: bool) -> Result<(), Failure> {
    let vmi = object.borrow().unfold().map_err(Failure::Unfold)?;
    finish(context, &vmi, end, drained).await?;
    release(context, &vmi).await
}

/// Takes the finalizer away from an instance that is being deleted. Only for one whose processes have ended.
async fn release(context: &Context, vmi: &VirtualMachineInstance) -> Result<(), Failure> {
    let vmis = Api::<VirtualMachineInstance>::namespaced(context.client.clone(), &vmi.namespace().unwrap_or_default());
    let name = vmi.name_any();
    loop {
        let Some(newest) = vmis.get_opt(&name).await?.filter(|newest| newest.uid() == vmi.uid()) else { return Ok(()) };
        if newest.metadata.deletion_timestamp.is_none() || is_settled(&newest) {
            return Ok(());
        }
        let mut finalizers = newest.finalizers().to_vec();
        finalizers.retain(|f| f != names::VIRTUAL_MACHINE_INSTANCE_FINALIZER);
        let body = json!({ "metadata": { "resourceVersion": newest.resource_version(), "finalizers": finalizers } });
        match vmis.patch(&name, &PatchParams::default(), &Patch::Merge(body)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(answer)) if answer.is_conflict() => {}
            Err(kube::Error::Api(answer)) if answer.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

enum Found {
    Launcher(Launcher),
    /// It is proven that nothing of the instance runs here any more.
    Over(End),
    Nothing,
}

async fn seek(context: &Context, vmi: &VirtualMachineInstance, ask: bool) -> Found {
    let mut unknown = 0;
    let mut end = None;
    for pod in pods::here(context, vmi) {
        let gone = !context.ground.has_pod(&pod);
        if !gone {
            match context.ground.connect(&pod, pods::user(vmi)).await {
                Ok(launcher) => return Found::Launcher(launcher),
                // Nothing that passes by itself, other than a socket that is not there yet.
                Err(error @ LauncherError::Process(_)) if ask => {
                    tracing::warn!(vmi = vmi.name_any(), pod, error = %chain(&error), "the launcher is not believed");
                }
                Err(_) => {}
            }
        }
        if !gone && !ask {
            unknown += 1;
            continue;
        }
        match pods::end(context, vmi, &pod).await {
            Ok(PodEnd::Succeeded) => end = Some((true, "the guest powered off".to_owned())),
            Ok(PodEnd::Failed(why)) => end = Some((false, why)),
            // A pod that was just bound has no directory yet either, but it has an object.
            Ok(PodEnd::NoObject) if gone => end = Some((false, "the launcher pod is gone".to_owned())),
            Ok(PodEnd::NoObject | PodEnd::NotYet) | Err(_) => unknown += 1,
        }
    }
    match end {
        Some((succeeded, message)) if unknown == 0 => {
            let reason = if succeeded { "GuestPoweredDown" } else { "LauncherGone" };
            Found::Over(End { succeeded, reason, message })
        }
        _ => Found::Nothing,
    }
}

/// Drives a launcher until its process tree ended. `None` if the connection broke while it lives.
async fn attached(
    context: &Context,
    launcher: &Launcher,
    object: &mut Object,
    draining: &mut watch::Receiver<bool>,
) -> Result<Option<End>, Failure> {
    let vmi = object.borrow().unfold().map(Box::new).map_err(Failure::Unfold)?;
    let mut machine = launcher.state();
    let deleting = vmi.metadata.deletion_timestamp.is_some();
    if lost_its_pod(context, &vmi).await? {
        return Ok(Some(end_without_pod(launcher, &vmi).await));
    }
    let mut prepared = None;
    if !deleting && !is_final(&vmi) {
        match Box::pin(prepare(context, launcher, &vmi)).await {
            Ok(ready) => prepared = Some(Box::new(ready)),
            Err(Failure::Refused(errors)) => {
                let end = refused(&errors);
                Box::pin(finish(context, &vmi, &end, false)).await?;
                let _ = Box::pin(launcher.request(Request::Kill {})).await;
                let _ = Box::pin(launcher.request(Request::Release {})).await;
                launcher.gone().await;
                return Ok(Some(end));
            }
            Err(other) => return Err(other),
        }
    }
    drop(vmi);

    let mut asked_to_stop = false;
    let mut mirrored = None;
    loop {
        let vmi = newest(object)?;
        let deleting = vmi.metadata.deletion_timestamp.is_some();
        let drained = *draining.borrow_and_update();
        {
            let state = Box::new(machine.borrow_and_update().clone());
            if state.phase == MachinePhase::Stopped {
                let end = Box::pin(ended(context, &vmi, &state, deleting || drained)).await?;
                // The launcher may go once somebody else remembers how the guest ended.
                Box::pin(finish(context, &vmi, &end, drained)).await?;
                let _ = Box::pin(launcher.request(Request::Release {})).await;
                launcher.gone().await;
                return Ok(Some(end));
            }
            if let Some(ready) = &prepared
                && mirrored != Some(state.generation)
                && !is_final(&vmi)
            {
                Box::pin(mirror(context, &vmi, &state, ready)).await?;
                mirrored = Some(state.generation);
            }
        }
        if lost_its_pod(context, &vmi).await? {
            return Ok(Some(end_without_pod(launcher, &vmi).await));
        }
        if (deleting || drained) && !asked_to_stop {
            let grace = vmi.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
            let grace_seconds = u64::try_from(grace).unwrap_or(0);
            Box::pin(launcher.request(Request::Shutdown { grace_seconds })).await?;
            asked_to_stop = true;
            Box::pin(context.events.shutting_down(&vmi)).await;
        }
        drop(vmi);
        tokio::select! {
            () = launcher.gone() => {
                let state = Box::new(machine.borrow().clone());
                let end = match state.phase {
                    MachinePhase::Stopped => {
                        let vmi = newest(object)?;
                        Box::pin(ended(context, &vmi, &state, deleting || drained)).await?
                    }
                    _ => End {
                        succeeded: false,
                        reason: "LauncherGone",
                        message: "the launcher ended without a word, and the guest with it".into(),
                    },
                };
                return Ok(Some(end));
            }
            changed = machine.changed() => if changed.is_err() {
                // The connection broke. If the process lives, the next round connects again.
                return Ok(tokio::time::timeout(RETRY_LATER, launcher.gone()).await.ok().map(|()| lost(&machine.borrow(), deleting || drained)));
            },
            changed = object.changed() => if changed.is_err() { return Ok(None) },
            _ = draining.changed() => {}
        }
    }
}

/// Whether somebody removed the pod's object by force while its launcher goes on. The controller says so first; it is made sure of.
async fn lost_its_pod(context: &Context, vmi: &VirtualMachineInstance) -> Result<bool, Failure> {
    if is_final(vmi) || !conditions::lost_its_pod(&vmi.status.conditions) {
        return Ok(false);
    }
    Ok(Box::pin(pods::removed(context, vmi)).await?)
}

/// Ends what is left of a pod that was removed by force. Nothing is said before it is gone: another one may start then.
async fn end_without_pod(launcher: &Launcher, vmi: &VirtualMachineInstance) -> End {
    tracing::warn!(vmi = vmi.name_any(), "the launcher pod was removed by force; its processes are ended");
    Box::pin(launcher.end()).await;
    End {
        succeeded: false,
        reason: names::reason::POD_NOT_EXISTS,
        message: "the launcher pod was removed by force, and the guest was ended with it".into(),
    }
}

/// How a machine that has stopped ended.
async fn ended(
    context: &Context,
    vmi: &VirtualMachineInstance,
    state: &MachineState,
    wanted: bool,
) -> Result<End, Failure> {
    let end = End::of(state, wanted);
    // A signal to the launcher of a pod that nobody deletes: a kubelet does that when a liveness probe fails.
    if state.terminated && !wanted && pods::wanted(context, vmi).await? {
        let message = match vmi.spec.liveness_probe {
            Some(_) => "the liveness probe failed",
            None => "the launcher was stopped from outside",
        };
        return Ok(End { succeeded: false, reason: "LauncherTerminated", message: message.into() });
    }
    Ok(end)
}

fn lost(state: &MachineState, wanted: bool) -> End {
    if state.phase == MachinePhase::Stopped {
        return End::of(state, wanted);
    }
    End {
        succeeded: wanted,
        reason: "LauncherGone",
        message: "the launcher ended without a word, and the guest with it".into(),
    }
}

fn refused(errors: &[FieldError]) -> End {
    let causes: Vec<String> = errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
    End { succeeded: false, reason: START_FAILED, message: causes.join("; ") }
}

/// What was made for the machine, for its status.
struct Ready {
    given: Given,
    networks: Vec<Attached>,
    emulation: Option<String>,
    claimed: Vec<claims::Claimed>,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the instance cannot run here")]
    Refused(Vec<FieldError>),
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    #[error(transparent)]
    Network(#[from] network::NetworkError),
    #[error("the API refused")]
    Api(#[from] kube::Error),
    #[error("the instance cannot be read again")]
    Unfold(#[source] serde_json::Error),
    #[error("the status cannot be encoded")]
    Encode(#[from] serde_json::Error),
}

async fn prepare(context: &Context, launcher: &Launcher, vmi: &VirtualMachineInstance) -> Result<Ready, Failure> {
    let Some(process) = launcher.process() else {
        let arch = Arch::parse(context.host.arch).unwrap_or_default();
        let spec = bare::spec(vmi, arch).map_err(Failure::Refused)?;
        let ready = Ready { given: Given::from(&spec), networks: vec![], emulation: None, claimed: vec![] };
        return hand_over(context, launcher, vmi, spec, ready).await;
    };
    architecture::check(vmi, context.host.arch).map_err(Failure::Refused)?;
    let networks = network::attach(vmi, process).await?;
    if let Err(error) = crate::kvm::hand_over(process) {
        tracing::warn!(%error, "cannot hand its devices to the launcher");
    }
    let is_container = hypervisors::guest(vmi) == Guest::Container;
    let container_disks = match is_container {
        false => disks::container_disks(vmi, process).map_err(Failure::Refused)?,
        true => vec![],
    };
    let mut convert = ConvertContext {
        arch: Arch::parse(context.host.arch).unwrap_or_default(),
        allow_emulation: context.allow_emulation(),
        hypervisor_device_available: context.host.kvm_usable(),
        container_disks: container_disks.into_iter().collect(),
        efi_configuration: boot::efi(vmi, process),
        kernel_boot: boot::kernel(vmi, process).map_err(Failure::Refused)?,
        container_trees: if is_container {
            disks::container_trees(vmi).into_iter().collect()
        } else {
            Default::default()
        },
        guest_ids: if is_container { hypervisors::free_ids(vmi) } else { IdRange::default() },
        translation_cache_mib: Some(context.config.translation_cache_mib),
        serial_console_log: console_log::is_wanted(vmi, context.console_log_disabled()),
        mem_balloon_stats_period: 10,
        free_page_reporting: true,
        ..Default::default()
    };
    if vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement) {
        cpus::describe(process, &mut convert);
    }
    if let (false, false, Kvm::Unusable(why)) = (is_container, convert.allow_emulation, &context.host.kvm) {
        let message = format!("{why}, and the cluster does not allow software emulation");
        return Err(Failure::Refused(vec![FieldError { field: "spec.hypervisor".into(), message }]));
    }
    let claimed = claims::look_up(&context.client, vmi).await?;
    for claim in &claimed {
        claim.describe(&mut convert);
    }
    for network in &networks {
        convert.interfaces.insert(network.name.clone(), network.info.clone());
        convert.domain_attachment_by_interface_name.insert(network.name.clone(), "tap".into());
    }
    let mut defaulted = vmi.clone();
    ferrovirt_machine::defaults::apply(&mut defaulted, convert.arch);
    ferrovirt_plan::defaults::without_room(&mut defaulted.spec);
    let mut spec = machine_spec(&defaulted, &convert).map_err(Failure::Refused)?;
    spec.prepare.extend(claimed.iter().filter_map(|claim| claim.disk(&convert.layout)));
    if let Some(metrics) = &mut spec.host_metrics {
        metrics.host_name.clone_from(&context.config.node_name);
    }
    spec.dhcp = networks.iter().filter_map(|network| network.dhcp.clone()).collect();
    let emulation = match (&context.host.kvm, spec.acceleration) {
        (Kvm::Unusable(why), Acceleration::Emulation) => Some(why.clone()),
        _ => None,
    };
    let ready = Ready { given: Given::from(&spec), networks, emulation, claimed };
    hand_over(context, launcher, vmi, spec, ready).await
}

async fn hand_over(
    context: &Context,
    launcher: &Launcher,
    vmi: &VirtualMachineInstance,
    spec: MachineSpec,
    ready: Ready,
) -> Result<Ready, Failure> {
    launcher.sync(spec).await?;
    if vmi.status.phase != phase::RUNNING {
        context.events.created(vmi).await;
    }
    Ok(ready)
}

async fn mirror(
    context: &Context,
    vmi: &VirtualMachineInstance,
    state: &MachineState,
    ready: &Ready,
) -> Result<(), Failure> {
    if matches!(state.phase, MachinePhase::Waiting | MachinePhase::Starting) {
        return Ok(());
    }
    update(context, vmi, |vmi| {
        let now = Time(Timestamp::now());
        let mut status = vmi.status.clone();
        status::mirror(&mut status, vmi, state, ready.emulation.as_deref(), &now);
        // The controller may not have seen the pod run yet, and a running instance is somewhere.
        status.node_name.clone_from(&context.config.node_name);
        status::describe(&mut status, &ready.given, &ready.networks, &ready.claimed);
        status::guest(&mut status, vmi, state.guest.as_deref());
        status
    })
    .await?;
    if vmi.status.phase != phase::RUNNING {
        context.events.started(vmi).await;
    }
    for trouble in [status::daemon_trouble(state), status::filesystem_trouble(state)].into_iter().flatten() {
        context.events.failed(vmi, &trouble).await;
    }
    Ok(())
}

/// Records how the instance ended.
async fn finish(context: &Context, vmi: &VirtualMachineInstance, end: &End, drained: bool) -> Result<(), Failure> {
    let end = match drained {
        true => End { succeeded: false, reason: "NodeShutdown", message: "the host was shut down".into() },
        false => end.clone(),
    };
    update(context, vmi, |vmi| {
        let mut status = vmi.status.clone();
        if !is_final(vmi) {
            let now = Time(Timestamp::now());
            status::ended(&mut status, &end, &now);
        }
        status
    })
    .await?;
    match end.reason {
        _ if is_final(vmi) => return Ok(()),
        START_FAILED => context.events.failed(vmi, &end.message).await,
        _ => context.events.stopped(vmi, end.succeeded, &end.message).await,
    }
    if vmi.metadata.deletion_timestamp.is_some() {
        context.events.deleted(vmi).await;
    }
    Ok(())
}

/// Changes the instance's status by what `change` makes of its newest version.
async fn update(
    context: &Context,
    vmi: &VirtualMachineInstance,
    change: impl Fn(&VirtualMachineInstance) -> ferrovirt_api::v1::VirtualMachineInstanceStatus,
) -> Result<(), Failure> {
    let namespace = vmi.namespace().unwrap_or_default();
    let vmis = Api::<VirtualMachineInstance>::namespaced(context.client.clone(), &namespace);
    let name = vmi.name_any();
    loop {
        let Some(newest) = vmis.get_opt(&name).await?.filter(|newest| newest.uid() == vmi.uid()) else { return Ok(()) };
        let status = change(&newest);
        if status == newest.status {
            return Ok(());
        }
        let mut body = json!({ "metadata": { "resourceVersion": newest.resource_version() } });
        let (old, new) = (serde_json::to_value(&newest.status)?, serde_json::to_value(&status)?);
        let Some(change) = ferrovirt_api::merge_patch(&old, &new) else { return Ok(()) };
        body["status"] = change;
        match vmis.patch(&name, &PatchParams::default(), &Patch::Merge(body)).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(answer)) if answer.is_conflict() => {}
            Err(kube::Error::Api(answer)) if answer.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) fn is_final(vmi: &VirtualMachineInstance) -> bool {
    matches!(vmi.status.phase.as_str(), phase::SUCCEEDED | phase::FAILED)
}
