"""What moves the tensors of a group.

`choice` picks the transport: `tcp_link` and `tcp_all_reduce` (our own connections), `gloo`, `nccl`,
or one of them by way of `host_memory`. `backends` says what a group needs from a transport.
"""
