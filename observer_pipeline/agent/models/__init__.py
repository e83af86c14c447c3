"""Models the agent can run on, behind ADK's `BaseLlm`: here the offline one; others are one module each."""
