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
	@echo "  make demo KEEP=1   keeps the demo's clusters and prints how to use them"

.PHONY: tools
tools:
	@bash tests/tools.sh

.PHONY: control-plane
control-plane: tools ## Build the control plane for demo and tests (once; minutes)
	@tests/controlplane/build.sh >/dev/null

.PHONY: test-tools
test-tools: control-plane ## Build what tests need beside it: grpcurl, Helm, promtool, mdBook, Chromium... (once; minutes)
	@tests/grpcurl/build.sh >/dev/null
	@tests/mdbook/build.sh >/dev/null
	@tests/helm/build.sh >/dev/null
	@tests/prometheus/build.sh >/dev/null
	@tests/buf/build.sh >/dev/null
	@tests/crdify/build.sh >/dev/null
	@tests/patches/build.sh >/dev/null
	@tests/kubelet/build.sh >/dev/null
	@tests/gitops/judge/build.sh >/dev/null
	@tests/cyclonedx/build.sh >/dev/null
	@tests/chromium/build.sh >/dev/null
	@tests/axe/build.sh >/dev/null

.PHONY: demo
demo: control-plane ## Run the main job on two real clusters
	@$(CARGO) build --locked --bin outrigger --bin demo
	@target/debug/demo $(if $(KEEP),--keep)

.PHONY: test
test: test-tools ## Run all tests, the end-to-end ones on a real control plane
	$(CARGO) build --locked --bin outrigger
	@CARGO=$(CARGO) tests/run.sh
	cd tests/controlplane && go generate && CGO_ENABLED=0 go test -trimpath .

.PHONY: long
long: test-tools ## Run the tests that take longer than CI allows (SHARD=2/4 a part of them); resumes
	@tests/mutants/build.sh >/dev/null
	$(CARGO) build --locked --bin outrigger
	@CARGO=$(CARGO) $(CARGO) run --locked --quiet -p outrigger-tests --bin long -- $(if $(SHARD),--shard $(SHARD)) $(ONLY)

.PHONY: matrix matrix-record
matrix: test-tools ## Run tests on each supported release of Kubernetes (hours the first time); ONLY=1.34 on one; resumes
	$(CARGO) build --locked --bin outrigger
	@CARGO=$(CARGO) $(CARGO) run --locked --quiet -p outrigger-tests --bin long -- --matrix $(ONLY)

matrix-record: ## Write the matrix's results of this commit into docs/compatibility.md
	@$(CARGO) run --locked --quiet -p outrigger-tests --bin long -- --record-matrix

.PHONY: sim
sim: ## Run 2,000 histories of the simulation; SEED=7 shows one, FIRST, COUNT and EVENTS choose others
	@$(CARGO) build --locked --profile measured --bin sim
	@target/measured/sim $(if $(SEED),--seed $(SEED),--first $(or $(FIRST),0) --count $(or $(COUNT),2000)) $(if $(EVENTS),--events $(EVENTS))

.PHONY: fuzz
fuzz: ## Run 10 million inputs of the fuzzer; TARGET=reviews runs one target, SEED and COUNT choose others
	@$(CARGO) build --locked --profile measured --bin fuzz
	@target/measured/fuzz $(if $(TARGET),--target $(TARGET)) --seed $(or $(SEED),0) --count $(or $(COUNT),10000000)

.PHONY: mutants
mutants: ## Run unit tests on changed code: CRATE=core SHARD=1/40 or FILE=src/core/src/index.rs; AGAIN=1 runs survivors, TABLE=1 prints figures
	@$(CARGO) run --locked --quiet -p outrigger-mutants -- $(if $(TABLE),table,run $(or $(CRATE),core) $(if $(FILE),--file '$(FILE)',$(if $(AGAIN),--again,$(subst /, ,$(or $(SHARD),1/40)))))

.PHONY: words
words: ## Search texts for phrases that tests/words.txt rejects
	@tests/words.sh

.PHONY: lint
lint: words control-plane ## Check words, format, lints, dependencies and generated files
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	cd tests && test -z "$$(gofmt -l .)"
	"$$(tests/shear/build.sh)"
	@$(MAKE) --no-print-directory deny crds-check reference-check

VERSION := $(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
ARCH ?= amd64
RUST_TARGET = $(if $(filter arm64,$(ARCH)),aarch64,x86_64)-unknown-linux-gnu
# The profile of what is released: `dev` takes minutes less and is for trying out.
RELEASE_PROFILE ?= release

.PHONY: image docker-image
image: tools ## Build the image without docker or a registry: target/image; ARCH=arm64 for the other architecture
	@program="$$(deploy/program.sh $(RELEASE_PROFILE) $(RUST_TARGET))" && \
	deploy/image.sh "$$program" $(ARCH) target/image/outrigger-$(VERSION)-image-linux-$(ARCH).tar

IMAGE ?= outrigger
DOCKER ?= docker
docker-image: ## Build the image with docker (DOCKER=podman, IMAGE=registry.example/outrigger)
	$(DOCKER) build --file deploy/Dockerfile --build-arg VERSION=$(VERSION) \
		--build-arg COMMIT=$$(git rev-parse --short=12 HEAD) --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		--tag $(IMAGE):$(VERSION) .

.PHONY: release
release: control-plane ## Build everything that a release consists of: target/release-artifacts; SIGNING_KEY=FILE signs it
	@CARGO=$(CARGO) deploy/release.sh $(RELEASE_PROFILE) target/release-artifacts $(ARCH)

.PHONY: deny
deny: ## Judge licenses, sources and versions of dependencies
	"$$(tests/deny/build.sh)" --locked --log-level error check licenses sources bans

BENCHES := outrigger load-webhook load-admission load-manager load-matching load-tenants load-rules load-downlink load-abuse load-console load-fleet bench-report
export OUTRIGGER_BENCH_ROW = $(ROW)

.PHONY: bench
bench: control-plane ## Measure everything, or the rows of ROW="webhook companion"; the report is target/bench/report.json
	$(CARGO) build --locked --profile measured $(addprefix --bin ,$(BENCHES))
	case "$(ROW)" in ""|webhook*) target/measured/load-webhook;; esac
	case "$(ROW)" in ""|admission*) target/measured/load-admission;; esac
	case "$(ROW)" in ""|manager*) target/measured/load-manager;; esac
	case "$(ROW)" in ""|matching*) target/measured/load-matching;; esac
	case "$(ROW)" in ""|tenants*) target/measured/load-tenants;; esac
	case "$(ROW)" in ""|rules*) target/measured/load-rules;; esac
	case "$(ROW)" in ""|downlink*) target/measured/load-downlink;; esac
	case "$(ROW)" in ""|abuse*) target/measured/load-abuse;; esac
	case "$(ROW)" in ""|console*) tests/chromium/build.sh >/dev/null && target/measured/load-console;; esac
	case "$(ROW)" in fleet*) target/measured/load-fleet;; esac
	target/measured/bench-report table

.PHONY: bench-peers
bench-peers: control-plane ## Measure the webhook beside Liqo's and Kyverno's, in turns (builds them first; many minutes)
	$(CARGO) build --locked --profile measured --bin outrigger --bin load-peers --bin bench-report
	target/measured/load-peers

.PHONY: bench-check bench-record
bench-check: ## Fail where all rounds of a row in the last report are worse than all that were recorded
	$(CARGO) run --locked --quiet --profile measured --bin bench-report -- check

bench-record: ## Record the benches of the last report, for bench-check and docs/performance.md
	$(CARGO) run --locked --quiet --profile measured --bin bench-report -- record

.PHONY: crds
crds: ## Write deploy/crds and the webhooks' configurations from the Rust code
	$(CARGO) run --locked --quiet --bin outrigger -- crd --output-dir deploy/crds
	$(CARGO) run --locked --quiet --bin outrigger -- webhooks --output-dir webhooks

.PHONY: crds-check
crds-check:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(CARGO) run --locked --quiet --bin outrigger -- crd --output-dir "$$dir" || exit 1; \
	diff -r deploy/crds "$$dir" || { echo "deploy/crds is out of date: run 'make crds'"; exit 1; }
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(CARGO) run --locked --quiet --bin outrigger -- webhooks --output-dir "$$dir" || exit 1; \
	diff webhooks/mutating.yaml "$$dir/mutating.yaml" && diff webhooks/validating.yaml "$$dir/validating.yaml" && \
	diff webhooks/gate/mutating.yaml "$$dir/gate/mutating.yaml" || \
	{ echo "webhooks/ is out of date: run 'make crds'"; exit 1; }

.PHONY: reference
reference: ## Write docs/reference from the code
	$(CARGO) run --locked --quiet --bin outrigger -- reference --output-dir docs/reference

.PHONY: reference-check
reference-check:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(CARGO) run --locked --quiet --bin outrigger -- reference --output-dir "$$dir" || exit 1; \
	diff -r docs/reference "$$dir" || { echo "docs/reference is out of date: run 'make reference'"; exit 1; }

.PHONY: pictures
pictures: test-tools ## Write the pictures of the console in docs/images, as a browser shows it
	$(CARGO) build --locked --bin outrigger
	OUTRIGGER_PICTURES=1 $(CARGO) test --locked -p outrigger-tests --test console every_view

.PHONY: docs
docs: ## Build the documentation as a book: target/book/index.html
	@"$$(tests/mdbook/build.sh)" build docs
