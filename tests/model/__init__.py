"""The membership protocol as a small model whose every reachable state is visited: `python -m tests.model --help`."""
