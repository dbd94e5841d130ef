"""Document-level differential privacy: what a document adds, the noise, what it costs, and what is
public.
"""
