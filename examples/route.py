"""Route prompts in Python.

    python examples/route.py release "How do I appeal a parking fine?" "hm"

prints the domain, how sure the router is, and the prompt:

    law            99.2 %  How do I appeal a parking fine?
    generalist     41.7 %  hm
"""

from __future__ import annotations

import sys

from ridgeway import Router


def main(release: str, *prompts: str) -> None:
    # Below a confidence of 60 % the router abstains and names the fallback. With
    # key="...", `load` also proves who signed the release.
    router = Router.load(release, threshold=0.6, fallback="generalist")
    for prompt, decision in zip(prompts, router.route_many(prompts), strict=True):
        confidence = 100 * decision.confidence
        print(f"{decision.domain:<12} {confidence:6.1f} %  {prompt}")


if __name__ == "__main__":
    main(*sys.argv[1:])
