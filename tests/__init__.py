"""Tests, and what they share; a real package so that `python -m tests.…` always means this folder."""
