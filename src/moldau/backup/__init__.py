"""The cluster's own logs in the object store, and the restore of a cluster from them.

Records of diskless topics are stored in objects. Only the logs of the cluster show which object contains
which offset. :mod:`moldau.backup.cut_format` describes the stored objects.
"""
