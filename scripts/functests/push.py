#!/usr/bin/env python3
"""Puts OCI archives into a registry: push.py REGISTRY PREFIX TAG ARCHIVE..., each as PREFIX/NAME:TAG, named after its file."""

import json
import os
import sys
import tarfile
import time
import urllib.error
import urllib.request


def request(method, url, body=None, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib.request.urlopen(urllib.request.Request(url, data=body, method=method, headers=headers))


def wait_for(registry):
    for _ in range(100):
        try:
            request("GET", f"{registry}/v2/")
            return
        except urllib.error.URLError:
            time.sleep(0.1)
    sys.exit(f"push: {registry} does not answer")


def push(registry, prefix, tag, path):
    name = f"{prefix}/{os.path.basename(path).removesuffix('.tar')}"
    with tarfile.open(path) as archive:
        blob = lambda digest: archive.extractfile("blobs/" + digest.replace(":", "/"))
        index = json.load(archive.extractfile("index.json"))
        manifest = blob(index["manifests"][0]["digest"]).read()
        content = json.loads(manifest)
        for part in [content["config"], *content["layers"]]:
            place = request("POST", f"{registry}/v2/{name}/blobs/uploads/").headers["Location"]
            place += ("&" if "?" in place else "?") + "digest=" + part["digest"]
            request("PUT", place, blob(part["digest"]), Content_Type="application/octet-stream", Content_Length=str(part["size"]))
        request("PUT", f"{registry}/v2/{name}/manifests/{tag}", manifest, Content_Type=content["mediaType"])


registry, prefix, tag, *archives = sys.argv[1:]
wait_for(registry)
for archive in archives:
    push(registry, prefix, tag, archive)
