"""Jev and every other server that speaks System One, as a decision model.

Imports no torch and, before a model is made, not the SDK either. `wire` says what is sent and what counts as an answer,
`limits` how fast, `cost` what it will cost, `cache` what need not be asked again; `client` puts them together and
`scorer` makes a `Scorer` of it.
"""
