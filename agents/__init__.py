"""The elastic agent: supervision, links, teardown, guardian, worker start, and the seam to torch."""
