"""Copies layers between engines over TCP: once in one version, or continuously, step by step.

    client      fetch layers from peers, once
    server      serve this engine's layers to such clients and followers
    follower    follow layers of peers: the whole layer first, then every committed step
    stream      what the server sends to one follower
    feed        passes committed sums from the training thread to these streams
    chunks      how tensors are cut up on a connection
    wire        the messages, as bytes
    connections open connections that any thread can end

server = CopyServer(host, engine_id=..., job_secret=..., source=source, feed=feed, failpoints=...)
fetcher = LayerFetcher(job_secret=..., failpoints=...)
layers = fetcher.fetch_all({3: ["10.0.0.1:4000", "10.0.0.2:4000"]}, version=17)
fetcher.interrupt()                             # from any thread
follower = LayerFollower(receiver, job_secret=..., failpoints=...)
follower.start({3: ["10.0.0.1:4000"]})
"""

from planaria_worker.engine.layers.copy.client import CopyInterrupted, LayerFetcher
from planaria_worker.engine.layers.copy.feed import CommitFeed, CommittedSum
from planaria_worker.engine.layers.copy.follower import LayerFollower
from planaria_worker.engine.layers.copy.server import CopyServer
from planaria_worker.engine.layers.copy.stream import LayerSource

__all__ = [
    "CommitFeed",
    "CommittedSum",
    "CopyInterrupted",
    "CopyServer",
    "LayerFetcher",
    "LayerFollower",
    "LayerSource",
]
