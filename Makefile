# Everything runs in .venv, which packages/set_up.py makes from requirements.lock; each target sets it up first.
PYTHON ?= python3
SHELL := bash
BIN := .venv/bin

.PHONY: setup setup-demo lock check-lock check-package lint wheelhouse adapters-env peers demo test test-quick test-long test-versions check check-mutants same fuzz soak audit docs bench report figures reproducible sbom release-artifacts clean

setup:
	@$(PYTHON) packages/set_up.py test

# Without torch and what tests need.
setup-demo:
	@$(PYTHON) packages/set_up.py demo

# requirements.lock anew, for the systems and Pythons that [tool.uv] in pyproject.toml names. Versions stay where they
# can: make lock UPGRADE=--upgrade takes the newest ones.
COMPILE := $(BIN)/uv pip compile --quiet pyproject.toml --all-extras
COMPILE_LOCK := $(COMPILE) --group dev --no-emit-package torch --universal --python-version 3.11 --generate-hashes \
	--no-annotate --custom-compile-command 'make lock'

lock: setup-demo
	$(COMPILE_LOCK) $(UPGRADE) --output-file requirements.lock

# The lock is that of pyproject.toml, and wheels of its versions can be installed, with the registry's torch, wherever it
# says: fails where a pin does not fit another package's.
check-lock: setup-demo
	mkdir -p build && cp requirements.lock build/requirements.lock
	$(COMPILE_LOCK) --output-file build/requirements.lock >/dev/null
	grep -v '^ ' requirements.lock | diff - <(grep -v '^ ' build/requirements.lock)
	@$(MAKE) --no-print-directory -j 4 $(foreach platform,x86_64-manylinux_2_28 aarch64-manylinux_2_28 aarch64-apple-darwin,\
		$(foreach python,3.11 3.12 3.13 3.14,lock-on/$(platform)/$(python)))

lock-on/%:
	@echo "requirements.lock on $(*D) with Python $(*F)"
	@MACOSX_DEPLOYMENT_TARGET=14.0 $(COMPILE) --no-config --group torch --constraints requirements.lock \
		--only-binary :all: --python-platform $(*D) --python-version $(*F) >/dev/null

# All wheels of a holder, an operator and a service for machines of this kind without a network, in dist/wheels.
wheelhouse: setup-demo
	rm -rf dist/wheels && mkdir -p build
	$(COMPILE_RELEASE) --group encoders --group build --output-file build/wheelhouse.txt >/dev/null
	$(BIN)/python -m pip download --quiet --no-deps --only-binary :all: --dest dist/wheels --requirement build/wheelhouse.txt
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist/wheels .

# LiteLLM's proxy and LangChain, for tests/serving/test_adapters.py, which is skipped without it. LiteLLM wants a certifi that
# may not be out yet.
adapters-env: .venv-adapters/ready

.venv-adapters/ready: | setup-demo
	mkdir -p build && echo certifi >build/overrides.txt
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) .venv-adapters
	$(BIN)/uv pip install --quiet --python .venv-adapters --override build/overrides.txt 'litellm[proxy]==1.108.7' \
		langchain-core==1.8.0 .
	touch .venv-adapters/ready

# Other projects beside which `bench peers` measures, each in an environment of its own; one that does not install is left out.
PEERS := semantic-router lunar nvflare pfl
PEER_semantic-router := semantic-router==1.1.1
PEER_lunar := lunar-router==0.2.1 scikit-learn
PEER_nvflare := nvflare==2.9.0 tenseal==0.3.18
PEER_pfl := pfl==0.6.0

peers: setup adapters-env
	$(MAKE) --keep-going $(PEERS:%=.venv-peers-%/ready)

.venv-peers-%/ready:
	$(PYTHON) -m venv .venv-peers-$*
	.venv-peers-$*/bin/python -m pip install --quiet --disable-pip-version-check $(PEER_$*)
	touch $@

demo: setup-demo
	$(BIN)/python -m ridgeway.simulations.demo

# In as many processes as there are cores, four at most, and one more, since some tests wait. A file's tests stay
# together, and the files that tests/conftest.py names begin first.
# Bytecode is kept, also where the environment asks for none: hundreds of processes would compile the same files again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: setup
	$(PYTEST)

# Minutes less: no deployments, no browser, no torch, fewer seeds, parameters and examples.
test-quick: setup
	$(PYTEST) --quick

# Every seed of the tests that invent their course of events, every example of laws: minutes more, before a release.
test-long: setup
	$(PYTEST) --long

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The metadata and the files of sdist and wheel.
check-package: setup
	rm -rf build/package
	$(BIN)/python -m build --outdir build/package .
	$(BIN)/twine check --strict build/package/*
	$(BIN)/check-wheel-contents build/package
	$(BIN)/validate-pyproject pyproject.toml

check: lint check-lock check-package
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m tests.support.vulnerabilities
	$(PYTEST)
	RIDGEWAY_NATIVE=0 $(PYTEST) --quick tests/laws tests/vectors

# The quick tests with the lowest or the newest versions that pyproject.toml allows: of a whole federation, within what
# Flower allows, or of all but Flower, which no service needs. The newest Flower, which wants a certifi that may not be out
# yet, runs deployments, too.
SET ?= federation-newest
TESTS_federation := tests
TESTS_serving := tests/common tests/serving tests/laws tests/vectors --ignore tests/common/deploy --ignore tests/laws/test_messages_laws.py
DEPLOYMENTS := tests/end_to_end/test_deployment.py tests/end_to_end/test_private_deployment.py
family = $(firstword $(subst -, ,$(SET)))
UV_VERSIONS = $(BIN)/uv pip install --quiet --python .venv-versions --override build/overrides.txt --excludes build/excludes.txt

test-versions: setup-demo
	mkdir -p build && echo certifi >build/overrides.txt
	echo $(if $(filter serving,$(family)),flwr) >build/excludes.txt
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) .venv-versions
	$(UV_VERSIONS) $(if $(filter %-lowest,$(SET)),--resolution lowest-direct) --config-settings editable_mode=compat \
		--editable '.[client,coordinator,serve,telemetry]'
	$(UV_VERSIONS) --group test --group encoders
	.venv-versions/bin/python -m pytest -n auto --dist loadfile --quick $(TESTS_$(family))
	$(if $(filter federation-newest,$(SET)),.venv-versions/bin/python -m pytest $(DEPLOYMENTS))

# Removes each check on the holder's side in turn: some test must notice. Takes a quarter of an hour or more.
check-mutants: setup
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.support.mutants

# Digests of what a change that only tidies leaves as it is: about a minute.
same: setup
	$(BIN)/python -m tests.support.same

# The compiled module under sanitizers, for a minute: needs gcc.
fuzz: setup
	$(BIN)/python -m tests.support.fuzz_tokenizer

# The gateway under new releases, killed workers, failing experts and hostile clients: ten minutes. SOAK_S changes that.
SOAK_S ?= 600
soak: setup
	$(BIN)/python -m tests.support.soak $(SOAK_S)

audit: setup
	$(BIN)/python -m tests.support.vulnerabilities

# The documentation as a site, at http://127.0.0.1:8000/; `make check` builds it with --strict.
docs: setup
	$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

bench: setup
	$(BIN)/python -m ridgeway.simulations.bench all --out report

report: setup
	$(BIN)/python -m ridgeway.simulations.experiments --out report

# The tables of the docs, out of docs/figures. An experiment or a benchmark writes these with --out docs/figures.
figures: setup
	$(BIN)/python -m ridgeway.simulations.experiments.report

# Sdist and wheel into dist/, built twice: the same bytes, or it fails.
reproducible: setup
	$(BIN)/python -m tests.support.release_files dist

# Every package of a holder, an operator and a service into dist/, as in requirements.lock: with hashes, for pip, and as
# an SBOM.
COMPILE_RELEASE := $(BIN)/uv pip compile --quiet pyproject.toml --extra client --extra coordinator --extra serve \
	--constraints requirements.lock --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

sbom: setup-demo .venv-release/ready
	mkdir -p dist
	$(COMPILE_RELEASE) --output-file dist/requirements.txt >/dev/null
	.venv-release/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-file dist/sbom.cdx.json dist/requirements.txt

.venv-release/ready:
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	touch .venv-release/ready

# All files of a release, with their hashes and a signature: make release-artifacts SIGNING_KEY=key.pem
release-artifacts: reproducible sbom
	cd dist && sha256sum *.tar.gz *.whl requirements.txt sbom.cdx.json > SHA256SUMS
	openssl pkeyutl -sign -rawin -inkey '$(SIGNING_KEY)' -in dist/SHA256SUMS -out dist/SHA256SUMS.sig

clean:
	rm -rf .venv .venv-adapters .venv-peers-* .venv-release .venv-versions build dist *.egg-info demo-run report
