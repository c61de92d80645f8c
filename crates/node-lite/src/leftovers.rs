//! What plugins did not release when a pod ended. The pod does not wait for it: its network namespace is gone, and with it every
//! interface in there. What may be left is the plugin's own, such as a lease of an address, and only the plugin can undo it.
//!
//! One file a pod, so that a restarted host goes on with it. Tries become rarer, and they end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::cni::{Attachment, Plugins, Undone};
use crate::records::{self, PodRecord, RecordError};

/// How often it is looked whether something is due.
const LOOK: Duration = Duration::from_secs(10);
const FIRST_PAUSE: i64 = 10;
const LAST_PAUSE: i64 = 3600;
/// With the pauses between them, about a day.
const TRIES: u32 = 32;
/// Of pods. Whoever makes more of them than an administrator repairs loses the oldest.
const KEPT: usize = 256;
/// Of one pod.
const PARTS: usize = 64;

/// The clean-ups of one host that are still to be done.
#[derive(Debug, Clone)]
pub(crate) struct Leftovers {
    dir: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Leftover {
    uid: String,
    namespace: String,
    name: String,
    undone: Vec<Undone>,
    tries: u32,
    since: Timestamp,
    due: Timestamp,
}

impl Leftovers {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Remembers what a pod left. Nothing of it is forgotten before this is on disk.
    pub fn add(&self, pod: &PodRecord, undone: &[Undone], now: Timestamp) -> Result<(), RecordError> {
        if undone.is_empty() {
            return Ok(());
        }
        let known = self.all();
        if known.len() >= KEPT
            && let Some(oldest) = known.iter().min_by_key(|leftover| leftover.since)
        {
            self.give_up(oldest);
        }
        let leftover = Leftover {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            undone: undone.iter().take(PARTS).cloned().collect(),
            tries: 0,
            since: now,
            due: after(now, pause(0)),
        };
        self.write(&leftover)
    }

    /// Tries again until it is dropped.
    pub async fn keep(&self, plugins: &Plugins) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.round(plugins, Timestamp::now()).await;
        }
    }

    async fn round(&self, plugins: &Plugins, now: Timestamp) {
        for mut leftover in self.all().into_iter().filter(|leftover| leftover.due <= now) {
            // The namespace is gone. A plugin that is told none releases what it keeps elsewhere.
            let pod = Attachment {
                pod_uid: &leftover.uid,
                namespace: &leftover.namespace,
                name: &leftover.name,
                netns: Path::new(""),
            };
            leftover.undone = plugins.release(std::mem::take(&mut leftover.undone), &pod).await;
            leftover.tries += 1;
            leftover.due = after(now, pause(leftover.tries));
            if leftover.undone.is_empty() {
                let (namespace, pod) = (&leftover.namespace, &leftover.name);
                tracing::info!(namespace, pod, "what was left of the pod's networks is released");
                self.remove(&leftover);
            } else if leftover.tries >= TRIES {
                self.give_up(&leftover);
            } else if let Err(error) = self.write(&leftover) {
                tracing::warn!(error = ferrovirt_api::chain(&error), "cannot note a clean-up");
            }
        }
    }

    fn give_up(&self, leftover: &Leftover) {
        for part in &leftover.undone {
            let (namespace, pod, what, why) = (&leftover.namespace, &leftover.name, part.name(), &part.why);
            tracing::error!(namespace, pod, what, why, "a network of a pod that ended is not released; giving up");
        }
        self.remove(leftover);
    }

    fn all(&self) -> Vec<Leftover> {
        let names = fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut all = vec![];
        for path in names.filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
            match records::read(&path) {
                Ok(leftover) => all.extend(leftover),
                Err(error) => {
                    tracing::error!(error = ferrovirt_api::chain(&error), "a clean-up cannot be read and is dropped");
                    let _ = fs::remove_file(&path);
                }
            }
        }
        all
    }

    fn write(&self, leftover: &Leftover) -> Result<(), RecordError> {
        records::write(&self.path(leftover), leftover)
    }

    fn remove(&self, leftover: &Leftover) {
        let path = self.path(leftover);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %path.display(), "cannot remove the note of a clean-up");
            }
            _ => {}
        }
    }

    fn path(&self, leftover: &Leftover) -> PathBuf {
        self.dir.join(format!("{}.json", leftover.uid))
    }
}

/// How long to wait after so many tries.
fn pause(tries: u32) -> SignedDuration {
    let doubled = FIRST_PAUSE.saturating_mul(1_i64.checked_shl(tries.min(32)).unwrap_or(i64::MAX));
    SignedDuration::from_secs(doubled.min(LAST_PAUSE))
}

fn after(now: Timestamp, pause: SignedDuration) -> Timestamp {
    now.checked_add(pause).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;

    fn pod(uid: &str) -> PodRecord {
        PodRecord {
            uid: uid.into(),
            namespace: "n".into(),
            name: "p".into(),
            container: "c".into(),
            grace_seconds: 30,
            netns: "/nonexistent".into(),
        }
    }

    fn undone() -> Vec<Undone> {
        vec![Undone {
            interface: "net1".into(),
            config: json!({ "cniVersion": "1.0.0", "name": "lan", "type": "later" }),
            why: "no such plugin".into(),
        }]
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn pauses_grow_and_end() {
        let seconds: Vec<i64> = (0..11).map(|tries| pause(tries).as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]);
        assert_eq!(pause(u32::MAX).as_secs(), LAST_PAUSE);
        let day: i64 = (0..TRIES).map(|tries| pause(tries).as_secs()).sum();
        assert!((20 * 3600..30 * 3600).contains(&day), "{day}");
    }

    #[tokio::test]
    async fn a_clean_up_is_tried_when_due_by_whoever_opens_the_directory_and_ends_with_the_plugin() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, bin) = (dir.path().join("notes"), dir.path().join("bin"));
        fs::create_dir(&notes).unwrap();
        fs::create_dir(&bin).unwrap();
        let plugins = Plugins { dirs: vec![bin.clone()] };
        Leftovers::new(notes.clone()).add(&pod("u1"), &undone(), at(0)).unwrap();
        Leftovers::new(notes.clone()).add(&pod("u2"), &[], at(0)).unwrap();
        // Another run of the host.
        let leftovers = Leftovers::new(notes.clone());
        let tries = || leftovers.all().first().map(|leftover| leftover.tries);
        for (second, expected) in [(1, 0), (9, 0), (10, 1), (11, 1), (29, 1), (30, 2)] {
            leftovers.round(&plugins, at(second)).await;
            assert_eq!(tries(), Some(expected), "after {second} s");
        }
        let out = dir.path().join("out");
        fs::write(
            bin.join("later"),
            format!("#!/bin/sh\necho \"$CNI_COMMAND $CNI_CONTAINERID <$CNI_NETNS>\" > {}\n", out.display()),
        )
        .unwrap();
        fs::set_permissions(bin.join("later"), fs::Permissions::from_mode(0o755)).unwrap();
        leftovers.round(&plugins, at(3600)).await;
        assert_eq!(fs::read_to_string(&out).unwrap(), "DEL u1 <>\n");
        assert_eq!(tries(), None);
        assert_eq!(fs::read_dir(&notes).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn tries_and_notes_have_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let leftovers = Leftovers::new(dir.path().to_owned());
        let plugins = Plugins { dirs: vec![] };
        leftovers.add(&pod("u1"), &undone(), at(0)).unwrap();
        let mut second = 0;
        for _ in 0..TRIES {
            assert_eq!(leftovers.all().len(), 1);
            second += LAST_PAUSE;
            leftovers.round(&plugins, at(second)).await;
        }
        assert_eq!(leftovers.all(), []);
        for number in 0..=KEPT {
            let many: Vec<_> = std::iter::repeat_n(undone(), PARTS + 1).flatten().collect();
            leftovers.add(&pod(&format!("u{number}")), &many, at(number as i64)).unwrap();
        }
        let kept = leftovers.all();
        assert_eq!(kept.len(), KEPT);
        assert!(kept.iter().all(|leftover| leftover.uid != "u0" && leftover.undone.len() == PARTS));
        fs::write(dir.path().join("bad.json"), "{").unwrap();
        assert_eq!(leftovers.all().len(), KEPT);
    }
}
