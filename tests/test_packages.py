"""Images, compose file, units and chart: their commands are those of this Ridgeway, and they ask
for few rights.

What a tool must judge is judged where the tool is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ridgeway.client.deploy.supernode import _supernode
from ridgeway.common.base.records import read_settings
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.routing.experts_file import read_experts
from ridgeway.common.web.api_keys import add_key
from ridgeway.coordinator.deploy.authority import create_authority
from ridgeway.coordinator.deploy.coordinator_folder import restore
from ridgeway.serving.serve_command import ServeSettings
from tests.support.chart import ChartTemplates
from tests.support.commands import RIDGEWAY, check_words
from tests.support.fake_expert import Expert, well
from tests.support.serving import Process, chat, release_of
from tests.support.simulated_federation import found as found_federation
from tests.support.waiting import MAX_WAIT_S

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "packages"
TARGETS = ("coordinator", "client", "serve")
SYSTEMD = PACKAGES / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
HARDENED = {
    "ProtectSystem": "strict",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "PrivateTmp": "yes",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(tool) is None, reason=f"there is no {tool} on this machine"
    )


def stages() -> dict[str, list[str]]:
    """The instructions of each stage of the Containerfile, by its name."""
    text = (PACKAGES / "Containerfile").read_text().replace("\\\n", " ")
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.startswith("#")
    ]
    lines_of: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("FROM "):
            lines_of[line.split()[-1]] = stage_lines = [line]
        elif lines_of:
            stage_lines.append(line)
    return lines_of


def instruction(stage: str, word: str) -> str:
    """The one instruction of a stage that begins with a word."""
    [line] = [line for line in stages()[stage] if line.startswith(word)]
    return line


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((PACKAGES / "compose.yaml").read_text()))


@dataclass(frozen=True, slots=True)
class Mount:
    """What a container sees of a volume. part: of its folders, the one that is seen; all of it if
    empty.
    """

    source: str
    target: str
    read_only: bool
    part: str = ""


def mounts(service: Mapping[str, Any]) -> list[Mount]:
    """Those of a service of the compose file, in either of its spellings."""
    seen = []
    for mount in service["volumes"]:
        if isinstance(mount, str):
            source, target, *mode = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", mount).split(":")
            seen.append(Mount(source, target, mode == ["ro"]))
        else:
            part = mount.get("volume", {}).get("subpath", "")
            seen.append(
                Mount(
                    mount["source"],
                    mount["target"],
                    mount.get("read_only", False),
                    part,
                )
            )
    return seen


ALL_PARTS = {
    "address": "router.example.org:9443",
    "backup": {"claim": "backups"},
    "page": {"keysSecret": "page-keys"},
}
"""Of the coordinator's values, those with which the chart makes everything that it can."""


def chart_resources(
    name: str, coordinator: Mapping[str, Any] = ALL_PARTS, **serve: Any
) -> list[dict[str, Any]]:
    """What a template of the chart makes; serve: values of the service that routes."""
    given = {"coordinator": coordinator, "serve": {"enabled": True, **serve}}
    return ChartTemplates(PACKAGES / "chart", given).resources(name)


def unit_words(path: Path) -> list[str]:
    """The command of a unit, with its own variables in their places, and without others that its
    operator may set.
    """
    service = unit(path)["Service"]
    line = (
        service["ExecStart"]
        .replace("%%", "%")
        .replace("$(date -u +%Y-%m-%dT%H%M%S)", "now")
    )
    for pair in shlex.split(service["Environment"]):
        name, _, value = pair.partition("=")
        line = line.replace(f"${{{name}}}", shlex.quote(value)).replace(
            f"${name}", value
        )
    words = shlex.split(line)
    if words[:2] == ["/bin/sh", "-ec"]:
        words = shlex.split(words[2].removeprefix("exec "))
    assert words[0] == "/opt/ridgeway/bin/ridgeway"
    return [word for word in words[1:] if not word.startswith("$")]


def unit(path: Path) -> ConfigParser:
    parsed = ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(path)
    return parsed


def chart_pods(name: str, **serve: Any) -> list[dict[str, Any]]:
    specs = [resource.get("spec", {}) for resource in chart_resources(name, **serve)]
    specs = [
        resource["jobTemplate"]["spec"] if "jobTemplate" in resource else resource
        for resource in specs
    ]
    return [
        resource["template"]["spec"] for resource in specs if "template" in resource
    ]


def chart_settings(**serve: Any) -> dict[str, str]:
    """The files of settings that the chart gives to the service that routes."""
    made = chart_resources("serve.yaml", **serve)
    [settings] = [
        resource["data"] for resource in made if resource["kind"] == "ConfigMap"
    ]
    return dict(settings)


def chart_words() -> Iterator[list[str]]:
    for path in (PACKAGES / "chart" / "templates").glob("*.yaml"):
        for pod in chart_pods(path.name, extraArgs=["--workers", "2"]):
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                if "args" in container:
                    yield ["ridgeway", *container["args"]]
                else:
                    yield from scripts(container["command"][-1])


def scripts(text: str) -> Iterator[list[str]]:
    """Every `ridgeway …` of a shell script, up to the end of its command."""
    for line in text.splitlines():
        for words in re.findall(
            r"(?:^|\|\| |exec )\s*(ridgeway .*)$",
            line.strip().removeprefix("- ").partition(" # ")[0],
        ):
            yield shlex.split(words)


def commands() -> list[list[str]]:
    """Every command of Ridgeway that anything in the packages runs."""
    asked = [
        ["ridgeway", *json.loads(line[4:])]
        for lines in stages().values()
        for line in lines
        if line.startswith("CMD")
    ]
    for service in compose()["services"].values():
        words = service.get("command", [])
        asked += (
            scripts(words[0])
            if service.get("entrypoint")
            else [["ridgeway", *words]]
            if words
            else []
        )
    for path in UNITS:
        asked.append(["ridgeway", *unit_words(path)])
    return [*asked, *chart_words()]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_in_packages_is_one_of_this_ridgeway(words: list[str]) -> None:
    """Its options and arguments, too: a command that is renamed must be renamed there."""
    check_words(words)


# Images


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_nobody_special_and_says_how_it_is(target: str) -> None:
    """It has no compiler, no pip and no source; what is written goes to one volume."""
    [start, *own] = stages()[target]
    assert start == f"FROM runtime AS {target}"
    assert [line for line in own if line.startswith("COPY")] == [
        f"COPY --from={target}-build /opt/ridgeway /opt/ridgeway"
    ]
    assert any(line.startswith("HEALTHCHECK") for line in own)
    runtime = stages()["runtime"]
    assert "USER 10001:10001" in runtime and "VOLUME /data" in runtime
    build = instruction(f"{target}-build", "RUN")
    left_out = "pip uv" if target == "serve" else "pip"  # Flower needs uv
    assert build.count("-c requirements.lock") == 2 and build.endswith(
        f"pip uninstall --yes {left_out}"
    )


def test_a_client_is_healthy_if_and_only_if_there_is_a_supernode(
    tmp_path: Path,
) -> None:
    """The check itself, whose words name what it looks for, is none."""
    check = instruction("client", "HEALTHCHECK")
    shell, flag, code = json.loads(check.partition("CMD ")[2])
    processes = {
        "1": ["ridgeway", "client", "join", "/data/holder"],
        "20": [shell, flag, code],
        "21": shlex.split(code),
    }

    def healthy() -> bool:
        for number, words in processes.items():
            (tmp_path / number).mkdir(exist_ok=True)
            (tmp_path / number / "cmdline").write_bytes(
                b"".join(word.encode() + b"\0" for word in words)
            )
        return not subprocess.run(
            [shell, flag, code.replace("/proc", str(tmp_path))]
        ).returncode

    assert not healthy()
    processes["7"] = _supernode(tmp_path, "coordinator:9443", 9092)
    assert healthy()


def test_serve_needs_neither_flower_nor_torch() -> None:
    """What `serve` imports is what its image installs."""
    assert '"$(echo /dist/*.whl)[serve]"' in instruction("serve-build", "RUN")
    assert not any(
        "torch" in line or "gpu" in line
        for lines in stages().values()
        for line in lines
    )


def test_what_is_copied_into_an_image_is_there() -> None:
    lines = [*stages()["wheel"], *stages()["source"]]
    copied = [
        word
        for line in lines
        if line.startswith("COPY") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert copied and all((ROOT / word).exists() for word in copied)
    allowed = (PACKAGES / "Containerfile.dockerignore").read_text().splitlines()
    assert {f"!{word}" for word in copied} == {
        line for line in allowed if line.startswith("!")
    }


# Compose


def test_every_service_is_hardened() -> None:
    """A read-only root, no capability but the one that hands a volume over, no way to get
    others.
    """
    for name, service in compose()["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("cap_add", []) == (
            ["CHOWN"] if name == "papers-init" else []
        ), name
        assert service["build"]["target"] in TARGETS, name


def test_a_holders_text_and_keys_are_its_own() -> None:
    """No two holders share a volume; the service that routes only reads."""
    services = compose()["services"]
    for name in ("law", "code", "medicine"):
        sources = [mount.source for mount in mounts(services[name])]
        assert sources == [name, f"./corpora/{name}"]
        others = {
            mount.source
            for other, service in services.items()
            if name not in other
            for mount in mounts(service)
        }
        assert not {source for source in others if source.split("/")[-1] == name}
    assert set(compose()["volumes"]) == {
        "operator",
        "law",
        "code",
        "medicine",
        "papers",
        "keys",
    }


# What the service that routes can see


def is_releases_alone(seen: Mount) -> bool:
    """Whether a mount of the operator's folder shows its releases, to be read, and nothing beside
    them.
    """
    return (seen.target, seen.part, seen.read_only) == (
        "/releases",
        "coordinator/releases",
        True,
    )


def test_serve_of_the_compose_file_sees_the_releases_and_not_the_signing_key() -> None:
    """Of the operator's volume one folder, where the coordinator writes its releases; else its own
    keys alone.
    """
    services = compose()["services"]
    [operators] = [
        mount for mount in mounts(services["coordinator"]) if mount.source == "operator"
    ]
    assert operators == Mount("operator", "/data", False)
    assert "/data/coordinator" in services["coordinator-init"]["command"][0]
    seen = {mount.source: mount for mount in mounts(services["serve"])}
    assert (
        set(seen) == {"operator", "keys", "./serve"}
        and len(mounts(services["serve"])) == 3
    )
    assert seen["./serve"].read_only
    assert is_releases_alone(seen["operator"])
    assert services["serve"]["command"][:2] == ["serve", "/releases"]


def test_serve_of_the_chart_sees_the_releases_and_not_the_signing_key() -> None:
    """Of the coordinator's claim, which is mounted once, one folder."""
    [pod] = chart_pods("serve.yaml")
    [container] = pod["containers"]
    assert not pod.get("initContainers")
    claims = {
        volume["name"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    }
    assert "usage" not in claims
    [seen] = [mount for mount in container["volumeMounts"] if mount["name"] in claims]
    names = ("name", "mountPath", "readOnly", "subPath")
    assert is_releases_alone(Mount(*map(seen.get, names)))
    assert container["args"][:2] == ["serve", "/releases"]
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} == {
        "persistentVolumeClaim",
        "secret",
        "configMap",
        "emptyDir",
    }
    operator, _ = chart_pods("coordinator.yaml")
    assert operator["containers"][0]["args"][-1] == "/data/coordinator"


def test_serve_as_a_unit_cannot_see_the_coordinators_folder() -> None:
    """It is another user's, readable by that user alone, and hidden from the service besides."""
    service = unit(SYSTEMD / "ridgeway-serve.service")["Service"]
    operator = unit(SYSTEMD / "ridgeway-coordinator.service")["Service"]
    assert (
        HARDENED["StateDirectoryMode"] == "0700" and service["User"] != operator["User"]
    )
    hidden = service["InaccessiblePaths"].split()
    assert {"-/var/lib/ridgeway-coordinator", "-/var/lib/ridgeway-client"} <= set(
        hidden
    )
    assert (
        operator["ExecStart"].split()[-1].startswith("/var/lib/ridgeway-coordinator/")
    )
    assert not {"BindPaths", "BindReadOnlyPaths", "SupplementaryGroups", "Group"} & set(
        service
    )
    read = [
        word
        for word in unit_words(SYSTEMD / "ridgeway-serve.service")
        if word.startswith("/")
    ]
    assert all(word.startswith("/var/lib/ridgeway-serve/") for word in read)


# Units


def test_one_file_hardens_every_unit() -> None:
    """By its name, which systemd applies to all units whose names begin with `ridgeway-`; no unit
    takes it back.
    """
    common = unit(SYSTEMD / "ridgeway-.service.d" / "hardened.conf")["Service"]
    assert {name: common.get(name) for name in HARDENED} == HARDENED
    for path in UNITS:
        assert path.name.startswith("ridgeway-")
        assert not set(common) & set(unit(path)["Service"]), path.name


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_writes_to_its_own_folder_and_each_holder_is_a_user_of_its_own(
    path: Path,
) -> None:
    service = unit(path)["Service"]
    role = path.stem.partition("@")[0].split("-")[1]
    is_holder = role == "client"
    name = f"ridgeway-{role}/%i" if is_holder else f"ridgeway-{role}"
    assert (
        service["StateDirectory"] == name
        and service.get("CacheDirectory", name) == name
    )
    assert service["User"] == name.replace("/", "-")
    paths = [word for word in unit_words(path) if word.startswith("/var/")]
    paths += re.findall(r"RIDGEWAY_(?:STATE|CONFIG)=(\S+)", service["Environment"])
    assert paths and all(place.startswith(f"/var/lib/{name}/") for place in paths)
    assert path.name.endswith("@.service") == is_holder


def test_a_timer_starts_a_unit_that_is_there() -> None:
    timers = sorted(SYSTEMD.glob("*.timer"))
    assert len(timers) == 3
    for path in timers:
        assert unit(path.with_suffix(".service"))["Service"]["Type"] == "oneshot"
        assert unit(path)["Timer"]["OnCalendar"].endswith(" UTC")


@needs("systemd-analyze")
def test_systemd_understands_every_line_of_the_units(tmp_path: Path) -> None:
    """Verified as installed, with a command in place of Ridgeway's."""
    shutil.copytree(SYSTEMD, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("*.service"):
        path.write_text(
            path.read_text().replace("/opt/ridgeway/bin/ridgeway", "/bin/true")
        )
    names = [path for path in sorted(tmp_path.iterdir()) if path.is_file()]
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}

    def analyze(*words: str | Path) -> str:
        done = subprocess.run(
            ["systemd-analyze", *words],
            capture_output=True,
            text=True,
            timeout=MAX_WAIT_S,
            env=environment,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    analyze("verify", *names)
    for path in UNITS:
        judged = analyze(
            "security", "--offline=true", "--no-pager", path.name.replace("@", "@law")
        )
        [level] = re.findall(r"Overall exposure level for \S+: (\S+) OK", judged)
        assert float(level) < 2, path.name


# Chart


def test_every_value_and_part_that_the_chart_uses_is_there() -> None:
    values = yaml.safe_load((PACKAGES / "chart" / "values.yaml").read_text())
    templates = {
        path.name: path.read_text()
        for path in (PACKAGES / "chart" / "templates").iterdir()
    }
    whole = "".join(templates.values())
    used = set(re.findall(r"\.Values\.([\w.]+)", whole))
    assert len(used) > 10
    for name in used:
        value = values
        for word in name.split("."):
            value = value[word]
    assert set(re.findall(r'include "([\w.]+)"', whole)) == set(
        re.findall(r'define "([\w.]+)"', whole)
    )
    for name, text in templates.items():
        assert not re.search(r"\bkeys\.json\b", text), name
        opened = len(re.findall(r"\{\{-? (?:if|with|range|define) ", text))
        assert opened == len(re.findall(r"\{\{-? end ", text)), name


@needs("helm")
def test_helm_renders_the_chart() -> None:
    words = "--set coordinator.address=router.example.org:9443 --set serve.enabled=true".split()
    for command in (["lint", "--strict"], ["template", "ridgeway"]):
        subprocess.run(
            ["helm", *command, str(PACKAGES / "chart"), *words],
            check=True,
            timeout=MAX_WAIT_S,
        )


# What they start


@dataclass(frozen=True, slots=True)
class StartedServe:
    """How a package starts `serve`: its words, its environment, where its folders are for it, and
    what it may write.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    texts: Mapping[str, str]
    keys: str
    usage: str


EXPERTS = """
fallback = "generalist"
[experts.generalist]
base_url = "URL"
model = "generalist"
api_key_env = "GENERALIST_KEY"
"""


def started_by_chart() -> StartedServe:
    """The secret of keys is not writable; what they spend goes elsewhere."""
    values: dict[str, Any] = {
        "experts": EXPERTS,
        "extraArgs": ["--workers", "2"],
        "env": [GENERALIST_KEY],
    }
    settings = chart_settings(**values)
    [container] = chart_pods("serve.yaml", **values)[0]["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    texts = {f"/config/{name}": text for name, text in settings.items()}
    return StartedServe(
        container["args"], environment, texts, "/keys/keys.toml", "/usage/keys.usage"
    )


GENERALIST_KEY = {"name": "GENERALIST_KEY", "value": "sk-expert"}


def started_by_compose() -> StartedServe:
    service = compose()["services"]["serve"]
    settings = (PACKAGES / "serve" / "serve.toml").read_text()
    texts = {"/config/serve.toml": settings, "/config/experts.toml": EXPERTS}
    environment = {**service["environment"], "GENERALIST_KEY": "sk-expert"}
    assert service["env_file"] == [
        {"path": "${SERVE:-./serve}/experts.env", "required": False}
    ]
    return StartedServe(
        service["command"],
        environment,
        texts,
        "/data/keys.toml",
        "/data/keys.toml.usage",
    )


def started_by_systemd() -> StartedServe:
    path = SYSTEMD / "ridgeway-serve.service"
    service = unit(path)["Service"]
    assert service["EnvironmentFile"] == "-/etc/ridgeway-serve.env" and service[
        "ExecStart"
    ].endswith("$SERVE_OPTIONS")
    home = "/var/lib/ridgeway-serve"
    environment = dict(word.split("=", 1) for word in service["Environment"].split())
    environment |= {"GENERALIST_KEY": "sk-expert"}
    texts = {f"{home}/experts.toml": EXPERTS}
    return StartedServe(
        unit_words(path),
        environment,
        texts,
        f"{home}/keys.toml",
        f"{home}/keys.toml.usage",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "started",
    [started_by_chart, started_by_compose, started_by_systemd],
    ids=lambda how: how.__name__,
)
def test_what_a_package_starts_is_a_working_gateway(
    started: Callable[[], StartedServe], tmp_path: Path
) -> None:
    """Its own command, in folders of its own: a key with a budget gets an expert's answer, by the
    expert's own key.
    """
    how = started()

    def here(text: str) -> str:
        """A place in the container, below the test's folder."""
        return re.sub(r"^/(?=\w)", f"{tmp_path}/", text)

    releases = Path(here(how.words[1]))
    release_of(releases, ["law", "code"])
    with Expert(well("generalist")) as expert:
        for name, text in how.texts.items():
            path = Path(here(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            text = text.replace('usage = "/usage/', f'usage = "{tmp_path}/usage/')
            path.write_text(text.replace("URL", expert.url))
        usage = Path(here(how.usage))
        usage.parent.mkdir(parents=True, exist_ok=True)
        key, _ = add_key(Path(here(how.keys)), "shop", window="day", max_requests=5)
        port = free_port()
        words = [here(word) if word != "0.0.0.0" else "127.0.0.1" for word in how.words]
        environment = {name: here(value) for name, value in how.environment.items()}
        process = Process(
            [RIDGEWAY, *words, "--port", str(port)],
            f"http://127.0.0.1:{port}/readyz",
            tmp_path / "log",
            {"RIDGEWAY_CACHE": str(tmp_path / "cache"), **environment},
        )
        process.begin()
        try:
            process.until_ready()
            headers = {"authorization": f"Bearer {key}"}
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            answer = httpx.post(
                url,
                json=chat("auto", "hello"),
                headers=headers,
                trust_env=False,
                timeout=30.0,
            )
            assert (
                answer.status_code == 200
                and answer.headers["x-ridgeway-expert"] == "generalist"
            )
            assert answer.headers["x-ratelimit-remaining-requests"] == "4"
            assert expert.last().headers["authorization"] == "Bearer sk-expert"
            assert usage.exists()
            beside = {path.name for path in Path(here(how.keys)).parent.iterdir()}
            assert "keys.toml" in beside and (
                usage.parent == Path(here(how.keys)).parent or beside == {"keys.toml"}
            )
            assert process.stop() == 0
        finally:
            process.end()


def test_the_examples_of_experts_and_settings_can_be_used(tmp_path: Path) -> None:
    """Those beside the compose file, and those of the chart's values."""
    read_experts(PACKAGES / "serve" / "experts.toml")
    read_settings(PACKAGES / "serve" / "serve.toml", ServeSettings)
    for name, text in chart_settings().items():
        (tmp_path / name).write_text(text)
    read_experts(tmp_path / "experts.toml")
    assert read_settings(tmp_path / "serve.toml", ServeSettings).usage == Path(
        "/usage/keys.usage"
    )


def test_the_chart_makes_no_backup_or_page_that_was_not_asked_for() -> None:
    """A page runs in the coordinator's pod, and needs keys."""
    made = chart_resources("coordinator.yaml", {"address": "router.example.org:9443"})
    assert [resource["kind"] for resource in made] == [
        "Service",
        "PersistentVolumeClaim",
        "StatefulSet",
    ]
    pod = made[-1]["spec"]["template"]["spec"]
    assert [process["name"] for process in pod["containers"]] == ["coordinator"]
    [whole, backup] = chart_pods("coordinator.yaml")
    assert [process["name"] for process in whole["containers"]] == [
        "coordinator",
        "page",
    ]
    assert backup["restartPolicy"] == "Never"
    [page] = [
        container["args"]
        for container in whole["containers"]
        if container["name"] == "page"
    ]
    assert page[page.index("--keys") + 1] == "/keys/keys.toml"


@pytest.mark.slow
@pytest.mark.parametrize("by", ["systemd", "chart"])
def test_what_a_package_starts_every_night_is_a_backup(by: str, tmp_path: Path) -> None:
    """The very script of the unit, and of the CronJob, on a coordinator's folder; older ones than
    60 days go.
    """
    parties = found_federation(tmp_path / "parties")
    create_authority(parties.federation.link, [])
    if by == "chart":
        [container] = chart_pods("coordinator.yaml")[1]["containers"]
        script = container["command"][-1]
        folders = {
            "/data/coordinator": parties.federation.folder,
            "/backups": tmp_path / "backups",
        }
    else:
        service = unit(SYSTEMD / "ridgeway-coordinator-backup.service")["Service"]
        lines = [service[f"ExecStart{when}"] for when in ("Pre", "", "Post")]
        lines[1] = shlex.split(lines[1].replace("%%", "%"))[2].removeprefix("exec ")
        script = "\n".join(lines).replace("*.backup", "'*.backup'")
        home = "/var/lib/ridgeway-coordinator"
        folders = {
            f"{home}/coordinator": parties.federation.folder,
            f"{home}/backups": tmp_path / "backups",
        }
    for there, here in folders.items():
        script = script.replace(there, str(here))
    (tmp_path / "backups").mkdir()
    old = tmp_path / "backups" / "old.backup"
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    environment = {
        **os.environ,
        "PATH": f"{Path(RIDGEWAY).parent}:{os.environ['PATH']}",
    }
    script = script.replace("/opt/ridgeway/bin/ridgeway", "ridgeway")
    subprocess.run(
        ["/bin/sh", "-ec", script], check=True, env=environment, timeout=MAX_WAIT_S
    )
    [made] = (tmp_path / "backups").iterdir()
    restore(made, tmp_path / "restored")
