"""Routing over HTTP: the routing API, an OpenAI-compatible gateway, and the page that shows why."""
