"""Other people's gateways and frameworks, for real: they run in an environment of their own, `make
adapters-env`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.commands import output_of
from tests.support.fake_expert import Expert, Part, wait_for, well
from tests.support.in_process import DOMAINS
from tests.support.serving import prompt_for, release_of

ROOT = Path(__file__).resolve().parents[2]
PYTHON = (
    Path(os.environ.get("RIDGEWAY_ADAPTERS_ENV", ROOT / ".venv-adapters"))
    / "bin"
    / "python"
)
START_S = 180
LONG = {domain: 4 * prompt_for(domain, DOMAINS) for domain in DOMAINS}
GROUPS = ("code", "law", "generalist", "auto")
"""The domain `médecine` has no model group."""
HOOK = ROOT / "examples" / "litellm_hook.py"
CHAIN = """
import asyncio, json, sys
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompt_values import StringPromptValue
from langchain_core.runnables import RunnableLambda
from ridgeway.serving.langchain_adapter import RidgewayRouter

release, law, code = sys.argv[1:]
names = ("law", "code", "generalist")
models = {name: RunnableLambda(lambda asked, name=name: name) for name in names}
routed = RidgewayRouter(release, models, fallback="generalist", threshold=0.6)
chat = [HumanMessage(law), AIMessage("Yes."), HumanMessage("?")]
said = [routed.invoke(law), routed.invoke([HumanMessage(code)])]
said += [routed.invoke(StringPromptValue(text="?")), routed.invoke(chat)]
said += [asyncio.run(routed.ainvoke(code)), *routed.stream(law)]
said += routed.batch([law, code])
print(json.dumps([said, sorted({"litellm", "torch", "flwr"} & set(sys.modules))]))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    if not PYTHON.exists():
        pytest.skip(
            "there is no environment with LiteLLM and LangChain; `make adapters-env` makes it"
        )
    return PYTHON


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "release"
    release_of(folder, DOMAINS)
    return folder


def asked_by_litellm(name: str) -> Part:
    """LiteLLM looks for a list of models first."""
    answer = well(name)
    return lambda asked: answer(asked) if asked.body else asked.reply(404, b"{}")


@pytest.fixture(scope="module")
def proxy(
    python: Path, release: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """LiteLLM's proxy, with the hook."""
    folder = tmp_path_factory.mktemp("litellm")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with ExitStack() as stack:
        experts = {
            name: stack.enter_context(Expert(asked_by_litellm(name))) for name in GROUPS
        }
        models = [
            {
                "model_name": name,
                "litellm_params": {
                    "model": f"openai/{name}",
                    "api_base": expert.url,
                    "api_key": "none",
                },
            }
            for name, expert in experts.items()
        ]
        shutil.copy(HOOK, folder)
        settings = {
            "model_list": models,
            "litellm_settings": {"callbacks": f"{HOOK.stem}.hook"},
        }
        (folder / "config.yaml").write_text(json.dumps(settings))
        options = f"--config config.yaml --host 127.0.0.1 --port {port}".split()
        key = f"sk-{secrets.token_hex(32)}"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        environment |= {"LITELLM_MASTER_KEY": key, "RELEASE": str(release)}
        log = stack.enter_context((folder / "log").open("w"))
        process = subprocess.Popen(
            [python.with_name("litellm"), *options],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
        headers = {"Authorization": f"Bearer {key}"}
        client = stack.enter_context(
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60
            )
        )

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            try:
                return client.get("/health/readiness").status_code == 200
            except httpx.TransportError:
                return False

        try:
            wait_for(is_ready, "LiteLLM's proxy is ready", START_S)
            yield client
        finally:
            process.terminate()
            process.wait(60)


def ask(
    proxy: httpx.Client, *said: str, model: str = "auto", **more: Any
) -> tuple[str, str | None]:
    """Who answered, and the reason."""
    messages = [
        {"role": role, "content": text}
        for text in said
        for role in ("user", "assistant")
    ][:-1]
    answer = proxy.post(
        "/v1/chat/completions", json={"model": model, "messages": messages, **more}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"], answer.headers.get(
        "x-ridgeway-reason"
    )


@pytest.mark.slow
def test_litellm_sends_each_chat_to_the_group_of_its_domain(
    proxy: httpx.Client,
) -> None:
    """An abstention and a domain without a group go to the fallback, other names pass, and a chat
    stays.
    """
    assert ask(proxy, LONG["law"]) == ("law", "best")
    assert ask(proxy, LONG["code"]) == ("code", "best")
    assert ask(proxy, "?") == ("generalist", "low_confidence")
    assert ask(proxy, LONG["médecine"]) == ("generalist", "missing")
    assert ask(proxy, LONG["law"], "?") == ("law", "sticky")
    assert ask(proxy, LONG["law"], "?", LONG["code"]) == ("code", "best")
    assert ask(proxy, LONG["law"], model="code") == ("code", None)
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": LONG["law"]}],
        "stream": True,
    }
    with proxy.stream("POST", "/v1/chat/completions", json=body) as stream:
        assert stream.headers["x-ridgeway-expert"] == "law"
        assert b"[DONE]" in stream.read()


@pytest.mark.slow
def test_langchain_asks_the_model_of_the_domain(python: Path, release: Path) -> None:
    """Texts, messages and prompts; streamed, in batches and awaited; nothing else is imported for
    it.
    """
    command = (python, "-c", CHAIN, release, LONG["law"], LONG["code"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said, imported = json.loads(output_of(command, ROOT, env=environment))
    assert said == ["law", "code", "generalist", "law", "code", "law", "law", "code"]
    assert imported == []
