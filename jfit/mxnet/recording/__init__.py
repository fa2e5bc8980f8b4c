"""What `mx.autograd` records: operations on NDArrays become a graph, which is lowered when values or gradients are needed.

calls   an operation with fixed attributes: an operator, a function or a graph
steps   the tree of all that was recorded: what was recorded before is found again, with its programs
tape    what one `record()` block records: the steps with their arrays
plan    how to compute values or gradients of some results of a tape
"""
