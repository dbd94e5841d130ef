"""Every error that Ridgeway raises on purpose: a tree whose root is RidgewayError.

Each message says what was seen, the likely cause, and the next move, in one sentence.
"""

import errno
from collections.abc import Iterable


class RidgewayError(Exception):
    """The root of the tree: its text may be shown to the user as it is."""


class InputError(RidgewayError):
    """A word on the command line or in a call that cannot be used."""


class CorpusError(RidgewayError):
    """A corpus, a record or a field that cannot be read."""


class EncoderError(RidgewayError):
    """An encoder that cannot be found, read or converted."""


class EncoderMismatch(EncoderError):
    """Two encoders where one was expected."""


class StatisticsError(RidgewayError):
    """Sums that cannot be used."""


class ShapeMismatch(StatisticsError):
    """Sums of different shapes."""


class BoundExceeded(StatisticsError):
    """Sums that could overflow 64 bits."""


class BrokenIdentity(StatisticsError):
    """Sums that no text can have produced."""


class UnsolvableTotal(RidgewayError):
    """A total that has no router."""


class DeviceError(RidgewayError):
    """A GPU that cannot do what is asked."""


class FormatError(RidgewayError):
    """A file that is not what its name says: of another kind, of another version, or damaged."""


class ReleaseError(FormatError):
    """A release that is incomplete, altered or signed by someone else."""


class IdentityError(RidgewayError):
    """A key that cannot be read or used."""


class JournalError(RidgewayError):
    """A journal or ledger that was altered, or cannot be read."""


class DiskFull(JournalError):
    """A journal that finds no room on its disk."""


class MaskingError(RidgewayError):
    """A secret that cannot be shared or put together."""


class Refused(RidgewayError):
    """A message that one side will not answer or accept. Code and reason may cross the network:
    they hold no path, no text and no number that is not public.

    keys: the holders that it is about, where it is about some.
    """

    def __init__(self, code: str, reason: str, keys: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.keys = tuple(sorted(keys))


class RoundFailed(RidgewayError):
    """A round that ended without a release."""


class BundleError(RidgewayError):
    """Code that cannot be made into a bundle."""


class CertificateError(RidgewayError):
    """A certificate or its key that cannot be made, read or used."""


class ProcessError(RidgewayError):
    """A process that does not start, does not stay, or is already there."""


class LinkError(RidgewayError):
    """A SuperLink that refuses what was asked."""


class LinkDown(LinkError):
    """A SuperLink that does not answer now; the supervising process may be starting it again."""


class NodeError(RidgewayError):
    """A SuperNode that cannot run as it is set up."""


class NodeRefused(NodeError):
    """A coordinator that does not let a SuperNode in, or is not who it should be."""


def first_line(error: object) -> str:
    """What an error of another library says, in one line; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_disk_full(error: BaseException) -> bool:
    """Whether something could not be written for want of room."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, DiskFull) or (
        isinstance(error, OSError) and error.errno in codes
    )
