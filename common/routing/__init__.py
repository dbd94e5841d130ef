"""From a release to a decision: tables, selectors, the router and evaluation."""
