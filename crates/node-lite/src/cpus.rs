//! Who has which CPUs: a small form of the kubelet's static CPU manager, with its state file.
//!
//! A pod that wants CPUs of its own gets them, and everything else of this data directory shares the rest. The lowest CPU is never
//! given away. What was given is on disk, so that it is the same after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrovirt_api::cpu_list::{self, format, parse};
use k8s_openapi::api::core::v1::PodSpec;
use serde::{Deserialize, Serialize};

use crate::records::{self, RecordError};
use crate::resources;

/// The kubelet's name of the file, below its root directory.
const STATE_FILE: &str = "cpu_manager_state";
const POLICY: &str = "static";
/// Nodes with CPUs to give away have this label, and pods that want some select it.
const SELECTOR: &str = ferrovirt_api::names::CPU_MANAGER;

pub type CpuSet = BTreeSet<u32>;

#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error("the pod wants {wanted} CPUs of its own, and {free} are left to give away")]
    TooFew { wanted: usize, free: usize },
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// The form of the kubelet's own file, without its checksum.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct State {
    policy_name: String,
    default_cpu_set: String,
    /// By pod and container.
    entries: BTreeMap<String, BTreeMap<String, String>>,
}

/// The CPUs of this machine.
#[derive(Debug)]
pub struct Cpus {
    file: PathBuf,
    all: CpuSet,
    /// CPUs of one core, for every core.
    cores: Vec<CpuSet>,
    state: Mutex<State>,
    turn: Mutex<()>,
}

/// What a pod runs on, and whether the share of the others became another one by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub cpus: CpuSet,
    pub shared: CpuSet,
    pub changed: bool,
}

impl Cpus {
    /// `None` on a machine that has none to give away. Entries of pods that are not among `pods` are forgotten.
    pub fn open(data_dir: &Path, pods: &[String]) -> Result<Option<Self>, CpuError> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let all = cpu_list::allowed(&status);
        let siblings = |cpu: &u32| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            parse(&fs::read_to_string(path).unwrap_or_default())
        };
        Self::of(data_dir, all.clone(), all.iter().map(siblings).collect(), pods)
    }

    fn of(data_dir: &Path, all: CpuSet, siblings: Vec<CpuSet>, pods: &[String]) -> Result<Option<Self>, CpuError> {
        let file = data_dir.join(STATE_FILE);
        if all.len() < 2 {
            let _ = fs::remove_file(&file);
            return Ok(None);
        }
        let mut cores: Vec<CpuSet> = siblings.iter().map(|core| core & &all).filter(|core| !core.is_empty()).collect();
        cores.sort();
        cores.dedup();
        let alone = all.iter().filter(|cpu| !cores.iter().any(|core| core.contains(cpu)));
        let alone: Vec<CpuSet> = alone.map(|cpu| CpuSet::from([*cpu])).collect();
        cores.extend(alone);
        cores.sort();
        let mut state: State = records::read(&file)?.unwrap_or_default();
        state.entries.retain(|uid, _| pods.contains(uid));
        let cpus = Self { file, all, cores, state: Mutex::new(state), turn: Mutex::new(()) };
        let mut state = cpus.lock();
        cpus.save(&mut state)?;
        drop(state);
        Ok(Some(cpus))
    }

    /// Gives a pod its CPUs: the same ones every time it is asked for it.
    pub fn give(&self, uid: &str, wanted: Option<(&str, usize)>) -> Result<Given, CpuError> {
        let mut state = self.lock();
        let Some((container, count)) = wanted else {
            let shared = self.shared(&state);
            return Ok(Given { cpus: shared.clone(), shared, changed: false });
        };
        if let Some(known) = state.entries.get(uid).and_then(|entry| entry.get(container)) {
            return Ok(Given { cpus: parse(known), shared: self.shared(&state), changed: false });
        }
        let cpus = self.choose(&self.shared(&state), count)?;
        let entry = BTreeMap::from([(container.to_owned(), format(&cpus))]);
        state.entries.insert(uid.to_owned(), entry);
        self.save(&mut state)?;
        Ok(Given { cpus, shared: self.shared(&state), changed: true })
    }

    /// Takes a pod's CPUs back. The new share of the others, if it had any.
    pub fn take_back(&self, uid: &str) -> Result<Option<CpuSet>, CpuError> {
        let mut state = self.lock();
        if state.entries.remove(uid).is_none() {
            return Ok(None);
        }
        self.save(&mut state)?;
        Ok(Some(self.shared(&state)))
    }

    /// Held from a decision until every cgroup follows it: a later decision must not be overtaken by an earlier one.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for a pod with CPUs of its own.
    pub fn has_own(&self, uid: &str) -> bool {
        self.lock().entries.contains_key(uid)
    }

    fn shared(&self, state: &State) -> CpuSet {
        let given = state.entries.values().flat_map(BTreeMap::values).flat_map(|text| parse(text));
        let given: CpuSet = given.collect();
        &self.all - &given
    }

    /// Whole cores first, then what is left of cores that are no longer whole; the highest numbers of each.
    fn choose(&self, free: &CpuSet, count: usize) -> Result<CpuSet, CpuError> {
        let kept = self.all.first().copied();
        let free: CpuSet = free.iter().copied().filter(|cpu| Some(*cpu) != kept).collect();
        if count > free.len() {
            return Err(CpuError::TooFew { wanted: count, free: free.len() });
        }
        let mut chosen = CpuSet::new();
        for core in self.cores.iter().rev() {
            if core.is_subset(&free) && chosen.len() + core.len() <= count {
                chosen.extend(core);
            }
        }
        let broken = |cpu: &&u32| self.cores.iter().any(|core| core.contains(cpu) && !core.is_subset(&free));
        let rest: CpuSet = &free - &chosen;
        let (broken, whole): (Vec<u32>, Vec<u32>) = rest.iter().rev().partition(broken);
        let missing = count - chosen.len();
        chosen.extend(broken.into_iter().chain(whole).take(missing));
        Ok(chosen)
    }

    fn save(&self, state: &mut State) -> Result<(), CpuError> {
        POLICY.clone_into(&mut state.policy_name);
        state.default_cpu_set = format(&self.shared(state));
        Ok(records::write(&self.file, state)?)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The container that wants CPUs of its own, and how many: the pod selects nodes that give them away, and asks for a whole number
/// of them and no more.
pub fn wanted(spec: &PodSpec) -> Option<(&str, usize)> {
    let selects = spec.node_selector.iter().flatten().any(|(name, value)| name == SELECTOR && value == "true");
    if !selects || resources::qos_class(spec) != "Guaranteed" {
        return None;
    }
    let [container] = spec.containers.as_slice() else { return None };
    // What runs beside it has none of its own.
    let milli = resources::container_requests(container).get("cpu").copied().unwrap_or(0);
    let count = usize::try_from(milli / 1000).ok().filter(|count| *count > 0 && milli % 1000 == 0)?;
    Some((&container.name, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cpus(dir: &Path, pods: &[&str]) -> Cpus {
        let pods: Vec<String> = pods.iter().map(|pod| (*pod).to_owned()).collect();
        // Four cores with two threads each.
        let siblings = (0..8).map(|cpu| CpuSet::from([cpu % 4, cpu % 4 + 4])).collect();
        Cpus::of(dir, (0..8).collect(), siblings, &pods).unwrap().unwrap()
    }

    #[test]
    fn whole_cores_are_given_and_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let all = cpus(dir.path(), &[]);
        let given = all.give("a", Some(("compute", 2))).unwrap();
        assert_eq!((format(&given.cpus), format(&given.shared), given.changed), ("3,7".into(), "0-2,4-6".into(), true));
        assert!(!all.give("a", Some(("compute", 2))).unwrap().changed);
        assert_eq!(format(&all.give("b", None).unwrap().cpus), "0-2,4-6");
        assert_eq!(format(&all.give("c", Some(("compute", 3))).unwrap().cpus), "2,4,6");
        assert!(all.has_own("c") && !all.has_own("b"));
        let error = all.give("d", Some(("compute", 3))).unwrap_err().to_string();
        assert_eq!(error, "the pod wants 3 CPUs of its own, and 2 are left to give away");

        let text = fs::read_to_string(dir.path().join(STATE_FILE)).unwrap();
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&told["policyName"], &told["defaultCpuSet"]), (&json!("static"), &json!("0-1,5")));
        // After a restart: a lives on, c ended while nobody looked.
        let again = cpus(dir.path(), &["a", "b"]);
        assert_eq!(format(&again.give("b", None).unwrap().cpus), "0-2,4-6");
        assert_eq!(again.take_back("b").unwrap(), None);
        assert_eq!(again.take_back("a").unwrap().map(|cpus| format(&cpus)).as_deref(), Some("0-7"));
    }

    #[test]
    fn one_cpu_is_always_shared() {
        let dir = tempfile::tempdir().unwrap();
        let two = Cpus::of(dir.path(), CpuSet::from([0, 1]), vec![], &[]).unwrap().unwrap();
        assert!(two.give("a", Some(("c", 2))).is_err());
        assert_eq!(format(&two.give("a", Some(("c", 1))).unwrap().cpus), "1");
        assert!(Cpus::of(dir.path(), CpuSet::from([0]), vec![], &[]).unwrap().is_none());
        assert!(!dir.path().join(STATE_FILE).exists(), "a node without a manager says so");
    }

    #[test]
    fn only_pods_that_select_them_and_ask_for_whole_ones_get_some() {
        let spec = |selector: &str, cpu: &str, memory: &str| -> PodSpec {
            serde_json::from_value(json!({
                "nodeSelector": { selector: "true" },
                "containers": [{ "name": "compute", "resources": {
                    "requests": { "cpu": cpu, "memory": "1Gi" }, "limits": { "cpu": cpu, "memory": memory },
                }}],
            }))
            .unwrap()
        };
        assert_eq!(wanted(&spec(SELECTOR, "2", "1Gi")), Some(("compute", 2)));
        assert_eq!(wanted(&spec(SELECTOR, "1500m", "1Gi")), None);
        assert_eq!(wanted(&spec(SELECTOR, "2", "2Gi")), None);
        assert_eq!(wanted(&spec("other", "2", "1Gi")), None);
    }
}
