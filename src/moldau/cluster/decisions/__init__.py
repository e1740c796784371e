"""Decisions of the controller, noun by noun: pure functions from an image and a request to records.

A decision never changes metadata. It answers with the records that would, and the controller replays
them. (Broker decisions note in :class:`.heartbeats.Heartbeats` whom they heard from; no record has that.)

A request that touches several things decides on one after the other over the image that the earlier
decisions lead to, so that two topics of one request are judged as two requests would be.
"""
