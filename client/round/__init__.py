"""A holder's side of a round: its policy, its answers, its masked sessions and its own log."""
