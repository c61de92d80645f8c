# Short names for what cargo, xtask and scripts/ do. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Everything worth keeping between clones stays outside of them: a clean clone reuses compiled crates and guest images.
export FERROVIRT_CACHE ?= $(HOME)/.cache/ferrovirt
export CARGO_TARGET_DIR ?= $(FERROVIRT_CACHE)/target
# The programs as they ship. `make up` installs them; tests and benchmarks run these very files.
export FERROVIRT_BIN_DIR ?= $(CARGO_TARGET_DIR)/dist
# The demo guest: demo.qcow2, and demo-guest.tar that holds it as an image.
export FERROVIRT_GUEST_DIR ?= $(FERROVIRT_CACHE)/guest
export PREFIX ?= /usr/local

.PHONY: help up down deps build fuzz image debian-image clients test lint bench bench-api bench-console bench-disk bench-net bench-scale bench-versus nightly selftest-debian13 images conformance functests client-matrix differential upstream-rows kubernetes-up kubernetes-down e2e-kubernetes bench-kubernetes deny gen bench-load

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

up: ## build, install, start, and boot the demo machine
	@scripts/up.sh

down: ## stop every machine, then ferrovirt itself
	@scripts/down.sh

deps: ## install the system packages that are missing
	@scripts/install-deps.sh

build: ## build the programs as they ship
	@scripts/build.sh

# Package lists that are a little old name files the mirror no longer has, hence the second try.
image: ## make the demo guest's image, if there is none for this source
	@scripts/guest-image.sh "$(FERROVIRT_GUEST_DIR)" || \
		{ scripts/install-deps.sh --update && scripts/guest-image.sh "$(FERROVIRT_GUEST_DIR)"; }

debian-image: image ## make the Debian guest's image, if there is none for this source
	@scripts/debian-guest.sh "$(FERROVIRT_GUEST_DIR)"

clients: ## build the stock virtctl that tests drive, if the cache lacks it
	@scripts/clients.sh >/dev/null

test: deps build debian-image clients ## all tests, with real guests
	cargo xtask test

lint: ## format, clippy, layering, generated files, shell scripts
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo xtask tidy
	@scripts/lint-shell.sh

bench: deps build image ## measure against raw QEMU; one table, also as JSON
	cargo run --release --package ferrovirt-e2e --bin bench -- --json $(CARGO_TARGET_DIR)/bench.json
	cargo run --release --package ferrovirt-e2e --bin bench_overhead

bench-api: deps build ## the API against kube-apiserver and etcd; one table, also as JSON
	cargo run --release --package ferrovirt-e2e --bin bench_api -- \
		--kubernetes "$$(scripts/kubernetes/build.sh)" --json $(CARGO_TARGET_DIR)/bench-api.json

bench-load: deps build ## what services, quotas and many objects cost those who write; VERSUS=DIRECTORY measures the programs there, too
	cargo run --release --package ferrovirt-e2e --bin bench_load -- \
		--json $(CARGO_TARGET_DIR)/bench-load.json $(if $(VERSUS),--versus $(VERSUS))

bench-scale: deps build image ## 30 real VMs that start paused, then 8,000 simulated ones beside KubeVirt's figures
	cargo run --release --package ferrovirt-e2e --bin paused
	cargo run --release --package ferrovirt-sim --bin bench-scale

bench-console: deps build image ## measure serial consoles against the guests' own sockets
	cargo run --release --package ferrovirt-e2e --bin bench_console

bench-disk: deps build image ## measure imports, clones and guests' disks against curl, qemu-img and raw QEMU
	@command -v mkfs.xfs >/dev/null || apt-get install -qq -y xfsprogs
	cargo run --release --package ferrovirt-e2e --bin bench_disk

bench-net: deps build image ## measure iperf3 between guests against raw QEMU on a bridge, and what network policies cost a connection
	cargo run --release --package ferrovirt-e2e --bin bench_net
	FERROVIRT_MEASURE=1 cargo test --release --package ferrovirt-node-lite --lib cost_a_new_connection -- --nocapture

bench-versus: deps build image ## an older build against this one, by turns: make bench-versus BASE=commit
	@scripts/bench-versus.sh "$(BASE)"

fuzz: deps ## libFuzzer on what parses foreign bytes (FUZZ_SECONDS each, FUZZ_TARGETS="dhcp dns" for some)
	@scripts/fuzz.sh

nightly: deps build debian-image clients deny ## the long forms: fuzzing, hundreds of crash rounds, the launcher on Debian 13
	FERROVIRT_LONG=1 PROPTEST_CASES=20000 cargo test --workspace
	scripts/selftest-debian13.sh
	scripts/fuzz.sh

selftest-debian13: build ## the launcher on Debian 13: selftests without Kubernetes, and libvirt's ch driver
	@scripts/selftest-debian13.sh

conformance: deps build ## Kubernetes' own conformance tests, those that apply (ONLY=pattern for some of them)
	@scripts/conformance.sh $(ONLY)

functests: deps build debian-image ## KubeVirt's own functional tests, beside a list of what is expected (ONLY=pattern, LABEL=conformance, SHARDS=3)
	@scripts/functests.sh $(ONLY)

client-matrix: deps build ## kubectl 1.36 and 1.32, Helm, client-go and the Python client against a host
	@scripts/client-matrix.sh

differential: deps build ## the same requests to a host and to a kube-apiserver; what differs (ONLY=pattern for some cases)
	@scripts/differential.sh $(ONLY)

upstream-rows: deps ## KubeVirt's unit tests of launcher pods and admission, asked of our code; which rows differ
	@scripts/upstream-rows.sh

images: build ## the images of a cluster installation, as OCI archives
	@scripts/images.sh

kubernetes-up: deps ## a real Kubernetes on this machine, to test on (NODES=2 for two nodes)
	@scripts/kubernetes/up.sh $(NODES)

kubernetes-down: ## remove it again
	@scripts/kubernetes/down.sh

e2e-kubernetes: deps build image images clients ## the end-to-end cases on a real Kubernetes (SUITES="power" for some of them)
	@scripts/kubernetes/e2e.sh $(SUITES)

bench-kubernetes: deps build image images ## 20 VMs on a real Kubernetes, beside the same embedded; one table
	@scripts/kubernetes/bench.sh

deny: ## licences and known vulnerabilities of our dependencies
	@scripts/deny.sh

gen: ## write the generated data files anew
	cargo xtask gen
