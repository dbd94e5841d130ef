"""Every error that Ridgeway raises on purpose.

    RidgewayError
    ├── InputError               a word on the command line or in a call that cannot be used
    ├── CorpusError              a corpus, a record or a field that cannot be read
    ├── EncoderError             an encoder that cannot be found, read or converted
    │   └── EncoderMismatch      two encoders where one was expected
    ├── StatisticsError          sums that cannot be used
    │   ├── ShapeMismatch        sums of different shapes
    │   ├── BoundExceeded        sums that could overflow
    │   └── BrokenIdentity       sums that no text can have produced
    ├── UnsolvableTotal          a total that has no router
    ├── FormatError              a file that is not what its name says: other kind, other version, damaged
    │   └── ReleaseError         a release that is incomplete, altered or signed by someone else
    └── IdentityError            a key that cannot be read or used

Each message says what was seen, the likely cause, and the next move, in one sentence.
"""


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


class FormatError(RidgewayError):
    """A file that is not what its name says: of another kind, of another version, or damaged."""


class ReleaseError(FormatError):
    """A release that is incomplete, altered or signed by someone else."""


class IdentityError(RidgewayError):
    """A key that cannot be read or used."""
