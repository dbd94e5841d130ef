"""From a release to a decision: tables, selectors, the router, evaluation, and the sketch that drift is told by."""
