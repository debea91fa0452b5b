"""The samples that prometheus_client finds in an exposition: OPEN as OpenMetrics, CLASSIC as node_exporter reads it."""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_classic


def counted(path, read):
    with open(path) as file:
        families = list(read(file.read()))
    for family in families:
        # A family whose type has another name counts as a family without a type.
        if family.type not in ("counter", "gauge", "info"):
            sys.exit(f"{path}: {family.name} is of type {family.type}")
        if not family.samples or not family.documentation:
            sys.exit(f"{path}: {family.name} has no sample, or no help")
    return {"families": len(families), "samples": sum(len(one.samples) for one in families)}


print(json.dumps({"open": counted(sys.argv[1], read_open), "classic": counted(sys.argv[2], read_classic)}))
