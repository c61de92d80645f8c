//! `ferrovirt kubeconfig`: credentials for someone.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use clap::Args;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::{
    HostArgs,
    client::ClientArgs,
    next,
    roles::certificates,
    root,
    up::{
        paths::Paths,
        pki::{Identity, Pki, write_private},
        revocations,
    },
};

#[derive(Args)]
pub struct KubeconfigArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Name of the user
    #[arg(long, required_unless_present = "revoke")]
    user: Option<String>,
    /// Believe no certificate any more that this user was given so far, or the one with this serial number (serial:HEX)
    #[arg(long, value_name = "USER|serial:HEX", conflicts_with_all = ["user", "groups", "output"])]
    revoke: Option<String>,
    /// Group of the user; may be given several times
    #[arg(long = "group")]
    groups: Vec<String>,
    /// How long the credentials hold, such as 8h or 30m; what is open with them ends then
    #[arg(long, default_value = "8760h", value_parser = lifetime)]
    valid_for: time::Duration,
    /// Address under which the user reaches this host, such as vmhost.example:6443 [default: the one of the host's own kubeconfig]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = server_url)]
    server: Option<String>,
    /// Write to this file (mode 0600) instead of standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// In every serving certificate of a host, whatever people call its machine.
const CERTIFIED_NAME: &str = "kubernetes";
const DEFAULT_PORT: u16 = 6443;
/// How long an address is tried before the user is told that nothing answers there.
const TRY: Duration = Duration::from_secs(3);

/// `HOST`, `HOST:PORT` or `https://HOST:PORT`, as a URL.
fn server_url(text: &str) -> Result<String, String> {
    let bad = |why: &str| format!("{why}; give a name or an address, with a port if it is not {DEFAULT_PORT}");
    if text.starts_with("http://") {
        return Err(bad("the API is served with https only"));
    }
    let text = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
    // An IPv6 address by itself has colons, too.
    let text = if text.parse::<std::net::Ipv6Addr>().is_ok() { format!("[{text}]") } else { text.to_owned() };
    let Ok(authority) = text.parse::<http::uri::Authority>() else { return Err(bad("that is no address")) };
    if authority.host().is_empty() || text.contains('@') {
        return Err(bad("that is no address"));
    }
    let port = match text.strip_prefix(authority.host()).unwrap_or_default() {
        "" => DEFAULT_PORT,
        rest => {
            let port = rest.strip_prefix(':').and_then(|port| port.parse::<u16>().ok());
            port.filter(|port| *port > 0).ok_or_else(|| bad("that is no port"))?
        }
    };
    Ok(format!("https://{}:{port}", authority.host()))
}

/// How a host that listens here is reached from its own machine.
pub fn local_url(listens: SocketAddr) -> String {
    let address = match listens.ip().is_unspecified() {
        true => SocketAddr::from((Ipv4Addr::LOCALHOST, listens.port())),
        false => listens,
    };
    format!("https://{address}")
}

pub fn lifetime(text: &str) -> Result<time::Duration, String> {
    let lifetime = certificates::duration(text).filter(|lifetime| *lifetime >= time::Duration::SECOND);
    lifetime.ok_or_else(|| "give a number and h, m or s, such as 8h or 1h30m".into())
}

pub async fn run(arguments: &KubeconfigArgs) -> Result<()> {
    let paths = Paths::new(&arguments.host.data_dir)?;
    root::needed_for(&paths.kubeconfig())?;
    if !paths.kubeconfig().exists() {
        let up = next::ferrovirt("up --detach");
        bail!("there is no host in {}: start one with `{up}`", paths.data_dir.display());
    }
    if let Some(whom) = &arguments.revoke {
        println!("{}", revocations::revoke(&paths, whom).await?);
        return Ok(());
    }
    let user = arguments.user.as_deref().unwrap_or_default();
    if user.starts_with("system:") {
        bail!("--user {user}: names that begin with system: are Kubernetes' own");
    }
    let admin: Value = serde_saphyr::from_str(&std::fs::read_to_string(paths.kubeconfig())?)?;
    let Some(own) = admin["clusters"][0]["cluster"]["server"].as_str() else {
        bail!("{} names no server", paths.kubeconfig().display());
    };
    let server = arguments.server.as_deref().unwrap_or(own);
    let pki = Pki::open(&paths.data_dir)?;
    // Certificates up to the moment of a revocation are revoked, so this one begins after it.
    let not_before = revocations::read(&paths)?.users.iter().find(|revoked| revoked.name == user).map(|r| r.until + 1);
    let early = not_before.map_or(0, |begin| begin - time::OffsetDateTime::now_utc().unix_timestamp());
    if let Ok(seconds @ 1..) = u64::try_from(early) {
        tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
    }
    let identity = pki.client_from(user, &arguments.groups, arguments.valid_for, not_before)?;
    // The certificate has the addresses that the host sees, which are not all under which it may be reached.
    let certified = (server != own).then_some(CERTIFIED_NAME);
    let text = render(server, certified, pki.ca_certificate(), user, &identity);
    match &arguments.output {
        Some(file) => write_private(file, text.as_bytes())?,
        None => println!("{text}"),
    }
    // Beside the credentials, which may go to a file or another program.
    for line in remarks(arguments, &paths, user, own, server).await {
        eprintln!("{line}");
    }
    Ok(())
}

/// What whoever makes credentials should know: what they are good for, and where.
async fn remarks(arguments: &KubeconfigArgs, paths: &Paths, user: &str, own: &str, server: &str) -> Vec<String> {
    let connected = ClientArgs { kubeconfig: Some(paths.kubeconfig()), ..Default::default() }.connect().await;
    let held = match connected {
        Ok(client) => held(&client, user, &arguments.groups).await.ok(),
        Err(_) => None,
    };
    let mut lines = match held {
        Some(held) => rights(user, &arguments.groups, &held, &paths.kubeconfig()),
        None => {
            vec![format!("{user}'s rights are not known: the host does not answer; see {}", next::ferrovirt("status"))]
        }
    };
    if server == own {
        if own.contains("//127.") || own.contains("//[::1]") {
            lines.push(format!(
                "these credentials lead to {own}, which is this machine only; for another one: `ferrovirt up --listen 0.0.0.0:{DEFAULT_PORT}`, and here --server HOST"
            ));
        }
    } else if !answers(server).await {
        lines.push(format!(
            "nothing answers at {server} yet: the host listens where `ferrovirt up --listen ADDRESS:PORT` said, and a firewall may be in between"
        ));
    }
    lines
}

async fn answers(server: &str) -> bool {
    let address = server.trim_start_matches("https://").to_owned();
    matches!(tokio::time::timeout(TRY, tokio::net::TcpStream::connect(address)).await, Ok(Ok(_)))
}

/// A role that somebody has, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    role: String,
    /// None for everywhere.
    namespace: Option<String>,
}

async fn held(client: &Client, user: &str, groups: &[String]) -> Result<Vec<Held>, kube::Error> {
    let params = ListParams::default();
    let everywhere = Api::<ClusterRoleBinding>::all(client.clone()).list(&params).await?.items.into_iter();
    let somewhere = Api::<RoleBinding>::all(client.clone()).list(&params).await?.items.into_iter();
    let everywhere = everywhere.map(|binding| (None, binding.subjects, binding.role_ref));
    let somewhere = somewhere.map(|binding| (binding.namespace(), binding.subjects, binding.role_ref));
    Ok(everywhere
        .chain(somewhere)
        .filter(|(_, subjects, _)| subjects.iter().flatten().any(|subject| is_meant(subject, user, groups)))
        .map(|(namespace, _, RoleRef { name, .. })| Held { role: name, namespace })
        .collect())
}

/// Roles of everybody who is signed in are no news.
fn is_meant(subject: &Subject, user: &str, groups: &[String]) -> bool {
    match subject.kind.as_str() {
        "User" => subject.name == user,
        "Group" => groups.contains(&subject.name),
        _ => false,
    }
}

/// What a user may do, and how to change that.
fn rights(user: &str, groups: &[String], held: &[Held], kubeconfig: &Path) -> Vec<String> {
    if groups.iter().any(|group| group == "system:masters") {
        return vec![format!("{user} may do everything: the group system:masters cannot be restricted")];
    }
    let mut lines: Vec<String> = held
        .iter()
        .map(|held| match &held.namespace {
            Some(namespace) => format!("{user} has the role {} in the namespace {namespace}", held.role),
            None => format!("{user} has the role {} everywhere", held.role),
        })
        .collect();
    if lines.is_empty() {
        lines.push(format!("{user} has no rights yet. To give some in the namespace default (edit: VMs and all around them; view: only look; admin: give rights, too):"));
    } else {
        lines.push("to give more:".into());
    }
    let kubeconfig = next::quoted(&kubeconfig.display().to_string());
    let (user, name) = (next::quoted(user), object_name(user));
    lines.push(format!(
        "  kubectl --kubeconfig {kubeconfig} create rolebinding {name}-edit --clusterrole=edit --user={user} -n default"
    ));
    lines
}

/// A user's name as far as it can name an object.
fn object_name(user: &str) -> String {
    let name: String =
        user.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(60).collect();
    match name.trim_matches('-') {
        "" => "user".to_owned(),
        name => name.to_owned(),
    }
}

/// A kubeconfig with everything inside. JSON is YAML, and every client reads it. `certified` is the name in the server's certificate,
/// if it is not the server's.
pub fn render(server: &str, certified: Option<&str>, ca: &str, user: &str, identity: &Identity) -> String {
    let mut cluster = json!({ "server": server, "certificate-authority-data": BASE64.encode(ca) });
    if let Some(name) = certified {
        cluster["tls-server-name"] = name.into();
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "ferrovirt", "cluster": cluster }],
        "users": [{ "name": user, "user": {
            "client-certificate-data": BASE64.encode(&identity.certificate),
            "client-key-data": BASE64.encode(&identity.key),
        } }],
        "contexts": [{ "name": "ferrovirt", "context": { "cluster": "ferrovirt", "user": user, "namespace": "default" } }],
        "current-context": "ferrovirt",
    });
    format!("{config:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_name_or_an_address() {
        for (text, url) in [
            ("vmhost", "https://vmhost:6443"),
            ("vmhost.example:8443", "https://vmhost.example:8443"),
            ("https://vmhost.example", "https://vmhost.example:6443"),
            ("https://192.0.2.1:443/", "https://192.0.2.1:443"),
            ("fd00::1", "https://[fd00::1]:6443"),
            ("[fd00::1]:1", "https://[fd00::1]:1"),
        ] {
            assert_eq!(server_url(text).as_deref(), Ok(url));
        }
        for bad in ["", "http://x", "a b", "x:0", "x:70000", "x:", "u@x", "x/y"] {
            assert!(server_url(bad).is_err(), "{bad:?}");
        }
        assert_eq!(local_url("0.0.0.0:6443".parse().unwrap()), "https://127.0.0.1:6443");
        assert_eq!(local_url("[::]:1".parse().unwrap()), "https://127.0.0.1:1");
        assert_eq!(local_url("192.0.2.1:1".parse().unwrap()), "https://192.0.2.1:1");
    }

    #[test]
    fn whoever_makes_credentials_learns_what_they_are_good_for() {
        let said = |groups: &[&str], held: &[Held]| {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            rights("Ana B", &groups, held, Path::new("/d/kubeconfig")).join("\n")
        };
        let none = said(&[], &[]);
        assert!(none.starts_with("Ana B has no rights yet."), "{none}");
        let command = "  kubectl --kubeconfig /d/kubeconfig create rolebinding ana-b-edit --clusterrole=edit --user='Ana B' -n default";
        assert!(none.ends_with(command), "{none}");
        let held = [
            Held { role: "edit".into(), namespace: Some("shop".into()) },
            Held { role: "view".into(), namespace: None },
        ];
        let some = said(&["dev"], &held);
        assert!(
            some.starts_with("Ana B has the role edit in the namespace shop\nAna B has the role view everywhere\n"),
            "{some}"
        );
        assert!(said(&["system:masters"], &[]).contains("everything"));
    }

    #[test]
    fn bindings_name_users_and_groups() {
        let subject = |kind: &str, name: &str| Subject { kind: kind.into(), name: name.into(), ..Default::default() };
        let groups = ["dev".to_owned()];
        assert!(is_meant(&subject("User", "ana"), "ana", &groups));
        assert!(is_meant(&subject("Group", "dev"), "ana", &groups));
        assert!(!is_meant(&subject("ServiceAccount", "ana"), "ana", &groups));
        assert!(!is_meant(&subject("Group", "system:authenticated"), "ana", &groups));
    }
}
