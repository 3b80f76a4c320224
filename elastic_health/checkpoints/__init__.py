"""Write, verify, commit, restore and retain checkpoints."""
