"""What an operator sees of a federation: the words of a round, and a page that is only read."""
