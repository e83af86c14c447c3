"""Stored RL training runs as telemetry: read a log, re-grade it, trace it, find what went wrong, ask."""
