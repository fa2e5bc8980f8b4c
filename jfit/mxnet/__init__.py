"""7 stateful shells without mathematics: MXNet's Module family, FeedForward, Trainer, KVStore, over the pure functions."""
