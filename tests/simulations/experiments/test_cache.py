"""The cache: work is done once for equal keys, and again for any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeway.simulations.experiments.plan import Cache

keys = st.dictionaries(st.text(max_size=4), st.integers() | st.booleans() | st.text(max_size=4), max_size=3)


def counting(made: list[int], value: Any = None) -> Callable[[], Any]:
    """Work that says how often it was done."""

    def make() -> Any:
        made.append(1)
        return len(made) if value is None else value

    return make


def test_equal_keys_are_worked_out_once(tmp_path: Path) -> None:
    """In this process and in the next; the order of a key's words does not matter."""
    made: list[int] = []
    first = Cache(tmp_path).kept("sums", {"a": 1, "b": 2}, counting(made))
    assert Cache(tmp_path).kept("sums", {"b": 2, "a": 1}, counting(made)) == first == 1
    assert made == [1]


@given(one=keys, other=keys)
def test_other_keys_are_worked_out_anew(tmp_path_factory: pytest.TempPathFactory, one: Any, other: Any) -> None:
    """Whatever differs, if only the kind of a value, gives work of its own."""
    made: list[int] = []
    cache = Cache(tmp_path_factory.mktemp("cache"))
    cache.kept("sums", one, counting(made))
    cache.kept("sums", other, counting(made))
    assert len(made) == (1 if repr(sorted(one.items())) == repr(sorted(other.items())) else 2)


def test_the_name_is_part_of_the_key(tmp_path: Path) -> None:
    """Two pieces of work that depend on the same do not take each other's results."""
    made: list[int] = []
    assert [Cache(tmp_path).kept(name, {}, counting(made)) for name in ("a", "b")] == [1, 2]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"digest": "0"}', b"\xff\xfe"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    """The work is done again, and the file is whole afterwards."""
    made: list[int] = []
    Cache(tmp_path).kept("sums", {}, counting(made))
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert [Cache(tmp_path).kept("sums", {}, counting(made)) for _ in range(2)] == [2, 2]


def test_a_fresh_cache_replaces_what_is_there_once(tmp_path: Path) -> None:
    """Work of an earlier run is not taken; that of this run is, and stays for the next."""
    made: list[int] = []
    Cache(tmp_path).kept("sums", {}, counting(made))
    fresh = Cache(tmp_path, fresh=True)
    assert [fresh.kept("sums", {}, counting(made)) for _ in range(2)] == [2, 2]
    assert Cache(tmp_path).kept("sums", {}, counting(made)) == 2


def test_what_is_given_is_what_json_makes_of_it(tmp_path: Path) -> None:
    """The first time as later, so that nobody depends on a tuple that will be a list."""
    values = [Cache(tmp_path).kept("sums", {}, counting([], {"pair": (1, 2)})) for _ in range(2)]
    assert values == [{"pair": [1, 2]}] * 2


def test_work_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """The next try begins anew."""
    with pytest.raises(ZeroDivisionError):
        Cache(tmp_path).kept("sums", {}, lambda: 1 // 0)
    assert list(tmp_path.iterdir()) == []
