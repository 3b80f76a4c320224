"""Incident, history and budget in; one action and its reason out."""
