//! How a container ended: from its exit status where somebody saw it, else from what it left.
//!
//! The shim sees it, as long as it lives. When it does not (killed, or a disk that takes no more), the container's own last words
//! decide before anything is called a crash: a guest that powered off must not be started again for it. They are believed about
//! the container itself only, which could as well have ended with that exit code.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use ferrovirt_api::names;
use jiff::Timestamp;

use crate::records::{self, ExitRecord, InitPlan, PodDir, RecordError};

/// As much as a kubelet reads.
const LONGEST: u64 = 4096;

/// What the container wrote to its termination log.
pub(crate) fn last_words(dir: &PodDir, container: &str) -> Option<String> {
    let mut bytes = vec![];
    fs::File::open(dir.termination_log(container)).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned()).filter(|text| !text.is_empty())
}

/// The end of a container whose exit status nobody saw. `otherwise` is what is said where nothing tells more.
pub(crate) fn unseen(dir: &PodDir, otherwise: ExitRecord) -> Result<ExitRecord, RecordError> {
    let Some(plan) = records::read::<InitPlan>(&dir.init())? else { return Ok(otherwise) };
    let cgroups: Vec<PathBuf> = plan.cgroup_procs.iter().filter_map(|procs| Some(procs.parent()?.to_owned())).collect();
    Ok(decide(last_words(dir, &plan.container), is_out_of_memory(&cgroups), otherwise))
}

fn decide(words: Option<String>, out_of_memory: bool, otherwise: ExitRecord) -> ExitRecord {
    let said = |word: &str| words.as_deref().is_some_and(|words| words.starts_with(word));
    let (exit_code, reason) = match () {
        () if said(names::ENDED_WELL) => (0, "Completed"),
        () if said(names::ENDED_BADLY) => (1, "Error"),
        () if out_of_memory => (137, OUT_OF_MEMORY),
        () => return otherwise,
    };
    let message = words.or(otherwise.message);
    ExitRecord { exit_code, signal: None, finished_at: otherwise.finished_at, reason: reason.to_owned(), message }
}

/// The kubelet's name for it.
pub(crate) const OUT_OF_MEMORY: &str = "OOMKilled";

/// Whether the kernel ended a process of these cgroups for want of memory.
pub(crate) fn is_out_of_memory(cgroups: &[PathBuf]) -> bool {
    cgroups.iter().any(|path| oom_kills(path) > 0)
}

/// v2 counts in `memory.events`, v1 in `memory.oom_control`; both as a line `oom_kill N`.
fn oom_kills(cgroup: &Path) -> u64 {
    ["memory.events", "memory.oom_control"]
        .iter()
        .filter_map(|file| fs::read_to_string(cgroup.join(file)).ok())
        .filter_map(|text| text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok()))
        .sum()
}

/// Nobody saw the end, and nothing else is known.
pub(crate) fn unknown(reason: &str, message: &str) -> ExitRecord {
    ExitRecord::unknown(reason, message, Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_come_before_guesses() {
        let cases = [
            (Some("Succeeded: the guest powered off"), false, 0, "Completed"),
            (Some("Succeeded: the guest powered off"), true, 0, "Completed"),
            (Some("Failed: the guest crashed"), false, 1, "Error"),
            (Some("panicked"), false, 137, "ContainerStatusUnknown"),
            (Some("panicked"), true, 137, "OOMKilled"),
            (None, true, 137, "OOMKilled"),
            (None, false, 137, "ContainerStatusUnknown"),
        ];
        for (words, out_of_memory, code, reason) in cases {
            let exit = decide(words.map(str::to_owned), out_of_memory, unknown("ContainerStatusUnknown", "lost"));
            assert_eq!((exit.exit_code, exit.reason.as_str()), (code, reason), "{words:?} {out_of_memory}");
            if reason != "ContainerStatusUnknown" {
                assert_eq!(exit.message.as_deref(), words.or(Some("lost")));
            }
        }
    }

    #[test]
    fn what_a_container_wrote_is_read_up_to_a_bound() {
        let root = tempfile::tempdir().unwrap();
        let dir = PodDir::at(root.path());
        assert_eq!(last_words(&dir, "c"), None);
        fs::write(dir.termination_log("c"), "").unwrap();
        assert_eq!(last_words(&dir, "c"), None);
        fs::write(dir.termination_log("c"), vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(last_words(&dir, "c").map(|words| words.len()), Some(4096));
    }
}
