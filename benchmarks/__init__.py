"""Measurements of the product beside stock torchrun.  Nothing here is installed."""
