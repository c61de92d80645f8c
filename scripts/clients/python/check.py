"""A program as people write them with the Python client: typed and dynamic clients, watches, patches, errors."""

import os
import sys

from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.rest import ApiException

NAMESPACE = "python"
MACHINE = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachine",
    "metadata": {"name": "halted"},
    "spec": {
        "runStrategy": "Halted",
        "template": {"spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}}},
    },
}


def main() -> None:
    config.load_kube_config(os.environ["KUBECONFIG"])
    core = client.CoreV1Api()
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "one", "labels": {"a": "b"}}, "data": {"a": "1"}})
    try:
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "one"}})
        sys.exit("a second create succeeded")
    except ApiException as error:
        assert error.status == 409 and "AlreadyExists" in error.body, error
    patched = core.patch_namespaced_config_map("one", NAMESPACE, {"data": {"b": "2"}})
    assert patched.data == {"a": "1", "b": "2"}, patched.data
    listed = core.list_namespaced_config_map(NAMESPACE, label_selector="a=b", limit=1)
    assert [item.metadata.name for item in listed.items] == ["one"]
    version = listed.metadata.resource_version
    core.delete_namespaced_config_map("one", NAMESPACE)
    for event in watch.Watch().stream(core.list_namespaced_config_map, NAMESPACE, resource_version=version, timeout_seconds=60):
        if event["type"] == "DELETED":
            assert event["object"].metadata.name == "one"
            break
    else:
        sys.exit("the watch did not see the deletion")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": NAMESPACE}, "stringData": {"k": "v"}}
    utils.create_from_dict(client.ApiClient(), secret)
    assert core.read_namespaced_secret("s", NAMESPACE).data == {"k": "dg=="}

    machines = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="kubevirt.io/v1", kind="VirtualMachine")
    machines.create(body=MACHINE, namespace=NAMESPACE)
    applied = {**MACHINE, "metadata": {"name": "halted", "namespace": NAMESPACE, "labels": {"by": "apply"}}}
    machines.server_side_apply(body=applied, namespace=NAMESPACE, field_manager="python", force_conflicts=True)
    assert machines.get(name="halted", namespace=NAMESPACE).metadata.labels["by"] == "apply"
    custom = client.CustomObjectsApi()
    custom.delete_namespaced_custom_object("kubevirt.io", "v1", NAMESPACE, "virtualmachines", "halted")
    review = client.AuthorizationV1Api().create_self_subject_access_review(
        {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}}
    )
    assert review.status.allowed
    core.delete_namespace(NAMESPACE)
    print("python: ok")


main()
