"""Up to how many workers a minibatch pays: steps measured, sums of gradients computed."""
