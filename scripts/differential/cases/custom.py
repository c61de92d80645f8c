"""CustomResourceDefinitions and their objects."""

from run import APPLY, MERGE, PARTIAL, PATCH, STRATEGIC, TABLE, Case, Step

from .objects import NS

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/differ/widgets"


def crd(plural="widgets", kind="Widget", schema=None, version=None, **spec):
    return {
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema or {"type": "object"}}, **(version or {})}],
            **spec,
        },
    }


# A definition is in use as soon as it is there, not when a controller has looked at it.
NOT_YET = ("status.conditions", "status.acceptedNames", "metadata.finalizers", "metadata.managedFields.*.fieldsV1.f:metadata")
# Who sets a number of replicas owns it, through whatever endpoint.
SCALED = ("metadata.managedFields.*.fieldsV1.f:spec.f:replicas", "rows.*.object.metadata.managedFields.*.fieldsV1.f:spec.f:replicas")
SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "x-kubernetes-validations": [
                {"rule": "self.min <= self.max", "message": "min above max"},
                {"rule": "oldSelf.size == self.size", "message": "size is fixed", "fieldPath": ".size", "reason": "FieldValueForbidden"},
            ],
            "properties": {
                "size": {"type": "string", "enum": ["small", "large"]},
                "min": {"type": "integer", "default": 1, "minimum": 0},
                "max": {"type": "integer", "default": 10, "maximum": 100},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "minLength": 2},
                "when": {"type": "string", "format": "date-time"},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2, "x-kubernetes-list-type": "set"},
                "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"], "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}},
                "any": {"x-kubernetes-preserve-unknown-fields": True},
                "port": {"x-kubernetes-int-or-string": True},
                "replicas": {"type": "integer"},
                "maybe": {"type": "string", "nullable": True},
                "either": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            },
        },
        "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}, "selector": {"type": "string"}}},
    },
}
SUBRESOURCES = {
    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
    "additionalPrinterColumns": [{"name": "Size", "type": "string", "jsonPath": ".spec.size"}, {"name": "Max", "type": "integer", "jsonPath": ".spec.max", "priority": 1}],
    "selectableFields": [{"jsonPath": ".spec.size"}],
}


def widget(name, /, **spec):
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": "small", **spec}}


def bad(name, /, **more):
    return Step("POST", CRDS, crd(name, name.capitalize(), **more))


CASES = [
    Case(
        "definitions",
        [
            Step("POST", CRDS, crd(schema=SCHEMA, version=SUBRESOURCES), ignore=NOT_YET),
            Step("GET", WIDGETS, until=200, ignore=("metadata.continue",)),
            bad("as", scope="Nonsense"),
            bad("as", group=""),
            bad("as", schema={"type": "string"}),
            bad("as", schema={"properties": {"a": {"type": "string"}}}),
            bad("as", schema={"type": "object", "properties": {"a": {}}}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "nonsense"}}}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "array"}}}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "string", "default": 5}}}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-list-type": "map"}}}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map"}}}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"}}}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}}}}),
            bad("as", schema={"type": "object", "x-kubernetes-validations": [{"rule": "self.none"}]}),
            bad("as", schema={"type": "object", "x-kubernetes-validations": [{"rule": "1 + 1"}]}),
            bad("as", schema={"type": "object", "x-kubernetes-validations": [{"rule": ""}]}),
            bad("as", schema={"type": "object", "x-kubernetes-validations": [{"rule": "("}]}, ),
            bad("as", schema={"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            bad("as", schema={"type": "object", "$ref": "#/x"}),
            bad("as", schema={"type": "object", "properties": {"a": {"type": "string", "uniqueItems": True}}}),
            bad("as", version={"served": False, "storage": False}),
            bad("as", version={"name": "Bad"}),
            bad("as", preserveUnknownFields=True),
            bad("as", names={"plural": "As", "kind": "as"}),
            bad("as", names={"plural": "bs", "kind": "B"}),
            bad("as", conversion={"strategy": "Webhook"}),
            bad("as", version={"subresources": {"scale": {"specReplicasPath": "x", "statusReplicasPath": ".status.replicas"}}}),
            bad("as", version={"additionalPrinterColumns": [{"name": "A", "type": "nonsense", "jsonPath": ".a"}]}),
            bad("as", version={"selectableFields": [{"jsonPath": ".spec.none"}]}),
            Step("PATCH", CRDS + "/widgets.example.com", {"spec": {"scope": "Cluster"}}, MERGE),
            Step("PATCH", CRDS + "/widgets.example.com", {"spec": {"group": "other"}}, MERGE),
            Step("GET", CRDS + "/widgets.example.com", accept=TABLE, ignore=("rows.0.object",)),
            Step("GET", "/apis/example.com/v1"),
            Step("GET", "/apis/example.com"),
        ],
    ),
    Case(
        "custom objects",
        [
            Step("POST", WIDGETS, widget("w1")),
            Step("POST", WIDGETS, {"metadata": {"name": "w2"}}, differs="the URL says the kind"),
            Step("POST", WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w2"}}),
            Step("POST", WIDGETS, {**widget("w2"), "apiVersion": "example.com/v2"}),
            Step("POST", WIDGETS, {**widget("w2"), "kind": "Gadget"}, differs="told when it is read, as of built-in kinds"),
            Step("POST", WIDGETS, widget("W2")),
            Step("POST", WIDGETS, widget("w2", size="huge")),
            Step("POST", WIDGETS, widget("w2", min=-1)),
            Step("POST", WIDGETS, widget("w2", min=20)),
            Step("POST", WIDGETS, widget("w2", max=1000)),
            Step("POST", WIDGETS, widget("w2", max="10")),
            Step("POST", WIDGETS, widget("w2", max=1.5)),
            Step("POST", WIDGETS, widget("w2", name="UPPER")),
            Step("POST", WIDGETS, widget("w2", name="a")),
            Step("POST", WIDGETS, widget("w2", name="abcdef")),
            Step("POST", WIDGETS, widget("w2", when="yesterday")),
            Step("POST", WIDGETS, widget("w2", tags=["a", "a"])),
            Step("POST", WIDGETS, widget("w2", tags=["a", "b", "c"])),
            Step("POST", WIDGETS, widget("w2", tags="a")),
            Step("POST", WIDGETS, widget("w2", parts=[{"id": "a"}, {"id": "a"}])),
            Step("POST", WIDGETS, widget("w2", parts=[{"n": 1}])),
            Step("POST", WIDGETS, widget("w2", port=[])),
            Step("POST", WIDGETS, widget("w2", either={})),
            Step("POST", WIDGETS, widget("w2", either={"a": "x", "b": "y"})),
            Step("POST", WIDGETS, widget("w2", maybe=None, size=None)),
            Step("POST", WIDGETS, widget("w3", maybe=None, any={"deep": {"er": 1}}, port="http", either={"a": "x"}, unknown=1)),
            Step("POST", WIDGETS + "?fieldValidation=Strict", widget("w4", unknown=1)),
            Step("POST", WIDGETS, {**widget("w4"), "status": {"phase": "x"}}),
            Step("PATCH", WIDGETS + "/w1", {"spec": {"size": "large"}}, MERGE),
            Step("PATCH", WIDGETS + "/w1", {"spec": {"max": None}}, MERGE),
            Step("PATCH", WIDGETS + "/w1", {"spec": {"max": 20}}, MERGE),
            Step("PATCH", WIDGETS + "/w1", {"spec": {"max": 20}}, STRATEGIC),
            Step("PATCH", WIDGETS + "/w1", {"status": {"phase": "x"}}, MERGE),
            Step("PATCH", WIDGETS + "/w1/status", {"status": {"phase": "x", "replicas": 2, "selector": "a=b"}, "spec": {"max": 30}}, MERGE),
            Step("PATCH", WIDGETS + "/w1/status", {"metadata": {"labels": {"l": "m"}}}, MERGE),
            Step("PATCH", WIDGETS + "/w1/status", {"status": {"phase": 5}}, MERGE),
            Step("PUT", WIDGETS + "/w1", widget("w1")),
            Step("GET", WIDGETS + "/w1/scale", differs="no number is none, not an internal error"),
            Step("PATCH", WIDGETS + "/w1/scale", {"spec": {"replicas": 3}}, MERGE),
            Step("PATCH", WIDGETS + "/w1/scale", {"spec": {"replicas": -1}}, MERGE),
            Step("PUT", WIDGETS + "/w1/scale", {"metadata": {"name": "w1", "namespace": "differ"}, "spec": {"replicas": 4}}),
            Step("PUT", WIDGETS + "/w1/scale", {"metadata": {"name": "w1", "namespace": "differ", "resourceVersion": "1"}, "spec": {"replicas": 4}}),
            Step("GET", WIDGETS + "/w1", ignore=SCALED),
            Step("GET", WIDGETS + "/w1", accept=TABLE, ignore=SCALED),
            Step("GET", WIDGETS + "/w1", accept=PARTIAL, ignore=SCALED),
            Step("GET", WIDGETS + "/w1", accept="application/vnd.kubernetes.protobuf", differs="refused in words"),
            Step("GET", WIDGETS + "?fieldSelector=spec.size%3Dsmall", only=("items.0.metadata.name", "items.1.metadata.name")),
            Step("GET", WIDGETS + "?fieldSelector=spec.max%3D1"),
            Step("PATCH", WIDGETS + "/w1", [{"op": "add", "path": "/spec/parts", "value": [{"id": "a"}]}], PATCH, ignore=SCALED),
            Step("PATCH", WIDGETS + "/w1?fieldManager=one", widget("w1", parts=[{"id": "b"}]), APPLY, ignore=SCALED),
            Step("PATCH", WIDGETS + "/w1?fieldManager=two", widget("w1", parts=[{"id": "b", "n": 2}], tags=["x"]), APPLY, ignore=SCALED),
            Step("PATCH", WIDGETS + "/w1?fieldManager=one", widget("w1", parts=[{"id": "b", "n": 3}]), APPLY),
            Step("PATCH", WIDGETS + "/w1?fieldManager=one", widget("w1", nonsense=3), APPLY, differs="what a client did wrong is no 500 here"),
            Step("GET", "/apis/example.com/v1/widgets?limit=1", only=("kind", "metadata.remainingItemCount")),
            Step("GET", "/apis/example.com/v1/widgets/w1", differs="not found, as a Status"),
            Step("DELETE", WIDGETS + "/w1"),
            Step("DELETE", WIDGETS, only=("kind", "status")),
            Step("DELETE", CRDS + "/widgets.example.com", ignore=("status", "metadata.managedFields", "metadata.deletionTimestamp")),
            Step("GET", CRDS + "/widgets.example.com", until=404),
            Step("GET", WIDGETS, until=404, accept="*/*", differs="not found, as a Status"),
        ],
    ),
]
