# Thin lines over `python -m ...`; `make` alone lists them. make itself exits with 2 for any failure: for a command's own
# exit status (75: stopped, the same command resumes) run the printed line without make.

PYTHON ?= python3
VENV ?= .venv
UV ?= uv
# Which of the supported releases `make test-matrix` takes: oldest or newest.
RELEASES ?= oldest
ARGS ?=

include launch/variables.mk
export MAKE_STARTED := $(shell date +%s.%N)

python := $(VENV)/bin/python
launch := $(python) -m $(if $(NPROC),app.launch --nproc-per-node $(NPROC) -m )

# Containers: which image and service.
PLATFORM ?= $(shell if test -e /dev/kfd; then echo rocm; elif test -e /dev/nvidiactl; then echo cuda; else echo cpu; fi)
suffix = $(if $(filter-out cpu,$(PLATFORM)),-$(PLATFORM))
compose = CLICKWORK_GIT_SHA=$(shell git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null) \
  docker compose --profile $(PLATFORM)
image = $$($(compose) config --images | grep ':$(PLATFORM)$$' | sort -u)
digest = CLICKWORK_IMAGE_DIGEST=$$(docker image inspect --format '{{.Id}}' $(image))

comma := ,
space := $(subst ,, )

.DEFAULT_GOAL := help
# Every target is a command: none makes a file of its name.
.PHONY: help $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:
	@echo 'usage: make <target> [ARGS="key=value ..."] [PYTHON=python3.12] [VENV=.venv]'
	@awk -F ':.*## ' '/^##@/ { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

##@ Use

train: environment ## Prepare data if there is none, train, evaluate, write the run; NPROC=n for n processes
	$(launch)app.train $(ARGS)

preprocess: environment ## Raw rows to shards: ARGS="data.raw=day_0.gz data.path=data/mine"
	$(python) -m data_prep $(ARGS)

inspect: environment ## Propose the schema of your own table, and show its columns on a page: FILE=ratings.csv
	$(if $(FILE),,$(error inspect needs a file: make inspect FILE=ratings.csv))
	@$(python) -m data_prep.inspect 'data.raw="$(FILE)"' $(ARGS)

evaluate: environment ## Metrics of a run's checkpoint on a split, as JSON: RUN=runs/quickstart
	$(if $(RUN),,$(error evaluate needs a run: make evaluate RUN=runs/quickstart))
	$(python) -m app.evaluate run=$(RUN) $(ARGS)

recommend: environment ## Rank candidates by a run's model: RUN=runs/quickstart CANDIDATES=ads.csv
	$(if $(RUN),,$(error recommend needs a run: make recommend RUN=runs/quickstart CANDIDATES=ads.csv))
	$(if $(CANDIDATES),,$(error recommend needs candidates: make recommend RUN=$(RUN) CANDIDATES=ads.csv))
	$(python) -m app.recommend run=$(RUN) candidates=$(CANDIDATES) $(ARGS)

export: environment ## A run's model as a directory that scores raw rows, OUT or exports/NAME: RUN=runs/quickstart
	$(if $(RUN),,$(error export needs a run: make export RUN=runs/quickstart))
	$(python) -m app.export run=$(RUN) out=$(or $(OUT),exports/$(notdir $(RUN))) $(ARGS)

importance: environment ## What a run's model loses without each feature, and its metrics by value of a column: RUN=runs/quickstart
	$(if $(RUN),,$(error importance needs a run: make importance RUN=runs/quickstart))
	$(python) -m app.importance run=$(RUN) $(ARGS)

report: environment ## The HTML report of a run, finished or not; several runs side by side: RUN=runs/quickstart
	$(if $(RUN),,$(error report needs a run: make report RUN=runs/quickstart))
	$(python) -m app.report 'runs=["$(RUN)"]' $(ARGS)

verify: environment ## Replay a run and report whether, or where, it came out differently: RUN=runs/quickstart
	$(if $(RUN)$(BUNDLE),,$(error verify needs a run: make verify RUN=runs/quickstart, or BUNDLE=quickstart.bundle))
	$(launch)app.verify $(if $(BUNDLE),bundle=$(BUNDLE),run=$(RUN)) $(ARGS)

bundle: environment ## A run's record as one file, for verify on another machine: RUN=runs/quickstart OUT=quickstart.bundle
	$(if $(RUN),,$(error bundle needs a run: make bundle RUN=runs/quickstart))
	$(python) -m app.bundle run=$(RUN) $(if $(OUT),out=$(OUT)) $(ARGS)

##@ Compare

compare: environment ## Several runs side by side, in runs/compare-a-b.html: RUNS="runs/a runs/b"
	$(if $(RUNS),,$(error compare needs runs: make compare RUNS="runs/a runs/b"))
	$(python) -m app.report 'runs=[$(subst $(space),$(comma),$(patsubst %,"%",$(strip $(RUNS))))]' $(ARGS)

tune: environment ## Search settings on val, and say which to take: ARGS="data.path=data/mine search.optimizer.lr=[1e-3,1e-1]"
	$(python) -m app.tune $(ARGS)

reproduce: environment ## A recipe at several seeds beside its published figure: RECIPE=quickstart SEEDS=5; NPROC=n
	$(python) -m app.reproduce $(if $(RECIPE),recipe=$(RECIPE)) $(if $(SEEDS),seeds=$(SEEDS)) \
	  $(if $(NPROC),processes=$(NPROC)) $(ARGS)

bench: environment ## Lookups, products, exchanges and steps against this machine's measured limits: ARGS="operators=[step]"; NPROC=n
	$(launch)app.bench $(ARGS)

plan: environment ## The sharding plan and its forecast for hardware you need not have: ARGS="recipe=mlperf_v2 topology=mi300x topology.devices_per_node=8"
	$(python) -m app.plan $(ARGS)

tensorboard: environment ## TensorBoard over all runs: RUNS=runs, ARGS="--port 6006"
	$(python) -m tensorboard.main --logdir $(or $(RUNS),runs) $(ARGS)

##@ Containers

up: ## In containers: preprocess, train on PLATFORM=cpu|cuda|rocm (default: detected), TensorBoard beside it
	@sh launch/settings.sh
	@project=$$($(compose) config | sed -n 's/^name: //p'); \
	  test -z "$$(docker ps --quiet --filter label=com.docker.compose.project=$$project \
	    --filter label=com.docker.compose.service=train$(suffix))" || { \
	  echo "error: a training of $$project is running here: wait for it, stop it (docker stop --time 600 its container, of" \
	    "\`docker ps\`), or start another beside it: docker compose run --rm train$(suffix) run.name=another" >&2; exit 2; }
	$(compose) build
	@mkdir -p data runs
	$(if $(suffix),$(compose) run --rm --no-deps gpu$(suffix))
	$(compose) run --rm folders
	$(compose) run --rm --no-deps data_prep$(suffix)
	@$(compose) up --detach --no-deps tensorboard && echo "TensorBoard: http://$$($(compose) port tensorboard 6006)" || \
	  echo "TensorBoard did not start; the training continues without it"
	$(digest) $(compose) run --rm --no-deps train$(suffix) $(ARGS)

images: ## Build the images for PLATFORM=cpu|cuda|rocm
	@sh launch/settings.sh
	$(compose) build
	@echo "built: $$($(compose) config --images | sort -u | xargs)"

shell: images ## A shell in the image for PLATFORM=cpu|cuda|rocm, with data/ and runs/
	@mkdir -p data runs
	$(digest) $(compose) run --rm --no-deps --entrypoint bash train$(suffix)

##@ Develop

# What targets need beyond training: groups of pyproject.toml, added to the environment in place.
groups = $(if $(filter test test-all bench-check lint golden,$(MAKECMDGOALS)),dev) \
  $(if $(filter tune,$(MAKECMDGOALS)),tune) $(if $(filter export,$(MAKECMDGOALS)),onnx)

environment: ## Create or update the Python environment in .venv; every target does so first; STACK=cpu|cuda|rocm
	@$(PYTHON) requirements/install.py $(VENV) train $(groups)$(if $(STACK), --device $(STACK))

doctor: environment ## What is wrong with packages, GPUs, memory, disks and datasets, and how to fix it
	$(python) -m app.doctor $(ARGS)

test: environment ## Run the quick tests; ARGS go to pytest
	$(python) -m pytest -m 'not slow and not medium' $(ARGS)

test-all: environment ## Run every test, as .ci/run does; ARGS go to pytest
	$(python) -m pytest $(ARGS)

test-matrix: ## Every test on RELEASES=oldest or newest, in .venv-RELEASES (a download of gigabytes); ARGS go to pytest
	@$(PYTHON) requirements/install.py $(VENV)-$(RELEASES) train dev --device $(RELEASES)
	$(VENV)-$(RELEASES)/bin/python -m pytest $(ARGS)

bench-check: environment ## The working tree against the last commit, paired: what has become slower
	$(python) -m benchmarks.check $(ARGS)

reference: environment ## All commands, keys and documents, from their declarations, in reference.md
	$(python) -m tests.declared reference.md

lint: environment ## Ruff, its formatter, mypy, the layers, hadolint; docker-compose.yml, where compose is there to read it
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/hadolint Dockerfile.cuda Dockerfile.rocm
	@if docker compose version >/dev/null 2>&1; then set -x; \
	  for profile in cpu cuda rocm; do docker compose --env-file .env.example --profile $$profile config --quiet || exit; done; \
	else echo 'SKIPPED: NO docker compose HERE, SO docker-compose.yml WAS NOT VALIDATED'; fi

lock: ## Resolve pyproject.toml's groups into requirements/*.lock (needs uv); ARGS=--upgrade for newer versions
	@compile() { group=$$1; shift; $(UV) pip compile --group $$group --override requirements/excluded.in --universal \
	    --python-version 3.10 --generate-hashes --no-annotate --custom-compile-command 'make lock' --quiet \
	    --output-file requirements/$$group.lock $(ARGS) "$$@"; }; \
	  compile installer && compile train && compile data_prep --constraint requirements/train.lock && \
	  compile dev --constraint requirements/train.lock \
	    $$(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' requirements/train.lock | sort -u)

golden: environment ## Train tests/golden again, the run that the tests replay: only where bits are meant to change
	$(python) -m tests.golden.make

clean: ## Remove .venv, .venv-oldest, .venv-newest and the tools' caches; runs/ and data/ stay
	@for venv in $(VENV) $(VENV)-oldest $(VENV)-newest; do test ! -e $$venv/clickwork.json || rm -rf $$venv; done
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find app clickwork common data_prep extensions requirements tests -name __pycache__ -prune -exec rm -rf {} +
