//! One row per setting: the object before and after, and what is refused or said. The facts are upstream's.

use serde_json::json;

use super::*;

fn spec(spec: Value) -> Value {
    json!({ "metadata": { "name": "kubevirt" }, "spec": spec })
}

fn configuration(configuration: Value) -> Value {
    spec(json!({ "configuration": configuration }))
}

fn fields(old: &Value, new: &Value) -> Vec<String> {
    causes(old, new).into_iter().map(|cause| cause.field).collect()
}

/// From nothing to this.
fn refused(new: Value) -> Vec<String> {
    fields(&spec(json!({})), &new)
}

#[test]
fn settings_that_cannot_be() {
    let c = |rest: &str| format!("spec.configuration.{rest}");
    let gates = |open: &[&str], closed: &[&str]| json!({ "featureGates": open, "disabledFeatureGates": closed });
    let profile = |profile: Value| json!({ "seccompConfiguration": { "virtualMachineInstanceProfile": profile } });
    let custom = "seccompConfiguration.virtualMachineInstanceProfile.customProfile";
    let tls = |version: &str, ciphers: &[&str]| json!({ "tlsConfiguration": { "minTLSVersion": version, "ciphers": ciphers } });
    let ciphers = "tlsConfiguration.ciphers";
    let sound = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    for (new, expected) in [
        (json!({ "virtTemplateDeployment": { "enabled": true } }), vec![]),
        (
            json!({ "virtTemplateDeployment": { "enabled": true }, "developerConfiguration": gates(&[], &["Template"]) }),
            vec![c("virtTemplateDeployment.enabled")],
        ),
        (json!({ "virtTemplateDeployment": {}, "developerConfiguration": gates(&[], &["Template"]) }), vec![]),
        (json!({ "roleAggregationStrategy": "Manual" }), vec![]),
        (
            json!({ "roleAggregationStrategy": "Manual", "developerConfiguration": gates(&[], &["OptOutRoleAggregation"]) }),
            vec![c("roleAggregationStrategy")],
        ),
        (
            json!({ "roleAggregationStrategy": "AggregateToDefault", "developerConfiguration": gates(&[], &["OptOutRoleAggregation"]) }),
            vec![],
        ),
        (json!({ "migrations": { "maxDowntimeMs": 900 } }), vec![c("migrationConfiguration.maxDowntimeMs")]),
        (
            json!({ "migrations": { "maxDowntimeMs": 900 }, "developerConfiguration": gates(&["MigrationStallDetection"], &[]) }),
            vec![],
        ),
        (profile(json!({})), vec![c(custom)]),
        (profile(json!({ "customProfile": { "localhostProfile": "p" } })), vec![]),
        (
            profile(json!({ "customProfile": { "localhostProfile": "p", "runtimeDefaultProfile": true } })),
            vec![c(&format!("{custom}.localhostProfile")), c(&format!("{custom}.runtimeDefaultProfile"))],
        ),
        (tls("", &["TLS_AES_256_GCM_SHA384"]), vec![c(ciphers)]),
        (tls("VersionTLS13", &["TLS_AES_256_GCM_SHA384"]), vec![c(ciphers)]),
        (tls("VersionTLS12", &[sound, "NOT_VALID_CIPHER"]), vec![c(&format!("{ciphers}#1"))]),
        (tls("VersionTLS12", &[sound]), vec![]),
        (json!({ "additionalGuestMemoryOverheadRatio": "abcdefg" }), vec![c("additionalGuestMemoryOverheadRatio")]),
        (json!({ "additionalGuestMemoryOverheadRatio": "1.fd3ggx" }), vec![c("additionalGuestMemoryOverheadRatio")]),
        (json!({ "additionalGuestMemoryOverheadRatio": "0.999" }), vec![c("additionalGuestMemoryOverheadRatio")]),
        (json!({ "additionalGuestMemoryOverheadRatio": "-1.3" }), vec![c("additionalGuestMemoryOverheadRatio")]),
        (json!({ "additionalGuestMemoryOverheadRatio": "1.123" }), vec![]),
        (json!({ "developerConfiguration": gates(&["A", "B"], &["C"]) }), vec![]),
        (
            json!({ "developerConfiguration": gates(&["A", "B", "C"], &["A", "B"]) }),
            vec![c("developerConfiguration.featureGates"), c("developerConfiguration.featureGates")],
        ),
    ] {
        assert_eq!(refused(configuration(new.clone())), expected, "{new}");
    }
}

#[test]
fn settings_outside_the_configuration() {
    let patch = |patch: &str| json!({ "customizeComponents": { "patches": [{ "patch": patch }] } });
    for (text, sound) in [("{}", true), ("{\"json: \"not valid\"}", false), ("", false)] {
        assert_eq!(refused(spec(patch(text))).is_empty(), sound, "{text:?}");
    }
    assert_eq!(refused(spec(json!({ "infra": { "replicas": 0 } }))), ["spec.infra.replicas"]);
    assert!(refused(spec(json!({ "infra": { "replicas": 1 } }))).is_empty());
    let strategy = |strategy: Value| refused(spec(json!({ "certificateRotateStrategy": { "selfSigned": strategy } })));
    assert!(strategy(json!({})).is_empty());
    assert!(strategy(json!({ "ca": { "duration": "48h" }, "server": { "duration": "24h" } })).is_empty());
    assert_eq!(
        strategy(json!({ "ca": { "duration": "20h", "renewBefore": "22h" }, "server": { "duration": "4h" } })).len(),
        1
    );
    assert_eq!(strategy(json!({ "server": { "duration": "4h", "renewBefore": "5h" } })).len(), 1);
    assert_eq!(strategy(json!({ "server": { "duration": "200h" } })).len(), 1);
    assert_eq!(strategy(json!({ "caRotateInterval": "48h", "server": { "duration": "24h" } })).len(), 1);
}

#[test]
fn what_is_as_it_was_is_not_judged_again() {
    for held in [
        json!({ "tlsConfiguration": { "ciphers": ["X"] } }),
        json!({ "seccompConfiguration": { "virtualMachineInstanceProfile": {} } }),
        json!({ "developerConfiguration": { "featureGates": ["A"], "disabledFeatureGates": ["A"] } }),
        json!({ "migrations": { "maxDowntimeMs": 900 } }),
    ] {
        let object = configuration(held);
        assert_eq!(fields(&object, &object), Vec::<String>::new(), "{object}");
        assert!(!refused(object.clone()).is_empty(), "{object}");
    }
}

#[test]
fn what_is_old_is_told() {
    let said = |new: &Value| warnings(new, new);
    let devices = |devices: Value| configuration(json!({ "mediatedDevicesConfiguration": devices }));
    let old =
        "spec.configuration.mediatedDevicesConfiguration.mediatedDevicesTypes is deprecated, use mediatedDeviceTypes";
    assert_eq!(said(&devices(json!({ "mediatedDevicesTypes": ["a"] }))), [old]);
    assert!(said(&devices(json!({ "mediatedDevicesTypes": [] }))).is_empty());
    let node = said(&devices(json!({ "nodeMediatedDeviceTypes": [{ "mediatedDevicesTypes": ["a"] }] })));
    assert!(node[0].contains("nodeMediatedDeviceTypes[0].mediatedDevicesTypes is deprecated"), "{node:?}");
    let power = configuration(json!({ "architectureConfiguration": { "ppc64le": {} } }));
    assert!(said(&power)[0].contains("ppc64le is deprecated and no longer supported."));
    for gate in [
        "LiveMigration",
        "SRIOVLiveMigration",
        "NonRoot",
        "PSA",
        "CPUNodeDiscovery",
        "HotplugNICs",
        "Passt",
        "Macvtap",
        "ExperimentalVirtiofsSupport",
        "DisableMDEVConfiguration",
    ] {
        let new = configuration(json!({ "developerConfiguration": { "featureGates": [gate] } }));
        let warnings = warnings(&spec(json!({})), &new);
        assert_eq!(warnings, [cluster_defaults::outdated_gate(gate).unwrap()], "{gate}");
    }
}

#[test]
fn what_nobody_reads_is_told_when_it_is_written() {
    let nothing = spec(json!({}));
    let new = spec(json!({ "configuration": { "migrations": { "parallelMigrationsPerCluster": 3 },
        "developerConfiguration": { "featureGates": ["IncrementalBackup", "HostDisk"] } }, "infra": { "replicas": 2 } }));
    let said = warnings(&nothing, &new);
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[0].contains("IncrementalBackup opens nothing"));
    assert!(said[1].starts_with("spec.configuration.migrations: Ferrovirt stores this setting"));
    assert!(said[2].starts_with("spec.infra: "));
    assert!(warnings(&new, &new).is_empty());
    // What our own programs write.
    let own = configuration(
        json!({ "developerConfiguration": { "useEmulation": true }, "hypervisors": [{ "name": "lxc" }] }),
    );
    assert!(warnings(&nothing, &own).is_empty());
}
