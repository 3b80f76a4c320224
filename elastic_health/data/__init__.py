"""Position to sample: stream, windows, sampler, loader."""
