"""The OpenAPI description against the running service: whatever it allows or forbids, the answer is
as described.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.fake_expert import Expert, well
from tests.support.serving import ROOT, Serving, release_of, write_experts

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
PROMISES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


@pytest.fixture(scope="module")
def experts() -> Iterator[dict[str, Expert]]:
    with Expert(well("code")) as code, Expert(well("law")) as law:
        yield {"code": code, "law": law}


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, experts: dict[str, Expert]
) -> Iterator[Serving]:
    """A service of two domains whose experts are well."""
    folder = tmp_path_factory.mktemp("described")
    release_of(folder / "release", ["code", "law"])
    urls = {name: expert.url for name, expert in experts.items()}
    file = write_experts(
        folder / "experts.toml", urls, every={"apis": ["openai", "anthropic"]}
    )
    with Serving(
        folder, folder / "release", "--experts", file, settings={"compare": "release"}
    ) as serving:
        yield serving


@pytest.mark.slow
def test_every_request_gets_an_answer_as_described(
    served: Serving, experts: dict[str, Expert], tmp_path: Path
) -> None:
    """No answer is a server's error; each has a status, a type and a shape that the description
    names.

    What is asked of the gateway reaches the experts, else little of it would be tried.
    """
    checks = f"{served.url}/openapi.json --checks {','.join(PROMISES)}"
    options = "--phases examples,coverage,fuzzing --max-examples 25 --seed 1 --no-color"
    hooks = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [SCHEMATHESIS, "run", *f"{checks} {options}".split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=hooks,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    for warning in ("Unresolvable references", "Missing test data"):
        assert warning not in done.stdout, done.stdout
    paths = Counter(asked.path for expert in experts.values() for asked in expert.asked)
    assert all(
        paths[f"/v1/{name}"] > 5
        for name in ("chat/completions", "completions", "embeddings")
    ), paths
    assert "Traceback" not in served.said


def test_every_endpoint_is_described(served: Serving) -> None:
    """The description names each address that applications and operators use, and each body's
    shape.
    """
    paths = httpx.get(f"{served.url}/openapi.json", trust_env=False).json()["paths"]
    routing = {"/v1/route", "/v1/releases/current", "/healthz", "/readyz", "/metrics"}
    gateway = {
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
    }
    assert routing | gateway <= set(paths)
    posts = [path["post"] for path in paths.values() if "post" in path]
    assert all("application/json" in post["requestBody"]["content"] for post in posts)
