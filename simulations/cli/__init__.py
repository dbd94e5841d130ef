"""The commands of a researcher or newcomer."""
