"""The kinds of coordinators of a broker: the entry of a kind, and the registry of all entries.

A subsystem builds the entry of its kind and contributes it. The code in this folder does not depend on any
kind.
"""
