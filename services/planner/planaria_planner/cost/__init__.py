"""What a layer, a stage and a pipeline cost: profiles, the cost model, the simulated schedule."""
