"""An independent oracle: the same job as one plain loop."""
