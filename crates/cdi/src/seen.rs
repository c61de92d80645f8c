//! What a plan may know of a DataVolume, from the caches or from the API itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrovirt_api::cdi::{DataVolume, DataVolumeSource, DataVolumeSourcePvc, names};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::controller::{Context, Error, LATER, phase_of};
use crate::followed::{Awaited, source_kind};
use crate::job::Progress;
use crate::pass::Pass;
use crate::plan::{self, Observed};

/// Whose word is good enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Cached,
    Certain,
}

pub(crate) struct Seen {
    source: Option<DataVolumeSource>,
    pub claim: Option<PersistentVolumeClaim>,
    /// The importer's name, and its pod.
    pub importer: String,
    pub pod: Option<Pod>,
    /// The namespace of the claim that is cloned, that claim, and a pod that uses it.
    pub home: String,
    origin: Option<PersistentVolumeClaim>,
    pub user: Option<String>,
    classes: Vec<StorageClass>,
    server: Option<Pod>,
    progress: Option<Progress>,
    /// When the importer may be asked again.
    pub ask_again: Duration,
    pub same_under_way: bool,
    /// For an importer of an upload that may be made.
    pub pass: Option<Pass>,
    knows: (bool, bool),
}

impl Seen {
    pub async fn of(context: &Context, volume: &DataVolume, word: Word) -> Result<Self, Error> {
        let look = Look { context, word };
        let namespace = volume.namespace().unwrap_or_default();
        let mut awaited: HashSet<Awaited> = volume
            .spec
            .source_ref
            .iter()
            .map(|reference| {
                let home = reference.namespace.clone().unwrap_or_else(|| namespace.clone());
                Awaited::Source(home, reference.name.clone())
            })
            .collect();
        context.followed.waits(volume, awaited.clone());
        let source = look.source(volume).await?;
        let home = plan::origin_namespace(volume, source.as_ref()).unwrap_or(&namespace).to_owned();
        let wanted = source.as_ref().and_then(|source| source.pvc.as_ref());
        awaited.extend(wanted.map(|wanted| Awaited::Claim(home.clone(), wanted.name.clone())));
        awaited.extend(volume.uid().filter(|_| home != namespace).map(Awaited::Server));
        context.followed.waits(volume, awaited);

        let claim = look.claim(&namespace, &volume.name_any()).await?;
        let importer = plan::pod_name(&volume.name_any(), &volume.uid().unwrap_or_default());
        let pod = look.pod(&namespace, &importer).await?;
        let is_own = |pod: &Pod| pod.owner_references().iter().any(|owner| volume.uid().as_ref() == Some(&owner.uid));
        let pod = pod.filter(is_own);
        let (origin, user) = match wanted {
            Some(wanted) => {
                let origin = look.filled(&home, look.claim(&home, &wanted.name).await?).await?;
                let user = if pod.is_none() { look.user_of(&home, &wanted.name).await? } else { None };
                (origin, user)
            }
            None => (None, None),
        };
        let unbound = claim.as_ref().is_some_and(|claim| {
            pod.is_none() && claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound")
        });
        let classes = match (&claim, &origin) {
            _ if volume.metadata.deletion_timestamp.is_some() => vec![],
            (None, Some(_)) => look.classes().await?,
            _ if unbound => look.classes().await?,
            _ => vec![],
        };
        let server = match home == namespace {
            true => None,
            false => look.pod(&home, &plan::server_name(volume)).await?,
        };
        let (progress, ask_again) = match &pod {
            Some(pod) if phase_of(pod) == Some("Running") => context.samples.of(pod, context.followed.running()).await,
            _ => (None, LATER),
        };
        let uploads = source.as_ref().is_some_and(|source| source.upload.is_some());
        let mut knows = context.knows(volume, server.as_ref(), pod.as_ref());
        if uploads {
            knows.1 = context.knows_receiver(pod.as_ref());
        }
        let pass = (word == Word::Certain && uploads && pod.is_none() && claim.is_some()).then(Pass::make);
        Ok(Self {
            source,
            claim,
            importer,
            pod,
            home,
            origin,
            user,
            classes,
            server,
            progress,
            ask_again,
            same_under_way: false,
            pass: pass.transpose()?,
            knows,
        })
    }

    pub fn observed<'a>(
        &'a self,
        context: &'a Context,
        volume: &'a DataVolume,
        upload_key: &'a str,
        random: &'a str,
    ) -> Observed<'a> {
        Observed {
            volume,
            source: self.source.as_ref(),
            claim: self.claim.as_ref(),
            pod: self.pod.as_ref(),
            origin: self.origin.as_ref(),
            origin_user: self.user.as_deref(),
            classes: &self.classes,
            server: self.server.as_ref(),
            progress: self.progress.as_ref(),
            settings: &context.settings,
            upload_key,
            same_under_way: self.same_under_way,
            random,
            certificate: self.pass.as_ref().map_or("", Pass::certificate),
            knows_server: self.knows.0,
            knows_importer: self.knows.1,
            now: Timestamp::now(),
        }
    }
}

struct Look<'a> {
    context: &'a Context,
    word: Word,
}

/// One object, from a cache or from the API.
macro_rules! one {
    ($look:expr, $kind:ty, $store:ident, $namespace:expr, $name:expr) => {
        match $look.word {
            Word::Cached => {
                let found = $look.context.followed.$store.get(&ObjectRef::new($name).within($namespace));
                Ok(found.map(Arc::unwrap_or_clone))
            }
            Word::Certain => {
                Ok(Api::<$kind>::namespaced($look.context.client.clone(), $namespace).get_opt($name).await?)
            }
        }
    };
}

impl Look<'_> {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<PersistentVolumeClaim>, Error> {
        one!(self, PersistentVolumeClaim, claims, namespace, name)
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, Error> {
        one!(self, Pod, pods, namespace, name)
    }

    async fn volume(&self, namespace: &str, name: &str) -> Result<Option<DataVolume>, Error> {
        one!(self, DataVolume, volumes, namespace, name)
    }

    async fn classes(&self) -> Result<Vec<StorageClass>, Error> {
        match self.word {
            Word::Cached => Ok(self.context.followed.classes.state().into_iter().map(Arc::unwrap_or_clone).collect()),
            Word::Certain => {
                Ok(Api::<StorageClass>::all(self.context.client.clone()).list(&ListParams::default()).await?.items)
            }
        }
    }

    /// The volume's own source, or the one that its DataSource stands for.
    async fn source(&self, volume: &DataVolume) -> Result<Option<DataVolumeSource>, Error> {
        let Some(reference) = &volume.spec.source_ref else { return Ok(volume.spec.source.clone()) };
        let namespace = reference.namespace.clone().or_else(|| volume.namespace()).unwrap_or_default();
        let found = match self.word {
            Word::Cached => {
                let reference = ObjectRef::new_with(&reference.name, source_kind()).within(&namespace);
                self.context.followed.sources.get(&reference).map(Arc::unwrap_or_clone)
            }
            Word::Certain => {
                let kind = source_kind();
                let sources = Api::<DynamicObject>::namespaced_with(self.context.client.clone(), &namespace, &kind);
                sources.get_opt(&reference.name).await?
            }
        };
        let Some(found) = found else { return Ok(None) };
        let claim = &found.data["spec"]["source"]["pvc"];
        let pvc: Option<DataVolumeSourcePvc> = serde_json::from_value(claim.clone()).ok();
        // Admission judged by the namespace of the DataSource, which can be written anew afterwards.
        let pvc = pvc.filter(|pvc| pvc.namespace.is_empty() || pvc.namespace == namespace);
        Ok(pvc.map(|pvc| DataVolumeSource {
            pvc: Some(DataVolumeSourcePvc { namespace, ..pvc }),
            ..DataVolumeSource::default()
        }))
    }

    /// A claim that a DataVolume is still filling does not count as there.
    async fn filled(
        &self,
        namespace: &str,
        claim: Option<PersistentVolumeClaim>,
    ) -> Result<Option<PersistentVolumeClaim>, Error> {
        let Some(claim) = claim else { return Ok(None) };
        let owner = claim.owner_references().iter().find(|owner| owner.kind == "DataVolume");
        let Some(owner) = owner else { return Ok(Some(claim)) };
        let volume = self.volume(namespace, &owner.name).await?;
        let done = volume.is_none_or(|volume| volume.status.phase == names::phase::SUCCEEDED);
        Ok(done.then_some(claim))
    }

    /// A pod that has the claim in use and has not ended.
    async fn user_of(&self, namespace: &str, claim: &str) -> Result<Option<String>, Error> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), namespace);
        let all = match self.word {
            Word::Cached => self.context.users.of(namespace, &pods).await?,
            Word::Certain => Arc::new(list_users(&pods).await?),
        };
        Ok(all.get(claim).cloned())
    }
}

/// By claim, a pod that uses it.
type ByClaim = HashMap<String, String>;

/// Which pods use which claims of a namespace, listed once for all that wait there.
#[derive(Default)]
pub(crate) struct Users(tokio::sync::Mutex<HashMap<String, (Instant, Arc<ByClaim>)>>);

impl Users {
    async fn of(&self, namespace: &str, pods: &Api<Pod>) -> Result<Arc<ByClaim>, Error> {
        let mut known = self.0.lock().await;
        known.retain(|_, (at, _)| at.elapsed() < LATER);
        if let Some((_, users)) = known.get(namespace) {
            return Ok(users.clone());
        }
        let users = Arc::new(list_users(pods).await?);
        known.insert(namespace.to_owned(), (Instant::now(), users.clone()));
        Ok(users)
    }
}

async fn list_users(pods: &Api<Pod>) -> Result<ByClaim, Error> {
    let mut users = HashMap::new();
    for pod in pods.list(&ListParams::default()).await?.items {
        if matches!(phase_of(&pod), Some("Succeeded" | "Failed")) {
            continue;
        }
        let name = pod.name_any();
        let volumes = pod.spec.into_iter().flat_map(|spec| spec.volumes.into_iter().flatten());
        let claims = volumes.filter_map(|volume| volume.persistent_volume_claim);
        for used in claims.filter(|used| used.read_only != Some(true)) {
            users.entry(used.claim_name).or_insert_with(|| name.clone());
        }
    }
    Ok(users)
}
