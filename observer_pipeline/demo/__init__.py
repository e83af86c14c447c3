"""`observer demo`: the whole loop once, with real servers, a real Dagster instance and a real registry."""
