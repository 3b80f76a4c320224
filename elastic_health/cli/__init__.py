"""The command line `elastic-health`."""
