//! Keeps the parts of a host running. Each is a task; one that ends by itself or panics is started again, with pauses that grow,
//! and one that cannot be kept up ends the host with its reason. VMs go on in either case.

use std::future::Future;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// A part that ran for so long has worked; its next end counts anew.
const SETTLED: Duration = Duration::from_secs(300);

/// How often in a row a part may end by itself before that is the end of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Nothing works without it, and nothing would be different the next time.
    None,
    /// What keeps it from starting at all is the machine's configuration, and the user's to know at once. Later, it is tried again.
    OnceStarted,
    /// It is tried again from the first time on.
    Always,
}

/// How often a part is tried again before it is given up.
const TRIES: u32 = 8;
/// A part that ends sooner never started.
const STARTED: Duration = Duration::from_secs(10);

/// Starts parts, and hears of those that cannot be kept up.
pub struct Parts {
    stopped: watch::Receiver<bool>,
    given_up: mpsc::UnboundedSender<String>,
}

impl Parts {
    /// What cannot be kept up comes out of the receiver.
    pub fn new(stopped: watch::Receiver<bool>) -> (Self, mpsc::UnboundedReceiver<String>) {
        let (given_up, failures) = mpsc::unbounded_channel();
        (Self { stopped, given_up }, failures)
    }

    /// Runs a part until the host stops. Aborting the task ends the part.
    pub fn keep<F>(
        &self,
        name: &'static str,
        patience: Patience,
        make: impl Fn() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let (stopped, given_up) = (self.stopped.clone(), self.given_up.clone());
        let make: Make = Box::new(move || Box::pin(make()));
        tokio::spawn(async move {
            if let Some(why) = run(name, patience, make, stopped).await {
                let _ = given_up.send(why);
            }
        })
    }
}

/// Starts a part.
type Make = Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send>;

/// Returns why the part was given up, or nothing when the host stops.
async fn run(name: &str, patience: Patience, make: Make, mut stopped: watch::Receiver<bool>) -> Option<String> {
    let mut record = Record::new(patience);
    // Aborts what is in it when it is dropped.
    let mut task = JoinSet::new();
    loop {
        let begun = Instant::now();
        task.spawn(make());
        let why = match task.join_next().await? {
            Ok(Ok(())) => "it ended".to_owned(),
            Ok(Err(error)) => error,
            Err(error) if error.is_panic() => format!("it panicked: {error}"),
            Err(error) => error.to_string(),
        };
        if *stopped.borrow() {
            return None;
        }
        let Some(pause) = record.ended(begun.elapsed()) else {
            return Some(format!("{name} cannot be kept running: {why}"));
        };
        tracing::error!(part = name, why, "a part of this host ended and is started again in {} s", pause.as_secs());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stopped.wait_for(|stop| *stop) => return None,
        }
    }
}

/// How a part has done so far.
struct Record {
    patience: Patience,
    started: bool,
    failures: u32,
}

impl Record {
    fn new(patience: Patience) -> Self {
        Self { patience, started: false, failures: 0 }
    }

    /// How long to wait before the part is started again; none if it is given up.
    fn ended(&mut self, ran: Duration) -> Option<Duration> {
        self.started |= ran >= STARTED;
        if ran >= SETTLED {
            self.failures = 0;
        }
        let tries = match self.patience {
            Patience::None => 0,
            Patience::OnceStarted if !self.started => 0,
            Patience::OnceStarted | Patience::Always => TRIES,
        };
        if self.failures >= tries {
            return None;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LAST_PAUSE);
        self.failures += 1;
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;

    #[test]
    fn patience_is_by_part_and_ends() {
        let seconds = |patience, ran: &[u64]| {
            let mut record = Record::new(patience);
            let pauses = ran.iter().map(|ran| record.ended(Duration::from_secs(*ran)).map(|pause| pause.as_secs()));
            pauses.collect::<Vec<_>>()
        };
        assert_eq!(seconds(Patience::None, &[1000]), [None]);
        assert_eq!(seconds(Patience::OnceStarted, &[1]), [None]);
        assert_eq!(seconds(Patience::OnceStarted, &[20, 1, 1]), [Some(1), Some(2), Some(4)]);
        let always = seconds(Patience::Always, &[0; 9]);
        assert_eq!(always, [Some(1), Some(2), Some(4), Some(8), Some(16), Some(32), Some(60), Some(60), None]);
        assert_eq!(seconds(Patience::Always, &[0, 0, 400, 0]), [Some(1), Some(2), Some(1), Some(2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_or_ends_is_started_again_and_given_up_at_last() {
        let (stop, stopped) = watch::channel(false);
        let (parts, mut failures) = Parts::new(stopped);
        let starts = Arc::new(AtomicU32::new(0));
        let count = starts.clone();
        let part = parts.keep("node-lite", Patience::Always, move || {
            let count = count.clone();
            async move {
                match count.fetch_add(1, Ordering::SeqCst) {
                    0 => panic!("a bug"),
                    1 => Ok(()),
                    _ => Err("no cgroups".to_owned()),
                }
            }
        });
        let why = failures.recv().await.unwrap();
        assert!(why.contains("node-lite") && why.contains("no cgroups"), "{why}");
        assert_eq!(starts.load(Ordering::SeqCst), 1 + TRIES);
        part.await.unwrap();

        // One that runs ends with the host, and nobody hears of it.
        let part = parts.keep("controllers", Patience::None, {
            let stop = stop.subscribe();
            move || {
                let mut stop = stop.clone();
                async move {
                    let _ = stop.wait_for(|stop| *stop).await;
                    Ok(())
                }
            }
        });
        stop.send_replace(true);
        part.await.unwrap();
        assert!(failures.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn aborting_the_keeper_ends_the_part() {
        struct Held(Arc<AtomicU32>);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (_stop, stopped) = watch::channel(false);
        let (parts, _failures) = Parts::new(stopped);
        let (ended, began) = (Arc::new(AtomicU32::new(0)), Arc::new(tokio::sync::Notify::new()));
        let (held, begin) = (ended.clone(), began.clone());
        let part = parts.keep("makers", Patience::Always, move || {
            let (held, begin) = (Held(held.clone()), begin.clone());
            async move {
                let _held = held;
                begin.notify_one();
                std::future::pending().await
            }
        });
        began.notified().await;
        part.abort();
        let _ = part.await;
        while ended.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    }
}
