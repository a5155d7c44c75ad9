"""Groups that outlive a generation, deaths that are noticed, and rolling forward."""

from unit.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = ()
