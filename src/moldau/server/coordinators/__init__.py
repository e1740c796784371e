"""The kinds of coordinators of a broker. There is an entry for each kind, and a registry of all entries.

A subsystem makes the entry of its kind and contributes this entry. The code in this folder does not depend on
any kind.
"""
