"""Services: addresses, ports, changes of type."""

from run import MERGE, STRATEGIC, TABLE, Case, Step

from .objects import NS

SERVICES = NS + "/services"


def service(name, **spec):
    return {"metadata": {"name": name}, "spec": spec}


P80 = [{"port": 80}]

CASES = [
    Case(
        "services",
        [
            Step("POST", SERVICES, service("s1", ports=P80)),
            Step("POST", SERVICES, service("1bad", ports=P80)),
            Step("POST", SERVICES, service("s2")),
            Step("POST", SERVICES, service("s2", clusterIP="None")),
            Step("POST", SERVICES, service("s3", ports=[{"port": 80}, {"port": 81}])),
            Step("POST", SERVICES, service("s3", ports=[{"port": 80, "name": "a"}, {"port": 80, "name": "b"}])),
            Step("POST", SERVICES, service("s3", ports=[{"port": 80, "name": "a"}, {"port": 81, "name": "a"}])),
            Step("POST", SERVICES, service("s3", ports=[{"port": 0}])),
            Step("POST", SERVICES, service("s3", ports=[{"port": 70000}])),
            Step("POST", SERVICES, service("s3", ports=[{"port": 80, "protocol": "X"}])),
            Step("POST", SERVICES, service("s3", ports=[{"port": 80, "targetPort": "UPPER"}])),
            Step("POST", SERVICES, service("s3", ports=P80, type="Nonsense")),
            Step("POST", SERVICES, service("s3", ports=P80, clusterIP="nonsense")),
            Step("POST", SERVICES, service("s3", ports=P80, clusterIP="192.0.2.1"), only=("code", "reason")),
            Step("POST", SERVICES, service("s3", ports=P80, sessionAffinity="Nonsense")),
            Step("POST", SERVICES, service("s3", ports=P80, sessionAffinity="ClientIP")),
            Step("POST", SERVICES, service("s4", type="ExternalName", externalName="example.com")),
            Step("POST", SERVICES, service("s5", type="ExternalName")),
            Step("POST", SERVICES, service("s5", type="ExternalName", externalName="a_b")),
            Step("POST", SERVICES, service("s6", type="NodePort", ports=[{"port": 80, "nodePort": 31999}])),
            Step("POST", SERVICES, service("s7", type="NodePort", ports=[{"port": 80, "nodePort": 31999}])),
            Step("POST", SERVICES, service("s7", type="NodePort", ports=[{"port": 80, "nodePort": 80}])),
            Step("POST", SERVICES, service("s7", type="ClusterIP", ports=[{"port": 80, "nodePort": 31998}])),
            Step("POST", SERVICES, service("s7", type="NodePort", clusterIP="None", ports=P80)),
            Step("POST", SERVICES, service("s8", type="LoadBalancer", ports=P80), ignore=("spec.ports.0.nodePort",)),
            Step("POST", SERVICES, service("s9", type="LoadBalancer", allocateLoadBalancerNodePorts=False, ports=P80)),
            Step("POST", SERVICES, service("s10", ports=P80, externalTrafficPolicy="Local")),
            Step("POST", SERVICES, service("s10", ports=P80, ipFamilyPolicy="RequireDualStack"), differs="this host has addresses of both families"),
            Step("POST", SERVICES, service("s10", ports=P80, ipFamilyPolicy="PreferDualStack"), differs="this host has addresses of both families"),
            Step("POST", SERVICES, service("s11", ports=P80, ipFamilies=["IPv6"]), differs="this host has addresses of both families"),
            Step("POST", SERVICES, service("s11", ports=P80, externalIPs=["nonsense"])),
            Step("GET", SERVICES + "/s1", accept=TABLE),
            Step("GET", SERVICES + "/s4", accept=TABLE),
            Step("GET", SERVICES + "/s6", accept=TABLE),
        ],
    ),
    Case(
        "service changes",
        [
            Step("PATCH", SERVICES + "/s1", {"spec": {"clusterIP": "192.0.2.1"}}, MERGE),
            Step("PATCH", SERVICES + "/s1", {"spec": {"clusterIP": "None"}}, MERGE, only=("code", "reason")),
            Step("PATCH", SERVICES + "/s1", {"spec": {"type": "NodePort"}}, MERGE, ignore=("spec.ports.0.nodePort", "metadata.managedFields")),
            Step("PATCH", SERVICES + "/s1", {"spec": {"type": "ClusterIP"}}, MERGE, ignore=("metadata.managedFields",)),
            Step("PATCH", SERVICES + "/s1", {"spec": {"type": "ExternalName", "externalName": "example.com"}}, MERGE, ignore=("metadata.managedFields",)),
            Step("PATCH", SERVICES + "/s1", {"spec": {"type": "ClusterIP", "externalName": None}}, MERGE, ignore=("metadata.managedFields",)),
            Step("PATCH", SERVICES + "/s1", {"spec": {"ports": [{"port": 81, "name": "new"}]}}, STRATEGIC),
            Step("PATCH", SERVICES + "/s1", {"spec": {"ports": [{"port": 80, "name": "old"}, {"port": 81, "name": "new"}]}}, STRATEGIC, ignore=("metadata.managedFields",)),
            Step("PATCH", SERVICES + "/s1", {"spec": {"ports": [{"port": 81, "$patch": "delete"}]}}, STRATEGIC, ignore=("metadata.managedFields",)),
            Step("PATCH", SERVICES + "/s6", {"spec": {"ports": [{"port": 80, "nodePort": 32001}]}}, MERGE, ignore=("metadata.managedFields",)),
            Step("POST", SERVICES, service("s12", type="NodePort", ports=[{"port": 80, "nodePort": 31999}]), only=("spec.ports",)),
            Step("PATCH", SERVICES + "/s1/status", {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}, MERGE, ignore=("metadata.managedFields",)),
            Step("PATCH", SERVICES + "/s8/status", {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}, MERGE, only=("status",)),
            Step("PUT", SERVICES + "/s1", service("s1", ports=P80), ignore=("metadata.managedFields",)),
            Step("DELETE", SERVICES + "/s1", only=("kind", "status", "metadata.name")),
        ],
    ),
]
