"""Cluster metadata: the immutable image, the controller's decisions, and the drivers that run them.

Metadata change only by records. The controller decides (:mod:`.controller.controller`), the metadata log
commits (:class:`.metadata_log.MetadataLog`), and every node replays committed records into a
:class:`.image.image.MetadataImage` (:mod:`.publisher`).
"""
