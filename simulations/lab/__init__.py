"""The laboratory: experiments that show how well the system works, what it costs and where its limits are.

    Setting(s) + Plan ──▶ a part (accuracy, selectors, …) ──▶ Part: words, tables, plots ──▶ terminal, CSV, JSON, page

Every part runs the same client and coordinator as a deployment.
"""
