"""The agent: one process per node that talks to the coordinator and starts and watches engines.

It never imports torch. `session.py` holds the stream to the coordinator, `engines.py` the engines
of the node, `agent.py` carries messages between the two.
"""
