"""A deterministic simulator: the shipped membership modules on a seeded virtual clock, with faults as data."""
