"""Makes the folders of a new node from a cut (``moldau storage restore``).

The steps: :mod:`.saved_state` reads a cut, :mod:`.metadata` rewrites the metadata for the new node,
:mod:`.folders` writes the logs, and :mod:`.recommit` commits the batches of newer WAL objects again.
"""
