# `make demo` runs the main job, `make test` runs the tests; both install what they need.

.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo

.PHONY: help
help: ## List the targets
	@echo "Usage: make TARGET"
	@echo
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make long SHARD=2/4   runs one part of four; tests that passed on this commit are not run again"
	@echo "  make long ONLY=WORD   runs those with the word in their names"
	@echo "  make demo KEEP=1   keeps the demo's clusters and prints how to use them; NODES=kwok runs no containers"

# Runs a step of CI: `$(STEP) NAME COMMAND` keeps what it took, and ends it when CI's time is over.
STEP := @tests/step.sh

.PHONY: tools
tools:
	@bash tests/tools.sh

.PHONY: control-plane
control-plane: tools ## Build the control plane for demo and tests (once; minutes)
	$(STEP) control-plane tests/controlplane/build.sh >/dev/null

.PHONY: test-tools
test-tools: control-plane ## Build what tests need beside it: grpcurl, Helm, promtool, mdBook, Chromium... (once; minutes)
	$(STEP) test-tools tests/build-tools.sh

.PHONY: demo
demo: control-plane ## Run the main job on two clusters, with real Nodes where root can have them; NODES=real or kwok chooses
	@$(CARGO) build --locked --bin outrigger --bin demo
	@target/debug/demo $(if $(KEEP),--keep) $(if $(NODES),--nodes=$(NODES))

.PHONY: test
test: test-tools compile ## Run all tests, the end-to-end ones on a real control plane; ONLY=e2e those with the word in their names
	$(STEP) tests target/debug/runner test $(ONLY)
	$(STEP) doc-tests $(CARGO) test --locked --workspace --doc
	$(STEP) go-tests tests/controlplane/test.sh

.PHONY: compile
compile:
	$(STEP) compile $(CARGO) test --locked --workspace --no-run
	$(STEP) compile $(CARGO) build --locked --bin outrigger --bin runner

.PHONY: ci-times
ci-times: ## Print what each step and each test program of the last .ci/run took
	@tests/step.sh

RUNNER := $(CARGO) build --locked --bin outrigger --bin runner && CARGO=$(CARGO) target/debug/runner

.PHONY: long long-record
long: test-tools ## Run the tests that take longer than CI allows (SHARD=2/4 a part of them); resumes
	@$(RUNNER) long $(if $(SHARD),--shard $(SHARD)) $(ONLY)

long-record: ## Write into tests/long.jsonl and docs/reliability.md on which commit each long test has passed last
	@$(RUNNER) record-long

.PHONY: matrix matrix-record
matrix: test-tools ## Run tests on each supported release of Kubernetes (hours the first time); ONLY=1.34 on one; resumes
	@$(RUNNER) matrix $(ONLY)

matrix-record: ## Write the matrix's results of this commit into docs/compatibility.md
	@$(RUNNER) record-matrix

.PHONY: sim
sim: ## Run 2,000 histories of the simulation; SEED=7 shows one, FIRST, COUNT and EVENTS choose others
	@$(CARGO) build --locked --profile measured --bin sim
	@target/measured/sim $(if $(SEED),--seed $(SEED),--first $(or $(FIRST),0) --count $(or $(COUNT),2000)) $(if $(EVENTS),--events $(EVENTS))

.PHONY: sim-faults
sim-faults: ## Put faults back and print which histories find them; ONLY=lease chooses faults, UNITS=1 names unit tests, FIRST and COUNT seeds
	@$(CARGO) build --locked --profile measured --bin sim --features outrigger-sim/faults
	@target/measured/sim --faults --first $(or $(FIRST),2000) --count $(or $(COUNT),300) $(if $(ONLY),--only $(ONLY)) $(if $(UNITS),--units)

.PHONY: fuzz
fuzz: ## Run 10 million inputs of the fuzzer; TARGET=reviews runs one target, SEED and COUNT choose others
	@$(CARGO) build --locked --profile measured --bin fuzz
	@target/measured/fuzz $(if $(TARGET),--target $(TARGET)) --seed $(or $(SEED),0) --count $(or $(COUNT),10000000)

.PHONY: mutants
mutants: ## Run unit tests on changed code: CRATE=core or admission, FILE=src/core/src/index.rs, SINCE=v0.1.0 or SHARD=0/40; ITERATE=1 only on survivors
	@SINCE=$(SINCE) tests/mutants/run.sh $(or $(CRATE),core) $(if $(FILE),--file '$(FILE)') $(if $(SHARD),--shard $(SHARD)) $(if $(ITERATE),--iterate)

.PHONY: words
words: ## Search texts for phrases that tests/words.txt rejects
	$(STEP) words tests/words.sh

# Where clippy is the compiler, as in CI, what it compiles is what the tests run.
LINTS := $(if $(RUSTC_WORKSPACE_WRAPPER),test --locked --workspace --no-run,clippy --locked --workspace --all-targets -- -D warnings)

.PHONY: lint
lint: words tools ## Check words, format, lints, dependencies and generated files
	$(STEP) format tests/format.sh
	$(STEP) lints $(CARGO) $(LINTS)
	$(STEP) dependencies tests/dependencies.sh
	$(STEP) compile $(CARGO) build --locked --bin outrigger
	$(STEP) generated tests/generated.sh

VERSION := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
ARCH ?= amd64
RUST_TARGET = $(if $(filter arm64,$(1)),aarch64,x86_64)-unknown-linux-gnu
# The profile of what is released: `dev` takes minutes less and is for trying out.
RELEASE_PROFILE ?= release

.PHONY: image docker-image
image: tools ## Build the image without docker or a registry: target/image; ARCH=arm64 or "amd64 arm64" for other architectures
	@$(foreach arch,$(ARCH),program="$$(deploy/program.sh $(RELEASE_PROFILE) $(call RUST_TARGET,$(arch)))" && programs+=("$$program" $(arch)) &&) \
	deploy/image.sh "$${programs[@]}" target/image/outrigger-$(VERSION)-image-linux-$(subst $() ,-,$(strip $(ARCH))).tar

IMAGE ?= outrigger
DOCKER ?= docker
docker-image: ## Build the image with docker (DOCKER=podman, IMAGE=registry.example/outrigger)
	$(DOCKER) build --file deploy/Dockerfile --build-arg VERSION=$(VERSION) \
		--build-arg COMMIT=$$(git rev-parse --short=12 HEAD) --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		--tag $(IMAGE):$(VERSION) .

.PHONY: release
release: control-plane ## Build everything that a release consists of: target/release-artifacts; SIGNING_KEY=FILE signs it
	@CARGO=$(CARGO) deploy/release.sh $(RELEASE_PROFILE) target/release-artifacts "$(ARCH)"

export OUTRIGGER_BENCH_ROW = $(ROW)

.PHONY: bench bench-peers bench-check bench-record bench-program
bench-program: control-plane
	$(CARGO) build --locked --profile measured --bin outrigger --bin bench

bench: bench-program ## Measure everything, or the rows of ROW="webhook companion"; the report is target/bench/report.json
	target/measured/bench

bench-peers: bench-program ## Measure the webhook beside Liqo's and Kyverno's, in turns (builds them first; many minutes)
	target/measured/bench peers

bench-check: bench-program ## Fail where all rounds of a row in the last report are worse than all that were recorded
	target/measured/bench report check

bench-record: bench-program ## Record the benches of the last report, for bench-check and docs/performance.md
	target/measured/bench report record

.PHONY: crds
crds: ## Write deploy/crds and the webhooks' configurations from the Rust code
	$(CARGO) run --locked --quiet --bin outrigger -- crd --output-dir deploy/crds
	$(CARGO) run --locked --quiet --bin outrigger -- webhooks --output-dir webhooks

.PHONY: reference
reference: ## Write docs/reference from the code
	$(CARGO) run --locked --quiet --bin outrigger -- reference --output-dir docs/reference

.PHONY: pictures
pictures: test-tools ## Write the pictures of the console in docs/images, as a browser shows it
	$(CARGO) build --locked --bin outrigger
	OUTRIGGER_PICTURES=1 $(CARGO) test --locked -p outrigger-tests --test suites console::views::every_view -- --include-ignored

.PHONY: docs
docs: ## Build the documentation as a book: target/book/index.html
	@"$$(tests/mdbook/build.sh)" build docs
