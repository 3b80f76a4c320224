"""Membership over etcd: store protocol, keys, generations, fence, and the handler that torchrun loads."""
