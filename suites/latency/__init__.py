"""Benchmarks for asv: operators, models, the harness's own throughput, start-up. They draw trends; they gate nothing.

asv imports this folder as the package `latency`, out of the working tree, while opgauge is that of each commit in
turn: only what all of them have is used, and the key cases come from the tree's own gates.toml. No benchmark has a
`setup` hook, since asv then times each call by itself; each has a `number`, since a slow first call would make it 1.
"""
