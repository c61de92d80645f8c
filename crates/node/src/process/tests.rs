pub(crate) mod fake;

use std::time::Duration;

use super::*;
use crate::launcher::{Launcher, LauncherError, connect_in_pod};
use fake::{Fake, POD};

#[test]
fn users_are_translated_out_of_their_namespace() {
    assert_eq!(inside(107, "         0          0 4294967295\n"), Some(107));
    let own = "0 536870912 107\n107 1107 1\n108 536871020 65428\n";
    assert_eq!(inside(536_870_912, own), Some(0));
    assert_eq!(inside(1107, own), Some(107));
    assert_eq!(inside(107, own), None, "the node's own user 107 is nobody in there");
    assert_eq!(inside(0, ""), None);
}

#[tokio::test]
async fn the_launcher_of_the_pod_is_believed() {
    let fake = Fake::new().in_cgroup(POD).in_namespaces().start();
    let launcher = Launcher::connect(&fake.pods(), POD, 0).await.unwrap();
    let process = launcher.process().unwrap().clone();
    assert!(!process.has_ended());
    assert!(process.read("status").unwrap().contains("NSpid:"));
    drop(fake);
    tokio::time::timeout(Duration::from_secs(60), launcher.gone()).await.unwrap();
    // Whoever gets its number now: nothing leads there.
    assert!(process.has_ended());
    let left = process.read("status");
    assert!(left.as_ref().is_err() || left.as_ref().is_ok_and(|status| status.contains("State:\tZ")), "{left:?}");
}

#[tokio::test]
async fn a_process_of_another_cgroup_that_answers_on_the_socket_is_refused() {
    for fake in [Fake::new().in_namespaces(), Fake::new().in_cgroup(fake::OTHER).in_namespaces()] {
        let fake = fake.start();
        let error = Launcher::connect(&fake.pods(), POD, 0).await.err().unwrap();
        assert!(matches!(error, LauncherError::Process(ProcessError::Elsewhere { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn a_process_of_the_pod_that_is_not_its_launcher_is_refused() {
    // Another user than the pod's.
    let fake = Fake::new().in_cgroup(POD).in_namespaces().start();
    let error = Launcher::connect(&fake.pods(), POD, 107).await.err().unwrap();
    assert!(matches!(error, LauncherError::Process(ProcessError::User { expected: 107, .. })), "{error:?}");
    // Somebody whose end proves nothing.
    let fake = Fake::new().in_cgroup(POD).start();
    let error = Launcher::connect(&fake.pods(), POD, 0).await.err().unwrap();
    assert!(matches!(error, LauncherError::Process(ProcessError::NotFirst)), "{error:?}");
    // Somebody through whom we would change the node's own network.
    let fake = Fake::new().in_cgroup(POD).in_pid_namespace().start();
    let error = Launcher::connect(&fake.pods(), POD, 0).await.err().unwrap();
    assert!(matches!(error, LauncherError::Process(ProcessError::NodeNetwork)), "{error:?}");
}

#[tokio::test]
async fn a_socket_that_is_a_link_is_not_followed() {
    let fake = Fake::new().in_cgroup(POD).in_namespaces().start();
    let sockets = fake.sockets();
    let elsewhere = fake.home().join("elsewhere.sock");
    std::fs::rename(sockets.join("launcher.sock"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, sockets.join("launcher.sock")).unwrap();
    let error = Launcher::connect(&fake.pods(), POD, 0).await.err().unwrap();
    assert!(matches!(error, LauncherError::Connect { .. }), "{error:?}");
    // Nor a volume that is one.
    std::fs::remove_file(sockets.join("launcher.sock")).unwrap();
    std::fs::rename(&elsewhere, fake.home().join("launcher.sock")).unwrap();
    std::fs::remove_dir(&sockets).unwrap();
    std::os::unix::fs::symlink(fake.home(), &sockets).unwrap();
    let error = Launcher::connect(&fake.pods(), POD, 0).await.err().unwrap();
    assert!(matches!(error, LauncherError::Connect { .. }), "{error:?}");
}

#[tokio::test]
async fn a_number_that_another_process_got_is_not_the_launcher() {
    let fake = Fake::new().in_cgroup(POD).in_namespaces().start();
    let stream = connect_in_pod(&fake.pods(), POD, "sockets", None, "launcher.sock").await.unwrap();
    let peer = Peer::of(&stream, POD).unwrap();
    drop(fake);
    let gone = async {
        while !has_ended(&peer.pidfd) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    assert!(matches!(Peer::of(&stream, POD), Err(ProcessError::Ended)));
    assert!(peer.into_process(0).is_err(), "what was held leads to nobody else");
}
