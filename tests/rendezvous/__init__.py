"""Membership as scenario tables: the shipped machine on an in-memory store and a clock that the test moves."""
