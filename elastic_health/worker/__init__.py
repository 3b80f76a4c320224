"""What runs inside a worker: bootstrap, page, watchdog, worker link, public API."""
