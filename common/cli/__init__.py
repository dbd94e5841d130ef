"""Options, tables and progress bars of the command line, and the commands of anyone with a
release.
"""
