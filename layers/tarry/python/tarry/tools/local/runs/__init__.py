"""Runs of one event in virtual time, and the report of a run in virtual or real time."""
