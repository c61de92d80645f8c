//! The `KubeVirt` object: what it may say, what of it is old, and what of it nobody here reads.
//!
//! Judged as it is written, not as a type: what counts is often whether something is there at all.

use ferrovirt_plan::cluster_defaults::{self, GATES, Stage};
use ferrovirt_schema::duration;
use serde_json::Value;

use super::{Cause, FORBIDDEN, Findings};

const CONFIGURATION: &str = "spec.configuration";

/// The rules, in upstream's order. Some hold only for what is changed.
pub fn causes(old: &Value, new: &Value) -> Vec<Cause> {
    let mut found = Findings::default();
    let (spec, configuration) = (&new["spec"], &new["spec"]["configuration"]);
    let before = &old["spec"]["configuration"];
    let is_changed = |key: &str| before[key] != configuration[key];
    customizations(&spec["customizeComponents"], &mut found);
    certificates(&spec["certificateRotateStrategy"]["selfSigned"], &mut found);
    ratio(&configuration["additionalGuestMemoryOverheadRatio"], &mut found);
    gated(configuration, &mut found);
    migrations(before, configuration, &mut found);
    if is_changed("tlsConfiguration") {
        tls(&configuration["tlsConfiguration"], &mut found);
    }
    if is_changed("seccompConfiguration") {
        seccomp(&configuration["seccompConfiguration"], &mut found);
    }
    if spec["infra"]["replicas"] == 0 {
        found.invalid("spec.infra.replicas".into(), "infra replica count can't be 0");
    }
    if gates_changed(before, configuration) {
        gates(configuration, &mut found);
    }
    found.0
}

fn customizations(components: &Value, found: &mut Findings) {
    for (index, patch) in list(&components["patches"]).iter().enumerate() {
        let text = patch["patch"].as_str().unwrap_or_default();
        if serde_json::from_str::<Value>(text).is_err() {
            let field = format!("spec.customizeComponents.patches[{index}].patch");
            found.unsupported(field, format!("patch {text:?} is not valid JSON"));
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Lifetimes of certificates, in the words of both versions of the field.
fn certificates(strategy: &Value, found: &mut Findings) {
    if strategy.is_null() {
        return;
    }
    let field = "spec.certificateRotateStrategy.selfSigned";
    let there = |key: &str| !strategy[key].is_null();
    let older = ["caRotateInterval", "certRotateInterval", "caOverlapInterval"];
    if older.iter().any(|key| there(key)) && (there("ca") || there("server")) {
        found.unsupported(
            field.into(),
            "caRotateInterval, certRotateInterval and caOverlapInterval are deprecated and conflict with CertConfig defined rotation parameters",
        );
    }
    const HOUR: i128 = 3_600_000_000_000;
    let told = |value: &Value| value.as_str().and_then(nanoseconds);
    let ca = told(&strategy["caRotateInterval"]).or(told(&strategy["ca"]["duration"])).unwrap_or(7 * 24 * HOUR);
    let ca_renewed = told(&strategy["caOverlapInterval"]).or(told(&strategy["ca"]["renewBefore"])).unwrap_or(ca / 5);
    let server = told(&strategy["certRotateInterval"]).or(told(&strategy["server"]["duration"])).unwrap_or(24 * HOUR);
    let server_renewed = told(&strategy["server"]["renewBefore"]).unwrap_or(server / 5);
    let selfsigned = "spec.certificateRotationStrategy.selfSigned";
    if ca < ca_renewed {
        let message =
            format!("CA RenewBefore cannot exceed Duration ({selfsigned}.ca.duration < {selfsigned}.ca.renewBefore)");
        found.invalid(format!("{field}.ca"), message);
    }
    if server < server_renewed {
        let message = format!(
            "Cert RenewBefore cannot exceed Duration ({selfsigned}.server.duration < {selfsigned}.server.renewBefore)"
        );
        found.invalid(format!("{field}.server"), message);
    }
    if server > ca {
        let message =
            format!("Certificate duration cannot exceed CA ({selfsigned}.server.duration > {selfsigned}.ca.duration)");
        found.invalid(format!("{field}.server"), message);
    }
}

fn nanoseconds(text: &str) -> Option<i128> {
    duration::parse(text).map(i128::from)
}

/// How much more memory a pod asks for than its guest's processes are reckoned to need.
fn ratio(value: &Value, found: &mut Findings) {
    let Some(text) = value.as_str() else { return };
    let field = format!("{CONFIGURATION}.additionalGuestMemoryOverheadRatio");
    match text.parse::<f64>() {
        Err(error) => {
            found.unsupported(field, format!("ratio provided, {text}, cannot be parsed into float: {error}"));
        }
        Ok(ratio) if ratio < 1.0 => {
            found.unsupported(field, format!("ratio provided, {text}, cannot be smaller than 1.0"));
        }
        Ok(_) => {}
    }
}

/// Settings behind gates.
fn gated(configuration: &Value, found: &mut Findings) {
    if configuration["virtTemplateDeployment"]["enabled"] == true && !open(configuration, "Template") {
        found.invalid(
            format!("{CONFIGURATION}.virtTemplateDeployment.enabled"),
            "VirtTemplateDeployment cannot be enabled without enabling the Template feature gate",
        );
    }
    let strategy = configuration["roleAggregationStrategy"].as_str();
    if strategy.is_some_and(|one| one != "AggregateToDefault") && !open(configuration, "OptOutRoleAggregation") {
        found.invalid(
            format!("{CONFIGURATION}.roleAggregationStrategy"),
            "RoleAggregationStrategy cannot be set to Manual without enabling the OptOutRoleAggregation feature gate",
        );
    }
}

fn open(configuration: &Value, gate: &str) -> bool {
    let configuration = serde_json::from_value(configuration.clone()).unwrap_or_default();
    cluster_defaults::feature_gate(&configuration, gate)
}

fn migrations(before: &Value, configuration: &Value, found: &mut Findings) {
    let downtime = |configuration: &Value| configuration["migrations"]["maxDowntimeMs"].clone();
    let new = downtime(configuration);
    if !new.is_null() && new != downtime(before) && !open(configuration, "MigrationStallDetection") {
        found.invalid(
            format!("{CONFIGURATION}.migrationConfiguration.maxDowntimeMs"),
            "maxDowntimeMs cannot be modified without enabling the MigrationStallDetection feature gate",
        );
    }
}

/// Names of the suites that Go's TLS knows.
const CIPHERS: &[&str] = &[
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

fn tls(tls: &Value, found: &mut Findings) {
    let field = format!("{CONFIGURATION}.tlsConfiguration.ciphers");
    let ciphers = list(&tls["ciphers"]);
    if ["", "VersionTLS13"].contains(&tls["minTLSVersion"].as_str().unwrap_or_default()) {
        if !ciphers.is_empty() {
            found.unsupported(
                field,
                "You cannot specify ciphers when spec.configuration.tlsConfiguration.minTLSVersion is empty or VersionTLS13",
            );
        }
        return;
    }
    for (index, cipher) in ciphers.iter().enumerate() {
        let cipher = cipher.as_str().unwrap_or_default();
        if !CIPHERS.contains(&cipher) {
            found.unsupported(format!("{field}#{index}"), format!("{cipher} is not a valid cipher"));
        }
    }
}

fn seccomp(seccomp: &Value, found: &mut Findings) {
    let profile = &seccomp["virtualMachineInstanceProfile"];
    if profile.is_null() {
        return;
    }
    let field = format!("{CONFIGURATION}.seccompConfiguration.virtualMachineInstanceProfile.customProfile");
    let custom = &profile["customProfile"];
    if custom.is_null() {
        return found.invalid(field.clone(), format!("{field} needs to be set"));
    }
    if !custom["localhostProfile"].is_null() && custom["runtimeDefaultProfile"] == true {
        let (one, other) = (format!("{field}.localhostProfile"), format!("{field}.runtimeDefaultProfile"));
        found.invalid(one.clone(), format!("{one} cannot be set when {other} is set"));
        found.invalid(other.clone(), format!("{other} cannot be set when {one} is set"));
    }
}

fn names<'a>(configuration: &'a Value, key: &str) -> Vec<&'a str> {
    list(&configuration["developerConfiguration"][key]).iter().filter_map(Value::as_str).collect()
}

fn gates_changed(before: &Value, after: &Value) -> bool {
    !after["developerConfiguration"].is_null()
        && (before["developerConfiguration"].is_null()
            || ["featureGates", "disabledFeatureGates"].iter().any(|key| names(before, key) != names(after, key)))
}

fn gates(configuration: &Value, found: &mut Findings) {
    let closed = names(configuration, "disabledFeatureGates");
    for gate in names(configuration, "featureGates").into_iter().filter(|gate| closed.contains(gate)) {
        found.add(
            FORBIDDEN,
            format!("{CONFIGURATION}.developerConfiguration.featureGates"),
            format!("feature gate \"{gate}\" exists on both \"FeatureGates\" and \"DisabledFeatureGates\""),
        );
    }
}

/// Gates that open something here.
const HEEDED: &[&str] = &[
    "AlignCPUs",
    "ConfigurableHypervisor",
    "DecentralizedLiveMigration",
    "DeclarativeHotplugVolumes",
    "DownwardMetrics",
    "EnableVirtioFsStorageVolumes",
    "ExperimentalIgnitionSupport",
    "GPUsWithDRA",
    "HostDevices",
    "HostDevicesWithDRA",
    "HostDisk",
    "ImageVolume",
    "MigrationStallDetection",
    "NetworkDevicesWithDRA",
    "NodeRestriction",
    "OptOutRoleAggregation",
    "PasstBinding",
    "PersistentReservation",
    "PortRangesSpec",
    "RebootPolicy",
    "ReservedOverheadMemlock",
    "Root",
    "Sidecar",
    "Template",
    "VSOCK",
    "WorkloadEncryptionSEV",
    "WorkloadEncryptionTDX",
];

/// Settings that are stored and that nothing here reads, below `spec`.
const IGNORED: &[&str] = &[
    "configuration.apiConfiguration",
    "configuration.changedBlockTrackingLabelSelectors",
    "configuration.commonInstancetypesDeployment",
    "configuration.controllerConfiguration",
    "configuration.developerConfiguration.clusterProfiler",
    "configuration.developerConfiguration.diskVerification",
    "configuration.developerConfiguration.logVerbosity",
    "configuration.developerConfiguration.memoryOvercommit",
    "configuration.developerConfiguration.minimumClusterTSCFrequency",
    "configuration.developerConfiguration.minimumReservePVCBytes",
    "configuration.developerConfiguration.nodeSelectors",
    "configuration.developerConfiguration.pvcTolerateLessSpaceUpToPercent",
    "configuration.handlerConfiguration",
    "configuration.instancetype",
    "configuration.ksmConfiguration",
    "configuration.mediatedDevicesConfiguration",
    "configuration.memBalloonStatsPeriod",
    "configuration.migrations",
    "configuration.minCPUModel",
    "configuration.network.binding",
    "configuration.network.permitSlirpInterface",
    "configuration.obsoleteCPUModels",
    "configuration.ovmfPath",
    "configuration.permittedHostDevices",
    "configuration.roleAggregationStrategy",
    "configuration.seccompConfiguration",
    "configuration.selinuxLauncherType",
    "configuration.smbios",
    "configuration.supportContainerResources",
    "configuration.supportedGuestAgentVersions",
    "configuration.tlsConfiguration",
    "configuration.virtTemplateDeployment",
    "configuration.virtualMachineInstancesPerNode",
    "configuration.webhookConfiguration",
    "customizeComponents",
    "imagePullPolicy",
    "imagePullSecrets",
    "imageRegistry",
    "imageTag",
    "infra",
    "monitorAccount",
    "monitorNamespace",
    "productComponent",
    "productName",
    "productVersion",
    "serviceMonitorNamespace",
    "synchronizationPort",
    "workloadUpdateStrategy",
    "workloads",
];

/// What is said to whoever writes an object that is accepted.
pub fn warnings(old: &Value, new: &Value) -> Vec<String> {
    let (before, configuration) = (&old["spec"]["configuration"], &new["spec"]["configuration"]);
    let mut warnings = vec![];
    if gates_changed(before, configuration) {
        let listed = names(configuration, "featureGates");
        warnings.extend(listed.iter().filter_map(|gate| cluster_defaults::outdated_gate(gate)));
        let earlier = names(before, "featureGates");
        let idle = listed.iter().filter(|gate| !earlier.contains(gate) && is_idle(gate));
        warnings.extend(idle.map(|gate| {
            format!("{CONFIGURATION}.developerConfiguration.featureGates: {gate} opens nothing in Ferrovirt")
        }));
    }
    let devices = &configuration["mediatedDevicesConfiguration"];
    let field = format!("{CONFIGURATION}.mediatedDevicesConfiguration");
    let mut places = vec![(format!("{field}.mediatedDevicesTypes"), &devices["mediatedDevicesTypes"])];
    for (index, node) in list(&devices["nodeMediatedDeviceTypes"]).iter().enumerate() {
        let place = format!("{field}.nodeMediatedDeviceTypes[{index}].mediatedDevicesTypes");
        places.push((place, &node["mediatedDevicesTypes"]));
    }
    for (place, _) in places.into_iter().filter(|(_, value)| says_something(value)) {
        warnings.push(format!("{place} is deprecated, use mediatedDeviceTypes"));
    }
    if !configuration["architectureConfiguration"]["ppc64le"].is_null() {
        warnings
            .push(format!("{CONFIGURATION}.architectureConfiguration.ppc64le is deprecated and no longer supported."));
    }
    for path in IGNORED {
        let at = |object: &Value| path.split('.').fold(object["spec"].clone(), |value, key| value[key].clone());
        let value = at(new);
        if says_something(&value) && value != at(old) {
            warnings.push(format!("spec.{path}: Ferrovirt stores this setting and does nothing with it yet"));
        }
    }
    warnings
}

fn is_idle(gate: &str) -> bool {
    let known = GATES.iter().find(|(name, _)| *name == gate).map(|(_, stage)| *stage);
    matches!(known, None | Some(Stage::Alpha | Stage::Beta)) && !HEEDED.contains(&gate)
}

/// False for what a client writes that sets nothing: zero values, at any depth.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => fields.values().any(says_something),
    }
}

#[cfg(test)]
#[path = "kubevirt_tests.rs"]
mod tests;
