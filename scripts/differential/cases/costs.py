"""What rules of definitions may cost at most. Each rule is one of items of a list without a bound: the factor in the refusal then tells its cost to the unit."""

from run import Case, Step

from .custom import CRDS, NOT_YET, crd

# What a rule sees.
FIELDS = {
    "s": {"type": "string", "maxLength": 20},
    "t": {"type": "string", "maxLength": 7},
    "e": {"type": "string", "enum": ["one", "three"]},
    "b": {"type": "string", "format": "byte", "maxLength": 30},
    "n": {"type": "integer"},
    "d": {"type": "number"},
    "o": {"type": "boolean"},
    "when": {"type": "string", "format": "date-time"},
    "long": {"type": "string", "format": "duration"},
    "port": {"x-kubernetes-int-or-string": True, "maxLength": 5},
    "l": {"type": "array", "maxItems": 6, "items": {"type": "string", "maxLength": 9}},
    "i": {"type": "array", "maxItems": 5, "items": {"type": "integer"}},
    "ll": {"type": "array", "maxItems": 3, "items": {"type": "array", "maxItems": 4, "items": {"type": "integer"}}},
    "m": {"type": "object", "maxProperties": 4, "additionalProperties": {"type": "string", "maxLength": 8}},
    "p": {"type": "array", "maxItems": 7, "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string", "maxLength": 5}, "v": {"type": "integer"}}}},
    "r": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string", "maxLength": 11}}},
}
RULES = [
    "[1,2,3,4].all(x, self.n == x)",
    "self.l.all(x, x == self.s)",
    "self.l.all(x, x in self.l)",
    "self.l.all(x, self.l.exists_one(y, x == y))",
    "self.l.exists(x, x.startsWith(self.s) && x.endsWith('ab'))",
    "self.l.exists_one(x, x.contains(self.t))",
    "self.l.filter(x, x.size() > 3).size() > 2",
    "self.l.map(x, x + 'suffix').all(y, y.size() > 3)",
    "self.l.map(x, x.size() > 2, x.upperAscii()).size() == 3",
    "self.i.sum() > 10 && self.i.min() > 0 && self.i.max() < 9 && self.i.isSorted()",
    "self.l.isSorted() && self.l.min() == 'a' && self.l.indexOf('x') > 0",
    "self.ll.all(x, x.all(y, y > 0))",
    "self.m.all(k, self.m[k].size() > 0)",
    "self.m.all(k, k.matches('^[a-z0-9]+$') && self.m[k].matches(self.s))",
    "self.m.exists(k, v, k == v)",
    "self.l.all(i, v, v.size() > i)",
    "self.p.all(x, x.k.size() > 3 && x.v > 0)",
    "self.p.map(x, x.k).all(y, y in self.l)",
    "self.p.filter(x, x.v > 1).all(y, y.k == 'a')",
    "self.p.all(x, has(x.v) ? x.v > 0 : x.k == 'none')",
    "self.s.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "self.s.find('[0-9]+') == '5' || self.s.findAll('[a-z]').size() > 2",
    "self.s.replace('a', 'bbbb').size() > 10 && self.s.replace('', 'xx') == self.t",
    "self.s.split(',').all(x, x.size() > 2)",
    "self.s.split(',', 2).all(x, x.size() > 2)",
    "self.l.join(',') == self.s",
    "self.s.lowerAscii().trim().substring(1, 3) == self.t.upperAscii()",
    "self.s + self.t == self.t + self.s",
    "self.s < self.t || self.s >= self.e",
    "self.s.charAt(1) == 'a' || self.s.indexOf('b') > 1 || self.s.lastIndexOf('b') > 1",
    "'%s-%d'.format([self.s, self.n]) == 'a-1'",
    "string(self.n) == '5' && string(self.d) != '1.5' && int(self.s) > 1 && double(self.n) > 1.0",
    "string(self.n) + 'x' == self.s",
    "self.b == b'abc' && string(self.b).size() > 2 && bytes(self.s).size() < 30",
    "self.when > timestamp('2020-01-01T00:00:00Z') && self.when - timestamp('2020-01-01T00:00:00Z') > duration('1h')",
    "self.when.getFullYear() > 2020 && self.long.getSeconds() > 3 && self.long < duration('5m')",
    "self.when + self.long > self.when && self.when == self.when && self.long == self.long",
    "type(self.port) == int ? self.port < 100 : self.port.matches('^[0-9]+%$')",
    "self.port == 80 || self.port == '80%' || string(self.port) == 'x'",
    "isURL(self.s) && url(self.s).getHost() == 'example.com' && url(self.s) == url(self.t)",
    "isIP(self.s) && ip(self.s).family() == 4 && ip(self.s) == ip(self.t) && ip.isCanonical(self.s)",
    "isCIDR(self.s) && cidr(self.s).containsIP(self.t) && cidr(self.s).containsIP(ip(self.t)) && cidr(self.s).containsCIDR(self.t)",
    "cidr(self.s).masked() == cidr(self.t) && cidr(self.s).prefixLength() > 8 && cidr(self.s).ip() == ip(self.t)",
    "isQuantity(self.s) && quantity(self.s).isGreaterThan(quantity(self.t)) && quantity(self.s) == quantity(self.t)",
    "quantity(self.s).add(quantity(self.t)).sub(5).asInteger() > 3 && quantity(self.s).compareTo(quantity('1')) == 0",
    "semver(self.s).major() > 1 && isSemver(self.t)",
    "!format.dns1123Label().validate(self.s).hasValue()",
    "format.named('uuid').value().validate(self.s).orValue(['x']).size() == 0",
    "sets.contains(self.l, ['a', 'b']) || sets.intersects(self.l, self.l) || sets.equivalent(self.i, [1, 2])",
    "self.l.distinct().size() == self.l.size()",
    "self.ll.flatten().size() > 3 && self.l.reverse().size() > 1 && self.l.slice(1, 3).size() == 2",
    "self.l.sort() == self.l && self.i.sort()[0] == 1",
    "self.p.sortBy(x, x.v)[0].v == 1",
    "lists.range(7).all(x, x < 9)",
    "self.?s.orValue('x') == 'y'",
    "self.r.?x.orValue(3) > 2 && self.r.?y.hasValue()",
    "self.?l.orValue([]).all(x, x == 'a')",
    "self.r.?y.optMap(v, v.size() > 2).orValue(false)",
    "self.m[?'a'].orValue('b') == 'c' && self.l[?0].orValue('d') == 'e'",
    "optional.of(self.s).hasValue() && optional.none().orValue(self.t) == 'a'",
    "self.l.transformList(i, v, v + 'x').size() > 3",
    "self.m.transformMap(k, v, v.size()).size() > 3",
    "self.m.transformMapEntry(k, v, {v: k}).size() > 3",
    "{'a': self.s, 'b': self.t}.all(k, k == 'a') && [self.s, self.t].all(x, x.size() > 2)",
    "{'a': 1}['a'] == self.n && [self.s, 'xyz'][0] == 'abc'",
    "dyn(self.s) == self.s && dyn(self.l).all(x, x == 'a')",
    "-self.n < 5 && self.n * 2 + 3 % 2 - 1 / 1 == -4 && !self.o",
    "(self.o ? self.l : ['a', 'b']).all(x, x == 'a')",
    "(self.l + ['a']).all(x, x == 'a')",
    "self.r == self.r && self.l == self.l && self.m == self.m",
    "self.r.y in self.m || 'a' in self.m || self.s in ['a', 'b', 'c']",
    "self.s.size() == 3 && size(self.l) > 2 && self.m.size() < 5",
    "self.e.contains('one') && self.e == 'three'",
    "self.l[0] == self.l[1] && self.p[0].k == self.m['x']",
    "strings.quote(self.s) == 'x'",
    "self.s == oldSelf.s && oldSelf.l.all(x, x in self.l)",
]


def heavy(rule, **more):
    # Twenty units more make every cost one that is refused.
    rule = f"[0,1].all(z1, [0,1].all(z2, z1 < z2)) && ({rule})"
    items = {"type": "object", "properties": FIELDS, "x-kubernetes-validations": [{"rule": rule, **more}]}
    # By a key, so that rules may look at what was before; one that need not be sent, so that more items fit.
    items["properties"] = {**FIELDS, "key": {"type": "string", "default": "a"}}
    return {"type": "object", "properties": {"items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"], "items": items}}}


def whole(schema, **more):
    # What controllers make of a definition is there at once here.
    return Step("POST", CRDS + "?dryRun=All", crd("costs", "Cost", {"type": "object", "properties": {"spec": schema}}), **{"ignore": NOT_YET, **more})


LIST = {"type": "array", "items": {"type": "string"}}
OPTIONAL = ".?", "[?", ".optMap("


def unknown(rule):
    return "the engine has no optional values" if any(part in rule for part in OPTIONAL) else None


CASES = [
    Case("costs of rules", [Step("POST", CRDS + "?dryRun=All", crd("costs", "Cost", heavy(rule)), differs=unknown(rule)) for rule in RULES]),
    Case(
        "costs",
        [
            whole({**LIST, "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}),
            whole({**LIST, "maxItems": 10, "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}),
            whole({**LIST, "maxItems": 10, "items": {"type": "string", "maxLength": 10}, "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}),
            whole({**LIST, "x-kubernetes-validations": [{"rule": "self.size() < 5", "messageExpression": "self.join(',')"}]}),
            whole({**LIST, "x-kubernetes-validations": [{"rule": "self.size() < 5", "messageExpression": "'has ' + string(self.size())"}]}),
            whole({**LIST, "x-kubernetes-validations": [{"rule": "self.size() < 5", "messageExpression": "'has %d'.format([self.size()])"}]}),
            whole({**LIST, "x-kubernetes-validations": [{"rule": "oldSelf.all(x, x in self)"}]}),
            whole({**LIST, "maxItems": 64, "x-kubernetes-validations": [{"rule": "oldSelf.all(x, x in self)"}]}),
            whole({"type": "object", "additionalProperties": {"type": "string", "x-kubernetes-validations": [{"rule": "self.matches('^[a-z]+$')"}]}}),
            whole({"type": "object", "maxProperties": 8, "additionalProperties": {"type": "string", "maxLength": 64, "x-kubernetes-validations": [{"rule": "self.matches('^[a-z]+$')"}]}}),
            whole({"type": "object", "properties": {name: {**LIST, "x-kubernetes-validations": [{"rule": "self.all(x, x.size() > 1)"}]} for name in "abcdefghijklmnopqrstuvw"}}, only=("code", "reason")),  # which of many equals are named is chance
            whole({"type": "object", "properties": {"x": {"type": "string", "x-kubernetes-validations": [{"rule": "oldSelf.hasValue() ? oldSelf.value() == self : self.contains('abcdefghijklmnopqrstuvwxyz')", "optionalOldSelf": True}]}}}),
            whole({"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-validations": [{"rule": "self.metadata.name.contains(self.kind)"}]}}),
        ],
    ),
]
