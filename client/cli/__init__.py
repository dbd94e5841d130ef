"""The commands of a domain holder."""
