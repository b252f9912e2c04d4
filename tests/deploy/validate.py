#!/usr/bin/env python3
"""Validates rendered objects against Kubernetes' own schemas.

    validate.py VERSION[,VERSION...] FILE...

Each file has objects as YAML. Prints one line a fault and exits 1 if there is any; else prints how many
objects were validated for each version. Kinds of the cluster's extensions are left to crds.mjs, by name.
"""

import functools
import json
import sys

import kubernetes_validate
import yaml
from kubernetes_validate import utils

EXTENSIONS = ("monitoring.coreos.com/", "gateway.networking.k8s.io/")

# Else the same files are read again for each object.
utils.schema_contents = functools.lru_cache(maxsize=None)(utils.schema_contents)


def objects(files):
    seen = set()
    for name in files:
        with open(name, encoding="utf-8") as file:
            for one in yaml.safe_load_all(file):
                if one is None or one["apiVersion"].startswith(EXTENSIONS):
                    continue
                text = json.dumps(one, sort_keys=True)
                if text not in seen:
                    seen.add(text)
                    yield name, one


def main():
    versions, files = sys.argv[1].split(","), sys.argv[2:]
    every = list(objects(files))
    faults = 0
    for version in versions:
        for name, one in every:
            label = f"{version} {name}: {one['kind']} {one['metadata']['name']}"
            try:
                used = kubernetes_validate.validate(one, version, strict=True)
                if used != version:
                    raise LookupError(f"there is no schema of {version}, only of {used}")
            except kubernetes_validate.ValidationError as error:
                faults += 1
                where = ".".join(str(part) for part in error.path)
                print(f"{label}: {where}: {error.message}")
            except (utils.SchemaNotFoundError, LookupError) as error:
                faults += 1
                print(f"{label}: {getattr(error, 'message', error)}")
        print(f"{version}: {len(every)} objects")
    sys.exit(1 if faults or not every else 0)


main()
