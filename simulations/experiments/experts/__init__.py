"""Experts: small language models fine-tuned one a domain, and what routers are worth that send
prompts to them.

    texts ──▶ train an expert a domain ──▶ score every test document under every expert ──▶
    Likelihoods
    Likelihoods + the routers' decisions ──▶ perplexity, and the paper's normalised performance ──▶
    ReportPart

The first line needs few packages, so that `python -m ridgeway.simulations.experiments` does it on
another machine.
"""
