"""The layers an engine holds: storage, copies to and from peers, initial state, checkpoints, export."""
