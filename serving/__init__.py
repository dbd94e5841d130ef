"""Serving a release over HTTP: the routing API, the gateway to experts, the page, adapters."""
