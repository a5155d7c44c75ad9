"""Copies, and changes of the plan."""

from unit.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = ()
