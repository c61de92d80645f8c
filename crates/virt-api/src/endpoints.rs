//! The table of what is served under `subresources.kubevirt.io`. Routing, authorization, discovery, OpenAPI and
//! `docs/subresources.md` all read it.

use http::Method;

pub(crate) const MACHINES: &str = "virtualmachines";
pub(crate) const INSTANCES: &str = "virtualmachineinstances";

/// One action on a VM or an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub resource: &'static str,
    /// As RBAC names it. What the path has beyond it is a parameter.
    pub subresource: &'static str,
    /// The parameters that a path must have, and how many more it may have.
    parameters: usize,
    optional: usize,
    pub verb: Verb,
    pub served: Served,
    pub summary: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Update,
}

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Update => "update",
        }
    }

    pub fn method(self) -> Method {
        match self {
            Self::Get => Method::GET,
            Self::Update => Method::PUT,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    Power,
    Guest,
    Stream,
    Expand,
    Graph,
    EvacuateCancel,
    /// Comes with a later release; the text says with what.
    Later(&'static str),
}

const HOTPLUG: &str = "disks cannot be added to or taken from running machines yet";
const MEMORY_DUMP: &str = "memory dumps come with snapshots and backups";
const MIGRATION: &str = "live migration is not available yet";
const BACKUP: &str = "backups are not available yet";
const SEV: &str = "confidential machines are not supported";

const fn get(
    resource: &'static str,
    subresource: &'static str,
    parameters: (usize, usize),
    served: Served,
    summary: &'static str,
) -> Endpoint {
    let (parameters, optional) = parameters;
    Endpoint { resource, subresource, parameters, optional, verb: Verb::Get, served, summary }
}

const fn put(resource: &'static str, subresource: &'static str, served: Served, summary: &'static str) -> Endpoint {
    Endpoint { resource, subresource, parameters: 0, optional: 0, verb: Verb::Update, served, summary }
}

const NONE: (usize, usize) = (0, 0);
/// `/{port}[/{protocol}]`
const PORT: (usize, usize) = (1, 1);

pub(crate) const ENDPOINTS: &[Endpoint] = &[
    put(MACHINES, "start", Served::Power, "Start the machine; `paused` starts it stopped at its first instruction"),
    put(MACHINES, "stop", Served::Power, "Stop the machine; `gracePeriod` shortens the guest's time"),
    put(MACHINES, "restart", Served::Power, "Restart the machine; `gracePeriodSeconds: 0` does not ask the guest"),
    put(MACHINES, "migrate", Served::Later(MIGRATION), "Move the machine to another node"),
    put(MACHINES, "addvolume", Served::Later(HOTPLUG), "Add a disk"),
    put(MACHINES, "removevolume", Served::Later(HOTPLUG), "Take a disk away"),
    put(MACHINES, "memorydump", Served::Later(MEMORY_DUMP), "Write the guest's memory to a volume"),
    put(MACHINES, "removememorydump", Served::Later(MEMORY_DUMP), "Forget a memory dump"),
    put(MACHINES, "evacuate/cancel", Served::EvacuateCancel, "Take back the wish to leave a node"),
    get(MACHINES, "expand-spec", NONE, Served::Expand, "The machine with its instance type and preference filled in"),
    get(MACHINES, "objectgraph", NONE, Served::Graph, "The objects that the machine consists of"),
    get(MACHINES, "portforward", PORT, Served::Stream, "A connection to a port of the guest"),
    put(INSTANCES, "pause", Served::Guest, "Stop the guest's CPUs"),
    put(INSTANCES, "unpause", Served::Guest, "Let the guest's CPUs go on"),
    put(INSTANCES, "reset", Served::Guest, "Press the reset button"),
    put(INSTANCES, "softreboot", Served::Guest, "Ask the guest to reboot"),
    put(INSTANCES, "freeze", Served::Guest, "Freeze the guest's file systems"),
    put(INSTANCES, "unfreeze", Served::Guest, "Thaw the guest's file systems"),
    put(INSTANCES, "addvolume", Served::Later(HOTPLUG), "Add a disk"),
    put(INSTANCES, "removevolume", Served::Later(HOTPLUG), "Take a disk away"),
    put(INSTANCES, "backup", Served::Later(BACKUP), "Begin or end a backup"),
    put(INSTANCES, "redefine-checkpoint", Served::Later(BACKUP), "Tell the hypervisor of a checkpoint"),
    put(INSTANCES, "evacuate/cancel", Served::EvacuateCancel, "Take back the wish to leave a node"),
    get(INSTANCES, "console", NONE, Served::Stream, "The serial console"),
    get(INSTANCES, "vnc", NONE, Served::Stream, "The screen, keyboard and mouse"),
    get(INSTANCES, "vnc/screenshot", NONE, Served::Guest, "The screen as a PNG"),
    get(INSTANCES, "portforward", PORT, Served::Stream, "A connection to a port of the guest"),
    get(INSTANCES, "usbredir", NONE, Served::Later("USB redirection is not available yet"), "A USB device from afar"),
    get(INSTANCES, "vsock", NONE, Served::Later("VSOCK is not available yet"), "A VSOCK connection to the guest"),
    get(INSTANCES, "guestosinfo", NONE, Served::Guest, "What the guest agent says of the guest"),
    get(INSTANCES, "userlist", NONE, Served::Guest, "Who is logged in"),
    get(INSTANCES, "filesystemlist", NONE, Served::Guest, "The guest's file systems"),
    get(INSTANCES, "stats", NONE, Served::Guest, "What the machine uses, in libvirt's names (not of upstream)"),
    get(INSTANCES, "objectgraph", NONE, Served::Graph, "The objects that the instance consists of"),
    get(INSTANCES, "sev/fetchcertchain", NONE, Served::Later(SEV), "The platform's certificates"),
    get(INSTANCES, "sev/querylaunchmeasurement", NONE, Served::Later(SEV), "The launch measurement"),
    put(INSTANCES, "sev/setupsession", Served::Later(SEV), "Begin a confidential session"),
    put(INSTANCES, "sev/injectlaunchsecret", Served::Later(SEV), "Hand a secret to a confidential guest"),
];

/// The endpoint of a path below an object, and the parameters in that path.
pub(crate) fn find<'a>(resource: &str, path: &'a [&'a str]) -> Option<(&'static Endpoint, &'a [&'a str])> {
    ENDPOINTS.iter().filter(|endpoint| endpoint.resource == resource).find_map(|endpoint| {
        let words = endpoint.subresource.split('/').count();
        let (name, parameters) = path.split_at_checked(words)?;
        let enough = endpoint.parameters..=endpoint.parameters + endpoint.optional;
        let fits = endpoint.subresource.split('/').eq(name.iter().copied()) && enough.contains(&parameters.len());
        fits.then_some((endpoint, parameters))
    })
}

/// Every path of an endpoint below its object, as OpenAPI writes it.
pub(crate) fn paths(endpoint: &Endpoint) -> Vec<String> {
    let names = ["/{port}", "/{protocol}"];
    (endpoint.parameters..=endpoint.parameters + endpoint.optional)
        .map(|count| format!("{}{}", endpoint.subresource, names.get(..count).unwrap_or_default().concat()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_an_endpoint_and_its_parameters() {
        let found = |resource: &str, path: &str| {
            let words: Vec<&str> = path.split('/').collect();
            find(resource, &words).map(|(endpoint, rest)| (endpoint.subresource, rest.join("/")))
        };
        assert_eq!(found(INSTANCES, "vnc"), Some(("vnc", String::new())));
        assert_eq!(found(INSTANCES, "vnc/screenshot"), Some(("vnc/screenshot", String::new())));
        assert_eq!(found(INSTANCES, "portforward/22"), Some(("portforward", "22".into())));
        assert_eq!(found(MACHINES, "portforward/53/udp"), Some(("portforward", "53/udp".into())));
        for (resource, path) in [
            (INSTANCES, "start"),
            (MACHINES, "console"),
            (INSTANCES, "portforward"),
            (INSTANCES, "portforward/1/tcp/2"),
            (INSTANCES, "vnc/other"),
            (INSTANCES, "sev"),
            ("pods", "vnc"),
        ] {
            assert_eq!(found(resource, path), None, "{resource} {path}");
        }
    }

    /// Upstream's list, less what is not below an object, and what we add to it.
    #[test]
    fn every_endpoint_of_upstream_is_in_the_table() {
        let upstream = include_str!("../tests/data/upstream-endpoints.txt");
        let mut ours: Vec<String> = ENDPOINTS
            .iter()
            .flat_map(|endpoint| {
                paths(endpoint)
                    .into_iter()
                    .map(move |path| format!("{} {}/{{name}}/{path}", endpoint.verb.method(), endpoint.resource))
            })
            .collect();
        ours.sort();
        let mut theirs: Vec<&str> = upstream.lines().chain(["GET virtualmachineinstances/{name}/stats"]).collect();
        theirs.sort_unstable();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn the_documentation_lists_every_endpoint() {
        let page = include_str!("../../../docs/subresources.md");
        for endpoint in ENDPOINTS {
            let line = page
                .lines()
                .find(|line| line.starts_with(&format!("| `{}/{}` ", endpoint.resource, endpoint.subresource)));
            let line = line
                .unwrap_or_else(|| panic!("docs/subresources.md lacks {}/{}", endpoint.resource, endpoint.subresource));
            assert!(line.contains(&format!("| {} |", endpoint.verb.name())), "{line}");
            match endpoint.served {
                Served::Later(why) => assert!(line.contains(&format!("not yet: {why}")), "{line}"),
                _ => assert!(line.contains(endpoint.summary), "{line}"),
            }
        }
    }
}
