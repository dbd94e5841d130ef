"""serve.toml: what it may say, and what options override."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.serving.serve_command import (
    ServeSettings,
    serve_settings,
    write_template,
)
from tests.support.commands import Workshop


def written(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text)
    return path


def test_without_a_file_the_settings_are_the_defaults() -> None:
    assert serve_settings(None, port=None) == ServeSettings()


def test_options_override_the_file_and_its_paths_are_relative_to_its_folder(
    tmp_path: Path,
) -> None:
    """An option that is not given changes nothing."""
    path = written(
        tmp_path,
        'port = 9000\nmax_body = 8\nkeys = "keys.toml"\ntls_cert = "/etc/cert.pem"',
    )
    settings = serve_settings(path, port=9001, host=None, experts=Path("e.toml"))
    assert (settings.port, settings.host, settings.max_body) == (9001, "127.0.0.1", 8)
    assert (settings.keys, settings.tls_cert) == (
        tmp_path / "keys.toml",
        Path("/etc/cert.pem"),
    )
    assert settings.experts == Path("e.toml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_bdy = 4", "max_bdy: unknown setting"),
        ('port = "8080"', "port: "),
        ("port = 0", "port: "),
        ("workers = 0", "workers: "),
        ("rate = 0", "rate: "),
        ("rate = nan", "rate: "),
        ("max_body = 0", "max_body: "),
        ("max_body = 1e9", "max_body: "),
        ("max_held = 7", "max_held must be at least twice max_body, 8 MiB"),
        ("max_requests = 0", "max_requests: "),
        ("drain = -1", "drain: "),
        ("drift_share = 0.0", "drift_share: "),
        ("drift_share = 1.5", "drift_share: "),
        (
            'allow_host = ["https://a"]',
            r"allow_host.0: 'https://a' is not a plain host name",
        ),
        ('allow_origin = ["*"]', r"allow_origin.0: '\*' is not an origin"),
        ('log_format = "xml"', "log_format: "),
        ('sentences = "sometimes"', "sentences: "),
        ("port = [", "is not valid TOML"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_the_file_and_the_setting(
    text: str, sentence: str, tmp_path: Path
) -> None:
    """In one sentence, before anything is served."""
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=sentence) as refused:
        serve_settings(path)
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)


def test_the_template_holds_every_setting_and_its_default(tmp_path: Path) -> None:
    """As it is, it changes nothing; with the marks removed, it can be read."""
    path = tmp_path / "serve.toml"
    write_template(path)
    assert serve_settings(path) == ServeSettings()
    lines = [
        line.removeprefix("#")
        for line in path.read_text().splitlines()
        if not line.startswith("# ")
    ]
    given = tomllib.loads("\n".join(lines))
    assert set(given) == set(ServeSettings.model_fields)
    fields = ServeSettings.model_fields.items()
    assert all(
        given[name] == field.default for name, field in fields if not field.examples
    )
    path.write_text("\n".join(lines))
    serve_settings(path)
    with pytest.raises(InputError, match="exists already"):
        write_template(path)


def test_the_command_writes_the_template_and_ends(tmp_path: Path) -> None:
    """Without a release."""
    shop = Workshop(tmp_path)
    assert shop.call("serve", "--write-config", "serve.toml").code == 0
    assert (tmp_path / "serve.toml").is_file()
    done = shop.call("serve", "--write-config", "serve.toml")
    assert done.code == 2 and "exists already" in done.stderr


def test_the_command_line_has_at_most_ten_options() -> None:
    from typer import Typer
    from typer.main import get_command

    from ridgeway.serving.serve_command import serve

    app = Typer(add_completion=False)
    app.command()(serve)
    options = [
        parameter
        for parameter in get_command(app).params
        if parameter.param_type_name == "option"
    ]
    assert len([option for option in options if option.name != "help"]) <= 10
