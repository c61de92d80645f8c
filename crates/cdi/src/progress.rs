//! How far an importer is, as it says itself. It asks foreign servers and may be in their hands, and whoever may make pods can
//! make one that answers in its place: so only its own address is asked, it sends us nowhere else, and it says little.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::job::{PORT, Progress};

const ANSWER: Duration = Duration::from_secs(3);
const MOST: u64 = 64 << 10;
/// Characters of what goes on to people.
const TROUBLE: usize = 1024;

/// Asks the importer in a pod. None if it does not say.
pub(crate) async fn of(pod: &Pod) -> Option<Progress> {
    ask(SocketAddr::new(address(pod)?, PORT)).await
}

/// The pod's own address, if it is one that we gave. One that shares its node's network has none, and neither is loopback one.
pub(crate) fn address(pod: &Pod) -> Option<IpAddr> {
    let status = pod.status.as_ref()?;
    if pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)) || status.pod_ip == status.host_ip {
        return None;
    }
    let address: IpAddr = status.pod_ip.as_deref()?.parse().ok()?;
    let is_of_a_pod = match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
    };
    let is_somewhere = !(address.is_loopback() || address.is_unspecified() || address.is_multicast());
    (is_of_a_pod && is_somewhere).then_some(address)
}

async fn ask(address: SocketAddr) -> Option<Progress> {
    let answer = tokio::time::timeout(ANSWER, exchange(address)).await.ok()?.ok()?;
    let mut progress = read(&answer)?;
    let trouble = progress.trouble.chars().filter(|character| !character.is_control());
    progress.trouble = trouble.take(TROUBLE).collect();
    Some(progress)
}

/// One question of a protocol version that has neither chunks nor a second answer.
async fn exchange(address: SocketAddr) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let question = format!("GET /progress HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).await?;
    let mut answer = vec![];
    stream.take(MOST).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Nothing but a plain yes counts: a redirect is no answer.
fn read(answer: &[u8]) -> Option<Progress> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(answer.get(..end)?).ok()?;
    let mut words = head.lines().next()?.split(' ');
    if !words.next()?.starts_with("HTTP/1.") || words.next()? != "200" {
        return None;
    }
    serde_json::from_slice(answer.get(end + 4..)?).ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn serve(answer: String) -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut question = [0; 512];
            assert!(stream.read(&mut question).await.unwrap() > 0);
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        (address, serving)
    }

    #[tokio::test]
    async fn an_importer_says_how_far_it_is() {
        let body = r#"{"done":1,"total":4,"trouble":"a\u001b[2Jb"}"#;
        let (address, _) = serve(format!("HTTP/1.0 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
        let found = ask(address).await.unwrap();
        assert_eq!((found.done, found.total, found.trouble.as_str()), (1, Some(4), "a[2Jb"));
    }

    #[tokio::test]
    async fn an_importer_that_redirects_sends_the_controller_nowhere() {
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = inner.local_addr().unwrap();
        for code in [301, 302, 303, 307, 308] {
            // With a body that would be progress, too.
            let answer = format!("HTTP/1.1 {code} Found\r\nLocation: http://{target}/secret\r\n\r\n{{\"done\":1}}");
            let (address, serving) = serve(answer).await;
            assert_eq!(ask(address).await, None);
            serving.await.unwrap();
        }
        // Nobody came: there is nothing to accept.
        let came = inner.into_std().unwrap().accept();
        assert_eq!(came.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn an_importer_that_never_stops_talking_is_cut_short() {
        let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", " ".repeat(4 << 20));
        let (address, _) = serve(endless).await;
        assert_eq!(ask(address).await, None);
        assert!(exchange(serve("x".repeat(1 << 20)).await.0).await.unwrap().len() <= MOST as usize);
    }

    #[test]
    fn only_the_address_of_a_pod_is_asked() {
        let pod = |status: serde_json::Value, host_network: bool| -> Pod {
            let spec = serde_json::json!({ "containers": [], "hostNetwork": host_network });
            serde_json::from_value(serde_json::json!({ "spec": spec, "status": status })).unwrap()
        };
        let good = serde_json::json!({ "podIP": "10.1.0.5", "hostIP": "192.0.2.1" });
        assert!(address(&pod(good.clone(), false)).is_some());
        assert_eq!(address(&pod(good, true)), None);
        for bad in ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "::ffff:127.0.0.1", "192.0.2.1", "host", ""] {
            let status = serde_json::json!({ "podIP": bad, "hostIP": "192.0.2.1" });
            assert_eq!(address(&pod(status, false)), None, "{bad}");
        }
    }
}
