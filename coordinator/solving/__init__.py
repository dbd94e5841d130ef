"""From statistics to a release: totals, the ridge equation, candidates, publishing."""
