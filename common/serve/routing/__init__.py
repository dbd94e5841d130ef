"""The routing API: the current release, micro-batches, drift and telemetry."""
