"""Checks that each FOLDER/N.yaml has the keys and the kinds of values of FOLDER/N.json."""

import glob
import json
import sys

import yaml


def shape(value):
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        # Lists may have grown between the two.
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number"


paths = sorted(glob.glob(f"{sys.argv[1]}/*.json"))
for path in paths:
    with open(path) as file:
        wanted = shape(json.load(file))
    with open(path.replace(".json", ".yaml")) as file:
        found = shape(yaml.safe_load(file))
    if wanted != found:
        sys.exit(f"{path}: {wanted}\n{found}")
print(len(paths), "alike")
