"""elastic-health: a torchrun plugin. The worker API is loaded lazily by name."""
