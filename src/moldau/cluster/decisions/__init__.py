"""Decisions of the controller, noun by noun: functions from an image and a request to records. Pure.

A decision never changes metadata. It returns records, and the controller replays them. (Decisions about
brokers also update :class:`.heartbeats.Heartbeats`, which are in no record.)

A request about several things decides them one after the other, each on the image that includes the earlier
decisions. So two topics of one request are treated like two requests.
"""
