"""The experiments: how well the system works, what it costs and where its limits are.

    Dataset(s) + ExperimentPlan ──▶ a part (accuracy, privacy, …) ──▶ ReportPart ──▶ PART.json ──▶
    report.md

Every part runs the same client and coordinator as a deployment. They are run from a checkout, with
`python -m ridgeway.simulations.experiments`, and are not installed.
"""
