"""experts.toml: what may stand in it, what is said of what may not, and that keys stay secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.routing.experts_file import ExpertsFile
from ridgeway.common.routing.router import Router
from ridgeway.serving.expert_link import ExpertLink
from ridgeway.serving.telemetry import Metrics
from tests.support.serving import release_of

LAW = '[experts.law]\nbase_url = "http://127.0.0.1:9001/v1/"\nmodel = "law-7b"\n'
CODE = LAW.replace("law", "code")
SECRET = "sk-very-secret"


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Router:
    folder = tmp_path_factory.mktemp("release") / "release"
    release_of(folder, ("code", "law"))
    return Router.load(folder)


def written(folder: Path, text: str) -> Path:
    path = folder / "experts.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_short_file_is_enough(tmp_path: Path, router: Router) -> None:
    """An address and a model for each domain; the rest has its defaults."""
    file = ExpertsFile(written(tmp_path, LAW + CODE))
    file.check(router)
    law = file.experts.experts["law"]
    assert (law.base_url, law.model) == ("http://127.0.0.1:9001/v1", "law-7b")
    assert (law.quality, law.cost, law.max_concurrent) == (1.0, 0.0, 256)
    assert (law.connect_timeout, law.timeout, law.silence) == (3.0, 120.0, 30.0)
    assert law.max_tokens is None and file.experts.fallback is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "experts"),
        ("experts = {}", "experts"),
        ("mu = -1\n" + LAW, "mu"),
        ("mu = nan\n" + LAW, "mu"),
        ("gamma = 1\n" + LAW, "gamma"),
        ('fallback = "nobody"\n' + LAW, "'nobody' is not among the experts"),
        (LAW.replace("experts.law", "experts.auto"), "no expert may be called 'auto'"),
        (LAW.replace("model", "modell"), "law.model"),
        (LAW.replace("http:", "ftp:"), "begins with http"),
        (LAW.replace("127.0.0.1:9001", "me:secret@127.0.0.1"), "holds no password"),
        (LAW.replace("9001", "90010"), "law.base_url"),
        (LAW.replace("/v1/", "/v1?key=1"), "ends with its path"),
        (LAW + "timeout = 0", "law.timeout"),
        (LAW + 'timeout = "120"', "law.timeout"),
        (LAW + "max_concurrent = 0", "law.max_concurrent"),
        (LAW + "quality = -0.5", "law.quality"),
        (LAW + 'api_key_env = "NO_SUCH_VARIABLE"', "the variable NO_SUCH_VARIABLE"),
        (LAW + 'api_key_env = "A_KEY_WITH_A_BREAK"', "holds no key"),
        (
            LAW + 'addresses = ["http://127.0.0.1:1/v1"]',
            "a base_url, or a list of addresses",
        ),
        ('[experts.law]\nmodel = "m"\n', "a base_url, or a list of addresses"),
        (
            '[experts.law]\nmodel = "m"\naddresses = ["http://a/v1", "http://a/v1/"]',
            "duplicate address",
        ),
        (
            '[experts.law]\nmodel = "m"\naddresses = ["ftp://a/v1"]',
            "law.addresses.0: an address begins",
        ),
        ('embeddings = "nobody"\n' + LAW, "'nobody' is not an expert of OpenAI's API"),
        ('aliases = {law = "auto"}\n' + LAW, "'law' is the name of an expert already"),
        (
            'aliases = {gpt = "nobody"}\n' + LAW,
            "'nobody' is neither 'auto' nor an expert",
        ),
        (
            LAW + 'headers = {authorization = "x"}',
            "the gateway sets the header authorization itself",
        ),
        (LAW + 'headers = {"x y" = "x"}', "law.headers"),
        (LAW + 'headers = {x = "a\\nb: c"}', "law.headers"),
        (LAW + 'body = {model = "x"}', "the field model is the client's"),
        (
            LAW + 'api_key_file = "none.key"',
            "the file none.key is to hold an expert's key and cannot be read",
        ),
        (LAW + 'api_key_file = "a"\napi_key_env = "B"', "and not both"),
        (LAW + "apis = []", "law.apis"),
        (LAW + 'apis = "openai"', "law.apis"),
        (LAW + 'apis = ["gemini"]', "law.apis.0"),
        (LAW + 'api = "openai"', "law.api"),
        (
            'embeddings = "law"\n' + LAW + 'apis = ["anthropic"]',
            "'law' is not an expert of OpenAI's API",
        ),
        (LAW + 'health = "health"', "law.health: a path begins with a slash"),
        (LAW + 'fallbacks = ["nobody"]', "'nobody' is not another expert"),
        (LAW + 'fallbacks = ["law"]', "'law' is not another expert"),
        (LAW + 'fallbacks = [{expert = "law", on = ["rain"]}]', "law.fallbacks.0.on"),
        (LAW + "domains = {law = -1.0}", "law.domains"),
        ("mu = [", "is not valid TOML"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_sentence(
    tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown name, a missing one or a wrong value is refused at the start, and no secret is
    repeated.
    """
    monkeypatch.setenv("A_KEY_WITH_A_BREAK", f"{SECRET}\r\nx: y")
    with pytest.raises(InputError) as caught:
        ExpertsFile(written(tmp_path, text))
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fleet_can_be_written_down(tmp_path: Path, router: Router) -> None:
    """Addresses, domains and fallbacks are texts where that is enough, and tables where more is to
    be said.
    """
    text = """
    fallback = "large"
    [experts.large]
    model = "m"
    addresses = ["http://a/v1", "http://b/v1"]
    domains = ["law"]
    [experts.small]
    base_url = "http://c/v1"
    model = "m"
    domains = {law = 0.5, code = 0.25}
    fallbacks = ["large", {expert = "large", on = ["context", "refused"]}]
    """
    file = ExpertsFile(written(tmp_path, text))
    file.check(router)
    large, small = file.experts.experts.values()
    assert large.places == ("http://a/v1", "http://b/v1")
    assert file.experts.servers("law") == {"large": 1.0, "small": 0.5}
    assert file.experts.servers("code") == {"small": 0.25}
    assert file.experts.servers("medicine") == {"large": 1.0}
    first, second = file.experts.chain("small")
    assert first.expert == second.expert == "large"
    assert (first.on, second.on) == (("down", "busy"), ("context", "refused"))
    [peer] = file.experts.chain("large", ["large", "small"])
    assert small.fallbacks and peer.expert == "small"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """And what to do about it."""
    with pytest.raises(InputError, match=r"there is no .*experts\.toml; write one"):
        ExpertsFile(tmp_path / "experts.toml")


def test_every_domain_needs_an_expert_or_a_fallback(
    tmp_path: Path, router: Router
) -> None:
    """A release whose domains nobody serves is refused."""
    with pytest.raises(InputError, match="no expert for code; "):
        ExpertsFile(written(tmp_path, LAW)).check(router)
    ExpertsFile(written(tmp_path, 'fallback = "law"\n' + LAW)).check(router)


def test_a_release_that_abstains_needs_somebody_for_it(
    tmp_path: Path, router: Router
) -> None:
    """The fallback, or an expert of the name that the release gives."""
    abstains = router.with_confidence(threshold=0.9, fallback="generalist")
    with pytest.raises(InputError, match="can abstain"):
        ExpertsFile(written(tmp_path, LAW + CODE)).check(abstains)
    whole = LAW + CODE + LAW.replace("law", "generalist")
    ExpertsFile(written(tmp_path, whole)).check(abstains)


def test_keys_are_shown_nowhere(tmp_path: Path) -> None:
    """Neither the records nor the links print them."""
    path = written(tmp_path, LAW + 'api_key_env = "LAW_KEY"')
    file = ExpertsFile(path, environment={"LAW_KEY": SECRET})
    law = file.experts.experts["law"]
    link = ExpertLink("law", law, file.key("law"), Metrics(), lambda: 0.0)
    assert link.headers("openai", streamed=False)["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in f"{file!r} {file.experts!r} {link!r}"


def test_a_bad_file_leaves_the_old_experts(tmp_path: Path, router: Router) -> None:
    """It is refused once, and a good one is taken after it."""
    path = written(tmp_path, LAW + CODE)
    file = ExpertsFile(path)
    assert not file.refresh(router)
    written(tmp_path, LAW)
    with pytest.raises(InputError, match="no expert for code"):
        file.refresh(router)
    assert set(file.experts.experts) == {"law", "code"}
    assert not file.refresh(router)
    path.unlink()
    assert not file.refresh(router)
    written(tmp_path, "mu = 0.5\n" + LAW + CODE)
    assert file.refresh(router)
    assert file.experts.mu == 0.5
