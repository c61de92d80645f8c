//! What an upload fills: a DataVolume, or a claim without one.

use anyhow::{Context, Result, bail};
use ferrovirt_api::cdi::{
    DataVolume,
    names::{self, phase},
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    DataVolume,
    Claim,
}

/// The volume to make for an upload.
pub struct NewVolume<'a> {
    pub size: &'a str,
    pub storage_class: Option<&'a str>,
    pub volume_mode: Option<&'a str>,
    pub access_mode: Option<&'a str>,
}

pub struct Target {
    pub kind: Kind,
    pub name: String,
    pub namespace: String,
    pub client: Client,
}

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// Not ready for an upload, with what it waits for.
    Waiting(String),
    Ready,
    Filled,
    Failed(String),
}

impl Target {
    /// For people.
    pub fn title(&self) -> String {
        match self.kind {
            Kind::DataVolume => format!("datavolume/{}", self.name),
            Kind::Claim => format!("persistentvolumeclaim/{}", self.name),
        }
    }

    fn volumes(&self) -> Api<DataVolume> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes it. `false` if it is there already and waits for an upload, such as one that was begun before.
    pub async fn create(&self, new: &NewVolume<'_>) -> Result<bool> {
        let made = match self.kind {
            Kind::DataVolume => {
                let volume = serde_json::from_value(self.volume(new)?)?;
                self.volumes().create(&PostParams::default(), &volume).await.map(drop)
            }
            Kind::Claim => {
                let claim = serde_json::from_value(self.claim(new)?)?;
                self.claims().create(&PostParams::default(), &claim).await.map(drop)
            }
        };
        match made {
            Ok(()) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                self.check_waits().await?;
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("{} was refused", self.title())),
        }
    }

    fn volume(&self, new: &NewVolume<'_>) -> Result<Value> {
        Ok(json!({
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": {
                "source": { "upload": {} },
                "storage": {
                    "resources": { "requests": { "storage": new.size } },
                    "storageClassName": new.storage_class, "volumeMode": mode(new)?,
                    "accessModes": new.access_mode.map(|mode| vec![mode]),
                },
            },
        }))
    }

    fn claim(&self, new: &NewVolume<'_>) -> Result<Value> {
        Ok(json!({
            "metadata": {
                "name": self.name, "namespace": self.namespace,
                "annotations": { names::UPLOAD_REQUEST: "", names::CONTENT_TYPE: "kubevirt" },
            },
            "spec": {
                "resources": { "requests": { "storage": new.size } },
                "storageClassName": new.storage_class, "volumeMode": mode(new)?,
                "accessModes": [new.access_mode.unwrap_or("ReadWriteOnce")],
            },
        }))
    }

    /// Errs unless what is there can be filled.
    async fn check_waits(&self) -> Result<()> {
        let title = self.title();
        if self.kind == Kind::DataVolume {
            let volume = self.volumes().get(&self.name).await?;
            if volume.spec.source.is_none_or(|source| source.upload.is_none()) {
                bail!("{title} exists and is not for uploads; choose another name");
            }
        }
        match self.state().await? {
            State::Filled => bail!("{title} exists and is filled; choose another name, or delete it first"),
            State::Failed(why) => bail!("{title} exists and failed ({why}); delete it first"),
            State::Waiting(_) | State::Ready => Ok(()),
        }
    }

    /// Makes a claim that exists ready for an upload, as virtctl does.
    pub async fn adopt(&self) -> Result<()> {
        if self.kind == Kind::Claim {
            let patch = json!({ "metadata": { "annotations": { names::UPLOAD_REQUEST: "" } } });
            let patched = self.claims().patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            patched.with_context(|| format!("cannot make {} ready for an upload", self.title()))?;
        }
        self.check_waits().await
    }

    pub async fn state(&self) -> Result<State, kube::Error> {
        Ok(match self.kind {
            Kind::DataVolume => volume_state(&self.volumes().get(&self.name).await?),
            Kind::Claim => claim_state(&self.claims().get(&self.name).await?),
        })
    }
}

fn volume_state(volume: &DataVolume) -> State {
    let status = &volume.status;
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    let message = ready.map(|condition| condition.message.clone()).unwrap_or_default();
    match status.phase.as_str() {
        phase::UPLOAD_READY => State::Ready,
        phase::SUCCEEDED => State::Filled,
        phase::FAILED => State::Failed(message),
        other => State::Waiting(format!("it is in the phase {other:?}: {message}")),
    }
}

fn claim_state(claim: &PersistentVolumeClaim) -> State {
    let said = |name: &str| claim.annotations().get(name).map(String::as_str);
    match (said(names::POD_PHASE), said(names::POD_READY)) {
        (Some("Succeeded"), _) => State::Filled,
        (_, Some("true")) => State::Ready,
        (phase, _) => State::Waiting(format!("its importer is {}", phase.unwrap_or("not started"))),
    }
}

fn mode(new: &NewVolume<'_>) -> Result<Option<&'static str>> {
    Ok(match new.volume_mode.map(str::to_lowercase).as_deref() {
        None => None,
        Some("filesystem") => Some("Filesystem"),
        Some("block") => Some("Block"),
        Some(other) => bail!("--volume-mode is filesystem or block, not {other:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_what_the_objects_say() {
        let claim = |annotations: Value| {
            claim_state(&serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap())
        };
        assert_eq!(claim(json!({ names::POD_PHASE: "Running", names::POD_READY: "true" })), State::Ready);
        assert_eq!(claim(json!({ names::POD_PHASE: "Succeeded", names::POD_READY: "false" })), State::Filled);
        assert!(matches!(claim(json!({})), State::Waiting(_)));
        let volume = |phase: &str| {
            let spec = json!({ "source": { "upload": {} } });
            volume_state(&serde_json::from_value(json!({ "spec": spec, "status": { "phase": phase } })).unwrap())
        };
        assert_eq!(volume("UploadReady"), State::Ready);
        assert_eq!(volume("Succeeded"), State::Filled);
        assert!(matches!(volume("Failed"), State::Failed(_)));
        assert!(matches!(volume("UploadScheduled"), State::Waiting(_)));
    }
}
