"""What a holder sees of its own part in a federation: a page that is only read."""
