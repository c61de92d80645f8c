//! How far importers are, asked seldom enough: each at most once a second, and all together a bounded number of times a second.
//! What was heard last stands for what would be heard now.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::job::Progress;
use crate::progress;

/// How often one importer is asked if few run.
const ASK: Duration = Duration::from_secs(1);
/// How many are asked in a second. Each answer is a write to its volume's status, too.
const A_SECOND: usize = 20;
/// How long one that did not answer is left alone at the most.
const UNANSWERED: Duration = Duration::from_secs(5);
/// Those that were heard of are forgotten in between.
const MANY: usize = 1024;

#[derive(Default)]
pub(crate) struct Samples {
    heard: Mutex<HashMap<String, Heard>>,
}

#[derive(Clone)]
struct Heard {
    at: Instant,
    progress: Option<Progress>,
}

impl Samples {
    /// How far the importer in a running pod is, and when it may be asked again. `running` is how many do.
    pub async fn of(&self, pod: &Pod, running: usize) -> (Option<Progress>, Duration) {
        let uid = pod.uid().unwrap_or_default();
        let known = self.lock().get(&uid).cloned();
        if let Some(known) = known
            && let Some(left) = pause(running, known.progress.is_some()).checked_sub(known.at.elapsed())
        {
            return (known.progress, left);
        }
        let at = Instant::now();
        let progress = progress::of(pod).await;
        let pause = pause(running, progress.is_some());
        let mut heard = self.lock();
        if heard.len() >= MANY.max(2 * running) {
            heard.retain(|_, heard| heard.at.elapsed() < 2 * pause);
        }
        heard.insert(uid, Heard { at, progress: progress.clone() });
        (progress, pause)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Between two questions to one importer. One that does not answer yet writes nothing, and somebody may wait for it to.
fn pause(running: usize, answers: bool) -> Duration {
    let shared = Duration::from_secs(u64::try_from(running.div_ceil(A_SECOND)).unwrap_or(u64::MAX));
    ASK.max(if answers { shared } else { shared.min(UNANSWERED) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_importers_are_asked_no_more_often_than_few() {
        for (running, seconds) in [(0, 1), (1, 1), (20, 1), (21, 2), (1000, 50)] {
            assert_eq!(pause(running, true), Duration::from_secs(seconds), "{running}");
            assert_eq!(pause(running, false), Duration::from_secs(seconds.min(5)), "{running}");
        }
    }
}
