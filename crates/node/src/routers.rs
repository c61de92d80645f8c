//! The router of a guest's IPv6 network, for as long as the agent looks after the guest.

use std::{io, net::Ipv6Addr, time::Duration};

use ferrovirt_net::router::Router;
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
};

use crate::process::Network;

/// Between two advertisements that nobody asked for; what they say is good for much longer.
const REPEAT: Duration = Duration::from_secs(200);

/// After an error of the socket.
const PAUSE: Duration = Duration::from_secs(1);

/// Advertises until it is dropped. Its socket must not outlive the guest, whose network namespace it would keep.
#[derive(Debug)]
pub(crate) struct Advertiser(JoinHandle<()>);

impl Advertiser {
    pub async fn start(namespace: &Network, device: &str, network: Ipv6Addr, prefix: u8, mtu: u32) -> io::Result<Self> {
        let name = device.to_owned();
        let opened = namespace.blocking(move |namespace| Router::open(namespace, &name, network, prefix, mtu)).await;
        let router = watched(opened?)?;
        let device = device.to_owned();
        Ok(Self(tokio::spawn(async move {
            if let Err(error) = advertise(&router).await {
                tracing::warn!(device, %error, "the guest's IPv6 router is not advertised any more");
            }
        })))
    }
}

// Deprecated for types that may give out another descriptor later; a router never does.
#[allow(deprecated)]
fn watched(router: Router) -> io::Result<AsyncFd<Router>> {
    AsyncFd::with_interest(router, Interest::READABLE)
}

impl Drop for Advertiser {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn advertise(router: &AsyncFd<Router>) -> io::Result<()> {
    let mut clock = tokio::time::interval(REPEAT);
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            ready = router.readable() => {
                let mut ready = ready?;
                match ready.try_io(|router| router.get_ref().asked()) {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) | Err(_) => continue,
                    // Whoever dropped this is not here to see it: the guest still wants its router.
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "cannot hear whether the guest asks for its router");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                }
            }
        }
        // Before the guest is plugged in, the device has nobody to send to.
        let _ = router.get_ref().advertise();
    }
}
