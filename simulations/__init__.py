"""The same client and coordinator on one machine: corpora, demo, benchmarks."""
