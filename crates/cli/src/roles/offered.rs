//! Which hypervisors a node of a cluster offers: those that the `KubeVirt` object lists. Whoever lists one says that there is an
//! image of its launcher; a device that a driver cannot do without has to be there, too.

use ferrovirt_api::v1::KubeVirt;
use ferrovirt_machine::hypervisor::{DEFAULT, KNOWN};
use ferrovirt_node::Hypervisors;
use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::watch;

/// Follows the configuration for as long as the agent lives.
pub fn follow(client: Client, namespace: &str, kvm: bool) -> watch::Receiver<Hypervisors> {
    let (sender, receiver) = watch::channel(offered(&[], kvm));
    let kubevirts = Api::<KubeVirt>::namespaced(client, namespace);
    tokio::spawn(async move {
        let mut stream = watcher(kubevirts, watcher::Config::default()).default_backoff().applied_objects().boxed();
        loop {
            match stream.try_next().await {
                Ok(Some(kubevirt)) => {
                    let listed = kubevirt.spec.configuration.hypervisors.iter().map(|entry| entry.name.as_str());
                    let now = offered(&listed.collect::<Vec<_>>(), kvm);
                    sender.send_if_modified(|before| {
                        let changed = *before != now;
                        *before = now;
                        changed
                    });
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "cannot watch the configuration; trying again"),
            }
        }
    });
    receiver
}

fn offered(listed: &[&str], kvm: bool) -> Hypervisors {
    let drivers = KNOWN.iter().filter_map(|known| known.driver.ok());
    drivers
        .map(|driver| {
            let name = driver.name();
            // Upstream's word for its one hypervisor means the same, and nothing listed means the default.
            let wanted = listed.contains(&name) || (name == DEFAULT && (listed.is_empty() || listed.contains(&"kvm")));
            let missing = driver.device().filter(|_| !kvm && !driver.can_emulate());
            let obstacle = match (wanted, missing) {
                (false, _) => Some("the KubeVirt object does not list it in spec.configuration.hypervisors".into()),
                (true, Some(device)) => Some(format!("it needs the device {device}, which this node does not have")),
                (true, None) => None,
            };
            (name.to_owned(), obstacle)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_offers_what_is_listed_and_can_run_there() {
        let runs = |listed: &[&str], kvm: bool| {
            let offered = offered(listed, kvm).into_iter();
            offered.filter(|(_, obstacle)| obstacle.is_none()).map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(runs(&[], false), ["qemu-kvm"]);
        assert_eq!(runs(&["kvm"], false), ["qemu-kvm"]);
        assert_eq!(runs(&["lxc"], false), ["lxc"]);
        assert_eq!(runs(&["qemu-kvm", "lxc", "xen"], true), ["lxc", "qemu-kvm"]);
        assert!(!runs(&["cloud-hypervisor"], false).contains(&"cloud-hypervisor".to_owned()));
    }
}
