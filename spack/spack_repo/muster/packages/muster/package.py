# Copyright The Muster developers.
#
# SPDX-License-Identifier: (Apache-2.0 OR MIT)

import glob
import os
import re

from spack_repo.builtin.build_systems.cargo import CargoBuilder as BuiltinCargoBuilder
from spack_repo.builtin.build_systems.cargo import CargoPackage

from spack.package import *


class Muster(CargoPackage):
    """Failure detection and membership for HPC jobs: every rank knows, within milliseconds,
    which nodes and ranks are alive, degraded, hung or dead, and how that is known."""

    homepage = "https://example.invalid/muster"
    # `make dist` writes both archives: MUSTER_DIST is the folder or mirror that has them.
    _dist = os.environ.get("MUSTER_DIST", "https://example.invalid/muster/releases")
    url = f"{_dist}/muster-0.1.0.tar.gz"
    git = os.environ.get("MUSTER_GIT", "https://example.invalid/muster.git")

    license("Apache-2.0 OR MIT", checked_by="muster")

    executables = ["^muster$"]
    tags = ["hpc", "resilience"]

    # A working copy, for `spack develop`: its crates come from the registry.
    version("main", branch="main")
    # The digests are those of one release; `make dist` prints them.
    version("0.1.0", sha256=os.environ.get("MUSTER_SHA256", "0" * 64))

    variant("agent", default=True, description="Build the agent and the commands, too")
    variant("hwloc", default=True, description="Choose cores and rails by the machine's topology")
    variant("slurm", default=False, description="Build the SPANK plugin")
    variant("fortran", default=True, description="Install the Fortran module's source")
    variant(
        "fabrics",
        default="tcp,udp",
        values=("tcp", "udp", "verbs"),
        multi=True,
        description="Providers that libfabric must have",
    )

    # Crates: with them no registry is asked.
    resource(
        name="vendor",
        url=f"{_dist}/muster-0.1.0-vendor.tar.gz",
        sha256=os.environ.get("MUSTER_VENDOR_SHA256", "0" * 64),
        destination="",
        placement="vendor",
        when="@0.1.0",
    )

    depends_on("c", type="build")
    depends_on("rust@1.88:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("gmake", type="build")
    # bindgen reads the headers of PMIx and libfabric.
    depends_on("llvm+clang", type="build")
    depends_on("pmix@4:")
    depends_on("libfabric@1.17:", when="+agent")
    for _fabric in ("tcp", "udp", "verbs"):
        depends_on(f"libfabric fabrics={_fabric}", when=f"+agent fabrics={_fabric}")
    depends_on("hwloc@2.8:", when="+hwloc")
    depends_on("systemd", type="build", when="+hwloc")
    depends_on("slurm", when="+slurm")

    conflicts("+slurm", when="~agent", msg="the SPANK plugin starts agents: build them, too")
    conflicts("+hwloc", when="~agent", msg="only the agent looks at the topology")
    conflicts("platform=darwin", msg="Muster needs Linux: futexes, pidfds and /proc")
    conflicts("platform=windows", msg="Muster needs Linux: futexes, pidfds and /proc")

    @classmethod
    def determine_version(cls, exe):
        output = Executable(exe)("--version", output=str, error=str, fail_on_error=False)
        found = re.match(r"muster (\d+\.\d+\.\d+)\s*$", output)
        return found.group(1) if found else None

    @classmethod
    def determine_variants(cls, exes, version):
        prefix = os.path.dirname(os.path.dirname(exes[0]))
        plugins = glob.glob(os.path.join(prefix, "lib*", "slurm", "*muster*.so"))
        fortran = os.path.exists(os.path.join(prefix, "include", "muster.f90"))
        return " ".join(["+slurm" if plugins else "~slurm", "+fortran" if fortran else "~fortran"])

    @property
    def libs(self):
        return find_libraries("libmuster", root=self.prefix, shared=True, recursive=True)

    @property
    def headers(self):
        return find_headers("muster", root=self.prefix.include)

    def setup_run_environment(self, env):
        env.set("MUSTER_ROOT", self.prefix)
        if self.spec.satisfies("+agent"):
            # Ranks start it, wherever libmuster was loaded from.
            env.set("MUSTER_AGENT", self.prefix.bin.musterd)

    def setup_dependent_build_environment(self, env, dependent_spec):
        env.prepend_path("CMAKE_PREFIX_PATH", self.prefix)

    @run_after("install")
    def keep_examples(self):
        cache_extra_test_sources(self, "examples")

    def test_version(self):
        """the commands say their version"""
        if self.spec.satisfies("~agent"):
            raise SkipTest("this package was built without the commands")
        for name in ("muster", "musterd"):
            program = which(join_path(self.prefix.bin, name), required=True)
            check_outputs(str(self.spec.version), program("--version", output=str, error=str))

    def test_c_client(self):
        """a C program builds against libmuster and says its version"""
        source = r"""
#include <muster.h>
#include <stdio.h>
int main(void) {
    int major, minor, patch;
    muster_version(&major, &minor, &patch);
    printf("muster %d.%d.%d\n", major, minor, patch);
    return 0;
}
"""
        with open("client.c", "w") as file:
            file.write(source)
        cc = which(os.environ.get("CC", "cc"), required=True)
        lib = self.libs.directories[0]
        cc(
            "client.c",
            f"-I{self.prefix.include}",
            f"-L{lib}",
            "-lmuster",
            f"-Wl,-rpath,{lib}",
            "-o",
            "client",
        )
        client = which(join_path(".", "client"), required=True)
        check_outputs("muster ", client(output=str, error=str))

    def test_members(self):
        """three members on loopback find each other"""
        if self.spec.satisfies("~agent"):
            raise SkipTest("this package was built without the agent")
        musterd = join_path(self.prefix.bin, "musterd")
        muster = which(join_path(self.prefix.bin, "muster"), required=True)
        directory = os.path.realpath(".")
        members = [
            subprocess_of(musterd, f"n{index}", f"127.72.0.{index}@udp0", directory)
            for index in (1, 2, 3)
        ]
        try:
            socket = join_path(directory, "n1.control")
            wait_for_path(socket)
            muster("wait", "n[1-3]", "--timeout", "60", "--agent", socket)
            check_outputs("3 of 3 members alive", muster("check", "--agent", socket, output=str))
        finally:
            for member in members:
                member.terminate()
                member.wait()


def subprocess_of(musterd, name, rail, directory):
    """A member that runs until it is ended."""
    import subprocess

    arguments = [musterd, "--name", name, "--rail", rail, "--seed", "127.72.0.1@udp0"]
    environment = dict(os.environ, MUSTER_DIR=directory)
    return subprocess.Popen(
        arguments + ["--print-events", "plain"], env=environment, stdout=subprocess.DEVNULL
    )


def wait_for_path(path):
    """Returns when it is there, or after a minute."""
    import time

    end = time.monotonic() + 60
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.05)


class CargoBuilder(BuiltinCargoBuilder):
    """Installs libraries, headers, pages and the plugin, too: the stock builder has binaries."""

    def _cargo(self, *arguments):
        pkg = self.pkg
        vendor = join_path(pkg.stage.source_path, "vendor")
        options = []
        if os.path.isdir(vendor):
            options = [
                "--config",
                'source.crates-io.replace-with="vendored-sources"',
                "--config",
                f'source.vendored-sources.directory="{vendor}"',
                "--offline",
            ]
        with working_dir(pkg.stage.source_path):
            pkg.module.cargo(*arguments, "--locked", f"-j{pkg.module.make_jobs}", *options)

    def setup_build_environment(self, env):
        env.set("CARGO_HOME", join_path(self.pkg.stage.path, "cargo"))
        env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)
        if self.spec.satisfies("+slurm"):
            env.set("SLURM_INCLUDE_DIR", self.spec["slurm"].prefix.include)

    def build(self, pkg, spec, prefix):
        self._cargo("build", "--release", "-p", "muster-c")
        if spec.satisfies("+agent"):
            programs = ["-p", "muster-agent", "-p", "muster-cli", "-p", "muster-lab", "--bins"]
            features = [] if spec.satisfies("+hwloc") else ["--no-default-features"]
            self._cargo("build", "--release", *programs, *features)
        if spec.satisfies("+slurm"):
            self._cargo("build", "--release", "-p", "muster-slurm")
        with working_dir(pkg.stage.source_path):
            release = join_path("target", "release")
            link = Executable("sh")
            link(
                "bindings-c/link.sh", join_path(release, "libmuster_c.a"), join_path(release, "c")
            )

    def install(self, pkg, spec, prefix):
        with working_dir(pkg.stage.source_path):
            release = join_path("target", "release")
            if spec.satisfies("+agent"):
                Executable("sh")("scripts/install", str(prefix), str(prefix))
            else:
                install_tree(join_path(release, "c", "lib"), prefix.lib)
                install_tree(join_path(release, "c", "include"), prefix.include)
            if spec.satisfies("~fortran"):
                for source in glob.glob(join_path(prefix.include, "*.f90")):
                    os.remove(source)
            if spec.satisfies("+slurm"):
                mkdirp(prefix.lib.slurm)
                for plugin in glob.glob(join_path(release, "libmuster_spank.so")):
                    install(plugin, join_path(prefix.lib.slurm, "muster_spank.so"))

    def check(self):
        """What needs no launcher and no other libfabric."""
        crates = ["wire", "age", "protocol", "provider", "fabric"]
        self._cargo("test", *(f"--package=muster-{name}" for name in crates))
