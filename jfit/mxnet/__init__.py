"""7 MXNet's stateful classes over the pure functions, without mathematics of their own: Module, FeedForward, Trainer, KVStore.

seam  which arrays the classes hand out    spelled   the same classes handing out NDArrays, for `jfit.mx`
box   an array that can be written         keys      random numbers from one seed
                                           errors    MXNet's errors
"""
