//! Which message stands for which API type.

/// The message names an object's type may stand for, best first.
pub(super) fn candidates(api_version: &str, kind: &str) -> Vec<String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let package = match group {
        "" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        other => other.split('.').next().unwrap_or(other),
    };
    let mut out = vec![format!("k8s.io.api.{package}.{version}.{kind}")];
    match group {
        "apiextensions.k8s.io" => {
            out.push(format!("k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.{version}.{kind}"))
        }
        "apiregistration.k8s.io" => {
            out.push(format!("k8s.io.kube_aggregator.pkg.apis.apiregistration.{version}.{kind}"))
        }
        _ => {}
    }
    // Options, Status and the like belong to no group and travel under any.
    out.push(format!("k8s.io.apimachinery.pkg.apis.meta.v1.{kind}"));
    out
}
