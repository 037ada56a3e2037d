"""neighbour.py - a healthy client that reads beside whatever a test does, and would notice."""

import oracle
from rawclient import Client, Stream


class Neighbour:
    """Reads a shuffled stream batch by batch, without end, and compares every byte with the files."""

    def __init__(self, feedd, dataset, source="train", batch_size=64):
        self.client = Client(feedd.socket, name="neighbour")
        self.stream = Stream(self.client, source, batch_size=batch_size, tail=oracle.PARTIAL, epochs=0)
        self.dataset = dataset
        self.steps = oracle.plan(dataset.count, batch_size, "partial", 1)
        self.taken = 0
        self.order = {}
        self.held = []

    def __enter__(self):
        self.read(3)
        return self

    def __exit__(self, *failure):
        if failure[0] is None:
            self.read(40)
        self.stream.close_fds()
        self.client.close()

    def read(self, batches):
        for _ in range(batches):
            epoch, step = divmod(self.taken, len(self.steps))
            expected = self.steps[step]
            batch = self.stream.next()
            assert (batch.seq, batch.epoch, batch.position) == (self.taken, epoch, expected.position)
            assert (batch.count, batch.valid, batch.flags) == (len(expected.positions), expected.valid, expected.flags)
            seen = self.order.setdefault(epoch, set())
            assert not seen.intersection(batch.indices)
            seen.update(batch.indices)
            assert batch.fields == self.dataset.fields(batch.indices)
            self.stream.release(batch)
            self.taken += 1
        return self.taken
