use super::*;
use serde_json::{Value, json};

fn pod(container: Value, spec: Value) -> Pod {
    let mut one = json!({"name": "compute", "image": "registry.example:5000/x/ferrovirt-launcher:v1"});
    one.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let mut base = json!({"containers": [one]});
    base.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": "p.", "namespace": "ns", "uid": "1-2"}, "spec": base})).unwrap()
}

fn planned(pod: &Pod, env: &[(&str, &str)]) -> Result<InitPlan, SpecError> {
    let volumes = ["a", "b", "c"]
        .map(|name| (name.to_owned(), VolumeSource { path: format!("/v/{name}").into(), read_only: name == "c" }))
        .into();
    let resolved = Resolved {
        launcher: Path::new("/l"),
        tools: Path::new("/t"),
        staging: Path::new("/s"),
        netns: Path::new("/n"),
        cgroup_procs: vec![],
        pod_ips: &[[10, 42, 0, 2].into()],
        resolv_conf: "nameserver 192.0.2.53\nsearch lan",
        cluster_dns: "10.43.0.10".parse().unwrap(),
        image_mounts: &[("/d/capabilities".into(), "/var/cache/capabilities".into())],
        image_env: &[("CACHE".to_owned(), "$(PATH)".to_owned())],
        env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        volumes: &volumes,
    };
    plan(pod, &resolved)
}

#[test]
fn only_our_image_is_ours() {
    for (image, expected) in [
        ("ferrovirt-launcher", true),
        ("registry.example/ferrovirt:0.1.0", true),
        ("ferrovirt-launcher:0.1.0", true),
        ("registry.example:5000/team/ferrovirt-launcher:v1", true),
        ("quay.example/x/ferrovirt-launcher@sha256:00", true),
        ("nginx", false),
        ("ferrovirt-launcher/nginx", false),
        ("not-ferrovirt-launcher", false),
        ("ferrovirt-launcher-evil:1", false),
        ("", false),
    ] {
        assert_eq!(is_own_image(image), expected, "{image}");
    }
}

#[test]
fn what_cannot_run_is_refused_with_the_reason() {
    for (container, spec, expected) in [
        (json!({"image": "nginx"}), json!({}), "not \"nginx\""),
        (json!({}), json!({"hostNetwork": true}), "hostNetwork"),
        (json!({"envFrom": [{}]}), json!({}), "envFrom"),
        (json!({"securityContext": {"runAsUser": 0}}), json!({}), "root"),
        (json!({}), json!({"securityContext": {"runAsUser": 0}}), "root"),
        (json!({"securityContext": {"privileged": true}}), json!({}), "only as root"),
        (
            json!({"securityContext": {"runAsUser": 0, "runAsGroup": 107, "privileged": true}}),
            json!({}),
            "only as root",
        ),
        (json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}), json!({}), "seccompProfile"),
        (json!({}), json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}), "seccompProfile"),
        (json!({"volumeMounts": [{"name": "zz", "mountPath": "/x"}]}), json!({}), "zz"),
        (json!({"volumeMounts": [{"name": "a", "mountPath": "x"}]}), json!({}), "absolute"),
        (json!({"volumeMounts": [{"name": "a", "mountPath": "/a/../x"}]}), json!({}), "absolute"),
        (json!({}), json!({"securityContext": {"sysctls": [{"name": "kernel.panic", "value": "1"}]}}), "kernel.panic"),
        (json!({}), json!({"securityContext": {"sysctls": [{"name": "net./../../x", "value": "1"}]}}), "net./"),
    ] {
        let error = planned(&pod(container.clone(), spec.clone()), &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{container} {spec}: {error}");
    }
}

#[test]
fn words_are_expanded() {
    let env = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "$(A)".to_owned())];
    for (text, expected) in [
        ("plain", "plain"),
        ("$(A)x$(A)", "1x1"),
        ("$(B)", "$(A)"),
        ("$$(A)", "$(A)"),
        ("$(C)", "$(C)"),
        ("$(A", "$(A"),
        ("$", "$"),
        ("a$b", "a$b"),
        ("€$(A)€", "€1€"),
    ] {
        assert_eq!(expand(text, &env), expected, "{text}");
    }
}

#[test]
fn a_plan_has_everything_in_order() {
    let container = json!({
        "command": ["/usr/bin/ferrovirt-launcher"],
        "args": ["run", "--name", "$(NAME)"],
        "resources": {"limits": {"devices.kubevirt.io/kvm": "1"}},
        "volumeMounts": [
            {"name": "b", "mountPath": "/var/run/kubevirt-private/vmi-disks/d", "subPath": "x"},
            {"name": "a", "mountPath": "/var/run/kubevirt-private", "mountPropagation": "HostToContainer"},
            {"name": "c", "mountPath": "/etc/config"},
        ],
    });
    let spec = json!({
        "hostname": "vm1", "subdomain": "web",
        "securityContext": {"runAsUser": 107, "fsGroup": 107, "supplementalGroups": [200],
                            "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]},
        "dnsConfig": {"searches": ["example.org"], "options": [{"name": "ndots", "value": "2"}]},
    });
    let plan = planned(&pod(container, spec), &[("NAME", "vm-$(HOSTNAME)"), ("PATH", "/bin")]).unwrap();
    assert_eq!(plan.command, ["/usr/bin/ferrovirt-launcher", "run", "--name", "vm-vm1"]);
    assert_eq!(plan.env[0], ("PATH".to_owned(), "/bin".to_owned()));
    assert_eq!((plan.uid, plan.gid, plan.groups.as_slice()), (107, 107, [107, 200].as_slice()));
    assert_eq!(plan.devices, [PathBuf::from("/dev/kvm")]);
    assert_eq!(plan.sysctls, [("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned())]);
    let mounts: Vec<String> = plan
        .mounts
        .iter()
        .map(|m| format!("{} {} {} {}", m.source.display(), m.target.display(), m.read_only, m.follow_host))
        .collect();
    assert_eq!(
        mounts,
        [
            "/v/c /etc/config true false",
            "/d/capabilities /var/cache/capabilities true false",
            "/v/a /var/run/kubevirt-private false true",
            "/v/b /var/run/kubevirt-private/vmi-disks/d false false",
        ]
    );
    let file = |path: &str| &plan.files.iter().find(|(found, _)| found == Path::new(path)).unwrap().1;
    assert!(file("/etc/passwd").contains("qemu:x:107:107:"));
    assert!(file("/etc/hosts").ends_with("10.42.0.2\tvm1.web.ns.svc.cluster.local\tvm1\n"));
    assert_eq!(
        file("/etc/resolv.conf"),
        "nameserver 10.43.0.10\nsearch ns.svc.cluster.local svc.cluster.local cluster.local lan example.org\noptions ndots:2\n"
    );
    assert_eq!(file("/etc/machine-id"), "12\n");

    let bare = planned(&pod(json!({"args": ["run"]}), json!({})), &[]).unwrap();
    assert_eq!(bare.command, ["/usr/bin/ferrovirt-launcher", "run"]);
    assert_eq!((bare.hostname.as_str(), bare.uid, bare.devices.len()), ("p", 107, 0));
}

#[test]
fn a_pod_cannot_ask_to_go_without_a_filter_and_needs_not_ask_for_one() {
    let placed = json!({"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["SYS_NICE"]}}});
    for (container, spec, placement) in [
        (json!({}), json!({}), false),
        (json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}), json!({}), false),
        // The container's own word counts.
        (
            json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}),
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
            false,
        ),
        (placed, json!({}), true),
    ] {
        let plan = planned(&pod(container.clone(), spec), &[]).unwrap();
        assert_eq!((plan.memory_placement, plan.first_id), (placement, None), "{container}");
    }
}
