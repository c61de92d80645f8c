use super::*;
use serde_json::{Value, json};

fn pod(container: Value, spec: Value) -> Pod {
    let mut one = json!({"name": "compute", "image": image("ferrovirt-launcher")});
    one.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    let mut base = json!({"containers": [one]});
    base.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": "p.", "namespace": "ns", "uid": "1-2"}, "spec": base})).unwrap()
}

fn image(name: &str) -> String {
    format!("{name}@sha256:{}", "0f".repeat(32))
}

fn planned(pod: &Pod, env: &[(&str, &str)]) -> Result<InitPlan, SpecError> {
    planned_for(pod, Trust::Controller, env)
}

fn planned_for(pod: &Pod, trust: Trust, env: &[(&str, &str)]) -> Result<InitPlan, SpecError> {
    let volumes = ["a", "b", "c"]
        .map(|name| (name.to_owned(), VolumeSource { path: format!("/v/{name}").into(), read_only: name == "c" }))
        .into();
    let resolved = Resolved {
        program: Path::new("/l"),
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
    plan(pod, trust, &resolved)
}

#[test]
fn a_users_pod_gets_nothing_of_the_host() {
    let host_path = json!({"volumes": [{"name": "h", "hostPath": {"path": "/etc"}}]});
    let root = json!({"securityContext": {"privileged": true, "runAsUser": 0, "runAsGroup": 0}});
    for (container, spec, expected) in
        [(json!({}), host_path.clone(), "\"h\" is a hostPath"), (root.clone(), json!({}), "privileged containers")]
    {
        let pod = pod(container, spec);
        let error = planned_for(&pod, Trust::Tenant, &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        for trust in [Trust::Controller, Trust::Host] {
            planned_for(&pod, trust, &[]).unwrap();
        }
    }
    planned_for(&pod(json!({}), json!({})), Trust::Tenant, &[]).unwrap();
}

#[test]
fn no_pod_runs_with_ids_of_the_host() {
    // 42 is the group shadow of Debian, 1000 the first person, 65534 nobody, who owns what has no owner.
    for trust in [Trust::Tenant, Trust::Controller, Trust::Host] {
        for id in
            [-1_i64, 0, 1, 42, 106, 108, 999, 1000, 65534, 100_000, 999_999_999, 2_147_352_576, i64::from(u32::MAX)]
        {
            for (container, spec) in [
                (json!({"securityContext": {"runAsUser": id, "runAsGroup": 107}}), json!({})),
                (json!({"securityContext": {"runAsGroup": id}}), json!({})),
                (json!({}), json!({"securityContext": {"runAsUser": id}})),
                (json!({}), json!({"securityContext": {"runAsGroup": id}})),
                (json!({}), json!({"securityContext": {"fsGroup": id}})),
                (json!({}), json!({"securityContext": {"supplementalGroups": [107, id]}})),
            ] {
                assert!(planned_for(&pod(container.clone(), spec.clone()), trust, &[]).is_err(), "{container} {spec}");
            }
        }
        let free = json!({"securityContext": {
            "runAsUser": 1_000_000_000, "runAsGroup": 107, "fsGroup": 1_000_650_000, "supplementalGroups": [2_000_000_000],
        }});
        planned_for(&pod(json!({}), free), trust, &[]).unwrap();
    }
}

#[test]
fn names_that_become_paths_are_names() {
    for name in ["../../../../etc", "a/b", ".", "..", "", "A", "-a", "a\0b", "..data", &"a".repeat(64)] {
        let volume = json!({"volumes": [{"name": name, "emptyDir": {}}]});
        assert_eq!(planned(&pod(json!({}), volume), &[]), Err(SpecError::Name(name.into())), "{name:?}");
        assert_eq!(planned(&pod(json!({"name": name}), json!({})), &[]), Err(SpecError::Name(name.into())), "{name:?}");
    }
    let twice =
        json!({"volumes": [{"name": "sockets", "emptyDir": {}}, {"name": "sockets", "hostPath": {"path": "/run"}}]});
    assert_eq!(planned(&pod(json!({}), twice), &[]), Err(SpecError::TwoVolumes("sockets".into())));
}

#[test]
fn one_container_may_run_beside_the_first_if_it_is_no_more_than_that() {
    let image = pod(json!({}), json!({})).spec.unwrap().containers[0].image.clone().unwrap();
    let beside = |more: serde_json::Value| {
        let mut container = json!({ "name": "second", "image": image, "command": ["/usr/bin/ferrovirt-launcher"],
            "args": ["console-log"], "restartPolicy": "Always" });
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "initContainers": [container] })
    };
    let plan = planned(&pod(json!({}), beside(json!({}))), &[]).unwrap().sidecar.unwrap();
    assert_eq!((plan.container.as_str(), plan.uid, plan.command.len()), ("second", 107, 2));
    let other = format!("ferrovirt@sha256:{}", "0".repeat(64));
    for (more, expected) in [
        (json!({ "restartPolicy": null }), "initContainers"),
        (json!({ "image": other }), "initContainers"),
        (json!({ "name": "compute" }), "initContainers"),
        (json!({ "command": null }), "initContainers"),
        (json!({ "env": [{ "name": "A", "value": "b" }] }), "initContainers"),
        (json!({ "securityContext": { "runAsUser": 0 } }), "initContainers"),
        (json!({ "securityContext": { "privileged": true, "runAsUser": 0, "runAsGroup": 0 } }), "initContainers"),
        (json!({ "name": "../x" }), "not a name"),
    ] {
        let error = planned(&pod(json!({}), beside(more.clone())), &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
    }
    let two =
        json!({ "initContainers": [beside(json!({}))["initContainers"][0], beside(json!({}))["initContainers"][0]] });
    assert!(planned(&pod(json!({}), two), &[]).is_err());
}

#[test]
fn what_cannot_run_is_refused_with_the_reason() {
    for (container, spec, expected) in [
        (json!({"image": "nginx"}), json!({}), "\"nginx\" is none"),
        (json!({"image": "ferrovirt-launcher:latest"}), json!({}), "known by its digest"),
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
        assert_eq!(expand(text, &env, &mut 100).unwrap(), expected, "{text}");
    }
}

#[test]
fn few_words_do_not_become_all_of_the_memory() {
    let names: Vec<String> = (0..64).map(|number| format!("V{number}")).collect();
    let twice: Vec<String> = (0..64).map(|number| format!("$(V{0})$(V{0})", i32::max(number - 1, 0))).collect();
    let mut env: Vec<(&str, &str)> =
        names.iter().zip(&twice).map(|(name, value)| (name.as_str(), value.as_str())).collect();
    env[0].1 = "0123456789abcdef";
    assert_eq!(planned_for(&pod(json!({}), json!({})), Trust::Tenant, &env).unwrap_err(), SpecError::TooLong);
    planned_for(&pod(json!({}), json!({})), Trust::Tenant, &env[..10]).unwrap();
    let command = json!({"args": vec!["$(V9)"; 1000]});
    assert_eq!(planned_for(&pod(command, json!({})), Trust::Tenant, &env[..10]).unwrap_err(), SpecError::TooLong);
    let many: Vec<Value> = (0..2000).map(|number| json!({"name": format!("V{number}"), "value": "x"})).collect();
    let error = container(&pod(json!({"env": many}), json!({})), Trust::Tenant).unwrap_err();
    assert!(error.to_string().contains("variables"), "{error}");
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
        "securityContext": {"runAsUser": 107, "fsGroup": 107, "supplementalGroups": [1_000_000_200],
                            "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]},
        "dnsConfig": {"searches": ["example.org"], "options": [{"name": "ndots", "value": "2"}]},
    });
    let plan = planned(&pod(container, spec), &[("NAME", "vm-$(HOSTNAME)"), ("PATH", "/bin")]).unwrap();
    assert_eq!(plan.command, ["/usr/bin/ferrovirt-launcher", "run", "--name", "vm-vm1"]);
    assert_eq!(plan.env[0], ("PATH".to_owned(), "/bin".to_owned()));
    assert_eq!((plan.uid, plan.gid, plan.groups.as_slice()), (107, 107, [107, 1_000_000_200].as_slice()));
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
    let tool = planned(&pod(json!({"image": image("ferrovirt")}), json!({})), &[]).unwrap();
    assert_eq!(
        (tool.command.as_slice(), tool.program_path.as_deref()),
        (["/usr/bin/ferrovirt".to_owned()].as_slice(), Some(Path::new("/usr/bin/ferrovirt")))
    );
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
