"""One Ridgeway round as a Flower app."""

from importlib.util import find_spec

if find_spec("ridgeway") is None:
    raise ImportError(
        "Ridgeway is not installed in the environment that runs this app, and is on no registry;"
        " in a checkout of Ridgeway run: pip install '.[simulation]'"
    )
