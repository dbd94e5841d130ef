"""Tests with and without the compiled module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ridgeway.client.sums import accumulate
from ridgeway.common.base.machine import native
from ridgeway.common.routing import token_table
from ridgeway.common.text import sentence_encoder, unigram, word_sketch

needs_native = pytest.mark.skipif(
    native is None, reason="there is no compiled module here"
)


@contextmanager
def without_native() -> Iterator[None]:
    """While this lasts, the references in Python do all the work."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            accumulate,
            sentence_encoder,
            token_table,
            unigram,
            word_sketch,
        ):
            patch.setattr(module, "native", None)
        yield
