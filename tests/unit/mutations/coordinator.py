"""What the coordinator stores, tells and knows again."""

from unit.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = ()
