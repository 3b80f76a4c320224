"""The demo's parts: nodes and faults, what is watched, and how it is told."""
