"""What stands in for a runner and for sources: state driven by hand, elements made before."""

import apache_beam as beam
from apache_beam.utils.timestamp import MIN_TIMESTAMP

from streamveil.engine.messages import Kind, Message
from streamveil.transforms.in_time import InTime


class Cell:
    """A value or a timer, as a runner would keep it."""

    def __init__(self):
        self.value, self.bag, self.time = None, [], None

    def read(self):
        return self.value

    def write(self, value):
        self.value = value

    def clear(self):
        self.value = None

    def set(self, time):
        self.time = time


class Bag(Cell):
    """A bag of elements."""

    def read(self):
        return list(self.bag)

    def add(self, item):
        self.bag.append(item)

    def clear(self):
        self.bag = []


class Hosted:
    """A step of a stream in its host, with the state of one key."""

    def __init__(self, step, key):
        self.fn, self.key = InTime(step), key
        self.waiting, self.changes = Bag(), Bag()
        self.progress, self.state, self.taken, self.timer = Cell(), Cell(), Cell(), Cell()

    @property
    def cells(self):
        return self.waiting, self.changes, self.progress, self.state, self.taken, self.timer

    def take(self, message):
        """Let a message come; what is put out."""
        return list(self.fn.process((self.key, message), MIN_TIMESTAMP, *self.cells))

    def fire(self):
        """Let the timer ring, and forget that it was set; what is put out."""
        self.timer.time = None
        return list(self.fn._close(self.key, *self.cells))


def whole(messages):
    """Messages to a release stage of a bounded input, with the word that these are all."""
    counted = Kind.COUNTS, Kind.KEPT, Kind.CHOICE, Kind.BOUNDS
    sent = [message for message in messages if message.kind in counted]
    return [*messages, Message(Kind.WHOLE, payload=b"%d" % len(sent))]


class Given(beam.PTransform):
    """A PCollection that is there already, as if made from the pipeline."""

    def __init__(self, elements):
        super().__init__()
        self._elements = elements

    def expand(self, pipeline):
        return self._elements | beam.Map(lambda element: element)


class WithChanges(beam.PTransform):
    """The transform over events, with changes that are all known."""

    def __init__(self, transform, *batches):
        super().__init__()
        self.transform, self.batches = transform, batches

    def expand(self, events):
        changes = events.pipeline | "Changes" >> beam.Create(self.batches, reshuffle=False)
        return (events, changes) | "Histograms" >> self.transform
