"""API keys: shown once, kept as hashes, checked without telling how close a guess was, and gone
when revoked.
"""

from __future__ import annotations

import hmac
import logging
import math
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.web import api_keys as keys
from ridgeway.common.web.api_keys import KeyRing, add_key, read_keys, revoke_key
from tests.support.commands import Workshop


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_the_file_holds_no_key_and_is_its_owners_alone(file: Path) -> None:
    """Whoever reads the file cannot ask with what it holds, and nobody else reads it."""
    key, entry = add_key(file, "app", rate=2.5)
    content = file.read_text()
    assert key.startswith("rw-") and len(key) >= 43 and key[3:] not in content
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_keys(file) == [entry] and (entry.name, entry.rate) == ("app", 2.5)
    ring = KeyRing(file)
    assert ring.find(entry.sha256.encode()) is None
    assert ring.find(key.encode()) == entry


def test_keys_that_are_added_at_once_are_all_there(file: Path) -> None:
    """Two operators who add keys in the same moment lose none; each key has 256 random bits of its
    own.
    """
    with ThreadPoolExecutor(8) as crew:
        made = set(crew.map(lambda number: add_key(file, f"{number}")[0], range(24)))
    ring = KeyRing(file)
    assert len(ring) == len(made) == 24
    assert all(ring.find(key.encode()) for key in made)


def test_every_entry_is_compared_in_constant_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time a check takes tells neither whether nor where a key was found."""
    made = [add_key(file, f"app{number}")[0] for number in range(5)]
    ring, compared = KeyRing(file), 0

    def counting(one: Any, other: Any) -> bool:
        nonlocal compared
        compared += 1
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(
        keys, "hmac", type("Counting", (), {"compare_digest": staticmethod(counting)})
    )
    for presented in (made[0], made[-1], "rw-unknown", ""):
        compared = 0
        ring.find(presented.encode())
        assert compared == 5


def test_a_name_has_one_key(file: Path) -> None:
    """A second key of a name is refused, and the first one stays."""
    add_key(file, "app")
    before = file.read_bytes()
    with pytest.raises(InputError, match="a key named app exists"):
        add_key(file, "app")
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"name": name}
            for name in ("", "-app", "a b", "a\nb", 'a"b', "x" * 65, "größe")
        ),
        *({"rate": rate} for rate in (0.0, -1.0, math.inf, math.nan)),
    ],
)
def test_a_name_or_a_rate_that_cannot_be_is_refused(
    file: Path, options: dict[str, Any]
) -> None:
    """Names stand in tables and commands, so they are plain; a rate is above nothing, and can be
    written.
    """
    with pytest.raises(InputError, match=next(iter(options))):
        add_key(file, **{"name": "app", **options})
    assert not file.exists()


def test_a_revoked_key_is_gone(file: Path) -> None:
    """The others stay; an unknown name is an error that names the known ones."""
    (first, _), (second, _) = add_key(file, "first"), add_key(file, "second")
    revoke_key(file, "first")
    ring = KeyRing(file)
    assert ring.find(first.encode()) is None and ring.find(second.encode()) is not None
    with pytest.raises(InputError, match="the file has second"):
        revoke_key(file, "first")
    with pytest.raises(InputError, match="there is no keys file"):
        revoke_key(file.with_name("other.toml"), "first")


@pytest.mark.parametrize(
    "content", ["[[keys]]\n", "keys = 3\n", "[[keys\n", "\x00", 'other = "x"\n']
)
def test_a_broken_file_is_refused_and_the_old_keys_stay(
    file: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A slip of the pen locks nobody out; the log says so once, and not where the file is."""
    key, _ = add_key(file, "app")
    ring = KeyRing(file)
    file.write_text(content)
    with caplog.at_level(logging.WARNING):
        ring.watch()
        ring.watch()
    assert ring.find(key.encode()) is not None
    assert caplog.text.count("refused") == 1 and str(file.parent) not in caplog.text
    with pytest.raises(InputError):
        KeyRing(file)


def test_a_file_that_is_emptied_or_removed_lets_nobody_in(file: Path) -> None:
    """No keys is not the same as no need of keys."""
    key, _ = add_key(file, "app")
    content = file.read_bytes()
    for vanish in (lambda: file.write_bytes(b""), file.unlink):
        file.write_bytes(content)
        ring = KeyRing(file)
        assert ring.find(key.encode()) is not None
        vanish()
        ring.watch()
        assert len(ring) == 0 and ring.find(key.encode()) is None
    file.write_bytes(content)
    file.chmod(0o600)
    ring.watch()
    assert ring.find(key.encode()) is not None


def test_a_file_that_others_may_write_is_refused(file: Path) -> None:
    """Whoever may write it could give himself a key."""
    add_key(file, "app")
    file.chmod(0o666)
    with pytest.raises(InputError, match="chmod 600"):
        KeyRing(file)


def test_the_commands_show_a_key_once(tmp_path: Path) -> None:
    """`add` prints the key alone; what `list` prints is no use to anybody."""
    shop = Workshop(tmp_path)
    made = shop.do("keys add keys.toml app --rate 5")
    key = made.stdout.strip()
    assert made.stdout == f"{key}\n" and key.startswith("rw-")
    assert key not in made.stderr and "shown only now" in made.stderr
    other = shop.do("keys add keys.toml other --json").json
    assert set(other) == {"name", "key", "created", "rate", "scope"}
    ring = KeyRing(tmp_path / "keys.toml")
    assert ring.find(key.encode()) is not None
    listed = shop.do("keys list keys.toml").stdout
    assert "app" in listed and "other" in listed and key not in listed
    entries = shop.do("keys list keys.toml --json").json
    assert {entry["name"]: entry["rate"] for entry in entries} == {
        "app": 5.0,
        "other": None,
    }
    assert shop.do("keys revoke keys.toml app")
    assert shop.call("keys revoke keys.toml app").code == 2
    ring.watch()
    assert ring.find(key.encode()) is None
    assert ring.find(other["key"].encode()) is not None
