# Everything a person or a machine runs here. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv lives in an environment of its own, so that it never meets the packages of the project.
UV := .uv/bin/uv
PACKAGES := secagg protocol models parties simulate cli
# What proves and documents the packages, and is in no wheel.
TOOLS := tests.exploration tests.vectors_corpus tests.campaigns tests.mutants tests.network tests.world docs.generate
SOURCES := $(shell find $(PACKAGES) -name '*.py' -o -name py.typed -o -name '*.j2' -o -path 'simulate/dashboard/*.*' -o -name digits.npz) $(wildcard tests/vectors/*)
export OMP_NUM_THREADS ?= 1
# Processes that the suite is spread over; each imports torch, and a file of tests stays in one.
WORKERS ?= 2
# In the order of their names: by itself xdist begins files of few tests last, and long ones are among them.
SPREAD := --dist loadfile --no-loadscope-reorder
# Seconds after which a test that waits for ever fails, with its stack.
LONGEST_TEST := 240
LONGEST_RUN := 900
# Tests that `make check` runs, and `make test` leaves to it.
CHECKED := tests/test_layers.py tests/test_generated_documents.py
# `:=`, so that the number is drawn once.
SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))

.PHONY: help setup demo test smoke end-to-end network all soak real ckks flower exhaustive audit fuzz fuzz-minute mutants image check format docs site vectors bench wheel resolve sign-versions clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed ## create .venv with everything that the project needs

demo: setup ## five clients train a ViT under secure aggregation
	$(BIN)/tacit simulate

test: setup ## run the unit tests, worlds in memory, and a few parties on real sockets (5 minutes on two cores)
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) --timeout $(LONGEST_TEST) $(CHECKED:%=--ignore=%) \
	    -m "not exhaustive and not end_to_end and not network and not real"

smoke: setup ## run the end-to-end and network tests that CI runs: each command once, a kill, a resume, the README (minutes)
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) --timeout $(LONGEST_RUN) -m smoke

end-to-end: setup ## make whole runs of the command beyond those of make smoke, with kills and wrong input (10 minutes)
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) --timeout $(LONGEST_RUN) -m "end_to_end and not smoke and not exhaustive and not network"

network: setup ## run federations in network namespaces: partitions, slow wires, strangers (minutes; needs root)
	$(BIN)/python -m pytest -rs --timeout $(LONGEST_RUN) -m network tests/network

all: check test wheel smoke end-to-end network exhaustive audit fuzz-minute soak ## run every tier, for a change of processes or links (hours; needs root)

CROPS ?= 200
real: setup ## ask about CROPS=200 crops of PICTURES=DIR and LABELLED=NPZ by a DINOv2 ViT-S/14 of CHECKPOINT=FILE (an hour)
	$(BIN)/python -m pytest -s -m real tests/parties/inference/test_real.py \
	    --checkpoint "$(CHECKPOINT)" --pictures "$(PICTURES)" --labelled "$(LABELLED)" --crops $(CROPS)

ROUNDS ?= 300
soak: setup ## run ROUNDS=300 rounds in network namespaces, with kills and partitions by SEED=... (20 minutes on two cores; needs root)
	@echo "SEED=$(SEED)"
	$(BIN)/python -m tests.network.soak --rounds $(ROUNDS) --seed $(SEED)

ckks: setup ## encrypt a block by desilofhe, which it installs; for use that is not commercial (minutes; 19 GB)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "desilofhe==2.*"
	student=$$(mktemp -d)/student && $(BIN)/tacit distill --out $$student && $(BIN)/python docs/demonstrations/ckks.py $$student

# Flower has bounds of its own on what the command is made of: typer, rich, starlette, uvicorn. They meet ours, but not in
# the versions of constraints.txt.
FLOWER := .venv-flower
flower: $(FLOWER)/.installed ## run an app of Flower with the secure sum, in an environment of its own (minutes)
	$(FLOWER)/bin/tacit --help > /dev/null
	$(FLOWER)/bin/python -m pytest --timeout $(LONGEST_RUN) tests/flower

exhaustive: setup ## run the enumerations that take minutes
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) --timeout 3600 -m exhaustive

audit: setup ## attack every protection, and compare with docs/security.json (minutes)
	$(BIN)/python -m pytest -m "exhaustive or end_to_end" tests/models/attacks tests/simulate/audit \
	    tests/simulate/adaptation_audit tests/cli/test_audit.py tests/cli/test_adaptation_audit.py \
	    tests/adversary/test_permuted_blocks.py tests/adversary/test_colluding_owners.py

fuzz: setup ## feed a million mutated messages to codec and machines (many minutes); repeat a run with SEED=...
	@echo "SEED=$(SEED)"
	$(BIN)/python -m pytest -q -s --hypothesis-profile=fuzz --hypothesis-seed=$(SEED) tests/fuzz

fuzz-minute: setup ## a random part of the same, in about a minute; repeat a run with SEED=...
	@echo "SEED=$(SEED)"
	$(BIN)/python -m pytest -q -s --hypothesis-profile=minute --hypothesis-seed=$(SEED) tests/fuzz

SINCE ?= HEAD~1
mutants: setup ## plant small defects into what changed since SINCE=HEAD~1, and list those that no test notices
	$(BIN)/python -m tests.mutants --since $(SINCE)

check: setup site ## lint, types, layers, generated documents, the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES:%=-p tacit.%)
	$(BIN)/mypy $(TOOLS:%=-p %)
	$(BIN)/python -m pytest -q $(CHECKED)

format: setup ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## write the generated documents again
	$(BIN)/python -m docs.generate.documents docs

models-page: setup ## write the page of accepted models again, which takes a minute
	$(BIN)/python -m docs.generate.inference_models docs

site: setup ## build the site over docs/ into site/; TACIT_REPOSITORY=https://... for links to sources
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

vectors: setup ## write the test vectors again
	$(BIN)/python -m tests.vectors_corpus tests/vectors docs/spec/vectors.md

bench: setup ## measure what secure aggregation costs, and write docs/costs.md (minutes)
	$(BIN)/python -m docs.generate.costs docs

# As a user does it: pip, no constraints, no CrypTen. Torch alone, gigabytes, comes from what uv keeps since `make setup`.
ALONE := .wheel/bin
wheel: setup ## build the wheel, install it by pip in an environment of its own, and run there what needs no CrypTen (minutes)
	rm -rf build dist .wheel
	$(UV) build --quiet --out-dir dist || $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	rm -rf build *.egg-info
	$(PYTHON) -m venv .wheel
	$(UV) pip install --quiet --python $(ALONE)/python torch torchvision || true
	$(ALONE)/pip install --quiet dist/*.whl
	$(ALONE)/tacit --help > /dev/null
	$(ALONE)/tacit conformance vectors
	$(ALONE)/tacit simulate --clients 3 --rounds 1 --verify --out .wheel/run
	$(UV) pip install --quiet --python $(ALONE)/python "$$(echo dist/*.whl)[dev]" || $(ALONE)/pip install --quiet "$$(echo dist/*.whl)[dev]"
	! $(ALONE)/python -c "import crypten" 2> /dev/null
	$(ALONE)/python -m pytest -q -n $(WORKERS) $(SPREAD) --timeout $(LONGEST_TEST) -m "not exhaustive and not end_to_end and not real" \
	    tests/cli/test_without_crypten.py tests/cli/test_schema.py tests/secagg tests/protocol/core \
	    $(addprefix tests/protocol/sum/test_,dropouts.py graphs.py groups.py unmasking.py) tests/protocol/session/test_rounds.py

image: ## build the image and run compose.yaml; without a container engine, run their steps (minutes); TORCH_INDEX=... for torch
	rm -rf build
	$(PYTHON) tests/image.py $(if $(filter undefined,$(origin TORCH_INDEX)),,"$(TORCH_INDEX)")
	rm -rf build *.egg-info

# Pythons that pyproject.toml is resolved for, with wheels for everything; the suite runs on the first.
PYTHONS := 3.11 3.12 3.13
resolve: setup ## find packages, as wheels, for every Python of PYTHONS="3.11 3.12 3.13"; nothing is installed
	for version in $(PYTHONS); do \
	  $(UV) pip compile --quiet --upgrade --python-version $$version --only-binary :all: --no-header --no-annotate \
	      --extra dev --extra crypten --output-file .uv/$$version.txt pyproject.toml || exit 1; \
	  $(UV) pip compile --quiet --upgrade --python-version $$version --only-binary :all: --no-header --no-annotate \
	      --extra flower --output-file .uv/$$version-flower.txt pyproject.toml || exit 1; \
	  echo "$$version: $$(wc -l < .uv/$$version.txt) packages, torch $$(sed -n 's/^torch==//p' .uv/$$version.txt)"; \
	done

sign-versions: setup ## for a release: list the versions of the wire, and sign the list with KEY=... (SECURITY.md)
	$(BIN)/python -m docs.generate.versions docs/spec "$(KEY)"

clean: ## remove everything that can be made again
	rm -rf build dist site *.egg-info .wheel .venv .venv-flower .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis runs

# The project is installed as a wheel, not in place: what is tested is what a user gets.
$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES) pyproject.toml README.md LICENSE
	rm -rf build
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --reinstall --compile-bytecode . || \
	  $(BIN)/python -m pip install --quiet --no-deps --force-reinstall .
	rm -rf build *.egg-info
	touch $@

$(FLOWER)/.installed: $(FLOWER)/.dependencies $(SOURCES) README.md LICENSE
	rm -rf build
	$(UV) pip install --quiet --python $(FLOWER)/bin/python --no-deps --reinstall --compile-bytecode . || \
	  $(FLOWER)/bin/python -m pip install --quiet --no-deps --force-reinstall .
	rm -rf build *.egg-info
	touch $@

# What the tests need beside the extra: the simulation, which is Ray, and a data set.
$(FLOWER)/.dependencies: $(VENV)/.dependencies pyproject.toml constraints-flower.txt
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(UV) pip install --quiet --python $(FLOWER)/bin/python --compile-bytecode --constraint constraints-flower.txt \
	    -r pyproject.toml --extra flower "flwr[simulation]" pytest pytest-asyncio pytest-timeout hypothesis scikit-learn || \
	  $(FLOWER)/bin/python -m pip install --quiet --constraint constraints-flower.txt \
	    '.[flower]' "flwr[simulation]" pytest pytest-asyncio pytest-timeout hypothesis scikit-learn
	touch $@

# uv takes seconds; it does not read pip's settings, so where it cannot reach the registry pip does the same in minutes.
# Bytecode is compiled here, as pip does it: where Python may not write it later, every process would compile torch anew.
$(VENV)/.dependencies: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "Python cannot make environments here: install the system package python3-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(UV) || { $(PYTHON) -m venv .uv && .uv/bin/python -m pip install --quiet uv; } || true
	$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --constraint constraints.txt \
	    -r pyproject.toml --extra dev --extra crypten --extra site || \
	  $(BIN)/python -m pip install --quiet --constraint constraints.txt '.[dev,crypten,site]'
	$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --constraint constraints.txt --no-deps crypten || \
	  $(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps crypten
	touch $@
