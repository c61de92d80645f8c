"""Sends the same requests to two API servers and compares what they answer.

    run.py OURS PEER [PATTERN]        each is HOST:PORT,TOKEN; only cases whose name has PATTERN in it

A case is a list of steps. A step is one request; what it saves from its answer is put into later requests, for each
server its own. What two servers must differ in (uids, revisions, times, addresses) is replaced by a word before the
comparison. A step that is known to differ says why, and it is an error if it no longer does. The words of messages are
compared, too, but only counted: with --words they are shown.
"""

import http.client
import json
import re
import ssl
import sys
import time
from dataclasses import dataclass, field

JSON, YAML = "application/json", "application/yaml"
MERGE, PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIALS = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# What a host of virtual machines says of kinds that it keeps for others. Nobody else has a reason to say it.
OF_WORKLOADS = "this host runs virtual machines, not workload controllers"
ADDRESS = re.compile(r"\b10\.\d+\.\d+\.\d+\b(/\d+)?")


@dataclass
class Step:
    """One request and how its answers are looked at."""

    method: str
    path: str
    body: object = None
    type: str = JSON
    accept: str = JSON
    headers: dict = field(default_factory=dict)
    # name -> path of keys in the answer, for later steps as {name}
    save: dict = field(default_factory=dict)
    # paths of keys that are not compared
    ignore: tuple = ()
    # compares these paths of keys (and the code) and nothing else
    only: tuple = None
    # asks again until the answer has this code (what controllers do takes time)
    until: int = None
    # why the answers may differ
    differs: str = None


@dataclass
class Case:
    name: str
    steps: list


class Server:
    def __init__(self, spec):
        self.address, self.token = spec.split(",")
        self.variables = {}
        self.context = ssl._create_unverified_context()
        self.connection = None

    def fill(self, text):
        for name, value in self.variables.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def send(self, step):
        body = step.body
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = self.fill(body).encode()
        headers = {"Authorization": "Bearer " + self.token, "Accept": step.accept, "User-Agent": "differ/1"}
        if body is not None and step.type:
            headers["Content-Type"] = step.type
        headers.update({k: self.fill(v) for k, v in step.headers.items()})
        headers = {k: v for k, v in headers.items() if v}
        for attempt in (0, 1):
            if self.connection is None:
                host, port = self.address.rsplit(":", 1)
                self.connection = http.client.HTTPSConnection(host, int(port), context=self.context, timeout=20)
            try:
                self.connection.request(step.method, self.fill(step.path), body=body, headers=headers)
                response = self.connection.getresponse()
                return Answer(response, response.read())
            except (http.client.HTTPException, OSError):
                self.connection.close()
                self.connection = None
                if attempt:
                    raise

    def ask(self, step):
        deadline = time.monotonic() + 15
        answer = self.send(step)
        while step.until and answer.code != step.until and time.monotonic() < deadline:
            time.sleep(0.1)
            answer = self.send(step)
        for name, path in step.save.items():
            self.variables[name] = look(answer.parsed, path)
        return answer


class Answer:
    def __init__(self, response, raw):
        self.code = response.status
        self.type = response.getheader("Content-Type") or ""
        self.warnings = [v for k, v in response.getheaders() if k.lower() == "warning" and OF_WORKLOADS not in v]
        text = raw.decode("utf-8", "replace")
        try:
            self.parsed = json.loads(text)
        except ValueError:
            try:
                # A watch: a document a line.
                self.parsed = [json.loads(line) for line in text.splitlines() if line]
            except ValueError:
                self.parsed = text


def look(value, path):
    for key in path.split("."):
        try:
            value = value[int(key)] if isinstance(value, list) else value.get(key)
        except (AttributeError, IndexError, ValueError):
            return None
    return value


def drop(value, path):
    """Removes what a path of keys leads to; * is every key or item."""
    head, _, rest = path.partition(".")
    if isinstance(value, list):
        items = value if head == "*" else [value[int(head)]] if head.isdigit() and int(head) < len(value) else []
        for item in items:
            drop(item, rest)
    elif isinstance(value, dict):
        for key in list(value) if head == "*" else [head]:
            if rest and key in value:
                drop(value[key], rest)
            elif not rest:
                value.pop(key, None)


def plain(value, variables, key=""):
    """The value without what must differ."""
    if isinstance(value, dict):
        # What columns mean is said in words; when a manager last wrote depends on the clock.
        skipped = "description" if "priority" in value else "time" if "manager" in value else None
        return {plain(k, variables): plain(v, variables, k) for k, v in sorted(value.items()) if k != skipped}
    if isinstance(value, list):
        return [plain(v, variables, key) for v in value]
    if key in ("resourceVersion", "continue") and value:
        return f"<{key}>"
    if isinstance(value, str):
        for name, known in variables.items():
            if isinstance(known, str) and len(known) > 5:
                value = value.replace(known, f"<{name}>")
        value = UUID.sub("<uid>", value)
        value = TIME.sub("<time>", value)
        value = ADDRESS.sub("<address>", value)
    return value


def shown(server, step, answer):
    body = json.loads(json.dumps(answer.parsed))
    if step.only is not None:
        body = {path: look(body, path) for path in step.only}
    for path in step.ignore:
        drop(body, path)
    return {
        "code": answer.code,
        "type": answer.type,
        "warnings": sorted(answer.warnings),
        "body": plain(body, server.variables),
    }


def is_status(shown):
    return isinstance(shown["body"], dict) and shown["body"].get("kind") == "Status"


def compare(ours, peer):
    """What differs, and what differs only in its words."""
    if is_status(ours) != is_status(peer) or ours["code"] != peer["code"]:
        # One line each says more than a comparison of things that are not comparable.
        brief = [
            {"code": x["code"], **({"message": x["body"].get("message")} if is_status(x) else {})} for x in (ours, peer)
        ]
        return [line for line in differences(*brief)], []
    words = []
    if is_status(ours) and is_status(peer):
        both = [json.loads(json.dumps(x)) for x in (ours, peer)]
        for x in both:
            x["body"].pop("message", None)
            causes = (x["body"].get("details") or {}).get("causes") or []
            for cause in causes:
                cause.pop("message", None)
        words = list(differences(ours, peer)) if list(differences(*both)) == [] else []
        ours, peer = both
    return list(differences(ours, peer)), words


def differences(ours, peer, path=""):
    if isinstance(ours, dict) and isinstance(peer, dict):
        for key in sorted(set(ours) | set(peer)):
            yield from differences(ours.get(key, "(absent)"), peer.get(key, "(absent)"), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(peer, list) and len(ours) == len(peer):
        for index, (a, b) in enumerate(zip(ours, peer)):
            yield from differences(a, b, f"{path}[{index}]")
    elif ours != peer:
        yield f"{path}\n        ours: {json.dumps(ours)[:1500]}\n        peer: {json.dumps(peer)[:1500]}"


def main():
    import cases

    servers = [Server(spec) for spec in sys.argv[1:3]]
    rest = sys.argv[3:]
    show_words = "--words" in rest
    pattern = " ".join(argument for argument in rest if argument != "--words")
    steps = wrong = known = worded = 0
    for case in cases.ALL:
        if pattern not in case.name:
            continue
        for number, step in enumerate(case.steps):
            steps += 1
            name = f"{case.name} {number}: {step.method} {step.path}"
            try:
                both = [shown(server, step, server.ask(step)) for server in servers]
            except OSError as error:
                wrong += 1
                print(f"NO ANSWER {name}: {error}")
                continue
            found, words = compare(*both)
            if words:
                worded += 1
                if show_words:
                    print(f"WORDS {name}", *words, sep="\n    ")
            if found and step.differs:
                known += 1
            elif found:
                wrong += 1
                print(f"DIFFERS {name}", *found, sep="\n    ")
            elif step.differs:
                wrong += 1
                print(f"NO LONGER DIFFERS {name} ({step.differs})")
    print(f"{steps} requests: {wrong} unexpected differences, {known} known ones, {worded} in words only")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
