"""What everything else stands on: errors, settings, checked records, files, keys, journals, threads
and devices.
"""
