"""Tests with and without the compiled module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ridgeway.common.base import machine
from ridgeway.common.base.machine import native

needs_native = pytest.mark.skipif(
    native is None, reason="there is no compiled module here"
)


@contextmanager
def without_native() -> Iterator[None]:
    """While this lasts, the references in Python do all the work, in all modules that were
    imported before.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            is_user = name.startswith("ridgeway.") and module is not machine
            if is_user and native and getattr(module, "native", None) is native:
                patch.setattr(module, "native", None)
        yield
