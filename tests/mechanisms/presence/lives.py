"""What is counted of lives in the layers of `life_share.py`, written out."""

import numpy as np

from streamveil.mechanisms.presence.kept_share import LAYERS, Beyond


def life_layers(visits, events, in_life, rows, number):
    """Events of some visits by layers, and of those that go beyond: shape (number, 4).

    Args:
        visits: how many the user had before, up to 3 M at least, shape (n,).
        events: that bounding kept, shape (n,).
        in_life: slots M in which a user counts: one number, or of each, shape (n,).
        rows: where each is counted, below `number`, shape (n,).
        number: of rows.
    """
    most = np.asarray(in_life, np.int64)
    layer = np.minimum(visits // most, LAYERS)
    sums = np.zeros((number, LAYERS + 1), np.int64)
    first = (layer < LAYERS) | (visits == LAYERS * most)
    np.add.at(sums, (rows[first], layer[first]), events[first])
    return sums


def near_and_beyond(table):
    """What is asked for, of layers: shape (n, 2)."""
    return np.column_stack([table[:, 1:LAYERS].sum(axis=1), table[:, LAYERS]])


def beyond(layers):
    """The same of a slot as it is counted, in bin 0; layers has shape (K, 4)."""
    classes, above = np.nonzero(layers[:, 1:])
    return Beyond(above + 1, classes, np.zeros_like(classes), layers[classes, above + 1])
