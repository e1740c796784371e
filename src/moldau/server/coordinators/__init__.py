"""The kinds of coordinators of a broker: the form of a kind's entry, and the registry that joins the entries.

A subsystem builds the entry of its kind and contributes it. Nothing in this folder names a kind.
"""
