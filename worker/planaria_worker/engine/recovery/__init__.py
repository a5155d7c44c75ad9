"""What an engine does when the plan changes: fence, roll forward, staging, handover."""
