#!/usr/bin/env python3
"""Writes the topologies of machines that the tests do not run on, in hwloc's XML.

two-sockets.xml    two packages of four cores with two threads each, one NUMA node each; an Ethernet
                   port and an InfiniBand adapter (with its IP interface) at each of them
eight-sockets.xml  eight packages of two cores, distances by hops on a ring of pairs; Ethernet at
                   node 0, InfiniBand at nodes 2, 3 and 6, one Ethernet port at no node
"""

import itertools
import pathlib

ETHERNET = "0200 [8086:1572] [8086:0000] 02"
INFINIBAND = "0207 [15b3:101b] [15b3:0007] 00"


class Writer:
    def __init__(self):
        self.lines = []
        self.number = itertools.count(1)
        self.buses = itertools.count(0x10, 0x10)

    def open(self, depth, kind, /, **attributes):
        attributes["gp_index"] = next(self.number)
        words = " ".join(f'{key}="{value}"' for key, value in attributes.items())
        self.lines.append(f"{'  ' * depth}<object type=\"{kind}\" {words}>")

    def close(self, depth):
        self.lines.append(f"{'  ' * depth}</object>")


def sets(cpus, nodes, allowed=False):
    cpu, node = (f"0x{sum(1 << one for one in some):08x}" for some in (cpus, nodes))
    result = {"cpuset": cpu, "complete_cpuset": cpu, "nodeset": node, "complete_nodeset": node}
    if allowed:
        result |= {"allowed_cpuset": cpu, "allowed_nodeset": node}
    return result


def adapter(writer, depth, pci_type, devices):
    bus = next(writer.buses)
    writer.open(depth, "Bridge", bridge_type="0-1", depth=0, bridge_pci=f"0000:[{bus:02x}-{bus + 1:02x}]")
    busid = f"0000:{bus:02x}:00.0"
    writer.open(depth + 1, "PCIDev", pci_busid=busid, pci_type=pci_type, pci_link_speed="31.507692")
    for name, kind in devices:
        writer.open(depth + 2, "OSDev", name=name, osdev_type=kind)
        writer.close(depth + 2)
    writer.close(depth + 1)
    writer.close(depth)


def ethernet(name):
    return ETHERNET, [(name, 2)]


def infiniband(name, adapter_name):
    return INFINIBAND, [(name, 2), (adapter_name, 3)]


def machine(packages, cores, threads, adapters, distances):
    writer = Writer()
    per_package = cores * threads
    all_cpus, all_nodes = range(packages * per_package), range(packages)
    writer.open(1, "Machine", os_index=0, **sets(all_cpus, all_nodes, allowed=True))
    for package in range(packages):
        first = package * per_package
        inside = sets(range(first, first + per_package), [package])
        writer.open(2, "Package", os_index=package, **inside)
        writer.open(3, "NUMANode", os_index=package, **inside, local_memory=16000000000)
        writer.close(3)
        for core in range(cores):
            cpus = range(first + core * threads, first + (core + 1) * threads)
            writer.open(3, "Core", os_index=core, **sets(cpus, [package]))
            for cpu in cpus:
                writer.open(4, "PU", os_index=cpu, **sets([cpu], [package]))
                writer.close(4)
            writer.close(3)
        for one in adapters.get(package, []):
            adapter(writer, 3, *one)
        writer.close(2)
    for one in adapters.get(None, []):
        adapter(writer, 2, *one)
    writer.close(1)
    indexes = "".join(f"{node} " for node in all_nodes)
    values = "".join(f"{distances(a, b)} " for a in all_nodes for b in all_nodes)
    return "\n".join([
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
        '<topology version="2.0">',
        *writer.lines,
        f'  <distances2 type="NUMANode" nbobjs="{packages}" kind="5" name="NUMALatency" indexing="os">',
        f'    <indexes length="{len(indexes)}">{indexes}</indexes>',
        f'    <u64values length="{len(values)}">{values}</u64values>',
        "  </distances2>",
        "</topology>",
        "",
    ])


def ring(a, b):
    """The two nodes of a pair are near; the distance grows with the number of pairs between two nodes."""
    if a == b:
        return 10
    if a // 2 == b // 2:
        return 12
    steps = abs(a // 2 - b // 2)
    return 20 + 4 * min(steps, 4 - steps)


def main():
    here = pathlib.Path(__file__).parent
    two = machine(2, 4, 2, {
        0: [ethernet("eth0"), infiniband("ib0", "mlx5_0")],
        1: [ethernet("eth1"), infiniband("ib1", "mlx5_1")],
    }, lambda a, b: 10 if a == b else 21)
    eight = machine(8, 2, 1, {
        0: [ethernet("eth0")],
        2: [infiniband("ib0", "mlx5_0")],
        3: [infiniband("ib1", "mlx5_1")],
        6: [infiniband("ib2", "mlx5_2")],
        None: [ethernet("eth1")],
    }, ring)
    (here / "two-sockets.xml").write_text(two)
    (here / "eight-sockets.xml").write_text(eight)


main()
