"""Run the repeated blocks of a graph, such as the time steps of an unrolled recurrent network, as one `lax.scan`.

`find.blocks` finds the blocks by graph analysis alone; `run.Roller` runs one block when the graph is traced.
"""
