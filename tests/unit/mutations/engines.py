"""The start of an engine, and what it reports."""

from unit.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = ()
