"""The operator's side of a round: asking holders, gathering, opening, the ledger, membership."""
