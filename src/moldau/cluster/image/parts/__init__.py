"""The parts of the metadata image, one row each: which records change a part, and which records restore it.

Pure.
"""
