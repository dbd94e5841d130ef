"""The experiments: how well the system works, what it costs and where its limits are.

    Dataset(s) + ExperimentPlan ──▶ a part (accuracy, selectors, …) ──▶ ReportPart ──▶ terminal,
    CSV, JSON, page

Every part runs the same client and coordinator as a deployment.
"""
