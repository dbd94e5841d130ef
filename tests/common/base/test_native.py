"""The compiled module: found, tried and turned off in one place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ridgeway.common.base import machine as native_module
from tests.support.native import needs_native

ASKED = "from ridgeway.common.base.machine import native, why_not; print(native is None, why_not)"


@needs_native
def test_the_variable_turns_the_module_off() -> None:
    """And what is missing has a reason."""
    for value, expected in (
        ("0", "True turned off by RIDGEWAY_NATIVE=0"),
        ("1", "False"),
        ("", "False"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", ASKED],
            env=os.environ | {native_module._NATIVE_SWITCH: value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


@needs_native
def test_a_module_with_other_results_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The vectors at import notice it."""
    assert native_module._agrees()
    monkeypatch.setattr(native_module, "_TABLE", [-3, 4, 10, 6])
    assert not native_module._agrees()
