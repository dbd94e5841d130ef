"""The routing API: the current release, the threads that route, drift and telemetry."""
