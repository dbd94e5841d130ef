"""LiteLLM's proxy, with a model `auto` that is routed.

Put this file beside LiteLLM's config.yaml, which has a model group for each domain:

    model_list:
      - {model_name: law, litellm_params: {model: openai/law-7b, api_base: "http://10.0.0.7:8000/v1"}}
      - {model_name: generalist, litellm_params: {model: openai/large}}
      - {model_name: auto, litellm_params: {model: openai/large}}
    litellm_settings: {callbacks: litellm_hook.hook}

    RELEASE=release litellm --config config.yaml

A chat for `auto` is then answered by the model group of its domain, and the answer has
the headers

    x-ridgeway-expert: law
    x-ridgeway-reason: best
"""

from __future__ import annotations

import os

from ridgeway.serving.litellm_adapter import RidgewayHook

hook = RidgewayHook(os.environ["RELEASE"], fallback="generalist", threshold=0.6)
