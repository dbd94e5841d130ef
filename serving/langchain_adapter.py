"""A LangChain Runnable: what it is asked goes to the model of the domain that a release decides.

from ridgeway.serving.langchain_adapter import RidgewayRouter

models = {"law": law_model, "generalist": large_model}
experts = RidgewayRouter("release/", models, fallback="generalist")
experts.invoke([HumanMessage("May I sublet my flat?")])
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import Input, Output

from ridgeway import Conversations, RidgewayError, Router


class RidgewayRouter(Runnable[Input, Output]):
    """Models behind a router; a conversation stays with its model.

    release:  the folder of a release, or a coordinator's: new releases are taken as they come.
    models:   by domain.
    fallback: the model where the router abstains, and where a domain has none.
    options:  of `Router.load`.
    """

    def __init__(
        self,
        release: str | Path,
        models: Mapping[str, Runnable[Input, Output]],
        *,
        fallback: str,
        **options: Any,
    ) -> None:
        if fallback not in models:
            raise RidgewayError(f"there is no model {fallback!r} to fall back on")
        router = Router.follow(release, fallback=fallback, **options)
        self._conversations = Conversations(router)
        self._models = dict(models)
        self._fallback = fallback

    def choose(self, asked: Input) -> str:
        """The name of the model that is asked: of a text, a list of messages, or a prompt."""
        value = asked.to_messages() if isinstance(asked, PromptValue) else asked
        if isinstance(value, str):
            value = [{"role": "user", "content": value}]
        domain = self._conversations.route(value).domain
        return domain if domain in self._models else self._fallback

    def invoke(
        self, input: Input, config: RunnableConfig | None = None, **options: Any
    ) -> Output:
        return self._models[self.choose(input)].invoke(input, config, **options)

    async def ainvoke(
        self, input: Input, config: RunnableConfig | None = None, **options: Any
    ) -> Output:
        return await self._models[self.choose(input)].ainvoke(input, config, **options)

    def stream(
        self, input: Input, config: RunnableConfig | None = None, **options: Any | None
    ) -> Iterator[Output]:
        yield from self._models[self.choose(input)].stream(input, config, **options)

    async def astream(
        self, input: Input, config: RunnableConfig | None = None, **options: Any | None
    ) -> AsyncIterator[Output]:
        chosen = self._models[self.choose(input)]
        async for part in chosen.astream(input, config, **options):
            yield part
