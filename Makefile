# cotal-host. On a fresh machine with Go and git, two commands do everything:
#
#   make run     build, and serve from a scratch workspace
#   make test    install what the tests need, then run them all
#
# Everything that is built goes to ./bin; everything that is cached goes to ./.cache or to the
# user's cache directory. Tools are pinned in .ci/tools.mod and need no installation.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# A plugin's own version (runtimes/pty.Version and the like) must equal what is written into plugins.toml.
VERSION ?= 0.1.0
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
TOOL    := go tool -modfile=.ci/tools.mod

# Where `make run` serves from. It is kept between runs, so seats that were left running are found again.
ROOT ?= $(CURDIR)/.cache/run

# Where `make install` puts things: the bundle into lib/cotal-host, links into bin.
PREFIX ?= $(HOME)/.local
BUNDLE ?= bin

# Packages that take a minute or more: they are begun first, so that none of them is left over in the end.
LONG    := ./test/e2e ./test/crash ./cmd/cotal ./runtimes/pty ./plugins/supervise ./runtimes/tmux ./cmd/cotal-fakeplugin \
           ./test/docs ./test/chaos ./connectors/opencode

# How many packages are tested at once. Tests wait for processes more than they compute: as many as there are
# processors would leave half of a small machine idle.
ATONCE  ?= 3

# make test PKG=./host/... RUN=TestName narrows; make bench BENCH=Spawn COUNT=10 too.
PKG     ?= ./...
RUN     ?=
BENCH   ?= .
COUNT   ?= 6
FUZZTIME ?= 60s

.PHONY: build install run workspace test test-tools test-long check bench proto trace clean help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build every binary into ./bin and write bin/plugins.toml with their digests
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...
	bin/cotal-host bundle bin

# The programs find each other beside the file that a link leads to. install replaces files instead of
# writing into them, so it works under a running host. That host goes on with the old plugins until
# `cotal ext reload`, and is itself the old one until it is started again. plugins.toml comes last: it names
# what is already there.
install: build ## copy the bundle to PREFIX/lib/cotal-host and link cotal and cotal-host into PREFIX/bin (~/.local)
	@install -d '$(PREFIX)/bin' '$(PREFIX)/lib/cotal-host'
	@for f in '$(BUNDLE)'/*; do case "$${f##*/}" in cotal-fakeagent|cotal-fakeplugin|plugins.toml) ;; \
	  *) install -m 755 "$$f" '$(PREFIX)/lib/cotal-host/' ;; esac; done
	@install -m 644 '$(BUNDLE)/plugins.toml' '$(PREFIX)/lib/cotal-host/'
	@for f in cotal cotal-host; do ln -sfn "../lib/cotal-host/$$f" '$(PREFIX)'/bin/$$f; done
	@echo 'installed: $(PREFIX)/bin/cotal, $(PREFIX)/bin/cotal-host; under a host that runs: cotal ext reload for the plugins, a restart for the host (its seats go on)'
	@case ":$$PATH:" in *':$(PREFIX)/bin:'*) ;; *) echo 'not in PATH yet: export PATH="$(PREFIX)/bin:$$PATH"' ;; esac

workspace:
	@mkdir -p '$(ROOT)/.cotal/agents'
	@for f in docs/examples/agents/*.md; do \
	  [ -e "$(ROOT)/.cotal/agents/$${f##*/}" ] || cp "$$f" '$(ROOT)/.cotal/agents/'; \
	done
	@echo 'workspace: $(ROOT)'
	@command -v opencode >/dev/null || \
	  echo 'opencode is not installed; the sample persona "opencode" needs it: npm install -g opencode-ai@1.18.33'

run: build workspace ## build, and serve from a scratch workspace (ROOT=dir chooses another)
	@exec bin/cotal-host serve --root '$(ROOT)'

test-tools:
	@.ci/need test
	@go run ./test/agents/cmd/fetch-agents

# The tests start the binaries of ./bin, which were built as they are shipped; the race detector
# watches everything that runs inside the test processes. Everything is compiled before the first test runs: a compiler
# beside them takes the machine from what they start.
test: build test-tools ## install what the tests need, vet, and run every test with the race detector
	go vet $(PKG)
	@echo 'compile the tests'
	@CGO_ENABLED=1 go list -race -test -export -deps $(PKG) >/dev/null
	COTAL_TEST_BIN='$(CURDIR)/bin' CGO_ENABLED=1 $(TOOL) gotestsum --format standard-quiet \
	  --post-run-command .ci/counts -- \
	  -race -shuffle=on -timeout 25m -p $(ATONCE) $(if $(RUN),-run '$(RUN)') \
	  $(if $(filter ./...,$(PKG)),$(LONG)) $(PKG)

test-long: build test-tools ## fuzz every parser for FUZZTIME each, soak, and the whole crash matrix
	.ci/fuzz $(FUZZTIME)
	$(MAKE) proto
	COTAL_LONG=1 COTAL_TEST_BIN='$(CURDIR)/bin' CGO_ENABLED=1 $(TOOL) gotestsum --format standard-quiet \
	  --post-run-command .ci/counts -- -race -shuffle=on -timeout 120m $(PKG)

check: ## formatting, vet for Linux and macOS, linters, known vulnerabilities, layout rules, trace
	.ci/check

bench: build ## benchmarks, one package at a time; BENCH=regexp COUNT=n; compared with the last run
	BENCH='$(BENCH)' COUNT='$(COUNT)' .ci/bench

proto: ## generate the plugin contract's code, lint it and compare it with the breaking-change baseline
	.ci/proto

trace: ## which rows of the behaviour catalogue have a proof (ARGS=-v lists them all)
	@go run ./test/trace $(ARGS)

clean: ## remove what was built and the scratch workspace's build caches, never a workspace
	rm -rf bin .cache/bench
