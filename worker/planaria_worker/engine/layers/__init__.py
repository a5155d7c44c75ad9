"""The layers an engine holds: storage, copies between peers, initial state, checkpoints, export."""
