"""Other projects that do a part of the same work: each runs in an environment of its own.

A script here is run by the interpreter of its environment, which has no other package of this
project's. It reads a request, JSON in a file, and prints its answer, JSON in one line.
"""
