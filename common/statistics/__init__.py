"""The two exact sums a domain holder shares, and the file they are kept in."""
