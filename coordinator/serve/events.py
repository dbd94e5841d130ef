"""A stream of server-sent events, handed on as it comes, in whole events only.

A piece is passed the moment it arrives unless it ends in the middle of an event; then that end waits for its rest, so
that an error can be put behind what a client has already got. Nothing is parsed.

Knows bytes. Knows nothing of HTTP but that a stream can break off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from coordinator.serve.failures import BROKEN_OFF, GARBAGE, SILENT, Kind

LONGEST = 4 * 1024 * 1024
"""No event has more bytes."""
STARTS = (b"data:", b"event:", b":", b"id:", b"retry:", b"\n", b"\r", b"\xef\xbb\xbf")
"""How a line of such a stream can begin. The last is a byte order mark."""
ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
DONE = b"[DONE]"


class BadStream(Exception):
    def __init__(self, kind: Kind) -> None:
        super().__init__(kind.outcome)
        self.kind = kind


class Events:
    """The events of one answer.

    silence: no piece for so many seconds, and the stream has failed.
    framed:  whether HTTP itself says where the answer ends; if not, only its last word can say so.
    """

    __slots__ = ("_framed", "_held", "_last", "_read", "_silence")

    def __init__(self, read: Callable[[], Awaitable[bytes]], silence: float, framed: bool) -> None:
        self._read = read
        self._silence = silence
        self._framed = framed
        self._held = b""
        self._last = b""

    async def next(self) -> bytes:
        """Some whole events; nothing at the end."""
        while True:
            piece = await self._piece()
            if not piece:
                return self._end()
            whole = self._whole(piece)
            if whole:
                if not whole.startswith(STARTS):
                    raise BadStream(GARBAGE)
                self._last = whole
                return whole

    async def _piece(self) -> bytes:
        try:
            async with asyncio.timeout(self._silence):
                return await self._read()
        except TimeoutError:
            raise BadStream(SILENT) from None
        except Exception:  # whatever a connection raises, it is broken
            raise BadStream(BROKEN_OFF) from None

    def _whole(self, piece: bytes) -> bytes:
        """Everything up to the last event's end; the rest is held."""
        if not self._held and piece.endswith(ENDS):
            return piece
        piece = self._held + piece
        if len(piece) > LONGEST or not _may_begin(piece):
            raise BadStream(GARBAGE)
        cut = max(piece.rfind(end) + len(end) if end in piece else 0 for end in ENDS)
        self._held = piece[cut:]
        return piece[:cut]

    def _end(self) -> bytes:
        rest, self._held = self._held, b""
        if rest:  # the last event's blank line may be missing
            self._last = rest
        if not self._last:
            raise BadStream(GARBAGE)
        if not self._framed and DONE not in self._last[-64:]:
            raise BadStream(BROKEN_OFF)
        return rest


def _may_begin(piece: bytes) -> bool:
    return piece.startswith(STARTS) or any(start.startswith(piece) for start in STARTS)
