"""Gradient reduction: the all-reduce of every layer over the engines that hold it."""
