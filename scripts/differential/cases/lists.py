"""Lists and watches: selectors, chunks, revisions, bookmarks."""

from run import MERGE, PARTIAL, TABLE, Case, Step

from .objects import NS, configmap

LISTS = "/api/v1/namespaces/lists"
MAPS = LISTS + "/configmaps"


def labelled(name, **labels):
    return Step("POST", MAPS, configmap(name, labels=labels))


ROOT_CA = "fieldSelector=metadata.name!=kube-root-ca.crt"

CASES = [
    Case(
        "lists",
        [
            Step("POST", "/api/v1/namespaces", {"metadata": {"name": "lists"}}),
            Step("GET", MAPS + "/kube-root-ca.crt", until=200, only=()),
            labelled("a", app="x", tier="1"),
            labelled("b", app="y"),
            Step("POST", MAPS, configmap("c"), save={"rv": "metadata.resourceVersion"}),
            Step("GET", MAPS + "?" + ROOT_CA),
        ]
        + [
            # A client that sends < and > as they are is not one that others have.
            Step("GET", f"{MAPS}?{ROOT_CA}&labelSelector={selector}", only=("items.0.metadata.name", "items.1.metadata.name", "items.2.metadata.name", "code", "reason", "message"), differs="not a URL" if set("<>") & set(selector) else None)
            for selector in (
                "app=x", "app==x", "app!=x", "app", "!app", "app%20in%20(x,y)", "app%20notin%20(x)", "tier>0", "tier<1", "app=x,tier=1",
                "app=", "=", "app%20in%20()", "app%20in%20(", "a%20b", "app=x,,", "app%20in%20(,x)", "%21", "app=x%20y", "tier>x",
                "-bad=1", "app=-bad", "app=" + "x" * 64, "a/b/c=d", "x/=d",
            )
        ]
        + [
            Step("GET", f"{MAPS}?fieldSelector={selector}", only=("items.0.metadata.name", "items.1.metadata.name", "items.2.metadata.name", "code", "reason", "message"))
            for selector in ("metadata.name=a", "metadata.name!=a,metadata.name!=kube-root-ca.crt", "metadata.namespace=other", "data.a=1", "nonsense", "metadata.name=a%5C", "metadata.name==b", "metadata.name=")
        ]
        + [
            Step("GET", f"{NS}/{plural}?fieldSelector={field}%3Dx", only=("code", "reason", "message", "kind"))
            for plural, field in (
                ("pods", "spec.nodeName"), ("pods", "status.phase"), ("pods", "spec.serviceAccountName"), ("pods", "status.podIP"), ("pods", "spec.image"),
                ("events", "involvedObject.name"), ("events", "reason"), ("events", "type"), ("events", "message"), ("secrets", "type"),
                ("services", "spec.clusterIP"), ("services", "spec.type"), ("services", "spec.ports"), ("replicationcontrollers", "status.replicas"),
            )
        ]
        + [
            Step("GET", f"{MAPS}?{ROOT_CA}&limit=1", save={"next": "metadata.continue"}, ignore=("metadata.remainingItemCount",)),
            Step("GET", f"{MAPS}?{ROOT_CA}&limit=1&continue={{next}}"),
            Step("GET", f"{MAPS}?limit=1&continue={{next}}&resourceVersion=5"),
            Step("GET", f"{MAPS}?limit=1&continue={{next}}&resourceVersionMatch=Exact"),
            Step("GET", f"{MAPS}?continue=nonsense"),
            Step("GET", f"{MAPS}?limit=-1&{ROOT_CA}"),
            Step("GET", f"{MAPS}?limit=x"),
            Step("GET", f"{MAPS}?limit=1", ignore=("items",)),
            Step("GET", f"{MAPS}?resourceVersion=x"),
            Step("GET", f"{MAPS}?resourceVersion=-1"),
            Step("GET", f"{MAPS}?resourceVersionMatch=Exact"),
            Step("GET", f"{MAPS}?resourceVersionMatch=Exact&resourceVersion=0"),
            Step("GET", f"{MAPS}?resourceVersionMatch=Nonsense&resourceVersion=5"),
            Step("GET", f"{MAPS}?resourceVersionMatch=NotOlderThan&resourceVersion=0", only=("code", "kind")),
            Step("GET", f"{MAPS}?resourceVersionMatch=NotOlderThan"),
            Step("GET", f"{MAPS}?sendInitialEvents=true"),
            Step("GET", f"{MAPS}?timeoutSeconds=x"),
            Step("GET", "/api/v1/namespaces/nowhere/configmaps"),
            Step("GET", f"{MAPS}?{ROOT_CA}&resourceVersion={{rv}}&resourceVersionMatch=Exact", only=("items.0.metadata.name", "kind")),
        ],
    ),
    Case(
        "watches",
        [
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&{ROOT_CA}"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&{ROOT_CA}&resourceVersion=0"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=a", accept=TABLE, ignore=("object.rows.*.cells",)),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=a", accept=PARTIAL),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={{rv}}"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion=1", only=("code",)),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion=x", differs="what a client did wrong is no 500 here"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersionMatch=Exact&resourceVersion=5"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersionMatch=NotOlderThan&resourceVersion=5"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&sendInitialEvents=true"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&{ROOT_CA}"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&{ROOT_CA}", only=("0.type", "1.type", "2.type", "3.type", "3.object")),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&sendInitialEvents=x&resourceVersionMatch=NotOlderThan&{ROOT_CA}"),
            Step("GET", f"{MAPS}?watch=1&continue=x&timeoutSeconds=1"),
            Step("GET", f"{MAPS}?watch=1&limit=1&timeoutSeconds=1&{ROOT_CA}"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=x"),
            Step("GET", f"{MAPS}?watch=false&{ROOT_CA}", only=("kind",)),
            Step("GET", f"{MAPS}/a?watch=1&timeoutSeconds=1", only=("kind",)),
            Step("GET", "/api/v1/watch/namespaces/lists/configmaps/a?timeoutSeconds=1"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1", accept="text/html"),
            Step("PATCH", MAPS + "/a", {"metadata": {"labels": {"app": "z"}}}, MERGE),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={{rv}}&labelSelector=app%3Dx"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={{rv}}&labelSelector=app%3Dz"),
            Step("GET", f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={{rv}}"),
        ],
    ),
    Case(
        "collections",
        [
            Step("DELETE", MAPS + "?labelSelector=app%3Dy", only=("kind", "items.0.metadata.name", "status")),
            Step("GET", MAPS + "/b"),
            Step("DELETE", MAPS + "?fieldSelector=data%3Dy"),
            Step("DELETE", MAPS + "?dryRun=All&" + ROOT_CA, only=("kind", "status")),
            Step("DELETE", MAPS + "?" + ROOT_CA, {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}, only=("kind", "reason", "code")),
            Step("DELETE", MAPS + "?" + ROOT_CA, {"propagationPolicy": "Nonsense"}),
            Step("DELETE", MAPS + "?" + ROOT_CA, only=("kind", "status")),
            Step("GET", MAPS + "?" + ROOT_CA, only=("items",)),
        ],
    ),
]
