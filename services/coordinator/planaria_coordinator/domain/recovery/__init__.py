"""Changing a job's plan: the state machine from the loss to the next plan in force."""
