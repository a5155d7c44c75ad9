"""Layers from engine to engine, in one version, over TCP.

server = CopyServer(host, engine_id=..., job_secret=..., source=source, failpoints=...)
fetcher = LayerFetcher(job_secret=..., failpoints=...)
layers = fetcher.fetch_all({3: ["10.0.0.1:4000", "10.0.0.2:4000"]}, version=17)
fetcher.interrupt()                             # from any thread
"""

from planaria_worker.engine.copying.client import CopyInterrupted, FetchedLayer, LayerFetcher
from planaria_worker.engine.copying.server import CopyServer
from planaria_worker.engine.copying.source import LayerSource

__all__ = ["CopyInterrupted", "CopyServer", "FetchedLayer", "LayerFetcher", "LayerSource"]
