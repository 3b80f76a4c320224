"""Is the run making progress? Pages, bounds, the judge."""
